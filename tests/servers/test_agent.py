from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import aiohttp
import pytest
from fastapi import Request
from omegaconf import OmegaConf
from pydantic import ConfigDict, ValidationError
from starlette.testclient import TestClient

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.base_responses_api_agent import (
    BaseResponsesAPIAgentConfig,
    Body,
    SimpleResponsesAPIAgent,
    carry_evidence,
    take_evidence,
)
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.rollout_correlation import current_rollout_id
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient

ON = {"observability_enabled": True, "model_call_capture_dir": "/captures"}


class RunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class RunResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class Agent(SimpleResponsesAPIAgent):
    """Says 42 and shows what it knows about its request."""

    response: Any = None

    async def responses(
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        made = NeMoGymResponse(**self.response)
        made.metadata = {
            "model_path": self.url_path_for_request("/v1/responses", request),
            "current": str(current_rollout_id()),
        }
        carry_evidence(made, observations={"invocations": []}, trajectory={"turns": [1]})
        return made

    async def run(self, request: Request, body: RunRequest = Body()) -> RunResponse:
        result = await self.run_episode(request, body, resources_server="tasks")
        return RunResponse(**result, current=current_rollout_id())


class Tasks(SimpleResourcesServer):
    seen: dict[str, Any] = {}

    async def seed_session(self, request: Request, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:
        self.seen["seeded"] = request.session[SESSION_ID_KEY]
        return BaseSeedSessionResponse()

    async def verify(self, request: Request, body: BaseVerifyRequest) -> Any:
        if (fault := self.seen.get("fault")) is not None:
            raise fault
        if "verdict" in self.seen:
            return self.seen["verdict"]
        self.seen["verified"] = request.session[SESSION_ID_KEY]
        self.seen["response"] = body.response.model_dump()
        self.seen["rollout"] = current_rollout_id()
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


def make_agent(client: Any = None, settings: dict[str, Any] | None = None, **config: Any) -> Agent:
    if client is None:
        client = MagicMock(spec=ServerClient)
        client.global_config_dict = OmegaConf.create(settings or {})
    base = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "agent"}
    return Agent(config=BaseResponsesAPIAgentConfig(**{**base, **config}), server_client=client)


def start_both(serve: Any, make_client: Any, response: dict[str, Any], settings: Any = None, **config: Any) -> Any:
    """Serve a resources server and an agent that know each other; returns (agent, its URL, what the tasks saw)."""
    base = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py"}
    tasks = Tasks(config=BaseResourcesServerConfig(**base, name="tasks"), server_client=make_client(), seen={})
    tasks_served = serve(tasks.served_app())
    agent = make_agent(make_client(), **config)
    agent.response = response
    agent_served = serve(agent.served_app())
    agent.server_client = make_client(
        settings,
        tasks=("resources_servers", tasks_served.port),
        agent=("responses_api_agents", agent_served.port),
    )
    return agent, agent_served.url, tasks.seen


async def post_run(url: str, **row: Any) -> dict[str, Any]:
    body = {"responses_create_params": {"input": "what?"}, **row}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/run", json=body) as answer:
        assert answer.status == 200, await answer.text()
        return dict(await answer.json())


async def test_a_rollout_is_seeded_run_and_verified_in_one_session_under_its_id(
    serve: Any, make_client: Any, response_body: dict[str, Any]
) -> None:
    _, url, seen = start_both(serve, make_client, response_body, ON)
    result = await post_run(url, _ng_task_index=3, _ng_rollout_index=1, _ng_attempt_index=2, question="q")
    assert result["reward"] == 1.0
    assert seen["seeded"] == seen["verified"]
    assert seen["rollout"] == "3-1-a2"
    assert result["current"] == "3-1-a2"
    metadata = seen["response"]["metadata"]
    assert metadata == {"model_path": "/ng-rollout/3-1-a2/v1/responses", "current": "3-1-a2"}


async def test_verifiers_never_see_evidence_and_the_result_carries_it(
    serve: Any, make_client: Any, response_body: dict[str, Any]
) -> None:
    _, url, seen = start_both(serve, make_client, response_body, ON)
    result = await post_run(url, _ng_task_index=0, _ng_rollout_index=0)
    assert not [key for key in seen["response"] if key.startswith(("_ng", "ng_"))]
    assert result["ng_agent_observations"] == {"invocations": []}
    assert result["ng_trajectory"] == {"turns": [1]}
    assert "_ng_agent_observations" not in result["response"]


@pytest.mark.parametrize("settings", [ON, None], ids=["observed", "not observed"])
@pytest.mark.parametrize("fault", ["raises", "is gone", [1.0], "1.0", 1.0, True, None])
async def test_the_work_of_an_agent_outlives_its_verifier(
    serve: Any, make_client: Any, response_body: dict[str, Any], settings: Any, fault: Any
) -> None:
    agent, url, seen = start_both(serve, make_client, response_body, settings)
    if fault == "raises":
        seen["fault"] = ValueError("a bug")
    elif fault != "is gone":
        seen["verdict"] = fault
    else:
        post = agent.server_client.post

        async def cut_off(*, url_path: str, **call: Any) -> Any:
            if url_path == "/verify":
                raise aiohttp.ServerDisconnectedError
            return await post(url_path=url_path, **call)

        agent.server_client = MagicMock(spec=ServerClient, post=cut_off, global_config_dict=settings or {})
    row = {"responses_create_params": {"input": "what?"}, "_ng_task_index": 0, "_ng_rollout_index": 0}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/run", json=row) as answer:
        assert answer.status == 500
        body = await answer.json()
    said = {"raises": "ValueError('a bug')", "is gone": "Server disconnected"}.get(str(fault))
    assert (said or "`verify` of `tasks` must return a verify response, a JSON object") in body["detail"]
    handed_over = body["ng_failed_rollout"]
    [message] = handed_over["_ng_failure_partial_response"]["output"]
    assert message["content"][0]["text"] == "42"
    assert handed_over["_ng_failure_stage"] == "verification"
    assert handed_over.get("failure_kind") == (None if fault == "is gone" else "verifier_error")
    assert handed_over["ng_agent_observations"] == {"invocations": []}
    assert handed_over["ng_trajectory"] == {"turns": [1]}
    assert "reward" not in handed_over


async def test_without_observability_nothing_is_prefixed(
    serve: Any, make_client: Any, response_body: dict[str, Any]
) -> None:
    """A2: an agent process whose configuration does not say so sends no prefixed calls."""
    _, url, seen = start_both(serve, make_client, response_body)
    await post_run(url, _ng_task_index=3, _ng_rollout_index=1)
    assert seen["response"]["metadata"]["model_path"] == "/v1/responses"
    assert seen["rollout"] is None


async def test_verification_can_be_skipped(serve: Any, make_client: Any, response_body: dict[str, Any]) -> None:
    _, url, seen = start_both(serve, make_client, response_body, skip_verification=True, skip_verification_reward=0.5)
    result = await post_run(url)
    assert (result["reward"], result["verification_skipped"]) == (0.5, True)
    assert "verified" not in seen


def test_every_agent_registers_the_prefixed_twins(response_body: dict[str, Any]) -> None:
    """C9: the same handler answers under the prefix, with and without token capture."""
    agent = make_agent()
    agent.response = response_body
    client = TestClient(agent.setup_webserver())
    for prefix in ("", "/ng-rollout/0-1", "/ng-rollout/0-1/training-token-capture", "/ng-rollout/0-1/inv/sub"):
        metadata = client.post(f"{prefix}/v1/responses", json={"input": "x"}).json()["metadata"]
        assert metadata["model_path"] == f"{prefix}/v1/responses"
        assert metadata["current"] == ("0-1" if prefix else "None")


def test_paths_and_urls_carry_the_id_only_when_evidence_is_collected() -> None:
    """C8, C10."""
    row = {"_ng_task_index": 4, "_ng_rollout_index": 2}
    off, on = make_agent(), make_agent(settings=ON)
    assert off.rollout_id_from_run(row) is None
    assert off.url_path_for_run("/v1/responses", row) == "/v1/responses"
    assert on.rollout_id_from_run(row) == "4-2"
    assert on.rollout_id_from_run(RunRequest(responses_create_params={"input": "x"}, **row)) == "4-2"
    assert on.url_path_for_run("/v1/responses", row) == "/ng-rollout/4-2/v1/responses"
    assert on.url_path_for_run("/v1/responses", {}) == "/v1/responses"
    assert on.base_url_for_run("http://h:1/", row) == "http://h:1/ng-rollout/4-2"
    assert on.url_path_for_request("/v1/responses", None) == "/v1/responses"
    tokens = make_agent(token_id_capture=True)
    assert tokens.url_path_for_run("/x", row) == "/ng-rollout/4-2/training-token-capture/x"


def test_a_model_servers_url_for_an_sdk_ends_in_v1(make_client: Any) -> None:
    agent = make_agent(make_client(policy=("responses_api_models", 9)))
    assert agent.resolve_model_base_url("policy") == "http://127.0.0.1:9/v1"
    assert agent.resolve_model_base_url("policy", "4-2") == "http://127.0.0.1:9/ng-rollout/4-2/v1"


def test_the_configuration_is_checked() -> None:
    with pytest.raises(ValidationError):
        make_agent(session_close_retry_window_seconds=0)
    with pytest.raises(ValidationError, match="unique"):
        make_agent(tool_accesses=[{"name": "a"}, {"name": "a"}])


def test_metrics_are_computed_by_default() -> None:
    rows = [{"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0}]
    metrics = TestClient(make_agent().setup_webserver()).post("/aggregate_metrics", json={"verify_responses": rows})
    assert metrics.json()["key_metrics"]["mean/reward"] == 1.0


def test_evidence_is_taken_off_once() -> None:
    response = {"id": "r", "_ng_trajectory": {"a": 1}, "_ng_agent_observations": None}
    assert take_evidence(response) == {"ng_trajectory": {"a": 1}}
    assert response == {"id": "r"}
    assert take_evidence(response) == {}
