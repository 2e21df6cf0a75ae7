from __future__ import annotations

from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

from nemo_gym.servers.head import HeadState, build_head_app


def test_liveness_is_immediate_and_readiness_waits_for_the_servers() -> None:
    state = HeadState(config_yaml="a: 1\n")
    client = TestClient(build_head_app(state))
    assert [client.get(path).status_code for path in ("/", "/livez")] == [200, 200]
    assert [client.get(path).status_code for path in ("/readyz", "/healthz", "/health")] == [503] * 3
    state.ready = True
    assert client.get("/readyz").json() == {"status": "ok"}


def test_the_configuration_is_a_json_string_holding_yaml() -> None:
    client = TestClient(build_head_app(HeadState(config_yaml="a: {b: [1, two]}\n")))
    assert yaml.safe_load(client.get("/global_config_dict_yaml").json()) == {"a": {"b": [1, "two"]}}


def test_instances_are_listed_as_the_launcher_knows_them() -> None:
    state = HeadState(config_yaml="")
    client = TestClient(build_head_app(state))
    assert client.get("/server_instances").json() == []
    instance = {"name": "policy_model", "pid": 7, "url": "http://127.0.0.1:1", "start_time": 1.5}
    state.instances.append(instance)
    assert client.get("/server_instances").json() == [instance]


def test_shutdown_answers_first_and_then_stops() -> None:
    stopped: list[Any] = []
    client = TestClient(build_head_app(HeadState(config_yaml="", on_shutdown=lambda: stopped.append(True))))
    assert client.get("/shutdown").status_code == 405
    assert client.post("/shutdown").status_code == 202
    assert stopped == [True]
    assert TestClient(build_head_app(HeadState(config_yaml=""))).post("/shutdown").status_code == 404


def test_with_a_token_only_liveness_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_SERVER_TOKEN", "secret")
    client = TestClient(build_head_app(HeadState(config_yaml="")))
    assert client.get("/livez").status_code == 200
    assert client.get("/global_config_dict_yaml").status_code == 401
