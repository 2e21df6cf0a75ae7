"""Hostile records: each gets a finding, none stops the run, and its neighbours are judged as if it were not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from health_records import record, write_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.health import evaluate_line, run_health_checks
from nemo_gym.health.lines import NAMED_REPEATS

DEEP = b"[" * 200_000 + b"]" * 200_000


def with_trajectory(**changes: object) -> bytes:
    value = record()
    value["ng_trajectory"] |= changes
    return json.dumps(value).encode()


def twice(key: str, value: object) -> bytes:
    return b'{"' + key.encode() + b'": ' + json.dumps(value).encode() + b", " + json.dumps(record()).encode()[1:]


def inserted(after: bytes, new: bytes) -> bytes:
    """Return a record with `new` after the first place where `after` stands."""
    line = json.dumps(record()).encode()
    assert after in line
    return line.replace(after, after + new, 1)


HOSTILE = {
    "deep nesting": b'{"_ng_task_index": 1, "extra": ' + DEEP + b"}",
    "deep nesting in a payload": json.dumps(record()).encode().replace(b'{"input": "hi"}', DEEP),
    "deep nesting in a trajectory": b'{"ng_trajectory": {"gaps": ' + DEEP + b"}}",
    "ten megabytes of text": b"x" * 10_000_000,
    "ten megabytes that are cut": b'{"response": {"output": "' + b"y" * 10_000_000,
    "a cut line": json.dumps(record()).encode()[:900],
    "a run of NULs": b"\0" * 5_000,
    "NULs after a record": json.dumps(record()).encode() + b"\0\0",
    "a list": b"[1, 2]",
    "a number": b"1e999",
    "not UTF-8": b'{"reward": "\xff\xfe"}',
    "a task twice": twice("_ng_task_index", 7),
    "a trajectory twice": twice("ng_trajectory", record()["ng_trajectory"]),
    "a trajectory taken back": json.dumps(record()).encode()[:-1] + b', "ng_trajectory": null}',
    "a reward twice": twice("reward", 0.0),
    "identity of wrong types": json.dumps(record(task={"a": 1}, rollout=[2.5])).encode(),
    "a trajectory that is a text": json.dumps(record(ng_trajectory="gone")).encode(),
    **{
        f"{key} of a wrong type": with_trajectory(**{key: odd})
        for key in (
            "task_id",
            "rollout_id",
            "schema_version",
            "invocations",
            "turns",
            "model_calls",
            "tool_calls",
            "gaps",
        )
        for odd in ({"a": [1]},)
    },
    "calls that are numbers": with_trajectory(model_calls=[1, 2, 3]),
    "a turn of another task": with_trajectory(turns=[{**record()["ng_trajectory"]["turns"][0], "task_id": "other"}]),
    "an unknown field": with_trajectory(surprise=True),
    "a later version": with_trajectory(schema_version="9.0"),
    **{
        f"a key twice in {place}": inserted(old, new)
        for place, old, new in (
            ("a call", b'"request": ', b'0, "request": '),
            ("a call's facts", b'"status_code": 200', b', "status_code": 500'),
            ("a call's counts", b'"prompt_tokens": 10', b', "prompt_tokens": 10'),
            ("a request", b'"request": {', b'"a": 1, "\\u0061": 1, '),
            ("a usage", b'"usage": {', b'"input_tokens": 1, '),
            ("a turn", b'"turn_no": 1', b', "turn_no": 2'),
            ("what no reader knows", b'{"', b'x": [[{"y": {"": 1, "": 1}}]], "'),
        )
    },
    "a surrogate that stands alone, and more": b'{"_ng_task_index": "\\ud800"} x',
    "UTF-16": json.dumps(record()).encode("utf-16-le"),
    "several lines that end with CR": b"\r".join([json.dumps(record()).encode()] * 2),
    "a comma too many": json.dumps(record()).encode()[:-1] + b",}",
    "NaN": json.dumps(record(reward=float("nan"))).encode(),
    "an infinite time": inserted(b'"started_at": ', b'1e999, "x": '),
    "a number of 5000 digits": b'{"reward": ' + b"9" * 5000 + b"}x",
}

HARMLESS = {
    "CRLF": json.dumps(record()).encode() + b"\r",
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(record()).encode(),
    "white space around it": b" \t" + json.dumps(record()).encode() + b"  ",
    "line separators in a text": json.dumps(record(note="a\u2028b\u2029c\x85d"), ensure_ascii=False).encode(),
    "a surrogate that stands alone": json.dumps(record(note="\ud800", _ng_rollout_id="a\udc00")).encode(),
    "numbers of any size": json.dumps(record()).encode()[:-1] + b', "a": -0, "b": 1e999, "c": ' + b"9" * 4000 + b"}",
    "a line nested by hundreds": json.dumps(record()).encode()[:-1] + b', "a": ' + b"[" * 500 + b"]" * 500 + b"}",
    "the same key in two objects": json.dumps(record(a={"x": [{"y": 1}, {"y": 1}]}, b={"x": {"a": 1}})).encode(),
}


@pytest.mark.parametrize("workers", [1, 2])
def test_each_hostile_record_has_a_finding_and_its_neighbours_are_healthy(tmp_path: Path, workers: int) -> None:
    lines: list[object] = []
    for number, line in enumerate(HOSTILE.values()):
        lines += [line, record(1000 + number)]
    path = write_lines(tmp_path / "rollouts.jsonl", *lines)
    result = run_health_checks(path, workers=workers, min_bytes_per_worker=1 << 20)
    verdicts = {digest.line: digest for digest in result.rollouts}
    assert len(verdicts) == len(lines)
    for number, name in enumerate(HOSTILE):
        bad, good = verdicts[2 * number + 1], verdicts[2 * number + 2]
        assert {finding.check for finding in bad.findings} - {"rollout_duplicate_identity"} == {"record_unreadable"}, (
            name
        )
        assert (good.verdict, good.task_index) == ("healthy", 1000 + number), name


def test_odd_and_harmless_lines_are_no_findings(tmp_path: Path) -> None:
    for name, line in HARMLESS.items():
        result = run_health_checks(write_lines(tmp_path / "rollouts.jsonl", line, b"", b"  \r"))
        assert [(digest.verdict, digest.findings) for digest in result.rollouts] == [("healthy", ())], name


@pytest.mark.parametrize("workers", [1, 2])
def test_counts_beyond_64_bits_are_not_counts(tmp_path: Path, workers: int) -> None:
    """Nothing can have counted them; what a finding says of such a number is the number, from any worker."""
    huge = 10**40
    usage = record(0, response={"usage": {"input_tokens": huge, "output_tokens": 4}})
    calls = json.loads(with_trajectory().decode()) | {"_ng_task_index": 1}
    for call in calls["ng_trajectory"]["model_calls"]:
        call["token_stats"]["prompt_tokens"] = huge
        call["response_metadata"]["status_code"] = huge
    path = write_lines(tmp_path / "rollouts.jsonl", usage, calls)
    result = run_health_checks(path, workers=workers, min_bytes_per_worker=1)
    first, second = result.rollouts
    assert (first.verdict, first.unobserved) == ("unobserved", ("rollout_token_count_mismatch",))
    assert [finding.detail["status"] for finding in second.findings] == [huge]
    assert result.run["stats"]["tokens"] == {
        "prompt": 20,
        "completion": 8,
        "capture_prompt": 20,
        "capture_completion": 8,
    }


def test_a_record_that_repeats_thousands_of_keys_has_a_bounded_number_of_findings(tmp_path: Path) -> None:
    pairs = b", ".join(b'"%s%d": 1' % (b"k" * 1000, number % 2000) for number in range(4000))
    result = run_health_checks(write_lines(tmp_path / "rollouts.jsonl", b"{" + pairs + b"}"))
    reasons = [finding.detail["reason"] for finding in result.rollouts[0].findings]
    assert len(reasons) == NAMED_REPEATS + 1
    assert reasons[-1] == f"{2000 - NAMED_REPEATS} other keys occur more than once"
    assert max(map(len, reasons)) < 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


def dumped(value: object, repeat: int, seen: list[str], path: str = "extra") -> str:
    """Return `value` as JSON that says its key number `repeat`, in document order, twice."""
    if isinstance(value, list):
        items = [dumped(item, repeat, seen, f"{path}[{at}]") for at, item in enumerate(value)]
        return f"[{','.join(items)}]"
    if not isinstance(value, dict):
        return json.dumps(value)
    members = []
    for key, item in value.items():
        seen.append(f"{path}.{key}")
        again = len(seen) - 1 == repeat
        members.append(f"{json.dumps(key)}:{dumped(item, repeat, seen, f'{path}.{key}')}")
        if again:
            members.append(f"{json.dumps(key)} : 0")
    return f"{{{','.join(members)}}}"


@settings(max_examples=150, deadline=None)
@given(JSON, st.integers(0, 12))
def test_a_repeated_key_is_found_wherever_it_stands_and_nowhere_else(value: object, repeat: int) -> None:
    seen: list[str] = []
    line = f'{{"extra":{dumped(value, repeat, seen)}}}'
    reasons = [finding.detail["reason"] for finding in evaluate_line(line.encode()).findings]
    assert reasons == ([f"key `{seen[repeat]}` occurs twice"] if repeat < len(seen) else [])
