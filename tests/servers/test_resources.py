from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from fastapi import FastAPI
from omegaconf import OmegaConf
from pydantic import ValidationError
from starlette.testclient import TestClient

from nemo_gym.base_resources_server import (
    BaseMultiRewardVerifyResponse,
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
    normalize_tool_name,
)
from nemo_gym.judge import JudgeError, call_judge, judge_failsafe, reraise_judge_errors
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.server_utils import ServerClient

BASE = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "tasks"}


class PlainServer(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=True)


def plain_server(**settings: Any) -> PlainServer:
    return PlainServer(config=BaseResourcesServerConfig(**BASE, **settings), server_client=MagicMock(spec=ServerClient))


@pytest.fixture
def game(public_server: Callable[[str], ModuleType]) -> Any:
    module = public_server("counter_game")
    return module.CounterGame(
        config=module.CounterGameConfig(**BASE, step=2, unknown_key=1), server_client=MagicMock(spec=ServerClient)
    )


@pytest.fixture
def judged(public_server: Callable[[str], ModuleType]) -> Any:
    module = public_server("judged_answers")
    config = module.JudgedAnswersConfig(
        **BASE,
        judge_model_server={"type": "responses_api_models", "name": "judge"},
        judge_responses_create_params={"input": [], "temperature": 0},
    )
    return module.JudgedAnswers(config=config, server_client=MagicMock(spec=ServerClient))


