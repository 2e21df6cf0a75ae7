"""Any program as an agent: what its run comes to, what it is given, and what is not guessed about it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from nemo_gym.builtin.responses_api_agents.command_agent.app import CommandAgent, CommandAgentConfig
from nemo_gym.errors import ConfigError
from nemo_gym.server_utils import BaseServerConfig, ServerClient

ROW = {
    "_ng_task_index": 3,
    "_ng_rollout_index": 1,
    "expected_answer": "the secret of the verifier",
    "responses_create_params": {"input": [{"role": "user", "content": "do it"}], "tools": []},
}


def agent(backend: Any, program: str, *words: str, **settings: Any) -> CommandAgent:
    at = urlsplit(backend.url)
    place = {"host": at.hostname, "port": at.port}
    backend.answer("/seed_session", {})
    for prefix in ("", "/ng-rollout/3-1"):
        backend.answer(f"{prefix}/seed_session", {})
        backend.answer(f"{prefix}/verify", {"reward": 1.0, "mask_sample": False})
    client = ServerClient(
        head_server_config=BaseServerConfig(**place),
        global_config_dict={
            "observability_enabled": True,
            "r": {"resources_servers": {"r": place}},
            "m": {"responses_api_models": {"m": place}},
            "a": {"responses_api_agents": {"command_agent": place}},
        },
    )
    config = CommandAgentConfig(
        **place,
        entrypoint="app.py",
        name="a",
        model_server={"type": "responses_api_models", "name": "m"},
        resources_server={"type": "resources_servers", "name": "r"},
        command=[sys.executable, "-c", program, *words],
        **settings,
    )
    return CommandAgent(config=config, server_client=client)


def run(made: CommandAgent, row: dict[str, Any] = ROW) -> dict[str, Any]:
    with TestClient(made.served_app()) as client:
        answer = client.post("/run", json=row)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_what_a_program_did_outlives_its_verifier(backend: Any) -> None:
    made = agent(backend, "print('done')", invocation="root")
    backend.answer("/ng-rollout/3-1/verify", (500, "ValueError('a bug')", {"x-ng-failed-server": "r"}))
    with TestClient(made.served_app()) as client:
        answer = client.post("/run", json=ROW)
    assert (answer.status_code, answer.headers["x-ng-failed-server"]) == (500, "r")
    assert answer.json()["detail"].endswith("/ng-rollout/3-1/verify` answered 500: ValueError('a bug')")
    handed_over = answer.json()["ng_failed_rollout"]
    (message,) = handed_over["_ng_failure_partial_response"]["output"]
    assert message["content"][0]["text"] == "done"
    (invocation,) = handed_over["ng_agent_observations"]["records"]
    assert (invocation["invocation_id"], invocation["status"]) == ("root", "completed")
    assert handed_over["agent_process"]["exit_code"] == 0


def asked(backend: Any, end: str) -> list[dict[str, Any]]:
    return [body for path, body, _headers in backend.asked if path.endswith(end)]


def test_what_a_plain_program_prints_is_its_answer_and_nothing_else_is_said_about_it(backend: Any) -> None:
    result = run(agent(backend, "import sys; print('done:', sys.argv[1])", "{prompt}"))
    (judged,) = asked(backend, "/verify")
    (message,) = judged["response"]["output"]
    assert message["content"][0]["text"] == "done: do it"
    assert (judged["response"]["status"], judged["response"]["usage"]) == ("completed", None)
    assert result["reward"] == 1.0
    bundle = result["ng_agent_observations"]
    assert (bundle["source"], bundle["records"]) == ("command_agent", [])
    assert [gap["code"] for gap in bundle["gaps"]] == ["agent_observations_not_reported"]
    assert "ng_trajectory" not in result
    assert (result["agent_process"]["exit_code"], result["agent_process"]["timed_out"]) == (0, False)


def test_a_program_is_told_its_task_and_nothing_of_what_the_verifier_knows(backend: Any) -> None:
    program = """
