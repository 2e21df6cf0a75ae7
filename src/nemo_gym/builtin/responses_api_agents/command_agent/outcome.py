"""What one run of a program comes to: its Response, and how it failed. Pure but for the clock and fresh ids."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_gym.builtin.responses_api_agents.command_agent.process import Ended
from nemo_gym.builtin.responses_api_agents.command_agent.report import Report
from nemo_gym.failure_kinds import AGENT_RUN_ERROR, AGENT_TIMEOUT, TRANSPORT_UNREACHABLE
from nemo_gym.records import keys
from nemo_gym.rollout_observability import AgentInvocation

_REASON_LENGTH = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run. `ended` is None when the program was not started.

    `failure` is (kind, reason) when the run measures nothing.
    """

    report: Report
    ended: Ended | None = None
    failure: tuple[str, str] | None = None
    response: dict[str, Any]

    def own_invocation(self, invocation_id: str | None) -> AgentInvocation | None:
        """Return the invocation that stands for the whole process, where the configuration says that it is one."""
        if invocation_id is None or self.ended is None:
            return None
        return AgentInvocation(
            invocation_id=invocation_id,
            status="completed" if self.ended.succeeded else "failed",
            duration_ms=self.ended.duration_ms,
            error_type=None if self.failure is None else self.failure[0],
        )

    def process_facts(self) -> dict[str, Any]:
        """Return what is known of the process, for the record; None is unknown."""
        if self.ended is None:
            return {"exit_code": None, "timed_out": False, "started_at": None, "duration_ms": None, "stderr_tail": None}
        return {
            "exit_code": self.ended.exit_code,
            "timed_out": self.ended.timed_out,
            "started_at": self.ended.started_at,
            "duration_ms": self.ended.duration_ms,
            "stderr_tail": self.ended.stderr_tail,
        }

    def failed_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row of a rollout that failed: no reward, its kind and reason, and the partial response."""
        assert self.failure is not None
        kind, reason = self.failure
        return {
            **row,
            keys.RESPONSE: self.response,
            keys.FAILURE_CLASS: AGENT_RUN_ERROR,
            keys.FAILURE_KIND: kind,
            keys.FAILURE_REASON: reason[:_REASON_LENGTH],
            keys.FAILURE_MESSAGE: reason[:_REASON_LENGTH],
        }


def not_started(params: Mapping[str, Any], reason: str) -> Outcome:
    """Return the outcome of a rollout whose program was never started."""
    report = Report()
    failure = (AGENT_RUN_ERROR, reason)
    return Outcome(report=report, failure=failure, response=_response(params, report, None, failure))


def outcome_of(params: Mapping[str, Any], report: Report, ended: Ended, *, unreachable: str | None) -> Outcome:
    """Return what a program that ended comes to. `unreachable`: why a tool of it could not be reached."""
    failure = _failure(ended, unreachable)
    response = _response(params, report, ended, failure)
    return Outcome(report=report, ended=ended, failure=failure, response=response)


def _failure(ended: Ended, unreachable: str | None) -> tuple[str, str] | None:
    if unreachable is not None:
        return TRANSPORT_UNREACHABLE, unreachable
    if ended.succeeded:
        return None
    last = ended.stderr_tail.strip().rpartition("\n")[2].strip()
    said = f"; it said last: {last}" if last else ""
    return AGENT_TIMEOUT if ended.timed_out else AGENT_RUN_ERROR, f"the program {ended.describe()}{said}"


def _response(
    params: Mapping[str, Any], report: Report, ended: Ended | None, failure: tuple[str, str] | None
) -> dict[str, Any]:
    """Return a Response whose output is the program's answer: the reported one, else what it printed."""
    answer = report.answer
    output = [] if answer is None or answer.output is None else list(answer.output)
    text = answer.text if answer is not None else (ended.stdout.strip() if ended is not None else "")
    if text:
        output = [_message(text)]
    response: dict[str, Any] = {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": time.time(),
        "model": params.get("model") or "",
        "status": "completed",
        "output": output,
        "parallel_tool_calls": params.get("parallel_tool_calls", True),
        "tool_choice": params.get("tool_choice") or "auto",
        "tools": params.get("tools") or [],
        "usage": None if answer is None else answer.usage,
    }
    if failure is not None:
        response |= {"status": "failed", "error": {"code": "server_error", "message": failure[1][:_REASON_LENGTH]}}
    elif not output:
        response |= {
            "status": "incomplete",
            "metadata": {
                "ng_termination_reason": "empty_output",
                "ng_termination_message": "the program ended without an answer",
            },
        }
    return response


def _message(text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "id": f"msg_{uuid.uuid4().hex}",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
