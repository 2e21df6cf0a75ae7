"""The tool loop stops for the right reason and keeps everything that was produced."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from nemo_gym.builtin.responses_api_agents.simple_agent.evidence import observation_bundle, producer_trajectory
from nemo_gym.builtin.responses_api_agents.simple_agent.failure import failed_reply, failed_row, is_judged, unanswered
from nemo_gym.builtin.responses_api_agents.simple_agent.loop import LoopResult, ModelReply, ToolReply, run_loop
from nemo_gym.builtin.responses_api_agents.simple_agent.tool_names import RESERVED
from nemo_gym.rollout_observability import AgentObservationBundle, TrajectoryRecord
from nemo_gym.servers.http import ServerDroppedError

MODEL_REF = {"type": "responses_api_models", "name": "policy_model"}


def message(text: str = "done") -> dict:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def call(call_id: str = "t1", arguments: str = "{}", name: str = "f") -> dict:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def response(*output: dict, number: int = 1, usage: dict | str | None = "counts", **extra: Any) -> ModelReply:
    counts = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12} if usage == "counts" else usage
    return ModelReply(
        response={"id": f"r{number}", "output": list(output), "usage": counts, **extra}, call_id=f"c{number}"
    )


class Scene:
    def __init__(self, *replies: ModelReply, tool: ToolReply | None = None) -> None:
        self.replies, self.tool = list(replies), tool or ToolReply(output="42", status=200)
        self.asked: list[dict] = []
        self.ran: list[tuple[str, dict]] = []

    async def model(self, body: dict) -> ModelReply:
        self.asked.append(body)
        return self.replies[len(self.asked) - 1]

    async def tools(self, name: str, arguments: dict) -> ToolReply:
        self.ran.append((name, arguments))
        return self.tool

    async def play(self, *, params: dict | None = None, **options: Any) -> LoopResult:
        return await run_loop({"input": "hi", **(params or {})}, call_model=self.model, call_tool=self.tools, **options)


async def test_tools_run_in_order_and_their_output_is_in_the_next_request() -> None:
    scene = Scene(response(call("a"), call("b"), number=1), response(message(), number=2))
    result = await scene.play()
    assert [item.get("call_id") for item in scene.asked[1]["input"]] == [None, "a", "b", "a", "b"]
    assert result.status == "completed"
    assert [item["type"] for item in result.response["output"]] == [
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "message",
    ]
    assert result.response["id"] == "r2"
    assert result.response["usage"]["input_tokens"] == 20


async def test_a_response_without_usage_makes_the_sum_unknown() -> None:
    """A22."""
    result = await Scene(response(call(), usage=None), response(message(), number=2)).play()
    assert result.response["usage"] is None


async def test_one_unknown_detail_makes_that_detail_unknown() -> None:
    known = {"input_tokens": 5, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 3}}
    result = await Scene(response(call(), usage=known), response(message(), number=2)).play()
    assert result.response["usage"]["input_tokens_details"] == {"cached_tokens": None}
    assert result.response["usage"]["total_tokens"] == 18


async def test_no_finished_call_reports_zero_tokens() -> None:
    """A22."""
    result = await Scene(ModelReply(response=None, call_id="c1", status=400, error="bad")).play()
    assert result.response["usage"]["input_tokens"] == 0
    assert (result.status, result.error_type, result.response["status"]) == ("failed", "http_400", "failed")


@pytest.mark.parametrize(
    ("error", "status", "judged"),
    [
        ({"code": "server_error", "message": "it broke"}, 500, False),
        ({"code": "rate_limit_exceeded", "message": "it broke"}, 429, False),
        ({"code": "context_length_exceeded", "message": "it broke"}, 400, True),
        (None, 500, False),
    ],
)
@pytest.mark.parametrize("ending", ["failed", "cancelled"])
@pytest.mark.parametrize("counted", [None, {"input_tokens": 5, "output_tokens": 1}])
async def test_a_response_that_failed_under_200_is_a_failed_call(
    error: dict | None, status: int, judged: bool, ending: str, counted: dict | None
) -> None:
    """A22: it did not finish, so it adds what it counted, which is nothing when it has no usage."""
    answer = {"id": "r2", "status": ending, "output": [], "error": error, "usage": counted}
    reply = failed_reply(answer, "c2")
    assert reply is not None
    result = await Scene(response(call()), reply).play()
    assert (result.status, result.error_type, result.error_status) == ("failed", f"response_{ending}", status)
    assert is_judged(result) is judged
    assert error is None or "it broke" in str(result.error_message)
    assert result.calls == [("c1", "r1"), ("c2", "r2")]
    assert len(result.turns) == 1
    total = result.response["usage"]
    assert (total["input_tokens"], total["output_tokens"]) == ((10, 2) if counted is None else (15, 3))


@pytest.mark.parametrize("error", [{"code": "rate_limit_exceeded", "message": "slow down"}, "slow down"])
@pytest.mark.parametrize("status", ["absent", None, "completed", "incomplete", ["failed"]])
def test_an_object_with_an_error_is_a_failed_call_whatever_its_status_says(error: Any, status: Any) -> None:
    reply = failed_reply({"output": [], "error": error} | ({} if status == "absent" else {"status": status}), "c1")
    assert reply is not None
    assert (reply.error_type, reply.response) == ("response_failed", None)
    assert str(reply.error).startswith("the model's response is failed: slow down")
    assert reply.status == (500 if isinstance(error, str) else 429)


@pytest.mark.parametrize("status", ["completed", "incomplete", "in_progress", None, ["failed"]])
def test_a_response_that_did_not_fail_is_no_failed_call(status: Any) -> None:
    assert failed_reply({"status": status, "output": [], "error": None}, "c1") is None


async def test_a_model_failure_keeps_what_was_produced_before_it() -> None:
    result = await Scene(response(call()), ModelReply(response=None, call_id="c2", status=503, error="down")).play()
    assert [item["type"] for item in result.response["output"]] == ["function_call", "function_call_output"]
    assert result.error_status == 503
    assert result.calls == [("c1", "r1"), ("c2", None)]


async def test_max_steps_ends_after_the_tools_of_the_last_step() -> None:
    scene = Scene(response(call("a"), number=1), response(call("b"), number=2))
    result = await scene.play(max_steps=2)
    assert (len(scene.asked), len(scene.ran), result.status) == (2, 2, "incomplete")


async def test_max_steps_zero_is_no_bound() -> None:
    result = await Scene(response(call()), response(message(), number=2)).play(max_steps=0)
    assert result.status == "completed"


async def test_an_incomplete_response_ends_the_loop() -> None:
    result = await Scene(response(call(), incomplete_details={"reason": "max_output_tokens"})).play()
    assert (result.status, result.tools) == ("incomplete", [])


async def test_a_turn_of_reasoning_only_says_so() -> None:
    result = await Scene(response({"type": "reasoning", "id": "x", "summary": []})).play()
    assert result.status == "incomplete"
    assert result.response["metadata"]["ng_termination_reason"] == "incomplete_reasoning"


async def test_an_empty_output_says_so() -> None:
    result = await Scene(response()).play()
    assert result.response["metadata"]["ng_termination_reason"] == "empty_output"


async def test_calls_are_left_to_others_when_tools_are_not_executed() -> None:
    scene = Scene(response(call()))
    result = await scene.play(execute_tools=False)
    assert (scene.ran, result.status, len(result.turns)) == ([], "incomplete", 1)


async def test_unparsable_arguments_are_told_to_the_model_and_run_nothing() -> None:
    scene = Scene(response(call(arguments="{bad")), response(message(), number=2))
    result = await scene.play()
    assert scene.ran == []
    assert "error" in json.loads(result.tools[0].output)
    assert (result.tools[0].status, result.tools[0].error_type) == ("failed", "invalid_arguments")


async def test_a_tool_error_is_visible_to_the_model_and_recorded() -> None:
    scene = Scene(response(call()), response(message(), number=2), tool=ToolReply(output="no such city", status=404))
    result = await scene.play()
    assert scene.asked[1]["input"][-1]["output"] == "no such city"
    assert (result.tools[0].status, result.tools[0].error_type) == ("failed", "http_404")


async def test_evidence_is_valid_names_every_call_and_measures_tools() -> None:
    """A21, A23."""
    result = await Scene(
        response(call()), ModelReply(response=None, call_id="c2", status=429), response(message(), number=3)
    ).play()
    bundle = observation_bundle(result, model_ref=MODEL_REF)
    AgentObservationBundle.model_validate(bundle)
    root, tool = bundle["records"]
    assert root["model_calls"] == [
        {"model_call_id": "c1", "model_ref": MODEL_REF, "response_id": "r1"},
        {"model_call_id": "c2"},
    ]
    assert tool["timing_source"] == "executor"
    assert bundle["gaps"] == []
    trajectory = producer_trajectory(result, task_id="7", rollout_id="7-0", model_ref=MODEL_REF, resolved=True)
    TrajectoryRecord.model_validate(trajectory)
    assert [(turn["turn_no"], turn["step_count"]) for turn in trajectory["turns"]] == [(1, 1)]
    assert trajectory["turns"][0]["resolved"] is True


async def test_a_call_without_any_id_is_a_gap_and_an_unknown_resolution_too() -> None:
    nameless = ModelReply(response={"output": [message()], "usage": None})
    result = await Scene(nameless).play()
    assert observation_bundle(result, model_ref=MODEL_REF)["gaps"] == [
        {"code": "model_call_reference_unavailable", "invocation_id": "root", "detail": "turn:1"}
    ]
    gaps = producer_trajectory(result, task_id="7", rollout_id="7-0", model_ref=MODEL_REF, resolved=1)["gaps"]
    assert [gap["code"] for gap in gaps] == ["resolution_unavailable"]


async def test_a_tool_server_that_is_not_reached_ends_the_conversation_unseen_by_the_model() -> None:
    scene = Scene(response(call()), tool=ToolReply(output="refused", status=None))
    result = await scene.play()
    assert (len(scene.asked), result.status, result.error_type) == (1, "failed", "tool_unreachable")
    assert [item["type"] for item in result.response["output"]] == ["function_call"]
    assert (result.tools[0].status, result.tools[0].error_type) == ("failed", "unreachable")


NOT_TOOLS = [
    *(name for route in sorted(RESERVED) for name in (route, f"/{route}", f"{route}/", f"./{route}", f"x/../{route}")),
    *("verify?x=1", "verify#x", "%76erify", "ver%69fy", "//h/verify", "http://127.0.0.1:1/verify", "..", ".", "", " "),
    *("verify\n", "\nverify", "f\x00", "f g", "f.g", "\u0440", "\ud800", "ng-rollout/1-1/verify"),
]


@pytest.mark.parametrize("declared", [[], [{"type": "function", "name": "f"}]])
@pytest.mark.parametrize("name", NOT_TOOLS)
async def test_a_name_that_is_no_tool_reaches_no_route_and_the_model_is_told(name: str, declared: list) -> None:
    scene = Scene(response(call(name=name)), response(message(), number=2))
    result = await scene.play(params={"tools": declared})
    assert scene.ran == []
    assert result.status == "completed"
    expected = "reserved_tool" if name in RESERVED else "unknown_tool"
    assert (result.tools[0].status, result.tools[0].error_type) == ("failed", expected)
    assert "tool" in json.loads(scene.asked[1]["input"][-1]["output"])["error"]


@pytest.mark.parametrize("name", [None, 5, ["verify"]])
async def test_a_name_that_is_no_text_is_no_tool(name: Any) -> None:
    scene = Scene(response(call(name=name)), response(message(), number=2))
    assert (await scene.play()).tools[0].error_type == "unknown_tool"
    assert scene.ran == []


async def test_a_request_that_declares_tools_allows_no_others_but_reserved_ones_never() -> None:
    tools = [{"type": "function", "name": "f"}, {"type": "function", "name": "verify"}, {"type": "web_search"}]
    calls = [call("a", name="f"), call("b", name="g"), call("c", name="verify")]
    scene = Scene(response(*calls), response(message(), number=2))
    result = await scene.play(params={"tools": tools})
    assert [name for name, _ in scene.ran] == ["f"]
    assert [tool.error_type for tool in result.tools] == [None, "unknown_tool", "reserved_tool"]


async def test_a_request_that_declares_no_function_allows_any_tool() -> None:
    scene = Scene(response(call(name="undeclared-Tool_1")), response(message(), number=2))
    await scene.play(params={"tools": [{"type": "web_search"}]})
    assert [name for name, _ in scene.ran] == ["undeclared-Tool_1"]


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (
            ServerDroppedError("`m` closed the connection", server="m"),
            "transport_peer_drop",
            "`m` closed the connection",
        ),
        (aiohttp.ClientPayloadError("cut"), "transport_peer_drop", "`m` did not answer: ClientPayloadError: cut"),
        (TimeoutError("late"), "transport_timeout", "`m` did not answer: TimeoutError: late"),
        (aiohttp.ConnectionTimeoutError("slow"), "transport_unreachable", "`m` did not answer: "),
    ],
)
async def test_a_call_without_an_answer_says_whose_and_what_kind(error: Exception, kind: str, says: str) -> None:
    """A connection that was lost is no server that could not be reached: the call may have been made."""
    said, failure_kind = unanswered(error, "m")

    async def call_model(_: Any) -> ModelReply:
        return ModelReply(response=None, error=said, failure_kind=failure_kind)

    async def call_tool(*_: Any) -> ToolReply:
        raise AssertionError("there is nothing to run")

    result = await run_loop({"input": "x"}, call_model=call_model, call_tool=call_tool)
    row = failed_row({}, result)
    assert row["failure_kind"] == kind
    assert row["failure_reason"].startswith(says)
