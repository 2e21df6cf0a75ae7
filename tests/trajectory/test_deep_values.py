"""What can be read can be written, however deeply it is nested."""

from __future__ import annotations

import math

import pytest

from nemo_gym.records.codec import Encoded, decode, encode, encode_line, encode_pretty


@pytest.mark.parametrize("depth", [200, 255, 600, 900])
@pytest.mark.parametrize("leaf", ["1", '"\\ud800"', "1000000000000000000000", "{}", "[]", '{"a": [], "b": "c,d"}'])
@pytest.mark.parametrize(
    ("opening", "closing"), [("[", "]"), ('{"\\u00e9": ', "}"), ('[0, {"a": 1, "b": ', "}, null]")]
)
def test_a_value_of_any_depth_is_written_as_it_was(depth: int, leaf: str, opening: str, closing: str) -> None:
    times = depth // (opening.count("[") + opening.count("{"))
    value = decode(opening * times + leaf + closing * times)
    for written in (encode(value), encode_line(value), encode_pretty(value)):
        assert repr(decode(written)) == repr(value)


def test_what_is_no_json_is_null_and_what_is_encoded_is_decoded_at_any_depth() -> None:
    value = [math.nan, Encoded(b'{"a": "\\ud800"}'), {1: None}, (2,)]
    nested = value
    for _ in range(900):
        nested = [nested]
    assert encode(nested) == b"[" * 900 + b'[null,{"a":"\\ud800"},{"1":null},[2]]' + b"]" * 900