import json, os
print(json.dumps({"environment": dict(os.environ), "task": json.load(open(os.environ["GYM_TASK_FILE"]))}))
"""
    run(agent(backend, program, env={"MY_URL": "{base_url}/x"}, inherit_env=["LC_MESSAGES"]))
    (judged,) = asked(backend, "/verify")
    seen = json.loads(judged["response"]["output"][0]["content"][0]["text"])
    environment = seen["environment"]
    assert seen["task"] == ROW["responses_create_params"]
    assert "secret of the verifier" not in json.dumps(seen)
    assert environment["OPENAI_BASE_URL"] == f"{backend.url}/ng-rollout/3-1/v1"
    assert environment["ANTHROPIC_BASE_URL"] == f"{backend.url}/ng-rollout/3-1"
    assert environment["GYM_INVOCATION_URL"] == f"{backend.url}/ng-rollout/3-1/inv/{{invocation}}"
    assert environment["MY_URL"] == f"{backend.url}/ng-rollout/3-1/x"
    assert (environment["GYM_TASK_ID"], environment["GYM_ROLLOUT_ID"]) == ("3", "3-1")
    assert not [name for name in environment if name.startswith("NEMO_GYM_CONFIG")]
    assert not Path(environment["HOME"]).exists()


def test_without_capture_a_program_is_given_urls_that_work_all_the_same(backend: Any) -> None:
    program = "import os; print(os.environ['OPENAI_BASE_URL'], os.environ['GYM_INVOCATION_URL'])"
    made = agent(backend, program, invocation="main")
    made.server_client.global_config_dict["observability_enabled"] = False
    result = run(made)
    (judged,) = asked(backend, "/verify")
    assert judged["response"]["output"][0]["content"][0]["text"] == f"{backend.url}/v1 {backend.url}"
    assert "ng_agent_observations" not in result


def test_a_program_that_fails_measures_nothing_and_its_report_is_kept(backend: Any) -> None:
    program = """
import json, os, sys
said = json.dumps({"kind": "agent_invocation", "invocation_id": "root"})
open(os.environ["GYM_REPORT_FILE"], "w").write(said + "\\n{cut")
sys.exit("no way; the key is " + os.environ["MY_SERVICE_KEY"])
"""
    result = run(agent(backend, program, env={"MY_SERVICE_KEY": "sk-123456789"}))
    assert asked(backend, "/verify") == []
    assert "reward" not in result
    assert (result["_ng_failure_class"], result["failure_kind"]) == ("agent_run_error", "agent_run_error")
    assert "exit code 1" in result["failure_reason"]
    assert "no way; the key is [hidden]" in result["failure_reason"]
    assert "sk-123456789" not in json.dumps(result)
    assert [record["invocation_id"] for record in result["ng_agent_observations"]["records"]] == ["root"]
    assert [gap["code"] for gap in result["ng_agent_observations"]["gaps"]] == ["agent_observation_line_invalid"]


def test_a_program_past_its_deadline_is_ended_and_what_it_reported_is_kept(backend: Any) -> None:
    program = """
