"""The built-in agent: asks the model, runs the tools it calls, until it answers; and reports what happened."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import aiohttp
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.base_responses_api_agent import (
    AgentSession,
    BaseResponsesAPIAgentConfig,
    Body,
    DirectHttpToolAccess,
    SimpleResponsesAPIAgent,
)
from nemo_gym.builtin.responses_api_agents.simple_agent.evidence import ROOT, observation_bundle, producer_trajectory
from nemo_gym.builtin.responses_api_agents.simple_agent.failure import failed_reply, failed_row, is_judged, unanswered
from nemo_gym.builtin.responses_api_agents.simple_agent.inputs import check_input
from nemo_gym.builtin.responses_api_agents.simple_agent.loop import LoopResult, ModelReply, ToolReply, run_loop
from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest, ModelServerRef, ResourcesServerRef
from nemo_gym.errors import ConfigError, RemoteError
from nemo_gym.records import codec, keys
from nemo_gym.records.identity import trajectory_identity_of
from nemo_gym.records.server_failure import failure_text
from nemo_gym.rollout_correlation import rollout_context
from nemo_gym.rollout_observability import AgentObservationBundle
from nemo_gym.server_utils import ClientResponse, get_response_json, raise_for_status
from nemo_gym.server_utils import request as http_request
from nemo_gym.servers.web import json_object_of, unfit_body

logger = logging.getLogger(__name__)

_UNANSWERED = (RemoteError, aiohttp.ClientError, TimeoutError)
_MESSAGE_LENGTH = 2000
_EXCERPT = 200


class SimpleAgentConfig(BaseResponsesAPIAgentConfig):
    """Which model to ask and whose tools to run."""

    model_server: ModelServerRef
    resources_server: ResourcesServerRef | None = Field(
        default=None, description="Needed for whole rollouts and for tools."
    )
    max_steps: int | None = Field(
        default=None, ge=0, description="Bound of model calls per rollout; None and 0 mean none."
    )
    execute_tools: bool = Field(default=True, description="False ends the conversation at the first tool calls.")


class _Session:
    """The HTTP side of one conversation: where its calls go, and the cookies they carry."""

    def __init__(self, agent: SimpleAgent, *, model_path: str, cookies: Mapping[str, str]) -> None:
        self.agent, self.model_path = agent, model_path
        self.model_cookies: dict[str, str] = {}
        self.resources_cookies = dict(cookies)

    async def call_model(self, params: dict[str, Any]) -> ModelReply:
        """Ask the model once; what goes wrong is in the reply."""
        config = self.agent.config
        call_id: str | None = None
        try:
            answer = await self.agent.server_client.post(
                server_name=config.model_server.name,
                url_path=self.model_path,
                json=params,
                cookies=self.model_cookies,
            )
            # Before the body: an answer that is cut in the middle still names its call.
            call_id = answer.headers.get(keys.MODEL_CALL_ID_HEADER)
            content = await answer.read()
        except _UNANSWERED as error:
            said, kind = unanswered(error, config.model_server.name)
            return ModelReply(response=None, call_id=call_id, error=said, failure_kind=kind)
        self.model_cookies |= {name: morsel.value for name, morsel in answer.cookies.items()}
        if answer.status >= 400:
            refusal = _refusal(answer.status, answer.headers, content)
            return ModelReply(response=None, call_id=call_id, status=answer.status, error=refusal)
        try:
            response = codec.decode_object(content)
        except ValueError as error:
            problem = _no_response(str(error), content)
            return ModelReply(response=None, call_id=call_id, status=answer.status, error=problem)
        failed = failed_reply(response, call_id)
        if failed is not None:
            return failed
        if not isinstance(response.get("output"), list):
            problem = _no_response("it has no list `output`", content)
            return ModelReply(response=None, call_id=call_id, status=answer.status, error=problem)
        return ModelReply(response=response, call_id=call_id, status=answer.status)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolReply:
        """Run one tool; its body is what the model sees, whatever its status."""
        try:
            answer = await self._post_tool(name, arguments)
            content = await answer.read()
        except _UNANSWERED as error:
            said, kind = unanswered(error, self._tool_server)
            return ToolReply(output=said, status=None, failure_kind=kind)
        self.resources_cookies |= {cookie: morsel.value for cookie, morsel in answer.cookies.items()}
        return ToolReply(output=content.decode("utf-8", "replace"), status=answer.status)

    @property
    def _tool_server(self) -> str:
        resources = self.agent.config.resources_server
        return "the tool's server" if resources is None else resources.name

    async def _post_tool(self, name: str, arguments: dict[str, Any]) -> ClientResponse:
        resources = self.agent.config.resources_server
        if resources is None:
            raise ConfigError(f"agent `{self.agent.config.name}` has no `resources_server` to run the tool `{name}`")
        return await self.agent.server_client.post(
            server_name=resources.name, url_path=f"/{name}", json=arguments, cookies=self.resources_cookies
        )


class _GrantedSession(_Session):
    """The HTTP side of an activation in an agent session, whose tools are where its grant says."""

    def __init__(self, agent: SimpleAgent, opened: AgentSession, *, model_path: str) -> None:
        super().__init__(agent, model_path=model_path, cookies=opened.resources_cookies or {})
        self.grant = _grant_of(opened, agent.config.resources_server)

    @property
    def _tool_server(self) -> str:
        return super()._tool_server if self.grant is None else self.grant.name

    async def _post_tool(self, name: str, arguments: dict[str, Any]) -> ClientResponse:
        grant = self.grant
        if grant is None:
            raise ConfigError(
                f"agent `{self.agent.config.name}` may not run the tool `{name}`: its session grants no tools over "
                "HTTP; the seed of the session lists them in `tool_accesses`"
            )
        url, cookies = f"{grant.base_url.rstrip('/')}/{name}", {**grant.cookies, **self.resources_cookies}
        return await http_request("POST", url, json=arguments, cookies=cookies, headers=grant.headers)


def _grant_of(opened: AgentSession, resources: ResourcesServerRef | None) -> DirectHttpToolAccess | None:
    """Return the grant of the agent's own resources server, else the only one there is."""
    grants = {grant.name: grant for grant in opened.tool_accesses if isinstance(grant, DirectHttpToolAccess)}
    own = grants.get(resources.name) if resources is not None else None
    return own or (next(iter(grants.values())) if len(grants) == 1 else None)


