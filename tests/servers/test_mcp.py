"""A resources server's tools over MCP: who sees which, which session a call is in, what is refused at the start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, Any
from unittest.mock import MagicMock

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, PrivateAttr
from starlette.middleware.gzip import GZipMiddleware
from starlette.testclient import TestClient

from nemo_gym.base_resources_server import (
    NEMO_GYM_MCP_SESSION_TOKEN_HEADER,
    RESERVED_MCP_TOOL_NAMES,
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ResourcesSeedSessionRequest,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient

EPISODE = {"episode_id": {"rollout_id": "r1"}, "task_id": {"taskset": "t", "task_id": "1"}}
RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 0,
    "model": "m",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


class Amount(BaseModel):
    by: int


class Total(BaseModel):
    total: int


class Counters(SimpleResourcesServer):
    """Tools of every shape that can be offered, on state that belongs to a session."""

    config: BaseResourcesServerConfig
    _totals: dict[str, int] = PrivateAttr(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        for tool in (self.add, self.note, self.broken, self.refused):
            app.post(f"/{tool.__name__}")(tool)
        return app

    async def seed_session(self, request: Request, body: ResourcesSeedSessionRequest | BaseSeedSessionRequest) -> Any:
        self._totals[request.session[SESSION_ID_KEY]] = 0
        return await super().seed_session(body)

    async def add(self, request: Request, body: Amount) -> Total:
        """Add to the session's total."""
        session = request.session[SESSION_ID_KEY]
        self._totals[session] += body.by
        return Total(total=self._totals[session])

    def note(self, body: dict[str, Any]) -> PlainTextResponse:
        return PlainTextResponse(f"noted {body['text']}")

    async def broken(self, request: Request) -> dict[str, Any]:
        raise KeyError("no such shelf")

    async def refused(self, body: dict[str, Any]) -> dict[str, Any]:
        raise HTTPException(409, "not now")

    async def verify(self, request: Request, body: BaseVerifyRequest) -> BaseVerifyResponse:
        names = [item.name for item in body.response.output if item.type == "function_call"]
        total = self._totals.get(request.session[SESSION_ID_KEY], -1)
        return BaseVerifyResponse(**body.model_dump(), reward=total if names == ["add"] * len(names) else -2)


def served(cls: type[SimpleResourcesServer] = Counters, **settings: Any) -> TestClient:
    base = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "counters", "expose_tools_over_mcp": True}
    config = BaseResourcesServerConfig(**{**base, **settings})
    return TestClient(cls(config=config, server_client=MagicMock(spec=ServerClient)).served_app())


def ask(client: TestClient, method: str, headers: dict[str, str] | None = None, **params: Any) -> Any:
    # A client without the cookie jar of the agent: only the header can name the session.
    message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    answer = TestClient(client.app).post("/mcp", json=message, headers=headers)
    assert answer.status_code == 200
    assert answer.json()["id"] == 7
    return answer.json()["result"]


def seeded(client: TestClient, **row: Any) -> dict[str, str]:
    metadata = client.post("/seed_session", json=row).json()["mcp"]
    assert {key: metadata[key] for key in ("server_name", "url_path", "transport")} == {
        "server_name": "counters",
        "url_path": "/mcp",
        "transport": "http",
    }
    return dict(metadata["headers"])


def use(client: TestClient, headers: dict[str, str] | None, tool: str, **arguments: Any) -> tuple[str, bool, Any]:
    result = ask(client, "tools/call", headers, name=tool, arguments=arguments)
    return result["content"][0]["text"], result["isError"], result.get("structuredContent")


def test_a_client_is_greeted_with_its_version_or_the_newest() -> None:
    for asked, given in (("2025-03-26", "2025-03-26"), ("1999-01-01", "2025-06-18")):
        greeting = ask(served(), "initialize", protocolVersion=asked, capabilities={}, clientInfo={})
        assert greeting["protocolVersion"] == given
        assert greeting["serverInfo"]["name"] == "counters"
    assert ask(served(), "ping") == {}


def test_tools_are_the_post_routes_with_the_schema_and_text_of_their_handlers() -> None:
    tools = {tool["name"]: tool for tool in ask(served(), "tools/list")["tools"]}
    assert set(tools) == {"add", "note", "broken", "refused"}
    assert not set(tools) & RESERVED_MCP_TOOL_NAMES
    assert tools["add"]["inputSchema"] == Amount.model_json_schema()
    assert tools["add"]["description"] == "Add to the session's total."
    assert tools["note"]["inputSchema"]["type"] == "object"


def test_a_call_plays_in_the_session_that_the_token_names_and_verify_scores_it() -> None:
    client, other = served(), None
    other = TestClient(client.app)
    mine, theirs = seeded(client), seeded(other)
    assert use(client, mine, "add", by=2) == ('{"total":2}', False, {"total": 2})
    assert use(client, mine, "add", by=3)[2] == {"total": 5}
    assert use(client, theirs, "add", by=1)[2] == {"total": 1}
    body = {"responses_create_params": {"input": "x"}, "response": RESPONSE}
    assert client.post("/verify", json=body).json()["reward"] == 5.0
    assert other.post("/verify", json=body).json()["reward"] == 1.0


