"""A stream of one dialect as a stream of another, event by event as it arrives.

Pure and incremental: bytes in, bytes out, nothing waits that could be sent. Both ways lead through the canonical form,
so that a converted stream ends with the same object as the conversion of the finished answer.
"""

from __future__ import annotations

from typing import Protocol

from nemo_gym.dialects.conversion.mint import SYSTEM_MINT, Mint
from nemo_gym.dialects.conversion.namespaces import restore_namespaces
from nemo_gym.dialects.conversion.refusal import Notes
from nemo_gym.dialects.conversion.replay_frames import named_event
from nemo_gym.dialects.conversion.shapes import as_object
from nemo_gym.dialects.conversion.streaming_builder import TERMINAL_EVENTS
from nemo_gym.dialects.conversion.streaming_from_chat import ChatReader
from nemo_gym.dialects.conversion.streaming_from_messages import MessagesReader
from nemo_gym.dialects.conversion.streaming_to_chat import ChatWriter
from nemo_gym.dialects.conversion.streaming_to_messages import MessagesWriter
from nemo_gym.dialects.names import Dialect
from nemo_gym.dialects.responses import ResponsesAccumulator
from nemo_gym.records.codec import JsonObject

CUT_STREAM = "the model's stream ended before its answer was complete"
_ENDED = (*TERMINAL_EVENTS.values(), "response.done", "error")


class _Writer(Protocol):
    out: list[bytes]
    usage: JsonObject | None

    def take(self, event: JsonObject) -> None: ...

    def conclude(self, response: JsonObject) -> None: ...


class _Reader(Protocol):
    def feed(self, chunk: bytes) -> None: ...

    def finish(self) -> None: ...

    def conclude(self) -> None: ...

    def fail(self, error: JsonObject) -> None: ...


class ResponsesWriter:
    """Sends the canonical events as they are, numbered from 0."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.usage: JsonObject | None = None
        self._number = 0
        self._ended = False

    def take(self, event: JsonObject) -> None:
        """Send one event."""
        if self._ended:
            return
        self._ended = event.get("type") in _ENDED
        self.out.append(named_event({**event, "sequence_number": self._number}))
        self._number += 1

    def conclude(self, response: JsonObject) -> None:
        """Send the terminal event that belongs to the status."""
        usage = response.get("usage")
        self.usage = usage if isinstance(usage, dict) else None
        kind = TERMINAL_EVENTS.get(str(response.get("status") or "completed"), "response.incomplete")
        self.take({"type": kind, "response": response})


class ResponsesReader(ResponsesAccumulator):
    """Accumulates a Responses stream and hands each event on; calls get their namespaces back."""

    def __init__(self, writer: _Writer, *, client_request: JsonObject) -> None:
        super().__init__()
        self._writer, self._client_request = writer, client_request
        self._closed = False

    def _on_event(self, kind: str | None, event: JsonObject) -> None:
        ended = kind in _ENDED or kind is None
        if not ended and not self._closed:
            if isinstance(event.get("item"), dict):
                event = {**event, "item": self._restored(event["item"])}
            self._writer.take({**event, "type": kind})
        super()._on_event(kind, event)
        if ended and self.terminal is not None:
            self.conclude()

    def conclude(self) -> None:
        """Send the terminal event of a whole answer, or of an error; nothing for one that was cut."""
        if self._closed or self.terminal is None:
            return
        self._closed = True
        response = self.response
        if self.terminal == "error" or response is None:
            self._failed(self.stream_error or as_object((response or {}).get("error")) or None, response)
        else:
            self._writer.conclude(restore_namespaces(response, request=self._client_request))

    def fail(self, error: JsonObject) -> None:
        """End the answer as failed, for a reason outside of the stream."""
        if not self._closed:
            self._closed = True
            self._failed(error, self.response)

    def _failed(self, error: JsonObject | None, response: JsonObject | None) -> None:
        details = error or {"message": f"the model call ended as `{(response or {}).get('status') or 'failed'}`"}
        told = {"code": details.get("code") or details.get("type") or "server_error", "message": details.get("message")}
        begun = response or {"id": "resp_failed", "object": "response", "output": []}
        self._writer.take({"type": "response.failed", "response": {**begun, "status": "failed", "error": told}})

    def _restored(self, item: JsonObject) -> JsonObject:
        restored: JsonObject = restore_namespaces({"output": [item]}, request=self._client_request)["output"][0]
        return restored


class StreamConverter:
    """Converts one answer: `feed` it the backend's bytes, send what it returns, and `finish` it.

    `request` is the Responses form of what was asked of the backend, whose settings a Response echoes;
    `client_request` the client's own request, whose namespaces calls are mapped back to. `usage` is what the answer
    counted, in the form of Responses, known at the end; `notes` is what could not be carried.
    """

    def __init__(
        self,
        source: Dialect,
        target: Dialect,
        *,
        request: JsonObject | None = None,
        client_request: JsonObject | None = None,
        requested_model: str | None = None,
        include_usage: bool = False,
        think_tags: bool | None = None,
        mint: Mint = SYSTEM_MINT,
    ) -> None:
        self.notes: Notes = []
        self.begins_with_fillers = target == "messages"
        """Whether the stream begins with counts that only fill its shape, before any is known."""
        request, client_request = request or {}, client_request or request or {}
        self._writer: _Writer
        if target == "chat":
            self._writer = ChatWriter(
                requested_model=requested_model, include_usage=include_usage, mint=mint, notes=self.notes
            )
        elif target == "messages":
            self._writer = MessagesWriter(requested_model=requested_model, mint=mint, notes=self.notes)
        else:
            self._writer = ResponsesWriter()
        self._reader: _Reader
        if source == "responses":
            self._reader = ResponsesReader(self._writer, client_request=client_request)
        elif source == "chat":
            self._reader = ChatReader(
                self._take,
                request=request,
                client_request=client_request,
                mint=mint,
                notes=self.notes,
                think_tags=think_tags,
            )
        else:
            self._reader = MessagesReader(
                self._take, request=request, client_request=client_request, mint=mint, notes=self.notes
            )

    @property
    def usage(self) -> JsonObject | None:
        """What the answer counted, as Responses counts; None while unknown."""
        return self._writer.usage

    def feed(self, chunk: bytes) -> bytes:
        """Return what the next bytes of the backend's stream become."""
        self._reader.feed(chunk)
        return self._sent()

    def finish(self, error: JsonObject | None = None) -> bytes:
        """Return the end: of an answer that is whole nothing more, or what was pending; else the dialect's error event.

        `error` says why the stream broke off; without one, a stream that ended too early says so itself.
        """
        if error is None:
            self._reader.finish()
            self._reader.conclude()
        self._reader.fail(error or {"message": CUT_STREAM, "code": "upstream_connection"})
        return self._sent()

    def _take(self, event: JsonObject) -> None:
        if event["type"] in ("response.completed", "response.incomplete"):
            self._writer.conclude(event["response"])
        else:
            self._writer.take(event)

    def _sent(self) -> bytes:
        out = self._writer.out
        if not out:
            return b""
        sent = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return sent
