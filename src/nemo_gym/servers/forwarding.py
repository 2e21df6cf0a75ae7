"""Passing a model call on to a backend: untouched when it speaks the client's dialect, else converted both ways."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.capture.execution import current_facts, report_execution
from nemo_gym.dialects import conversion
from nemo_gym.dialects.names import Dialect
from nemo_gym.records import codec
from nemo_gym.servers.answers import json_answer
from nemo_gym.servers.event_stream import EventStream, pieces
from nemo_gym.servers.stream_conversion import (
    accumulated,
    converted,
    report_conversion,
    untouched,
    without_usage_chunk,
)
from nemo_gym.servers.upstream import UpstreamError, error_said
from nemo_gym.servers.upstream_client import UpstreamReply
from nemo_gym.servers.upstream_pool import UpstreamPool, affinity_of

_CLIENT_HEADERS = {"messages": ("anthropic-beta", "anthropic-version")}
"""Headers of a client that belong to its dialect; all others, credentials among them, end here."""

_HOLDS: Mapping[Dialect, str] = {"responses": "output", "chat": "choices", "messages": "content"}
"""Where an answer of each dialect has what the model said; the list may be empty."""

_TOLD_APART = ("messages", "input", "tools", "stream", "stream_options")


def _unshaped(body: dict[str, Any]) -> dict[str, Any]:
    return body


def _nothing(_error: UpstreamError) -> dict[str, Any] | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How a backend is spoken to.

    `shape` makes the backend's last changes to a request in its dialect; `instead_of` may give a finished answer in
    place of a refusal; `finish` changes a finished answer; `reasoning_key` is where a chat backend reads earlier
    reasoning, and `think_tags` whether its text may hold some. With `streams` false the backend is always asked for a
    finished answer, which a client that wants a stream gets as events; `functions_only` is for chat backends without
    custom tools.
    """

    pool: UpstreamPool
    dialect: Dialect
    path: str
    shape: Callable[[dict[str, Any]], dict[str, Any]] = _unshaped
    instead_of: Callable[[UpstreamError], dict[str, Any] | None] = _nothing
    finish: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    reasoning_key: str | None = None
    think_tags: bool | None = None
    streams: bool = True
    functions_only: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


async def answer_through(wire: Wire, body: dict[str, Any], *, dialect: Dialect, request: Request) -> Response:
    """Answer a client's request of `dialect`, streamed or not, through a backend.

    Raises UpstreamError for a refusal, and ConversionError for what the backend's dialect cannot say.
    """
    call = _Call(wire, body, dialect, request)
    try:
        reply = await call.send()
    except UpstreamError as error:
        substitute = wire.instead_of(error)
        if substitute is None:
            raise
        return call.finished(substitute)
    if reply.is_stream:
        if call.streams:
            return call.stream(reply)
        found = await accumulated(reply, wire.dialect)
        if found is None:
            raise call.unreadable("an event stream without a whole answer", b"")
        return call.finished(found)
    content = await reply.read()
    if dialect == wire.dialect and not call.streams and wire.finish is None:
        return Response(content, status_code=200, headers={"content-type": reply.content_type})
    try:
        answer = codec.decode_object(content)
    except ValueError as error:
        raise call.unreadable(f"no JSON object: {error}", content) from error
    if not _is_answer(wire.dialect, answer):
        said = content[:200].decode(errors="replace")
        # Not as the error's body: words in it, such as a `detail`, would be all that is told.
        raise call.unreadable(f"an object that is no answer, for it has no list `{_HOLDS[wire.dialect]}`: {said}", b"")
    return call.finished(answer)


def _is_answer(dialect: Dialect, found: dict[str, Any]) -> bool:
    """Return whether an object says what the model answered, or that it failed.

    What else is served under 200, such as a gateway's `{"status": "ok"}`, would be converted to an empty answer, which
    a verifier would judge.
    """
    is_failure = conversion.is_failed(found) if dialect == "responses" else conversion.is_error(dialect, found)
    return is_failure or isinstance(found.get(_HOLDS[dialect]), list)


