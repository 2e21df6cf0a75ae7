"""What the loop saw, as an observation bundle and a producer trajectory (A21, A23). Pure.

The bundle holds the invocation and the measured tool executions; the trajectory holds the turns, which collection
keeps and never derives. Model calls are named by the id that the model server returned, failed ones too.
"""

from __future__ import annotations

from typing import Any

from nemo_gym.builtin.responses_api_agents.simple_agent.loop import LoopResult

ROOT = "root"
SOURCE = "simple_agent"


def observation_bundle(result: LoopResult, *, model_ref: dict[str, str], invocation: str = ROOT) -> dict[str, Any]:
    """Return the `ng_agent_observations` of one conversation, whose id is `invocation`."""
    references = [_reference(call_id, response_id, model_ref) for call_id, response_id in result.calls]
    conversation = {
        "kind": "agent_invocation",
        "invocation_id": invocation,
        "status": result.status,
        "duration_ms": result.duration_ms,
        "error_type": result.error_type,
        "model_calls": [reference for reference in references if reference is not None],
        "conversation": result.conversation,
    }
    tools = [
        {
            "kind": "tool_call",
            "invocation_id": invocation,
            "tool_call_id": tool.call_id,
            "tool_name": tool.name,
            "started_at": tool.started_at,
            "completed_at": tool.completed_at,
            "duration_ms": tool.duration_ms,
            "timing_source": "executor",
            "status": tool.status,
            "error_type": tool.error_type,
        }
        for tool in result.tools
    ]
    gaps = [
        {"code": "model_call_reference_unavailable", "invocation_id": invocation, "detail": f"turn:{number}"}
        for number, reference in enumerate(references, 1)
        if reference is None
    ]
    return {"source": SOURCE, "records": [conversation, *tools], "gaps": gaps}


def producer_trajectory(
    result: LoopResult, *, task_id: str, rollout_id: str, model_ref: dict[str, str], resolved: object = None
) -> dict[str, Any]:
    """Return the `ng_trajectory` of one conversation: its turns, one per model response.

    `resolved` is the verifier's own boolean, put on the last turn; anything else is unknown and leaves a gap.
    """
    turns = []
    for number, turn in enumerate(result.turns, 1):
        reference = _reference(turn.call_id, turn.response_id, model_ref)
        turns.append(
            {
                "invocation_id": ROOT,
                "task_id": task_id,
                "rollout_id": rollout_id,
                "turn_no": number,
                "timestamp": turn.timestamp,
                "question": turn.question,
                "answer": turn.answer,
                "reasoning_content": turn.reasoning,
                "step_count": turn.step_count,
                "model_calls": [] if reference is None else [reference],
            }
        )
    gaps: list[dict[str, Any]] = []
    if turns and isinstance(resolved, bool):
        turns[-1]["resolved"] = resolved
    else:
        gaps.append({"code": "resolution_unavailable", "invocation_id": ROOT})
    return {"schema_version": "1.0", "task_id": task_id, "rollout_id": rollout_id, "turns": turns, "gaps": gaps}


def _reference(call_id: str | None, response_id: str | None, model_ref: dict[str, str]) -> dict[str, Any] | None:
    if response_id is not None:
        pair = {"model_ref": model_ref, "response_id": response_id}
        return pair if call_id is None else {"model_call_id": call_id, **pair}
    return None if call_id is None else {"model_call_id": call_id}