class SimpleAgent(SimpleResponsesAPIAgent):
    """The tool loop over HTTP."""

    config: SimpleAgentConfig

    async def responses(self, request: Request) -> Response:
        """Act once: a Response with everything produced; a correlated call carries its evidence on private keys."""
        params = await json_object_of(request)
        check_input(params)
        opened = self.agent_session_of(request)
        if opened is not None:
            return await self._act_in(opened, params, request)
        session = _Session(
            self, model_path=self.url_path_for_request("/v1/responses", request), cookies=request.cookies
        )
        result = await self._converse(params, session, record_turns=self.observability_enabled())
        response = dict(result.response)
        rollout_id = request.path_params.get("rollout_id")
        if self.observability_enabled() and rollout_id is not None:
            response[keys.PRIVATE_AGENT_OBSERVATIONS] = observation_bundle(result, model_ref=self._model_ref())
            response[keys.PRIVATE_TRAJECTORY] = producer_trajectory(
                result, task_id="", rollout_id=rollout_id, model_ref=self._model_ref()
            )
        answer = _json(response)
        for cookie, value in {**session.resources_cookies, **session.model_cookies}.items():
            answer.set_cookie(cookie, value)
        return answer

    async def _act_in(self, opened: AgentSession, params: dict[str, Any], request: Request) -> Response:
        """Act once within an agent session, which keeps the evidence until it is closed."""
        opened.activations += 1
        number = opened.activations
        session = _GrantedSession(self, opened, model_path=self.url_path_for_request("/v1/responses", request))
        result = await self._converse(params, session, record_turns=False)
        opened.resources_cookies = {**(opened.resources_cookies or {}), **session.resources_cookies}
        if self.observability_enabled() and request.path_params.get("rollout_id") is not None:
            bundle = observation_bundle(
                result, model_ref=self._model_ref(), invocation=ROOT if number == 1 else f"activation-{number}"
            )
            opened.observed.append(AgentObservationBundle.model_validate(bundle))
        return _json(dict(result.response))

    async def open_agent_session(self, session: AgentSession) -> None:
        """Refuse a session whose required tools this agent cannot call."""
        for grant in session.tool_accesses:
            if grant.required and not isinstance(grant, DirectHttpToolAccess):
                raise ConfigError(
                    f"agent `{self.config.name}` calls tools over plain HTTP only, and `{grant.name}` is `{grant.kind}`"
                )

    async def run(self, request: Request) -> Response:
        """Run a whole rollout: seed the session, converse, verify; its result with the evidence beside it."""
        row = await json_object_of(request)
        params = row.get(keys.RESPONSES_CREATE_PARAMS)
        if params is not None and not isinstance(params, dict):
            raise unfit_body("a JSON object is needed", at=(keys.RESPONSES_CREATE_PARAMS,))
        check_input(params or {}, at=(keys.RESPONSES_CREATE_PARAMS,))
        with rollout_context(self.rollout_id_from_run(row)):
            return _json(await self._run(row, request.cookies))

    async def _run(self, row: dict[str, Any], cookies: Mapping[str, str]) -> dict[str, Any]:
        resources = self._resources_name()
        seeded = await self.server_client.post(
            server_name=resources, url_path="/seed_session", json=row, cookies=dict(cookies)
        )
        await raise_for_status(seeded)
        await seeded.read()
        session = _Session(
            self,
            model_path=self.url_path_for_run("/v1/responses", row),
            cookies={**cookies, **{name: morsel.value for name, morsel in seeded.cookies.items()}},
        )
        result = await self._converse(
            row.get(keys.RESPONSES_CREATE_PARAMS) or {}, session, record_turns=self.observability_enabled()
        )
        judged = {**row, keys.RESPONSE: result.response}
        if result.status == "failed" and not is_judged(result):
            reply = failed_row(judged, result)
        elif self.config.skip_verification:
            reply = {**judged, keys.REWARD: self.config.skip_verification_reward, "verification_skipped": True}
        else:
            reply = await self.verified(
                judged,
                resources_server=resources,
                cookies=session.resources_cookies,
                evidence=lambda: self._evidence({}, row, result),
            )
        return {**self._evidence(reply, row, result), **reply}

    async def _converse(self, params: Mapping[str, Any], session: _Session, *, record_turns: bool) -> LoopResult:
        return await run_loop(
            params,
            call_model=session.call_model,
            call_tool=session.call_tool,
            max_steps=self.config.max_steps,
            execute_tools=self.config.execute_tools,
            record_turns=record_turns,
        )

    def _evidence(self, reply: Mapping[str, Any], row: dict[str, Any], result: LoopResult) -> dict[str, Any]:
        """Return what was seen of the conversation, where this run collects evidence."""
        if not self.observability_enabled():
            return {}
        identity = trajectory_identity_of(row)
        return {
            keys.AGENT_OBSERVATIONS: observation_bundle(result, model_ref=self._model_ref()),
            keys.TRAJECTORY: producer_trajectory(
                result,
                task_id=identity.task_id,
                rollout_id=identity.rollout_id,
                model_ref=self._model_ref(),
                resolved=reply.get("resolved"),
            ),
        }

    def _model_ref(self) -> dict[str, str]:
        return {"type": "responses_api_models", "name": self.config.model_server.name}

    def _resources_name(self) -> str:
        if self.config.resources_server is None:
            raise ConfigError(f"agent `{self.config.name}` needs a `resources_server` to run whole rollouts")
        return self.config.resources_server.name

    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """Return the resources server's metrics of these results; none when verification was skipped."""
        if self.config.skip_verification:
            logger.warning("`skip_verification` is on: there are no rewards to aggregate")
            return AggregateMetrics()
        if self.config.resources_server is None:
            return await super().aggregate_metrics(body)
        answer = await self.server_client.post(
            server_name=self.config.resources_server.name, url_path="/aggregate_metrics", json=body
        )
        await raise_for_status(answer)
        return AggregateMetrics.model_validate(await get_response_json(answer))


def _no_response(why: str, content: bytes) -> str:
    return f"what the model server answered is no Response: {why}: {content[:_EXCERPT].decode('utf-8', 'replace')}"


def _refusal(status: int, headers: Mapping[str, str], content: bytes) -> str:
    """Return what the model server said, in one line: its status, its message, and its code where it has one.

    When the model server itself failed, its name and the place of the fault too.
    """
    text = content.decode("utf-8", "replace")
    try:
        error = codec.decode_object(content).get("error")
    except ValueError:
        error = None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        code = error.get("code")
        text = error["message"] + (f" ({code})" if isinstance(code, str) and code not in error["message"] else "")
    return failure_text(headers, "the model call was", status, text[:_MESSAGE_LENGTH])


def _json(value: dict[str, Any]) -> Response:
    return Response(codec.encode(value), media_type="application/json")


if __name__ == "__main__":
    SimpleAgent.run_webserver()
