"""Serves a captured run again: the answer to each request is the one that was recorded for it. No model, no cost."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.base_responses_api_model import (
    BaseResponsesAPIModelConfig,
    EventStream,
    SimpleResponsesAPIModel,
    UpstreamError,
    report_execution,
)
from nemo_gym.builtin.responses_api_models.replay_model.recording import RecordedCall, Recording, load_recording
from nemo_gym.capture.correlation import current_rollout_id
from nemo_gym.dialects import Dialect, conversion
from nemo_gym.records import codec, keys
from nemo_gym.servers.answers import json_answer
from nemo_gym.servers.stream_conversion import report_conversion
from nemo_gym.servers.upstream import error_answer, error_said


class ReplayModelConfig(BaseResponsesAPIModelConfig):
    """What to serve again, and how fast."""

    captures_fpath: str = Field(description="A run's folder, a folder of captures, or one capture file.")
    timing: Literal["fast", "recorded"] = Field(default="fast", description="`recorded` waits as the model did.")


class ReplayModel(SimpleResponsesAPIModel):
    """Answers each request with its recorded answer, in the dialect that is asked."""

    config: ReplayModelConfig

    def setup_webserver(self) -> FastAPI:
        """Read the captures, then the usual routes: what cannot be read stops the start."""
        self._recording  # noqa: B018
        return super().setup_webserver()

    async def responses(self, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Responses call."""
        return await self._replay("responses", request, body)

    async def chat_completions(self, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Chat Completions call."""
        return await self._replay("chat", request, body)

    async def messages(self, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Messages call."""
        return await self._replay("messages", request, body)

    async def _replay(self, dialect: Dialect, request: Request, body: dict[str, Any]) -> Response:
        caller = current_rollout_id() or request.headers.get(keys.SESSION_ID_HEADER) or ""
        call = self._recording.answer(body, dialect, caller=caller)
        if call is None:
            report_execution(request, response_source="local", local_response_reason="not_captured")
            message = (
                f"no call with this request was captured in `{self.config.captures_fpath}`, so there is no answer to "
                "replay: the conversation went another way than the recorded one"
            )
            return error_answer(dialect, status=404, message=message, code="not_captured")
        report_execution(request, response_source="local", local_response_reason="replayed")
        await asyncio.sleep(call.ttft_s if self._keeps_time and body.get("stream") else self._wait_s(call))
        if call.status >= 400:
            raise UpstreamError(
                f"the recorded call was answered {call.status}",
                server=self.config.name,
                status=call.status,
                body=call.response,
                dialect=call.dialect,
            )
        answer, notes = conversion.convert_response(
            call.response,
            call.dialect,
            dialect,
            request=conversion.convert_request(body, dialect, "responses").canonical if call.dialect != dialect else {},
            client_request=body,
            requested_model=body.get("model"),
        )
        report_conversion(request, notes)
        if call.dialect != dialect and conversion.is_error(dialect, answer):
            return error_said(dialect, answer)
        if not body.get("stream"):
            return json_answer(codec.encode(answer))
        events = list(conversion.replay_events(dialect, answer, include_usage=conversion.wants_usage(body)))
        return EventStream(_paced(events, call.latency_s - call.ttft_s if self._keeps_time else 0.0))

    @property
    def _keeps_time(self) -> bool:
        return self.config.timing == "recorded"

    def _wait_s(self, call: RecordedCall) -> float:
        return call.latency_s if self._keeps_time else 0.0

    @functools.cached_property
    def _recording(self) -> Recording:
        return load_recording(Path(self.config.captures_fpath).expanduser())

    def startup_notice(self) -> str:
        """Return a line that says what is served."""
        return f"replays {self._recording.size} captured calls of `{self.config.captures_fpath}`"


async def _paced(events: list[bytes], over_s: float) -> AsyncIterator[bytes]:
    """Yield the events, evenly over the time that the recorded stream took."""
    pause_s = over_s / max(1, len(events) - 1)
    if pause_s <= 0:
        yield b"".join(events)
        return
    for number, event in enumerate(events):
        if number:
            await asyncio.sleep(pause_s)
        yield event


if __name__ == "__main__":
    ReplayModel.run_webserver()