def test_text_and_errors_come_back_as_over_http() -> None:
    client = served()
    mine = seeded(client)
    assert use(client, mine, "note", text="this") == ("noted this", False, None)
    assert use(client, mine, "broken") == ("HTTP 500 from POST /broken: KeyError('no such shelf')", True, None)
    assert use(client, mine, "refused") == ("HTTP 409 from POST /refused: not now", True, None)
    text, is_error, _ = use(client, mine, "add", by="many")
    assert is_error
    assert text.startswith("HTTP 422 from POST /add: ")
    assert "by" in text
    text, is_error, _ = use(client, mine, "nothing")
    assert is_error
    assert "`add`, `note`, `broken`, `refused`" in text


@pytest.mark.parametrize("headers", [None, {}, {NEMO_GYM_MCP_SESSION_TOKEN_HEADER: "forged.token"}])
def test_without_a_good_token_everything_is_listed_and_nothing_is_called(headers: dict[str, str] | None) -> None:
    client = served()
    seeded(client)
    assert len(ask(client, "tools/list", headers)["tools"]) == 4
    text, is_error, _ = use(client, headers, "add", by=1)
    assert is_error
    assert NEMO_GYM_MCP_SESSION_TOKEN_HEADER in text


def test_a_token_of_another_server_is_no_good() -> None:
    client, other = served(), served(name="others")
    headers = other.post("/seed_session", json={}).json()["mcp"]["headers"]
    seeded(client)
    assert use(client, headers, "add", by=1)[1]


class Chosen(Counters):
    def mcp_allowed_tools_for_session(self, body: Any) -> list[str] | None:
        assert body.tools == body["tools"]  # keys are attributes too
        return None if body.tools is None else list(body.tools)


@pytest.mark.parametrize("typed", [False, True])
def test_a_session_may_be_given_some_tools_only(typed: bool) -> None:
    client = served(Chosen)

    def seed(tools: list[str] | None) -> dict[str, str]:
        if not typed:
            return seeded(client, tools=tools)
        body = {"resources_session_id": "s", "task_data": {"tools": tools}, **EPISODE}
        answer = client.post("/seed_session", json=body).json()
        assert "mcp" not in answer
        return dict(answer["resources_tools"]["headers"])

    some, everything = seed(["add"]), seed(None)
    assert [tool["name"] for tool in ask(client, "tools/list", some)["tools"]] == ["add"]
    assert use(client, some, "note", text="x")[1]
    assert not use(client, some, "add", by=1)[1]
    assert len(ask(client, "tools/list", everything)["tools"]) == 4


def test_a_choice_of_tools_that_fails_fails_the_seeding() -> None:
    answer = served(Chosen).post("/seed_session", json={})
    assert answer.status_code == 500
    assert "mcp" not in answer.text


class Own(BaseSeedSessionResponse):
    mcp: dict[str, str]


def test_metadata_that_the_handler_made_itself_stays() -> None:
    class Server(Counters):
        async def seed_session(self, body: BaseSeedSessionRequest) -> Own:
            return Own(mcp={"mine": "yes"})

    assert served(Server).post("/seed_session", json={}).json() == {"mcp": {"mine": "yes"}}


def test_names_with_a_clients_prefix_are_scored_without_it_and_answered_with_it() -> None:
    client = served()
    mine = seeded(client)
    use(client, mine, "add", by=4)
    call = {"type": "function_call", "call_id": "c", "arguments": "{}"}
    output = [{**call, "name": "mcp__counters__add"}, {**call, "call_id": "d", "name": "add"}]
    body = {"responses_create_params": {"input": "x"}, "response": {**RESPONSE, "output": output}}
    answer = client.post("/verify", json=body).json()
    assert answer["reward"] == 4.0
    assert [item["name"] for item in answer["response"]["output"]] == ["mcp__counters__add", "add"]


def test_a_catch_all_serves_the_tools_that_the_override_names(caplog: pytest.LogCaptureFixture) -> None:
    class Dynamic(Counters):
        def setup_webserver(self) -> FastAPI:
            app = super().setup_webserver()
            app.post("/{name}")(self.any)
            return app

        async def any(self, name: str, request: Request) -> dict[str, Any]:
            return {"name": name, "given": await request.json(), "session": len(request.session[SESSION_ID_KEY])}

    class Named(Dynamic):
        def mcp_tools(self, harvested: list[Any], catchall: Any = None) -> list[Any]:
            assert {tool.name for tool in harvested} == {"add", "note", "broken", "refused"}
            return [catchall.tool("search", {"type": "object"}, "Find."), catchall.tool("open-it")]

    client = served(Named)
    listed = ask(client, "tools/list")["tools"]
    assert [(tool["name"], tool["inputSchema"]["type"]) for tool in listed] == [
        ("search", "object"),
        ("open-it", "object"),
    ]
    assert listed[0]["description"] == "Find."
    expected = {"name": "search", "given": {"q": 1}, "session": 36}
    assert use(client, seeded(client), "search", q=1)[2] == expected
    with caplog.at_level(logging.WARNING):
        assert len(ask(served(Dynamic), "tools/list")["tools"]) == 4
    assert "catchall.tool" in caplog.text


