"""Plays scripts: texts, tool calls, errors, delays, streams. For tests, and for people who write agents."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import Field, PrivateAttr
from starlette.requests import Request

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.builtin.responses_api_models.openai_model.extra_body import extra_body_of
from nemo_gym.builtin.responses_api_models.scripted_model.answer import response_for
from nemo_gym.builtin.responses_api_models.scripted_model.script import (
    Chosen,
    Outcome,
    ScriptBook,
    ScriptedError,
    load_script_book,
)
from nemo_gym.capture.correlation import current_rollout_id
from nemo_gym.dialects import Dialect, conversion
from nemo_gym.global_config import component_search_roots
from nemo_gym.records import codec
from nemo_gym.servers.event_stream import EventStream
from nemo_gym.servers.stream_conversion import report_conversion
from nemo_gym.servers.upstream import UpstreamError

SHIPPED_SCRIPTS = Path(__file__).parent / "scripts" / "default.yaml"


class ScriptedModelConfig(BaseResponsesAPIModelConfig):
    """What to play; a relative `scripts_fpath` is looked for in the search roots."""

    scripts_fpath: str | None = None
    model_name: str = "scripted"
    forget_attempts_after: int = Field(default=100_000, ge=1, description="Conversations whose tries are remembered.")


class ScriptedModel(SimpleResponsesAPIModel):
    """Answers each request with the step of its script."""

    config: ScriptedModelConfig
    _tries: Counter[tuple[str, str, int]] = PrivateAttr(default_factory=Counter)

    def setup_webserver(self) -> FastAPI:
        """Read the scripts, then the usual routes: a mistake in a script stops the start."""
        self._book  # noqa: B018
        return super().setup_webserver()

    async def responses(self, request: Request, body: dict[str, Any]) -> Any:
        """Play a Responses call."""
        return await self._play("responses", request, body, body)

    async def chat_completions(self, request: Request, body: dict[str, Any]) -> Any:
        """Play a Chat Completions call."""
        converted, notes = conversion.chat_request_to_responses(body)
        report_conversion(request, notes)
        return await self._play("chat", request, converted, body)

    async def messages(self, request: Request, body: dict[str, Any]) -> Any:
        """Play a Messages call."""
        converted, notes = conversion.messages_request_to_responses(body)
        report_conversion(request, notes)
        return await self._play("messages", request, converted, body)

    async def _play(self, dialect: Dialect, request: Request, asked: dict[str, Any], body: dict[str, Any]) -> Any:
        seed = asked.get("seed", body.get("seed", extra_body_of(body).get("seed")))
        chosen = self._book.choose(asked, seed=seed if isinstance(seed, int) else None)
        if isinstance(chosen, str):
            raise UpstreamError(chosen, server=self.config.name, status=400, code="no_script")
        outcome = self._outcome(request, chosen, asked)
        if outcome.delay_s:
            await asyncio.sleep(outcome.delay_s)
        if outcome.error is not None:
            raise _scripted_failure(outcome.error, self.config.name)
        response = response_for(outcome, chosen, asked, model=self.config.model_name)
        finished = self._said_in(dialect, response, request)
        if not body.get("stream"):
            return finished
        events = conversion.replay_events(dialect, finished, include_usage=conversion.wants_usage(body))
        return EventStream(_paced(events, outcome))

    def _said_in(self, dialect: Dialect, response: dict[str, Any], request: Request) -> dict[str, Any]:
        if dialect == "responses":
            return response
        convert = (
            conversion.responses_to_chat_response if dialect == "chat" else conversion.responses_to_messages_response
        )
        finished, notes = convert(response, requested_model=self.config.model_name)
        report_conversion(request, notes)
        return finished

    def _outcome(self, request: Request, chosen: Chosen, asked: dict[str, Any]) -> Outcome:
        """Return what this try of the step comes to; tries are counted per rollout, else per conversation."""
        attempts = chosen.step.attempts
        if not attempts:
            return chosen.step
        who = current_rollout_id() or request.headers.get("x-session-id") or codec.encode(asked.get("input")).hex()
        key = (who, chosen.script.name, chosen.step_index)
        done = self._tries[key]
        self._tries[key] += 1
        if len(self._tries) > self.config.forget_attempts_after:
            del self._tries[next(iter(self._tries))]
        return attempts[done] if done < len(attempts) else chosen.step

    @functools.cached_property
    def _book(self) -> ScriptBook:
        given = self.config.scripts_fpath
        return load_script_book(SHIPPED_SCRIPTS if given is None else _find(given))

    def served_model_name(self) -> str:
        """Return the name that scripted answers carry."""
        return self.config.model_name


def _find(path: str) -> Path:
    """Return the file under the first search root that has it; the path as given when none has."""
    given = Path(path).expanduser()
    found = (root / given for root in component_search_roots() if (root / given).is_file())
    return given if given.is_absolute() else next(found, given)


def _scripted_failure(error: ScriptedError, server: str) -> UpstreamError:
    headers = {} if error.retry_after is None else {"retry-after": f"{error.retry_after:g}"}
    return UpstreamError(error.message, server=server, status=error.status, code=error.code, headers=headers)


async def _paced(events: Iterable[bytes], outcome: Outcome) -> AsyncIterator[bytes]:
    """Yield events at the pace of the script, and stop where it says."""
    for number, event in enumerate(events):
        if number == outcome.cut_after_events:
            return
        if number and outcome.event_delay_s:
            await asyncio.sleep(outcome.event_delay_s)
        yield event


if __name__ == "__main__":
    ScriptedModel.run_webserver()
