"""One codec for every JSON object this package writes or reads.

Encoding never loses a record for a value: what fast JSON refuses (lone surrogates, integers beyond 64 bits, NaN, deep
nesting) goes through a slower path. A lone surrogate stays the escape that it was; NaN and infinity become null, since
they are not JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec
import orjson

JsonValue: TypeAlias = Any
"""A user's payload: any JSON value. The one place where `Any` is meant."""

JsonObject: TypeAlias = dict[str, JsonValue]

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY
_ANY_KEYS = _OPTIONS | orjson.OPT_NON_STR_KEYS
"""Takes keys that are no text too, and almost twice as long for those that are."""
_SHORT = 4096
_decode_exactly = msgspec.json.Decoder().decode


Encoded: TypeAlias = orjson.Fragment
"""A JSON value that is kept as the bytes it came in, where nobody looks inside: encoding puts them out unchanged."""


def same_json(one: JsonValue, other: JsonValue) -> bool:
    """Return whether two values, encoded or not, are equal."""
    if type(one) is Encoded and type(other) is Encoded and orjson.dumps(one) == orjson.dumps(other):
        return True
    return bool(decoded(one) == decoded(other))


def decoded(value: JsonValue) -> JsonValue:
    """Return the plain value of an encoded one, and any other value as it is."""
    if type(value) is not Encoded:
        return value
    return decode(orjson.dumps(value))


def encode(value: JsonValue) -> bytes:
    """Return `value` as compact UTF-8 JSON without a newline."""
    try:
        return _fitting(orjson.dumps(value, default=str, option=_OPTIONS))
    except (TypeError, ValueError):  # orjson.JSONEncodeError is a TypeError
        return _encode_slowly(value)


def encode_line(value: JsonValue) -> bytes:
    """Return `value` as one newline-terminated JSON line."""
    try:
        return _fitting(orjson.dumps(value, default=str, option=_OPTIONS | orjson.OPT_APPEND_NEWLINE))
    except (TypeError, ValueError):
        return _encode_slowly(value) + b"\n"


def encode_pretty(value: JsonValue) -> bytes:
    """Return `value` as JSON indented by two spaces, newline-terminated."""
    try:
        return orjson.dumps(value, default=str, option=_ANY_KEYS | orjson.OPT_INDENT_2) + b"\n"
    except (TypeError, ValueError):
        try:
            text = json.dumps(_finite(value), ensure_ascii=True, indent=2, default=str, allow_nan=False)
        except RecursionError:  # what is nested that deeply is read by no eye
            return encode_line(value)
        return text.encode() + b"\n"


def _fitting(text: bytes) -> bytes:
    """Return short text in memory of its own size: the encoder leaves each in 4 KiB, which adds up where many wait."""
    return text if len(text) > _SHORT else bytes(memoryview(text))


def _encode_slowly(value: JsonValue) -> bytes:
    try:
        return orjson.dumps(value, default=str, option=_ANY_KEYS)
    except (TypeError, ValueError):
        try:
            return json.dumps(
                _finite(value), ensure_ascii=True, separators=(",", ":"), default=str, allow_nan=False
            ).encode()
        except RecursionError:
            return b"".join(_pieces(value))


def decode(data: bytes | str) -> JsonValue:
    """Return the JSON value in `data`; raises ValueError with a short reason.

    Integers of any size stay exact. Accepts what other writers produced and fast JSON refuses: lone surrogate escapes.
    NaN and infinity are refused.
    """
    try:
        return _decode_exactly(data)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _decode_slowly(data)


def _decode_slowly(data: bytes | str) -> JsonValue:
    try:
        return orjson.loads(data)  # takes what is nested a little deeper
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(data, parse_constant=_refuse_constant, parse_int=integer_of)
        except RecursionError:
            raise ValueError("nested too deeply") from error
        except UnicodeDecodeError:
            raise ValueError("not UTF-8") from error
        except ValueError:
            raise ValueError(str(error)) from error


def decode_object(data: bytes | str) -> JsonObject:
    """Return the JSON object in `data`; raises ValueError when it is not JSON or not an object."""
    value = decode(data)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is needed, this is a {type(value).__name__}")
    return value


def decode_non_finite(data: bytes) -> JsonObject:
    """Return the JSON object in `data` with NaN and infinity, which other writers let through, as null.

    Raises ValueError when it is no such object.
    """
    try:
        value: JsonValue = json.loads(data, parse_constant=_null, parse_int=integer_of)
    except RecursionError:
        value = decode(data)  # takes what whoever wrote it had the stack for
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is needed, this is a {type(value).__name__}")
    return value


def _null(_name: str) -> None:
    return None


def integer_of(text: str) -> int | float:
    """Return a JSON integer; one of thousands of digits, which no reader converts, is infinity, as `1e999` is."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"`{name}` is not JSON")


def _pieces(value: JsonValue) -> Iterator[bytes]:
    """Yield the JSON of a value that is nested deeper than the stack allows, piece by piece."""
    pending: list[tuple[bool, JsonValue]] = [(False, value)]  # (whether it is JSON already, value), the next one last
    while pending:
        ready, item = pending.pop()
        if ready:
            yield item
            continue
        if type(item) is Encoded:
            item = decoded(item)
        if isinstance(item, dict):
            opening, closing = b"{", b"}"
            parts = [(encode(str(key)) + b":", child) for key, child in item.items()]
        elif isinstance(item, (list, tuple)):
            opening, closing = b"[", b"]"
            parts = [(b"", child) for child in item]
        else:
            yield encode(item)
            continue
        yield opening
        pending.append((True, closing))
        for at in range(len(parts) - 1, -1, -1):
            name, child = parts[at]
            pending += [(False, child), (True, b"," + name if at else name)]


def _finite(value: JsonValue) -> JsonValue:
    if type(value) is Encoded:
        return _finite(decoded(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
