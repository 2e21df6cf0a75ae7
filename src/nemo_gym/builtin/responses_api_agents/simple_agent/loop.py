"""The tool loop: ask the model, run the tools it calls, until it answers. No HTTP here: calls come in as functions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nemo_gym.builtin.responses_api_agents.simple_agent.tool_names import declared_tools, refusal
from nemo_gym.builtin.responses_api_agents.simple_agent.usage import UsageSum
from nemo_gym.records import codec

Item = dict[str, Any]
InvocationStatus = Literal["completed", "failed", "incomplete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """One model call: the Response when it finished, else `status` and `error`. `call_id` is the server's own id.

    Of a Response that failed, `response_id`, `error_type` and `usage` say what it said of itself.
    """

    response: Mapping[str, Any] | None
    call_id: str | None = None
    status: int | None = None
    error: str | None = None
    response_id: str | None = None
    error_type: str | None = None
    usage: Mapping[str, Any] | None = None
    failure_kind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """One tool call: `output` is what the model sees; `status` the HTTP status, None when there was no answer, which
    `failure_kind` then says more of.
    """

    output: str
    status: int | None
    failure_kind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRecord:
    """One executed tool call; times are UTC Unix seconds, the duration is monotonic."""

    call_id: str
    name: str
    status: Literal["completed", "failed"]
    output: str
    error_type: str | None = None
    started_at: float
    completed_at: float
    duration_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One model response: what was asked, what came back, and how many tools had finished by the end of the turn."""

    timestamp: float
    question: list[Item]
    answer: list[Item]
    reasoning: list[Item] | None
    step_count: int
    call_id: str | None
    response_id: str | None


@dataclass(slots=True, kw_only=True)
class LoopResult:
    """What the loop came to. `error_status` is the model server's HTTP status when a model call failed for good,
    `failure_kind` what happened to a call that had none.
    """

    response: dict[str, Any]
    conversation: list[Item]
    status: InvocationStatus
    error_type: str | None = None
    error_message: str | None = None
    error_status: int | None = None
    failure_kind: str | None = None
    turns: list[TurnRecord] = field(default_factory=list)
    tools: list[ToolRecord] = field(default_factory=list)
    calls: list[tuple[str | None, str | None]] = field(default_factory=list)
    """(model call id, response id) of every call, failed ones included, in order."""
    duration_ms: float = 0.0


CallModel = Callable[[dict[str, Any]], Awaitable[ModelReply]]
CallTool = Callable[[str, dict[str, Any]], Awaitable[ToolReply]]


async def run_loop(
    params: Mapping[str, Any],
    *,
    call_model: CallModel,
    call_tool: CallTool,
    max_steps: int | None = None,
    execute_tools: bool = True,
    record_turns: bool = True,
) -> LoopResult:
    """Run one conversation to its end.

    `params` are Responses create parameters; `max_steps` bounds the model calls (None or 0: no bound). A model call
    that fails ends the loop with status `failed`; what was produced until then is in the response.
    """
    begun = time.monotonic()
    loop = _Loop(params, call_model, call_tool, record_turns=record_turns)
    step = 0
    while True:
        step += 1
        if not await loop.model_turn():
            break
        calls = loop.pending_calls
        if not calls:
            break
        if not execute_tools:
            loop.close_turn()
            loop.result.status = "incomplete"
            break
        for call in calls:
            if not await loop.tool_turn(call):
                return loop.finish(begun)
        loop.close_turn()
        if max_steps and step >= max_steps:
            loop.result.status = "incomplete"
            break
    return loop.finish(begun)