import json, os, time
said = json.dumps({"kind": "agent_invocation", "invocation_id": "root"})
open(os.environ["GYM_REPORT_FILE"], "w").write(said + "\\n")
time.sleep(600)
"""
    result = run(agent(backend, program, timeout_s=3.0, grace_s=0.1))
    assert (result["failure_kind"], result["agent_process"]["timed_out"]) == ("agent_timeout", True)
    assert len(result["ng_agent_observations"]["records"]) == 1


def test_a_program_without_an_answer_has_an_empty_one(backend: Any) -> None:
    run(agent(backend, "pass"))
    (judged,) = asked(backend, "/verify")
    assert (judged["response"]["status"], judged["response"]["output"]) == ("incomplete", [])
    assert judged["response"]["metadata"]["ng_termination_reason"] == "empty_output"


def test_one_conversation_owns_the_calls_where_the_configuration_says_so(backend: Any) -> None:
    result = run(agent(backend, "import os; print(os.environ['OPENAI_BASE_URL'])", invocation="main"))
    (judged,) = asked(backend, "/verify")
    assert judged["response"]["output"][0]["content"][0]["text"] == f"{backend.url}/ng-rollout/3-1/inv/main/v1"
    (invocation,) = result["ng_agent_observations"]["records"]
    assert (invocation["invocation_id"], invocation["status"]) == ("main", "completed")
    assert invocation["duration_ms"] > 0
    assert invocation["model_calls"] == []


@pytest.mark.parametrize(
    ("params", "words", "instead"),
    [
        ({"instructions": "be brief", "input": "do it"}, ["{prompt}"], "`{system}`"),
        ({"input": "do it\0 well"}, ["{prompt}"], "`{task_file}`"),
        ({"instructions": "be\0 brief", "input": "do it"}, ["-s", "say: {system}", "{prompt}"], "`{task_file}`"),
    ],
    ids=["system text", "NUL in the prompt", "NUL in the system text"],
)
def test_a_task_that_the_command_would_cut_short_is_not_run(
    backend: Any, params: dict[str, Any], words: list[str], instead: str
) -> None:
    result = run(agent(backend, "print('ran')", *words), {**ROW, "responses_create_params": params})
    assert result["failure_kind"] == "agent_run_error"
    assert instead in result["failure_reason"]
    assert result["agent_process"] == {
        "exit_code": None,
        "timed_out": False,
        "started_at": None,
        "duration_ms": None,
        "stderr_tail": None,
    }


def test_files_are_written_below_home_and_nowhere_else(backend: Any) -> None:
    program = "import os; print(open(os.path.expanduser('~/.config/a.json')).read())"
    run(agent(backend, program, files={".config/a.json": '{"url": "{openai_base_url}"}'}))
    (judged,) = asked(backend, "/verify")
    text = judged["response"]["output"][0]["content"][0]["text"]
    assert json.loads(text) == {"url": f"{backend.url}/ng-rollout/3-1/v1"}
    refused = run(agent(backend, "print('ran')", files={"../../escaped": "x"}))
    assert "would not be in the program's HOME" in refused["failure_reason"]


@pytest.mark.parametrize("given", [5, ["text"], {"a": 1}])
def test_an_input_of_another_kind_is_422(backend: Any, given: Any) -> None:
    with TestClient(agent(backend, "pass", "{prompt}").served_app()) as client:
        answer = client.post("/run", json={"responses_create_params": {"input": given}})
    assert answer.status_code == 422


def test_a_tool_call_without_a_running_program_is_refused(backend: Any) -> None:
    with TestClient(agent(backend, "pass").served_app()) as client:
        answer = client.post("/tools/made-up/verify", json={})
    assert (answer.status_code, answer.json()) == (404, {"error": "this rollout has ended"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": "no-such-program-anywhere"}, "not there or cannot be run: `no-such-program-anywhere`"),
        ({"command": "./relative.sh", "directory": "/usr"}, "cannot be run: `./relative.sh`"),
        ({"command": ""}, "no command"),
        ({"directory": "relative"}, "absolute"),
        ({"num_workers": 2}, "one worker"),
    ],
)
def test_what_cannot_work_stops_the_start(backend: Any, settings: dict[str, Any], message: str) -> None:
    made = agent(backend, "pass")
    made.config = made.config.model_copy(update=settings)
    with pytest.raises(ConfigError, match=message):
        made.setup_webserver()


def test_what_a_program_says_is_recorded_without_its_secrets(backend: Any) -> None:
    program = """
import json, os, sys
secret = os.environ["SERVICE_TOKEN"]
print("out", secret)
print("err", secret, file=sys.stderr)
with open(os.environ["GYM_REPORT_FILE"], "w") as report:
    json.dump({"kind": "gap", "code": "mine", "detail": secret}, report)
    report.write(chr(10) + json.dumps({"kind": secret}))
"""
    for end in ("", "\nsys.exit(3)"):
        result = run(agent(backend, program + end, env={"SERVICE_TOKEN": "very-secret-1"}))
        said = asked(backend, "/verify")[0] if end == "" else result
        assert "very-secret-1" not in json.dumps([result, said])
        assert said["response"]["output"][0]["content"][0]["text"] == "out [hidden]"
        assert result["agent_process"]["stderr_tail"] == "err [hidden]\n"
        assert "[hidden]" in [gap.get("detail") for gap in result["ng_agent_observations"]["gaps"]]


@pytest.mark.parametrize(
    "report",
    [
        "b'\\0' * 4096",
        "b'\\xff\\xfe{'",
        "b'[' * 100000",
        'b\'{"kind": "answer", "usage": {"n": \' + b\'[\' * 700 + b\']\' * 700 + b\'}, "text": "a"}\'',
        'b\'{"kind": "turn"}\\n\' * 5000',
        'b\'\\r\\n\' * 5000 + b\'{"kind": "answer", "te\'',
        'b\'{"kind": "answer", "usage": {"n": \' + b\'9\' * 5000 + b\'}, "text": "a"}\'',
        'b\'{"kind": [], "kind": {}}\'',
        'b\'{"kind": "answer", "text": "\\\\ud800"}\'',
        'b\'{"kind": "answer", "text": "a", "usage": {"n": 1e999}}\'',
    ],
)
def test_a_report_of_any_bytes_leaves_an_outcome(backend: Any, report: str) -> None:
    program = f"import os; open(os.environ['GYM_REPORT_FILE'], 'wb').write({report}); print('said')"
    result = run(agent(backend, program))
    (judged,) = asked(backend, "/verify")
    assert result["reward"] == 1.0
    assert judged["response"]["output"][0]["content"][0]["text"] in ("said", "a", "\ud800")
    assert result["ng_agent_observations"]["gaps"]
