"""What every stream accumulator shares: bytes to events, the end of the stream, in-stream errors, problems.

An accumulator is fed the body as it passes and holds the reassembled object so far plus one pending event, never the
stream. It is pure: no I/O, no clock. Nothing that a stream contains makes it raise (rule 11): an event that cannot be
handled is skipped and named among the problems.
"""

from __future__ import annotations

import json
from typing import ClassVar, Literal, TypeAlias

import msgspec

from nemo_gym.dialects.decoding import ContentDecoder, content_decoder
from nemo_gym.dialects.errors import UPSTREAM_ERROR, error_category_for_error
from nemo_gym.dialects.merge import Assembly, pieces_of, repair_surrogates
from nemo_gym.dialects.names import Dialect
from nemo_gym.dialects.repeats import LONGEST_TEXT, Repeat
from nemo_gym.dialects.sse import SENTINEL, SseEvent, SseParser
from nemo_gym.dialects.tool_calls import has_unparsable_arguments
from nemo_gym.records.codec import JsonObject, JsonValue, integer_of

Terminal: TypeAlias = Literal["complete", "clean_eof", "incomplete", "error"]

EVENT_FAULTS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What code may raise on a shape nobody thought of; memory and interpreter errors are not among them."""

_decode = msgspec.json.Decoder().decode
"""Exact for integers of any size, which other fast readers round."""

_TRIES = 8
"""How many events in a row are looked at for a repeat that never comes, before a stream is left alone."""

IDLE_KINDS = frozenset({"ping", "keepalive", "keep-alive", "heartbeat"})


class StreamAccumulator:
    """Reassembles one streamed answer; subclasses know one dialect each.

    Attributes, all valid at any time: `terminal` (how the stream ended, None while or if it did not),
    `terminal_category` (the error category that the stream's own end gives, or None), `stream_error` (the in-stream
    error object), `terminal_seen`, `first_event_seen`, `first_content_seen` (a delta that carries content),
    `unknown_events` (events and deltas of unknown kind), `terminal_offset`.
    """

    dialect: ClassVar[Dialect]

    def __init__(self, *, content_encoding: str | None = None) -> None:
        self.terminal: Terminal | None = None
        self.terminal_category: str | None = None
        self.stream_error: JsonObject | None = None
        self.terminal_seen = False
        self.first_event_seen = False
        self.first_content_seen = False
        self.unknown_events = 0
        self.terminal_offset: int | None = None
        """Offset, in the chunk just fed, of the first byte of the block that ended the answer: 0 when that block
        began in an earlier chunk and for encoded streams, None when the chunk ended nothing."""

        self._assembly = Assembly()
        self._decoder = content_decoder(content_encoding)
        self._parser = SseParser()
        self._problem_counts: dict[str, int] = {}
        self._ended_here = False
        self._finished = False
        self._cut = False
        self._strings_need_repair = False
        self._response: JsonObject | None = None
        self._plain_delta: tuple[str, list[str] | JsonObject, str] | None = None  # of the event just taken
        self._repeat: Repeat | None = None
        self._tries = 0
        self._note_decoder()

    # What a caller uses

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body as they were sent."""
        self.terminal_offset = None
        repeat = self._repeat
        if repeat is not None and type(chunk) is bytes and repeat.take(chunk):
            return
        if self._finished:
            return
        if self._decoder is not None:
            self._feed_encoded(self._decoder, bytes(chunk))
            return
        chunk = chunk if type(chunk) is bytes else bytes(chunk)
        parser = self._parser
        alone = parser.between_events
        events = parser.feed(chunk)
        if alone and len(events) == 1 and self._tries and parser.between_events:
            self._take_alone(events[0], chunk)
            return
        self._forget_repeat()
        for event in events:
            self._take(event)
            if self._ended_here:
                self._ended_here = False
                if self.terminal_offset is None:
                    self.terminal_offset = event.start
        open_block = self._parser.open_block_offset
        if open_block is not None and self.terminal_offset is None and self._parser.sentinel_is_pending():
            # The client can read the end of the answer in these bytes, although the line may still change.
            self.terminal_offset = open_block

    def shorten_repeats(self) -> None:
        """Take repeated text deltas without handling each: for who wants nothing but the reassembled answer."""
        self._tries = _TRIES

    def finish(self) -> None:
        """Take the end of the body: a pending event counts, and the end is judged. Further calls do nothing."""
        if self._finished:
            return
        self._cut = True
        self._repeat = None
        for event in self._parser.finish():
            self._take(event)
        self._ended_here = False
        self._finished = True
        if self.terminal is None and self._ended_cleanly():
            self.terminal = "clean_eof"
        self._response = self._assemble()
        if has_unparsable_arguments(self._response, self.dialect):
            self._note("args_unparsable")

    @property
    def response(self) -> JsonObject | None:
        """The object so far, or None when nothing made one.

        Read it after `finish`; before that each read costs the size of the object, and what it returns may still
        change with the next chunk.
        """
        return self._response if self._finished else self._assemble()

    @property
    def problems(self) -> list[str]:
        """Names of what was not as it should be, each once, in order of first appearance."""
        return list(self._problem_counts)

    @property
    def problem_counts(self) -> dict[str, int]:
        """The same names with how often each was met."""
        return dict(self._problem_counts)

    @property
    def error_category(self) -> str | None:
        """The category of a finished stream under a status that gives none: what its end says, or None when good."""
        if self.terminal is None:
            decoded = self._decoder is None or self._decoder.problem() is None
            return "stream_truncated" if decoded else "capture_parse_error"
        if self.terminal_category is None and self.response is None:
            return "capture_parse_error"
        return self.terminal_category

    # What a dialect provides

    def _on_event(self, kind: str | None, event: JsonObject) -> None:
        raise NotImplementedError

    def _on_done(self) -> None:
        """`[DONE]` came."""

    def _ended_cleanly(self) -> bool:
        """Return whether the answer is whole although its terminal event never came."""
        return False

    def _build(self) -> JsonObject | None:
        raise NotImplementedError

    # What a dialect calls

    def _end(self, terminal: Terminal, category: str | None = None) -> None:
        self.terminal, self.terminal_category = terminal, category
        self.terminal_seen = self._ended_here = True

    def _fail(self, error: JsonObject | None) -> None:
        """End in an error; the first error object is kept, and so is its category unless that says nothing."""
        category = self.terminal_category if self.terminal == "error" else None
        if category is None or category == UPSTREAM_ERROR:
            category = error_category_for_error(error)
        if self.stream_error is None:
            self.stream_error = error
        self._end("error", category)

    def _added_plainly(self, text: str, target: list[str] | JsonObject, key: str = "") -> None:
        """Say that all an event does, each time it comes, is to append `text` to a list or to a dict's string."""
        self._plain_delta = text, target, key

    def _note(self, problem: str) -> None:
        self._problem_counts[problem] = self._problem_counts.get(problem, 0) + 1

    def _unknown(self, kind: str | None) -> None:
        if kind not in IDLE_KINDS:
            self.unknown_events += 1
            self._note("unknown_event")

    # Events

    def _take_alone(self, event: SseEvent, chunk: bytes) -> None:
        """Take an event that is all of a chunk, and see whether it is one that the next ones may repeat."""
        self._forget_repeat()
        problems = sum(self._problem_counts.values()) if self._problem_counts else 0
        self._take(event)
        if self._ended_here:
            self._ended_here = False
            self.terminal_offset = event.start
            return
        if self._plain_delta is None or (self._problem_counts and problems != sum(self._problem_counts.values())):
            return
        text, target, key = self._plain_delta
        texts = target if isinstance(target, list) else pieces_of(target, key)
        if texts is not None and len(text) < LONGEST_TEXT:
            self._tries -= 1
            self._repeat = Repeat.of(chunk, text, texts)

    def _forget_repeat(self) -> None:
        self._plain_delta = None
        if self._repeat is not None:
            if self._repeat.taken:
                self._tries = _TRIES
            self._repeat = None

    def _feed_encoded(self, decoder: ContentDecoder, chunk: bytes) -> None:
        for piece in decoder.feed(chunk):
            for event in self._parser.feed(piece):
                self._take(event)
        if self._ended_here or self._parser.sentinel_is_pending():
            self._ended_here, self.terminal_offset = False, 0
        self._note_decoder()

    def _note_decoder(self) -> None:
        problem = None if self._decoder is None else self._decoder.problem()
        if problem is not None and problem not in self._problem_counts:
            self._note(problem)

    def _take(self, event: SseEvent) -> None:
        try:
            self._handle(event)
        except EVENT_FAULTS:
            self._note("event_failed")

    def _handle(self, event: SseEvent) -> None:
        name, data, error, _ = event
        if error is not None:
            self.first_event_seen = True
            self._fail(_error_of(self._parse(error)) or {"message": error.decode("utf-8", "replace")})
        if data == SENTINEL:
            self.first_event_seen = True
            self._on_done()
            return
        parsed: JsonObject | None
        if len(data) < 16 and not data.strip():
            if name is None:
                return  # `data:` alone is a heartbeat
            if self._cut and name != b"error":
                self._note("event_cut")  # its data was still to come: half an ending is none
                return
            parsed = {}
        else:
            parsed = self._parse(data)
        self.first_event_seen = True
        if parsed is None:
            if name == b"error":
                self._fail({"message": data.decode("utf-8", "replace")})
            return
        kind = parsed.get("type")
        if type(kind) is not str:
            kind = None if name is None else name.decode("utf-8", "replace").strip()
        if kind == "error" or name == b"error" or parsed.get("object") == "error":
            self._fail(_error_of(parsed))
            if not parsed.get("choices"):
                return
        self._on_event(kind, parsed)

    def _parse(self, data: bytes) -> JsonObject | None:
        try:
            value = _decode(data)
        except (msgspec.DecodeError, RecursionError):
            try:
                value = self._parse_leniently(data)
            except (ValueError, RecursionError):
                self._note("event_cut" if self._cut else "event_not_json")
                return None
        if type(value) is dict:
            return value
        self._note("event_not_object")
        return None

    def _parse_leniently(self, data: bytes) -> JsonValue:
        """Parse what strict JSON refuses and clients accept, naming each leniency; raises when it is not JSON."""
        self._strings_need_repair = True
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = data.decode("utf-8", "replace")
            self._note("invalid_utf8")
        constants: list[str] = []
        try:
            value = json.loads(text, parse_constant=constants.append, parse_int=integer_of)
        except ValueError:
            value = json.loads(text, parse_constant=constants.append, parse_int=integer_of, strict=False)
            self._note("control_character")
        if constants:
            self._note("non_finite_number")
        return value

    def _assemble(self) -> JsonObject | None:
        self._repeat = None  # its list of texts is about to be joined
        try:
            self._assembly.settle()
            response = self._build()
            self._assembly.settle()
        except EVENT_FAULTS:
            self._note("reassembly_failed")
            return None
        if response is None or not (self._finished and self._strings_need_repair):
            return response  # before the end a half may still meet its other half
        repaired, lone = repair_surrogates(response)
        if lone:
            self._note("lone_surrogate")
        return repaired if isinstance(repaired, dict) else None


def _error_of(event: JsonObject | None) -> JsonObject | None:
    """Return the error object of an event: what is under `error`, else the event itself."""
    if not event:
        return event
    inner = event.get("error")
    if isinstance(inner, dict):
        return inner
    if inner:
        return {"message": inner if isinstance(inner, str) else json.dumps(inner)}
    return event


def error_object_of(body: object) -> JsonObject | None:
    """Return the error object that a body or an event carries at its top, in any dialect's shape; None when none.

    `{"error": {...}}`, `{"error": "text"}`, `{"type": "error", ...}` and `{"object": "error", ...}` are understood.
    """
    if not isinstance(body, dict):
        return None
    if body.get("error") or body.get("type") == "error" or body.get("object") == "error":
        return _error_of(body)
    return None
