"""Agent sessions over the routes of the base, and the built-in agent in one, with the tools that it is granted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import aiohttp
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from omegaconf import OmegaConf
from starlette.testclient import TestClient

from nemo_gym.base_responses_api_agent import (
    AgentCloseSessionResponse,
    AgentSession,
    BaseResponsesAPIAgentConfig,
    Body,
    SimpleResponsesAPIAgent,
)
from nemo_gym.builtin.responses_api_agents.command_agent.app import CommandAgent, CommandAgentConfig
from nemo_gym.builtin.responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig
from nemo_gym.errors import ConfigError
from nemo_gym.rollout_observability import AgentInvocation, AgentObservationBundle
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.agent_session_types import AgentCloseSessionRequest, AgentSeedSessionRequest
from nemo_gym.servers.agent_sessions import AgentSessions

SEED_PATH, CLOSE_PATH, ACT_PATH = "/v1/agent_sessions", "/v1/agent_sessions/close", "/v1/responses"
EPISODE = {"rollout_id": "r1", "attempt": 1}
TASK = {"taskset": "numbers", "task_id": "7"}
DIRECT = {"kind": "direct_http", "name": "tools", "base_url": "http://127.0.0.1:1"}
MCP = {"kind": "mcp", "name": "notes", "connection": {"url": "http://127.0.0.1:1/mcp"}}
BASE = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "agent"}


def seed(name: str = "s1", **changes: Any) -> dict[str, Any]:
    return {"agent_session_id": name, "episode_id": EPISODE, "task_id": TASK, "tool_accesses": [], **changes}


def closing(name: str = "s1", **changes: Any) -> dict[str, Any]:
    return {"agent_session_id": name, "episode_id": EPISODE, **changes}


class Agent(SimpleResponsesAPIAgent):
    """Tells what it knows of its session; its hooks fail as often as they are told to."""

    faults: dict[str, int] = {}
    calls: list[str] = []

    def fail(self, hook: str) -> None:
        self.calls.append(hook)
        if self.faults.get(hook, 0):
            self.faults[hook] -= 1
            raise ValueError(f"no {hook} today")

    async def open_agent_session(self, session: AgentSession) -> None:
        self.fail("open")

    async def close_agent_session(self, session: AgentSession) -> AgentObservationBundle | None:
        self.fail("close")
        return await super().close_agent_session(session)

    async def responses(self, request: Request, body: dict[str, Any] = Body()) -> dict[str, Any]:
        session = self.agent_session_of(request)
        if session is None:
            return {"session": None}
        session.activations += 1
        seen = AgentInvocation(invocation_id=f"activation-{session.activations}")
        session.observed.append(AgentObservationBundle(source="agent", records=[seen]))
        session.resources_cookies = {"count": str(session.activations)}
        return {"session": session.seed.agent_session_id, "tools": [grant.name for grant in session.tool_accesses]}

    async def run(self, request: Request) -> dict[str, Any]:
        return {}


def make_agent(faults: dict[str, int] | None = None, **config: Any) -> Agent:
    client = MagicMock(spec=ServerClient)
    client.global_config_dict = OmegaConf.create({})
    return Agent(
        config=BaseResponsesAPIAgentConfig(**{**BASE, **config}), server_client=client, faults=faults or {}, calls=[]
    )


def client_of(agent: SimpleResponsesAPIAgent) -> TestClient:
    return TestClient(agent.setup_webserver(), raise_server_exceptions=False)


@pytest.fixture
def client() -> TestClient:
    return client_of(make_agent())


def statuses(client: TestClient, *requests: tuple[str, Any]) -> list[int]:
    return [client.post(path, json=body).status_code for path, body in requests]


def test_a_session_is_seeded_acted_in_and_closed(client: TestClient) -> None:
    assert client.post(SEED_PATH, json=seed()).json() == {"agent_session_id": "s1"}
    assert [client.post(ACT_PATH, json={}).json()["session"] for _ in range(2)] == ["s1", "s1"]
    closed = client.post(CLOSE_PATH, json=closing()).json()
    answer = AgentCloseSessionResponse.model_validate(closed)
    assert answer.agent_observations is not None
    assert [record.invocation_id for record in answer.agent_observations.records] == ["activation-1", "activation-2"]
    assert answer.resources_cookies == {"count": "2"}
    assert client.post(CLOSE_PATH, json=closing()).json() == closed


def test_a_session_in_which_nothing_happened_closes_with_nothing(client: TestClient) -> None:
    client.post(SEED_PATH, json=seed())
    answer = {"agent_session_id": "s1", "agent_observations": None, "resources_cookies": None}
    assert client.post(CLOSE_PATH, json=closing()).json() == answer
    assert client.post(CLOSE_PATH, json=closing("never-seeded")).json() == {
        **answer,
        "agent_session_id": "never-seeded",
    }


def test_requests_outside_of_any_session_are_as_before(client: TestClient) -> None:
    paths = [ACT_PATH, f"/ng-rollout/1-0{ACT_PATH}"]
    assert [client.post(path, json={}).json() for path in paths] == [{"session": None}] * 2


@pytest.mark.parametrize("prefix", ["", "/ng-rollout/1-0", "/ng-rollout/1-0/inv/root"])
def test_every_activation_route_is_bound_by_the_cookie(client: TestClient, prefix: str) -> None:
    client.post(SEED_PATH, json=seed())
    assert client.post(prefix + ACT_PATH, json={}).json()["session"] == "s1"
    client.post(CLOSE_PATH, json=closing())
    assert client.post(prefix + ACT_PATH, json={}).status_code == 409


@pytest.mark.parametrize(
    ("before", "request_", "status"),
    [
        ([(SEED_PATH, seed())], (SEED_PATH, seed()), 200),
        ([(SEED_PATH, seed())], (SEED_PATH, seed(task_id={**TASK, "task_id": "8"})), 409),
        ([(SEED_PATH, seed())], (SEED_PATH, seed(episode_id={**EPISODE, "attempt": 2})), 409),
        ([(SEED_PATH, seed())], (SEED_PATH, seed("s2")), 409),
        ([(SEED_PATH, seed())], (CLOSE_PATH, closing("s2")), 409),
        ([(SEED_PATH, seed())], (CLOSE_PATH, closing(episode_id={**EPISODE, "attempt": 2})), 409),
        ([(SEED_PATH, seed()), (CLOSE_PATH, closing())], (SEED_PATH, seed()), 409),
        ([(SEED_PATH, seed()), (CLOSE_PATH, closing())], (SEED_PATH, seed("s2")), 200),
        ([(SEED_PATH, seed()), (CLOSE_PATH, closing())], (ACT_PATH, {}), 409),
        ([(CLOSE_PATH, closing())], (SEED_PATH, seed()), 409),
        ([(CLOSE_PATH, closing())], (SEED_PATH, seed("s2")), 200),
        ([], (SEED_PATH, seed("")), 422),
        ([], (SEED_PATH, seed(surprise=1)), 422),
        ([], (SEED_PATH, seed(tool_accesses=[DIRECT, DIRECT])), 422),
        ([], (SEED_PATH, seed(tool_accesses=[DIRECT, MCP])), 200),
        ([], (SEED_PATH, seed(tool_accesses=[{"name": "neither"}])), 422),
    ],
)
def test_what_may_follow_what(client: TestClient, before: list[Any], request_: tuple[str, Any], status: int) -> None:
    assert statuses(client, *before) == [200] * len(before)
    assert statuses(client, request_) == [status]


def test_a_retry_without_the_first_cookie_finds_the_same_session() -> None:
    app = make_agent().setup_webserver()
    first, second = TestClient(app), TestClient(app)
    assert statuses(first, (SEED_PATH, seed())) + statuses(second, (SEED_PATH, seed())) == [200, 200]
    assert [each.post(ACT_PATH, json={}).json()["session"] for each in (first, second)] == ["s1", "s1"]


def test_a_cookie_of_another_server_or_of_a_session_that_is_gone_binds_nothing() -> None:
    here, there = client_of(make_agent()), client_of(make_agent())
    here.post(SEED_PATH, json=seed())
    there.cookies = here.cookies
    assert statuses(there, (ACT_PATH, {})) == [409]


def test_seeded_grants_come_before_configured_ones_of_their_name() -> None:
    client = client_of(make_agent(tool_accesses=[DIRECT, {**DIRECT, "name": "more"}]))
    client.post(SEED_PATH, json=seed(tool_accesses=[{**DIRECT, "base_url": "http://127.0.0.1:2"}, MCP]))
    assert client.post(ACT_PATH, json={}).json()["tools"] == ["tools", "notes", "more"]


def test_configured_grants_that_are_none_are_a_mistake_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="`tool_accesses` of `agent`"):
        make_agent(tool_accesses=[{"name": "neither"}]).setup_webserver()


def test_several_workers_hold_no_sessions() -> None:
    answer = client_of(make_agent(num_workers=2)).post(SEED_PATH, json=seed())
    assert answer.status_code == 500


def test_a_setup_that_failed_leaves_nothing_and_may_be_tried_again() -> None:
    agent = make_agent({"open": 1})
    client = client_of(agent)
    assert statuses(client, (SEED_PATH, seed()), (SEED_PATH, seed()), (ACT_PATH, {})) == [500, 200, 200]
    assert agent.calls == ["open", "close", "open"]


def test_a_setup_that_cannot_be_cleaned_up_can_only_be_closed() -> None:
    agent = make_agent({"open": 1, "close": 2})
    client = client_of(agent)
    requests = [(SEED_PATH, seed()), (SEED_PATH, seed()), (CLOSE_PATH, closing()), (CLOSE_PATH, closing())]
    assert statuses(client, *requests) == [500, 409, 500, 200]
    assert agent.calls == ["open", "close", "close", "close"]


def test_a_close_that_failed_keeps_the_session_for_a_retry() -> None:
    client = client_of(make_agent({"close": 1}))
    client.post(SEED_PATH, json=seed())
    client.post(ACT_PATH, json={})
    assert statuses(client, (CLOSE_PATH, closing()), (ACT_PATH, {})) == [500, 200]
    assert len(client.post(CLOSE_PATH, json=closing()).json()["agent_observations"]["records"]) == 2


async def test_a_close_is_forgotten_after_the_window() -> None:
    now = 0.0

    async def nothing(session: AgentSession) -> None:
        return None

    sessions = AgentSessions(window_s=300.0, granted=(), opened=nothing, closing=nothing, clock=lambda: now)
    await sessions.close(AgentCloseSessionRequest.model_validate(closing()), {})
    now = 299.0
    with pytest.raises(Exception, match="was closed"):
        await sessions.seed(AgentSeedSessionRequest.model_validate(seed()), {})
    now = 300.0
    answer = await sessions.seed(AgentSeedSessionRequest.model_validate(seed()), {})
    assert answer.agent_session_id == "s1"


async def test_seeds_that_come_at_once_open_one_session() -> None:
    opened = []

    async def opening(session: AgentSession) -> None:
        opened.append(session)
        await asyncio.sleep(0)

    async def nothing(session: AgentSession) -> None:
        return None

    sessions = AgentSessions(window_s=300.0, granted=(), opened=opening, closing=nothing)
    body = AgentSeedSessionRequest.model_validate(seed())
    await asyncio.gather(*(sessions.seed(body, {"session_id": str(number)}) for number in range(5)))
    assert len(opened) == 1


class Tools:
    """A tool server of which a session may call `/lookup`, with its header and its cookies."""

    def __init__(self) -> None:
        self.app, self.seen = FastAPI(), []
        self.app.post("/base/lookup")(self.lookup)

    async def lookup(self, request: Request) -> PlainTextResponse:
        self.seen.append((await request.json(), request.headers.get("x-grant"), dict(request.cookies)))
        answer = PlainTextResponse(f"found {len(self.seen)}")
        answer.set_cookie("count", str(len(self.seen)))
        return answer


def response(*output: dict[str, Any]) -> dict[str, Any]:
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    return {"id": "r", "object": "response", "output": list(output), "usage": usage}


CALL = {"type": "function_call", "call_id": "c1", "name": "lookup", "arguments": '{"key": "a"}'}
DONE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}


@pytest.fixture
def acting(serve: Callable[[Any], Any], make_client: Callable[..., Any]) -> Any:
    """A built-in agent that asks for a tool and is done, as often as it is activated."""
    model = FastAPI()

    @model.post("/{path:path}")
    async def answer(request: Request) -> dict[str, Any]:
        asked = await request.json()
        return response(DONE if asked["input"][-1].get("type") == "function_call_output" else CALL)

    settings = {"observability_enabled": True, "model_call_capture_dir": "/captures"}
    client = make_client(settings, policy=("responses_api_models", serve(model).port))
    config = SimpleAgentConfig(**BASE, model_server={"type": "responses_api_models", "name": "policy"})
    return serve(SimpleAgent(config=config, server_client=client).served_app())


def post(url: str, bodies: list[tuple[str, Any]]) -> list[tuple[int, Any]]:
    """Send requests one after the other, keeping cookies as an environment server does."""

    async def send() -> list[tuple[int, Any]]:
        answers = []
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            for path, body in bodies:
                async with session.post(url + path, json=body) as answer:
                    answers.append((answer.status, await answer.json()))
        return answers

    return asyncio.run(send())


def test_the_built_in_agent_uses_the_granted_tools_and_reports_at_the_close(acting: Any, serve: Any) -> None:
    tools = Tools()
    grant = {
        **DIRECT,
        "base_url": f"{serve(tools.app).url}/base/",
        "headers": {"x-grant": "yes"},
        "cookies": {"a": "1"},
    }
    act = ("/ng-rollout/r1-a1/v1/responses", {"input": "find it", "tools": [{"type": "function", "name": "lookup"}]})
    seeding = (SEED_PATH, seed(tool_accesses=[grant, {**MCP, "required": False}]))
    answers = post(acting.url, [seeding, act, act, (CLOSE_PATH, closing())])
    assert [status for status, _ in answers] == [200] * 4
    assert tools.seen == [({"key": "a"}, "yes", {"a": "1"}), ({"key": "a"}, "yes", {"a": "1", "count": "1"})]
    outputs = [[item for item in body["output"] if item["type"] == "function_call_output"] for _, body in answers[1:3]]
    assert [found["output"] for (found,) in outputs] == ["found 1", "found 2"]
    assert not [key for _, body in answers[1:3] for key in body if key.startswith(("_ng", "ng_"))]
    closed = answers[3][1]
    bundle = AgentObservationBundle.model_validate(closed["agent_observations"])
    named = [(record.kind, record.invocation_id) for record in bundle.records]
    assert named == [
        *(("agent_invocation", "root"), ("tool_call", "root")),
        *(("agent_invocation", "activation-2"), ("tool_call", "activation-2")),
    ]
    assert closed["resources_cookies"] == {"count": "2"}


def test_a_tool_without_a_grant_is_an_error_and_a_required_one_that_it_cannot_call_refused(acting: Any) -> None:
    act = (ACT_PATH, {"input": "find it", "tools": [{"type": "function", "name": "lookup"}]})
    answers = post(acting.url, [(SEED_PATH, seed()), act])
    assert [status for status, _ in answers] == [200, 500]
    assert "grants no tools over HTTP" in answers[1][1]
    ((status, said),) = post(acting.url, [(SEED_PATH, seed("s2", tool_accesses=[MCP]))])
    assert (status, "`notes` is `mcp`" in said) == (500, True)


def test_a_program_holds_no_sessions_and_says_so(serve: Any, make_client: Any) -> None:
    config = CommandAgentConfig(**BASE, command="true", model_server={"type": "responses_api_models", "name": "policy"})
    served = serve(CommandAgent(config=config, server_client=make_client()).served_app())
    ((status, said),) = post(served.url, [(SEED_PATH, seed())])
    assert (status, "runs a program once and holds no sessions" in said) == (500, True)
