"""Builders of evidence, short enough that a test reads as the situation it is about."""

from __future__ import annotations

import pytest

POLICY = {"type": "responses_api_models", "name": "policy"}


class Build:
    """Makes the objects that agents and captures produce."""

    policy = POLICY

    @staticmethod
    def pair(response_id, name="policy"):
        return {"model_ref": {"type": "responses_api_models", "name": name}, "response_id": response_id}

    @staticmethod
    def full(call_id, response_id):
        return {"model_call_id": call_id, "model_ref": POLICY, "response_id": response_id}

    @staticmethod
    def call(call_id, response_id=None, **fields):
        """A captured call as the capture attachment holds it."""
        return {"model_call_id": call_id, "model_ref": POLICY, "response_id": response_id, **fields}

    @staticmethod
    def calls(*calls):
        return [{"call_index": index, **call} for index, call in enumerate(calls)]

    @staticmethod
    def invocation(name, *refs, **fields):
        return {"kind": "agent_invocation", "invocation_id": name, "model_calls": list(refs), **fields}

    @staticmethod
    def compaction(name, **fields):
        return {"kind": "context_compaction", "invocation_id": name, **fields}

    @staticmethod
    def tool(name, call_id, **fields):
        return {"kind": "tool_call", "invocation_id": name, "tool_call_id": call_id, **fields}

    @staticmethod
    def output(call_id, output, kind="function_call_output"):
        return {"type": kind, "call_id": call_id, "output": output}

    @staticmethod
    def turn(number=1, *refs, **fields):
        return {
            "invocation_id": "root",
            "task_id": "t",
            "rollout_id": "0-0",
            "turn_no": number,
            "timestamp": float(number),
            "step_count": 0,
            "model_calls": list(refs),
            **fields,
        }

    @staticmethod
    def bundle(*records, gaps=()):
        return {"source": "a", "records": list(records), "gaps": list(gaps)}

    @staticmethod
    def trajectory(**fields):
        return {"task_id": "t", "rollout_id": "0-0", **fields}

    @staticmethod
    def gap(code, invocation_id=None, detail=None):
        return {"code": code, "invocation_id": invocation_id, "detail": detail}


@pytest.fixture(scope="session")
def make():
    return Build


@pytest.fixture(scope="session")
def compact():
    """Drops nulls and empty objects, as the handed cases are written."""

    def _compact(value):
        if isinstance(value, dict):
            kept = {key: _compact(item) for key, item in value.items()}
            return {key: item for key, item in kept.items() if item is not None and item != {}}
        if isinstance(value, list):
            return [_compact(item) for item in value]
        return value

    return _compact
