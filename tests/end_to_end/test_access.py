"""Beyond this machine a run needs a token, and only who knows it is answered."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from end_to_end_support import Gym, records

TOKEN = "only-for-this-run"
SERVERS = ["--resources-server", "example_single_tool_call", "--model-type", "scripted_model"]


def status_of(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_another_address_is_refused_without_a_token(gym: Gym) -> None:
    done = gym.run("env", "start", *SERVERS, "+default_host=0.0.0.0", gym.head, code=2)
    assert "without a token" in done.stderr
    assert "+server_token=" in done.stderr


def test_with_a_token_everything_works_for_who_has_it_and_nothing_holds_it(gym: Gym) -> None:
    token = f"+server_token={TOKEN}"
    gym.start(*SERVERS, "+default_host=0.0.0.0", token)
    assert "+server_token" in gym.run("env", "status", gym.head, code=1).stderr
    instances = json.loads(gym.run("env", "status", "--json", gym.head, token).stdout)
    model = next(instance["port"] for instance in instances if instance["name"] == "policy_model")
    for url in (f"http://127.0.0.1:{model}/v1/models", f"http://127.0.0.1:{gym.port}/global_config_dict_yaml"):
        assert status_of(url)[0] == 401
        assert status_of(url, Authorization="Bearer wrong")[0] == 401
        for headers in ({"Authorization": f"Bearer {TOKEN}"}, {"x-api-key": TOKEN}):
            status, body = status_of(url, **headers)
            assert (status, TOKEN.encode() in body) == (200, False)
    run = gym.folder / "run"
    rows = gym.folder / "rows.jsonl"
    rows.write_text('{"responses_create_params": {"input": "What is the weather like in Oslo?"}}\n')
    gym.run("eval", "run", "--no-serve", "-i", rows, "-o", run / "rollouts.jsonl", gym.head, token)
    assert len(records(run / "rollouts.jsonl")) == 1
    assert all(TOKEN not in path.read_text(errors="replace") for path in run.rglob("*") if path.is_file())
    assert all(TOKEN not in path.read_text(errors="replace") for path in gym.folder.rglob("*.log"))


@pytest.mark.parametrize("token", ["''", "3"])
def test_a_token_that_is_no_text_is_refused(gym: Gym, token: str) -> None:
    assert "server_token" in gym.run("env", "validate", *SERVERS, f"+server_token={token}", code=2).stderr