class _Loop:
    """The state of one conversation."""

    def __init__(
        self, params: Mapping[str, Any], call_model: CallModel, call_tool: CallTool, *, record_turns: bool
    ) -> None:
        self.params = dict(params)
        self.call_model, self.call_tool, self.record_turns = call_model, call_tool, record_turns
        given = self.params.get("input")
        self.prompt: list[Item] = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or [])
        self.declared = declared_tools(self.params)
        self.produced: list[Item] = []
        self.pending_calls: list[Item] = []
        self.usage = UsageSum()
        self.last: Mapping[str, Any] | None = None
        self.termination: dict[str, str] = {}
        self.result = LoopResult(response={}, conversation=[], status="completed")
        self._turn: dict[str, Any] | None = None

    async def model_turn(self) -> bool:
        """Make one model call; return whether the conversation can go on."""
        question = self.prompt + self.produced
        timestamp = time.time()
        reply = await self.call_model({**self.params, "input": question})
        response_id = reply.response.get("id") if reply.response is not None else reply.response_id
        response_id = response_id if isinstance(response_id, str) and response_id else None
        self.result.calls.append((reply.call_id, response_id))
        if reply.response is None:
            self.result.status = "failed"
            unnamed = "model_call_failed" if reply.status is None else f"http_{reply.status}"
            self.result.error_type = reply.error_type or unnamed
            self.result.error_message, self.result.error_status = reply.error, reply.status
            self.result.failure_kind = reply.failure_kind
            if reply.usage is not None:  # a failed call adds what it counted, and nothing when it counted nothing
                self.usage.add(reply.usage)
            return False
        self.last = reply.response
        self.usage.add(reply.response.get("usage"))
        output: list[Item] = list(reply.response.get("output") or [])
        self.produced = self.produced + output
        self._turn = {
            "timestamp": timestamp,
            "question": question,
            "answer": [item for item in output if item.get("type") != "reasoning"],
            "reasoning": [item for item in output if item.get("type") == "reasoning"] or None,
            "call_id": reply.call_id,
            "response_id": response_id,
        }
        self.pending_calls = [item for item in output if item.get("type") == "function_call"]
        go_on = self._may_go_on(reply.response, output)
        if not (go_on and self.pending_calls):
            self.close_turn()
        return go_on

    def _may_go_on(self, response: Mapping[str, Any], output: list[Item]) -> bool:
        if response.get("incomplete_details"):
            self.result.status = "incomplete"
            return False
        if self.pending_calls:
            return True
        if not any(item.get("type", "message") == "message" for item in output):
            reason = "incomplete_reasoning" if output else "empty_output"
            self.result.status = "incomplete"
            self.termination = {
                "ng_termination_reason": reason,
                "ng_termination_message": "the model ended its turn without a message or a tool call",
            }
        return False

    async def tool_turn(self, call: Item) -> bool:
        """Run one tool call and append its output; return False when its server was not reached.

        The model is not shown that: it is a fault of the run, and no answer to it would measure anything.
        """
        name, call_id = str(call.get("name")), str(call.get("call_id"))
        started_at, begun = time.time(), time.monotonic()
        reply, error_type = await self._run_tool(call, name)
        self.result.tools.append(
            ToolRecord(
                call_id=call_id,
                name=name,
                status="completed" if error_type is None else "failed",
                output=reply.output,
                error_type=error_type,
                started_at=started_at,
                completed_at=max(time.time(), started_at),
                duration_ms=(time.monotonic() - begun) * 1000,
            )
        )
        if reply.status is None:
            self.result.status, self.result.error_type = "failed", "tool_unreachable"
            self.result.error_message = f"tool `{name}`: {reply.output}"
            self.result.failure_kind = reply.failure_kind
            self.close_turn()
            return False
        self.produced = [
            *self.produced,
            {
                "type": "function_call_output",
                "id": f"fc_out_{uuid.uuid4().hex}",
                "call_id": call_id,
                "output": reply.output,
                "status": "completed",
            },
        ]
        return True

    async def _run_tool(self, call: Item, name: str) -> tuple[ToolReply, str | None]:
        """Return what the model sees of a call, and the kind of its error; calls that are none are not made."""
        refused = refusal(call.get("name"), self.declared)
        if refused is not None:
            return _error_reply(refused.message), refused.error_type
        try:
            arguments = codec.decode_object(call.get("arguments") or "{}")
        except (ValueError, TypeError) as error:
            return _error_reply(f"invalid tool arguments: {error}"), "invalid_arguments"
        reply = await self.call_tool(name, arguments)
        if reply.status is None:
            return reply, "unreachable"
        return reply, None if 200 <= reply.status < 400 else f"http_{reply.status}"

    def close_turn(self) -> None:
        """Write down the turn whose tools have finished."""
        if self._turn is not None and self.record_turns:
            self.result.turns.append(TurnRecord(**self._turn, step_count=len(self.result.tools)))
        self._turn = None

    def finish(self, begun: float) -> LoopResult:
        """Return the result with its response: the last one, holding everything produced and the summed usage."""
        result = self.result
        response = dict(self.last) if self.last is not None else _empty_response(self.params)
        response["output"] = self.produced
        response["usage"] = self.usage.total()
        if self.termination:
            response["status"] = "incomplete"
            response["metadata"] = {**(response.get("metadata") or {}), **self.termination}
        if result.status == "failed":
            response["status"] = "failed"
            response["error"] = {"code": "server_error", "message": result.error_message or "a model call failed"}
        result.response = response
        result.conversation = self.prompt + self.produced
        result.duration_ms = (time.monotonic() - begun) * 1000
        return result


def _error_reply(message: str) -> ToolReply:
    return ToolReply(output=codec.encode({"error": message}).decode(), status=400)


def _empty_response(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": time.time(),
        "model": params.get("model") or "",
        "parallel_tool_calls": params.get("parallel_tool_calls", True),
        "tool_choice": params.get("tool_choice") or "auto",
        "tools": params.get("tools") or [],
    }