class _Call:
    """One call on its way through."""

    def __init__(self, wire: Wire, body: dict[str, Any], dialect: Dialect, request: Request) -> None:
        self._wire, self._body, self._dialect, self._request = wire, body, dialect, request
        self.streams = body.get("stream") is True
        self._wants_usage = conversion.wants_usage(body)
        self._notes: list[str] = []
        self._canonical: dict[str, Any] = {}
        self._asked_usage = False

    async def send(self) -> UpstreamReply:
        """Send the request in the backend's dialect."""
        wire, request = self._wire, self._request
        sent = wire.shape(self._outgoing())
        if not wire.streams:
            sent = {key: value for key, value in sent.items() if key not in ("stream", "stream_options")}
        elif self.streams:
            sent["stream"] = True
            if wire.dialect == "chat" and not conversion.wants_usage(sent):
                options = sent.get("stream_options")
                sent["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
                self._asked_usage = True
        attempts: list[dict[str, Any]] = []
        content = codec.encode(sent)
        if current_facts.get() is not None:
            report_execution(
                request,
                upstream_request_sha256=hashlib.sha256(content).hexdigest(),
                upstream_request_changes=self._changes(sent),
            )
        report_execution(request, upstream_attempted=True)
        try:
            reply = await wire.pool.post(
                wire.path,
                content,
                dialect=wire.dialect,
                affinity=affinity_of(request, self._body) if len(wire.pool.clients) > 1 else "",
                headers=self._headers(),
                attempts=attempts,
            )
        except UpstreamError as refusal:
            report_execution(
                request,
                upstream_attempted=bool(attempts),
                upstream=attempts,
                upstream_status_code=refusal.upstream_status,
            )
            raise
        report_execution(
            request, upstream=attempts, upstream_status_code=reply.response.status, response_source="upstream"
        )
        return reply

    def stream(self, reply: UpstreamReply) -> Response:
        """Return the backend's stream as the client's."""
        wire, dialect = self._wire, self._dialect
        if dialect != wire.dialect:
            self._report_notes()
            converter = conversion.StreamConverter(
                wire.dialect,
                dialect,
                request=self._canonical,
                client_request=self._body,
                requested_model=self._requested_model,
                include_usage=self._wants_usage,
                think_tags=wire.think_tags,
            )
            return EventStream(converted(reply.chunks(), converter, self._request))
        chunks = reply.chunks()
        if self._asked_usage:
            chunks = without_usage_chunk(chunks, self._request)
        return EventStream(untouched(chunks, dialect, self._request))

    def finished(self, answer: dict[str, Any]) -> Response:
        """Return a finished answer of the backend as the client's answer, as events when it asked for a stream."""
        wire = self._wire
        if wire.finish is not None:
            answer = wire.finish(answer)
        said, notes = conversion.convert_response(
            answer,
            wire.dialect,
            self._dialect,
            request=self._canonical,
            client_request=self._body,
            requested_model=self._requested_model,
            think_tags=wire.think_tags,
        )
        self._notes.extend(notes)
        self._report_notes()
        if self._dialect != wire.dialect and conversion.is_error(self._dialect, said):
            return error_said(self._dialect, said)
        if self.streams:
            return EventStream(pieces(conversion.replay_events(self._dialect, said, include_usage=self._wants_usage)))
        return json_answer(codec.encode(said))

    def unreadable(self, what: str, content: bytes) -> UpstreamError:
        """Return the error for an answer that is none."""
        url = f"{self._wire.pool.base_url}{self._wire.path}"
        return UpstreamError(
            f"the model at `{url}` answered with {what}",
            server=self._wire.pool.base_url,
            body=content[:2000],
            dialect=self._wire.dialect,
        )

    @property
    def _requested_model(self) -> str | None:
        model = self._body.get("model")
        return model if isinstance(model, str) and model else None

    def _outgoing(self) -> dict[str, Any]:
        if self._dialect == self._wire.dialect:
            return dict(self._body)
        asked = conversion.convert_request(
            self._body, self._dialect, self._wire.dialect, reasoning_key=self._wire.reasoning_key
        )
        self._canonical = asked.canonical
        self._notes.extend(asked.notes)
        return conversion.custom_tools_as_functions(asked.body) if self._wire.functions_only else asked.body

    def _headers(self) -> dict[str, str]:
        passed = _CLIENT_HEADERS.get(self._wire.dialect, ()) if self._dialect == self._wire.dialect else ()
        given = {name: value for name in passed if (value := self._request.headers.get(name))}
        return {**self._wire.headers, **given}

    def _changes(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Return how the request that went out differs from the one that came in, by the names of its fields."""
        if self._dialect != self._wire.dialect:
            return {"dialect": self._wire.dialect}
        names = [name for name in sent if name not in _TOLD_APART and sent[name] != self._body.get(name)]
        changed = [name for name in _TOLD_APART if sent.get(name) is not self._body.get(name)]
        gone = [name for name in self._body if name not in sent]
        return {"set": [*names, *(name for name in changed if name in sent)], "removed": gone}

    def _report_notes(self) -> None:
        report_conversion(self._request, self._notes)
        self._notes = []
