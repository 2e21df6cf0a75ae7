"""The model of the conformance scenarios: plays their scripts, and testifies to what it was asked and answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from nemo_gym.builtin.responses_api_models.scripted_model.app import ScriptedModel, ScriptedModelConfig
from nemo_gym.builtin.responses_api_models.scripted_model.script import Chosen, Outcome
from nemo_gym.dialects import Dialect
from nemo_gym.records import codec
from nemo_gym.servers.event_stream import EventStream
from nemo_gym.servers.upstream import UpstreamError
from nemo_gym.testing.scenarios import TOO_LATE_S
from nemo_gym.testing.witness import MODEL_CALL, WitnessFile

DEADLINE_S = 0.3
_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "message_stop"})


class ConformanceModelConfig(ScriptedModelConfig):
    """Where to testify."""

    witness_fpath: str


@dataclass(slots=True)
class _Sent:
    """What a client was sent, read off the answer itself."""

    response_id: str | None = None
    reports_usage: bool = False
    is_whole: bool = False

    def read(self, body: Any) -> None:
        """Read an answer, or one event of a stream, of any dialect."""
        if not isinstance(body, dict):
            return
        inner = next((body[key] for key in ("response", "message") if isinstance(body.get(key), dict)), body)
        if isinstance(inner.get("id"), str) and self.response_id is None:
            self.response_id = inner["id"]
        self.reports_usage |= bool(inner.get("usage"))
        self.is_whole |= body.get("type") in _LAST_EVENTS

    def read_event(self, chunk: bytes) -> None:
        """Read one server-sent event."""
        for line in chunk.splitlines():
            self.is_whole |= line == b"data: [DONE]"
            if line.startswith(b"data: {"):
                self.read(codec.decode_object(line.removeprefix(b"data: ")))


class ConformanceModel(ScriptedModel):
    """A scripted model that writes down each exchange, whatever the server around it records."""

    config: ConformanceModelConfig

    async def _play(self, dialect: Dialect, request: Request, asked: dict[str, Any], body: dict[str, Any]) -> Any:
        try:
            async with asyncio.timeout(None) as request.state.deadline:
                answer = await super()._play(dialect, request, asked, body)
        except TimeoutError as error:
            self._testify(request, body, status=504, timed_out=True)
            raise UpstreamError("deadline exceeded", server=self.config.name, status=504) from error
        except UpstreamError as error:
            self._testify(request, body, status=error.status)
            raise
        outcome: Outcome = request.state.played[1]
        sent = _Sent()
        omits = dialect == "messages" and outcome.usage is None  # converted, it would say zero
        if isinstance(answer, EventStream):
            chunks = _without_usage(answer.chunks) if omits else answer.chunks
            answer.chunks = self._streamed(chunks, sent, request, body)
            return answer
        if omits and isinstance(answer, dict):
            answer.pop("usage", None)
        if outcome.cut_after_events is not None:
            return self._cut(codec.encode(answer), request, body)
        sent.read(answer)
        self._testify(request, body, status=200, finished=True, sent=sent)
        return answer

    def _outcome(self, request: Request, chosen: Chosen, asked: dict[str, Any]) -> Outcome:
        outcome = super()._outcome(request, chosen, asked)
        request.state.played = (chosen.script.name, outcome)
        if outcome.delay_s >= TOO_LATE_S:
            request.state.deadline.reschedule(asyncio.get_running_loop().time() + DEADLINE_S)
        return outcome

    async def _streamed(
        self, chunks: AsyncIterator[bytes], sent: _Sent, request: Request, body: dict[str, Any]
    ) -> AsyncIterator[bytes]:
        """Pass a stream on, and testify to it before its end is seen."""
        ended = False
        try:
            async for chunk in chunks:
                sent.read_event(chunk)
                yield chunk
            ended = True
        finally:
            whole = ended and sent.is_whole
            self._testify(request, body, status=200, finished=whole, cut=ended and not whole, sent=sent)

    def _cut(self, content: bytes, request: Request, body: dict[str, Any]) -> Response:
        """Return an answer whose connection ends in the middle of the body."""

        async def half() -> AsyncIterator[bytes]:
            yield content[: len(content) // 2]
            self._testify(request, body, status=200, cut=True)
            raise ConnectionResetError("the scenario cuts the answer here")

        headers = {"content-length": str(len(content))}
        return StreamingResponse(half(), media_type="application/json", headers=headers)

    def _testify(
        self,
        request: Request,
        body: dict[str, Any],
        *,
        status: int | None,
        finished: bool = False,
        cut: bool = False,
        timed_out: bool = False,
        sent: _Sent | None = None,
    ) -> None:
        name, _outcome = getattr(request.state, "played", ("unknown", None))
        WitnessFile(self.config.witness_fpath).write(
            MODEL_CALL,
            name.partition(":")[0],
            script=name,
            request=body,
            status=status,
            finished=finished,
            cut=cut,
            timed_out=timed_out,
            streamed=bool(body.get("stream")),
            response_id=None if sent is None else sent.response_id,
            reports_usage=sent is not None and sent.reports_usage,
        )


async def _without_usage(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass events of the Messages dialect on without token counts.

    The objects that would hold them stay: the dialect requires them, and its official client fails without.
    """
    async for chunk in chunks:
        head, mark, data = chunk.rstrip().rpartition(b"data: {")
        if not mark:
            yield chunk
            continue
        event = codec.decode_object(b"{" + data)
        for place in (event, event.get("message")):
            if isinstance(place, dict) and "usage" in place:
                place["usage"] = {}
        yield head + b"data: " + codec.encode(event) + b"\n\n"


if __name__ == "__main__":
    ConformanceModel.run_webserver()