def row(response: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": "count"}, "response": response, **fields}


def test_seed_tools_and_verify_share_one_session(game: Any, response_body: dict[str, Any]) -> None:
    client = TestClient(game.setup_webserver())
    start = {"responses_create_params": {"input": "count"}, "target": 9, "start": 5, "_ng_task_index": 0}
    assert client.post("/seed_session", json=start).json() == {}
    assert client.post("/increment", json={"times": 2}).json() == {"count": 9}
    assert client.post("/describe").text == "the counter shows 9"
    scored = client.post("/verify", json=row(response_body, target=9)).json()
    assert (scored["reward"], scored["final_count"]) == (1.0, 9)
    assert "dropped_extra" not in scored, "the annotated response class filters the answer"
    stranger = TestClient(game.setup_webserver())
    assert stranger.post("/increment", json={}).json() == {"count": 2}, "another cookie is another session"


def test_a_prefixed_call_reaches_the_same_route_and_session(game: Any) -> None:
    client = TestClient(game.setup_webserver())
    assert client.post("/increment", json={}).json() == {"count": 2}
    assert client.post("/ng-rollout/3-1/increment", json={}).json() == {"count": 4}


def test_metrics_use_the_servers_hooks(game: Any) -> None:
    rows = [
        {"_ng_task_index": task, "_ng_rollout_index": rollout, "reward": reward}
        for task, rewards in enumerate([[1.0, 0.0], [0.0, 0.0]])
        for rollout, reward in enumerate(rewards)
    ]
    metrics = TestClient(game.setup_webserver()).post("/aggregate_metrics", json={"verify_responses": rows}).json()
    assert metrics["key_metrics"] == {"pass@2/accuracy": 50.0}
    assert metrics["agent_metrics"]["mean/reward"] == pytest.approx(0.25)
    empty = TestClient(game.setup_webserver()).post("/aggregate_metrics", json={"verify_responses": []}).json()
    assert empty["agent_metrics"] == {}


def test_bad_bodies_are_422_and_unknown_routes_404(game: Any) -> None:
    client = TestClient(game.setup_webserver())
    assert client.post("/increment", json={"times": "many"}).status_code == 422
    assert client.post("/nothing", json={}).status_code == 404


def test_a_typed_session_is_opened_and_closed_by_its_id() -> None:
    client = TestClient(plain_server().setup_webserver())
    identity = {"episode_id": {"rollout_id": "r1", "attempt": 1}, "task_id": {"taskset": "s", "task_id": "t"}}
    seeded = client.post("/seed_session", json={"resources_session_id": "x", "task_data": {}, **identity}).json()
    assert seeded["resources_session_id"] == "x"
    close = {"resources_session_id": "x", "episode_id": identity["episode_id"]}
    assert [client.post("/close_session", json=close).json() for _ in range(2)] == [{"resources_session_id": "x"}] * 2


def test_the_reverify_mode_is_a_json_string(judged: Any) -> None:
    assert TestClient(judged.setup_webserver()).get("/reverify_mode").json() == "stateless"
    assert TestClient(plain_server().setup_webserver()).get("/reverify_mode").json() == "unknown"
    assert ReverifyMode.UNSUPPORTED == "unsupported"


def test_a_judges_answer_decides_the_reward(judged: Any, response_body: dict[str, Any]) -> None:
    judge_says = {**response_body, "output": [{**response_body["output"][0]}]}
    judge_says["output"][0]["content"] = [{"type": "output_text", "text": "CORRECT", "annotations": []}]
    judged.server_client.post = AsyncMock(return_value=answer_of(judge_says))
    scored = TestClient(judged.setup_webserver()).post("/verify", json=row(response_body, expected_answer="42")).json()
    assert (scored["reward"], scored["judge_said"]) == (1.0, "CORRECT")
    call = judged.server_client.post.call_args.kwargs
    assert (call["server_name"], call["url_path"]) == ("judge", "/v1/responses")


def answer_of(body: dict[str, Any]) -> MagicMock:
    answer = MagicMock()
    answer.ok = True
    answer.read = AsyncMock(return_value=NeMoGymResponse(**body).model_dump_json().encode())
    return answer


def test_a_judge_that_cannot_be_asked_masks_the_sample(judged: Any, response_body: dict[str, Any]) -> None:
    judged.server_client.post = AsyncMock(side_effect=TimeoutError("x" * 3000))
    answer = TestClient(judged.setup_webserver()).post(
        "/verify", json=row(response_body, expected_answer="42", verifier_metadata={"a": 1})
    )
    assert answer.status_code == 200
    masked = answer.json()
    assert (masked["reward"], masked["mask_sample"]) == (0.0, True)
    assert masked["failure_kind"] == masked["_ng_failure_class"] == "judge_failed"
    assert masked["instance_config"] == {"mask_sample": True}
    assert masked["failure_reason"] == masked["_ng_failure_judge_error"]
    assert masked["failure_reason"].startswith("TimeoutError: xxx")
    assert len(masked["failure_reason"]) == 2000
    assert masked["verifier_metadata"] == {"a": 1}
    assert masked["response"]["output"][0]["content"][0]["text"] == "42"


async def test_the_failsafe_finds_the_body_wherever_it_is(response_body: dict[str, Any]) -> None:
    body = BaseVerifyRequest(**row(response_body))

    @judge_failsafe
    async def verify(request: Any, body: BaseVerifyRequest) -> None:
        raise JudgeError("down")

    assert (await verify("request", body)).status_code == 200
    assert (await verify(request="request", body=body)).status_code == 200
    with pytest.raises(RuntimeError):
        await verify("request", "no body")


async def test_judge_errors_pass_unchanged_and_everything_else_is_relabelled() -> None:
    async def fails(error: Exception) -> None:
        raise error

    own = JudgeError("mine")
    with pytest.raises(JudgeError) as caught:
        await reraise_judge_errors(fails(own))
    assert caught.value is own
    with pytest.raises(JudgeError, match="KeyError: 'x'") as relabelled:
        await reraise_judge_errors(fails(KeyError("x")))
    assert isinstance(relabelled.value.__cause__, KeyError)
    client = MagicMock(post=AsyncMock(side_effect=OSError("gone")))
    with pytest.raises(JudgeError, match="OSError: gone"):
        await call_judge(client, server_name="j", url_path="/v1/responses", json={}, response_model=NeMoGymResponse)


def test_the_run_id_is_read_by_its_alias_and_never_sent_on(response_body: dict[str, Any]) -> None:
    request = BaseRunRequest.model_validate({"responses_create_params": {"input": "x"}, "_ng_rollout_id": "a.b-1"})
    assert request.capture_rollout_id == "a.b-1"
    assert set(request.model_dump()) == {"responses_create_params"}
    assert BaseRunRequest(responses_create_params={"input": "x"}, capture_rollout_id="c").capture_rollout_id == "c"
    assert set(BaseVerifyRequest(**row(response_body)).model_dump()) == {"responses_create_params", "response"}


def test_a_verify_response_is_made_from_the_requests_dump(response_body: dict[str, Any]) -> None:
    dump = BaseVerifyRequest(**row(response_body)).model_dump()
    assert BaseVerifyResponse(**dump, reward=True).reward == 1.0
    with pytest.raises(ValidationError):
        BaseVerifyResponse(**dump, reward=None)
    with pytest.raises(ValidationError):
        BaseMultiRewardVerifyResponse(**dump, reward=1)


def test_an_unregistered_failure_kind_is_kept_and_warned_about_once(
    response_body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        made = BaseVerifyResponse(**row(response_body), reward=0, failure_kind="unheard_of")
        BaseVerifyResponse(**row(response_body), reward=0, failure_kind="mine:own_kind")
    assert made.failure_kind == "unheard_of"
    assert caplog.text.count("unheard_of") == 1
    assert "own_kind" not in caplog.text


@pytest.mark.parametrize(
    ("name", "server", "expected"),
    [
        ("roll", None, "roll"),
        ("mcp__dice__roll", None, "roll"),
        ("mcp__dice__roll", "dice", "roll"),
        ("mcp__other__roll", "dice", "mcp__other__roll"),
        ("mcp__x", None, "mcp__x"),
    ],
)
def test_tool_names_lose_an_mcp_clients_prefix(name: str, server: str | None, expected: str) -> None:
    assert normalize_tool_name(name, server) == expected


def test_only_a_server_client_is_accepted_as_one() -> None:
    with pytest.raises(ValidationError):
        PlainServer(config=BaseResourcesServerConfig(**BASE), server_client=object())


def test_liveness_routes_are_added_by_the_served_app_and_never_replace_a_servers_own() -> None:
    class OwnHealth(PlainServer):
        def setup_webserver(self) -> FastAPI:
            app = super().setup_webserver()
            app.get("/health")(self.health)
            return app

        async def health(self) -> str:
            return "mine"

    server = OwnHealth(config=BaseResourcesServerConfig(**BASE), server_client=MagicMock(spec=ServerClient))
    assert TestClient(server.setup_webserver()).get("/livez").status_code == 404
    client = TestClient(server.served_app())
    assert [client.get(path).json() for path in ("/", "/livez", "/readyz", "/healthz")] == [{"status": "ok"}] * 4
    assert client.get("/health").json() == "mine"
    assert "/livez" not in client.get("/openapi.json").json()["paths"]


def test_a_tool_that_breaks_answers_its_repr_and_a_bad_body_is_logged_in_one_bounded_line(
    game: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = TestClient(game.served_app())
    assert client.post("/break_down").json() == "RuntimeError('the counter is stuck')"
    caplog.clear()
    assert client.post("/increment", json={"times": "many\n" * 1000}).status_code == 422
    (record,) = [record for record in caplog.records if "refused a body" in record.getMessage()]
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 3500


def test_a_body_without_a_content_type_is_read_as_json(game: Any) -> None:
    answer = TestClient(game.setup_webserver()).post("/increment", content=b'{"times": 3}')
    assert answer.json() == {"count": 6}


def test_the_run_configuration_is_at_hand() -> None:
    server = plain_server()
    assert server.global_config() == {}
    server.server_client.global_config_dict = OmegaConf.create({"policy_model_name": "m"})
    assert server.global_config()["policy_model_name"] == "m"
