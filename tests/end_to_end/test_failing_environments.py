"""What a fault of an environment comes to: its place is told, and the work of the agent is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from end_to_end_support import Gym, records

APP = """
from fastapi import FastAPI
from pydantic import BaseModel
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig, BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer,
)


class Look(BaseModel):
    thing: str


class Broken(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/look")(self.look)
        return app

    async def look(self, body: Look) -> dict:
        if body.thing == "stone":
            raise KeyError("no stone")  # the tool's fault
        return {"seen": body.thing}

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        if "sky" in body.response.output_text:
            raise ValueError("cannot score the sky")  # the verifier's fault
        return BaseVerifyResponse(**body.model_dump(), reward=0.5)


if __name__ == "__main__":
    Broken.run_webserver()
"""
AGENT = {"resources_server": {"type": "resources_servers", "name": "broken"}}
MODEL = {"model_server": {"type": "responses_api_models", "name": "policy_model"}}
CONFIG = {
    "broken": {"resources_servers": {"broken": {"entrypoint": "app.py", "domain": "other"}}},
    "broken_simple_agent": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", **AGENT, **MODEL}}},
}
PARAMETERS = {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]}
TOOL = {"type": "function", "name": "look", "parameters": PARAMETERS, "strict": False}


def line_of(comment: str) -> int:
    return next(number for number, line in enumerate(APP.splitlines(), 1) if comment in line)


@pytest.fixture
def broken(gym: Gym) -> Gym:
    folder = gym.folder / "resources_servers" / "broken"
    (folder / "configs").mkdir(parents=True)
    (folder / "app.py").write_text(APP)
    (folder / "configs" / "broken.yaml").write_text(yaml.safe_dump(CONFIG))
    return gym


def collect(gym: Gym, *things: str, code: int, agent: tuple[str, ...] = ()) -> tuple[Path, str]:
    """Run one row per thing: the model looks at it and names it. Returns the folder and what was printed."""
    steps = [{"calls": [{"name": "look", "arguments": {"thing": "{thing}"}}]}, {"text": "I saw the {thing}."}]
    script = {"name": "s", "match": r"look at (?P<thing>\w+)", "steps": steps}
    (gym.folder / "scripts.yaml").write_text(yaml.safe_dump({"scripts": [script]}))
    rows = [{"responses_create_params": {"input": f"look at {thing}", "tools": [TOOL]}} for thing in things]
    (gym.folder / "rows.jsonl").write_text("".join(json_line(row) for row in rows))
    run = gym.folder / "run"
    done = gym.run(
        *("eval", "run", "--resources-server", "broken", "-i", gym.folder / "rows.jsonl"),
        *("--model-type", "scripted_model", "-o", run / "rollouts.jsonl", *agent),
        f"++policy_model.responses_api_models.scripted_model.scripts_fpath={gym.folder / 'scripts.yaml'}",
        "+observability_enabled=true",
        f"+model_call_capture_dir={gym.folder / 'model-calls'}",
        gym.head,
        code=code,
    )
    return run, done.stdout + done.stderr


def json_line(row: dict[str, Any]) -> str:
    return json.dumps(row) + "\n"


def test_a_bug_in_verify_is_named_with_its_line_and_log_and_the_agents_work_is_kept(broken: Gym) -> None:
    run, printed = collect(broken, "sky", "grass", code=1)
    [row] = records(run / "rollouts_failures.jsonl")
    app = broken.folder / "resources_servers" / "broken" / "app.py"
    message = row["_ng_failure_message"]
    assert message.count("server `") == message.count("answered 500") == 1
    assert "server `broken` failed: `http" in message
    assert f"ValueError('cannot score the sky') (at `{app}:{line_of('the verifier')}`, traceback in `" in message
    log = Path(message.rpartition("traceback in `")[2].removesuffix("`)"))
    assert "cannot score the sky" in log.read_text()
    assert str(app) in printed
    # What was done is kept, and nothing is made up.
    assert (row["_ng_failure_class"], row["failure_kind"]) == ("agent_run_error", "verifier_error")
    assert (row["_ng_failure_stage"], row["_ng_failure_http_status"]) == ("verification", 500)
    assert "reward" not in row
    output = row["_ng_failure_partial_response"]["output"]
    assert [item["type"] for item in output] == ["function_call", "function_call_output", "message"]
    assert row["ng_agent_observations"]["source"] == "simple_agent"
    trajectory = row["ng_trajectory"]
    assert (len(trajectory["turns"]), len(trajectory["model_calls"]), len(trajectory["tool_calls"])) == (2, 2, 1)
    assert row["_ng_failure_response_body"] == message
    [success] = records(run / "rollouts.jsonl")
    assert success["reward"] == 0.5
    assert "tool calls failed" not in printed


def test_a_tool_that_crashes_is_told_at_the_end(broken: Gym) -> None:
    run, printed = collect(broken, "stone", "grass", "stone", code=0)
    assert len(records(run / "rollouts.jsonl")) == 3
    assert "tool calls failed: 2 of 3, in 2 rollouts: look 2\n" in printed