def test_tools_of_an_included_router_are_offered_under_the_paths_that_they_have() -> None:
    class Routed(Counters):
        def setup_webserver(self) -> FastAPI:
            app = super().setup_webserver()
            inner, named = APIRouter(), APIRouter()
            inner.post("/plus")(self.add)
            named.post("")(self.note)
            app.include_router(inner)
            app.include_router(named, prefix="/memo")
            return app

    client = served(Routed)
    assert {"plus", "memo"} <= {tool["name"] for tool in ask(client, "tools/list")["tools"]}
    mine = seeded(client)
    assert use(client, mine, "plus", by=2)[2] == {"total": 2}
    assert use(client, mine, "memo", text="x")[0] == "noted x"


@pytest.mark.parametrize("chosen", [None, []])
def test_a_server_may_offer_nothing(chosen: list[Any] | None) -> None:
    class Nothing(Counters):
        def mcp_tools(self, harvested: list[Any], catchall: Any = None) -> list[Any] | None:
            return chosen

    assert ask(served(Nothing), "tools/list")["tools"] == []


async def _with_query(text: str) -> None: ...
async def _with_dependency(token: Annotated[str, Depends(lambda: "x")]) -> None: ...
async def _with_union(body: Amount | Total) -> None: ...
async def _with_optional(body: Amount | None = None) -> None: ...
async def _with_two(one: Amount, two: Total) -> None: ...
async def _with_many(*args: int) -> None: ...
async def _plain(body: dict[str, Any]) -> None: ...


def _routes(*routes: tuple[str, Callable[..., Any]]) -> type[SimpleResourcesServer]:
    class Routed(Counters):
        def setup_webserver(self) -> FastAPI:
            app = super().setup_webserver()
            for path, handler in routes:
                app.post(path)(handler)
            return app

    return Routed


@pytest.mark.parametrize(
    ("routes", "named"),
    [
        ([("/tool", _with_query)], "POST /tool"),
        ([("/tool", _with_dependency)], "POST /tool"),
        ([("/tool", _with_union)], "POST /tool"),
        ([("/tool", _with_optional)], "POST /tool"),
        ([("/tool", _with_two)], "POST /tool"),
        ([("/tool", _with_many)], "POST /tool"),
        ([("/two/words", _plain)], "POST /two/words"),
        ([("/add/", _plain)], "POST /add/"),
        ([("/a/{x}", _plain), ("/b/{y}", _plain)], "/a/{x}"),
        ([("/mcp", _plain)], "/mcp"),
    ],
)
def test_what_could_not_be_called_is_refused_at_the_start(routes: list[Any], named: str) -> None:
    with pytest.raises(ValueError, match=r"MCP|mcp") as refused:
        served(_routes(*routes))
    assert named in str(refused.value)
    served(_routes(*routes), expose_tools_over_mcp=False)


def test_a_route_that_could_not_be_called_may_be_left_out() -> None:
    class Filtered(_routes(("/tool", _with_query))):  # type: ignore[misc]
        def mcp_tools(self, harvested: list[Any], catchall: Any = None) -> list[Any]:
            return [tool for tool in harvested if tool.name != "tool"]

    assert len(ask(served(Filtered), "tools/list")["tools"]) == 4


def test_middleware_that_calls_would_not_pass_is_refused_by_name() -> None:
    class Zipped(Counters):
        def setup_webserver(self) -> FastAPI:
            app = super().setup_webserver()
            app.add_middleware(GZipMiddleware)
            return app

    with pytest.raises(ValueError, match="GZipMiddleware"):
        served(Zipped)


def test_messages_that_are_no_requests_are_answered_as_the_protocol_says() -> None:
    client = served()
    assert client.get("/mcp").status_code == 405
    assert client.delete("/mcp/").status_code == 405
    assert client.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}).status_code == 202
    assert client.post("/mcp", content=b"{").json()["error"]["code"] == -32700
    assert client.post("/mcp", json=5).json()["error"]["code"] == -32600
    unknown = {"jsonrpc": "2.0", "id": "a", "method": "prompts/list"}
    assert client.post("/mcp", json=unknown).json()["error"]["code"] == -32601
    broken = {**unknown, "method": "tools/call", "params": {"name": 5}}
    assert client.post("/mcp", json=broken).json()["error"]["code"] == -32602
    both = [{"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"jsonrpc": "2.0", "method": "notifications/cancelled"}]
    assert client.post("/mcp", json=both).json() == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
