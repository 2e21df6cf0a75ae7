"""The base of agent servers: one activation per `/v1/responses`, one whole rollout per `/run`."""

from __future__ import annotations

import functools
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import aiohttp
from fastapi import Body, FastAPI, Request, Response
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.analysis import AggregateMetricsMixin
from nemo_gym.capture import observability_enabled_from_config
from nemo_gym.capture.correlation import (
    apply_rollout_prefix,
    maybe_rollout_id_from_run_body,
    rollout_context,
    rollout_path_prefix,
    split_rollout_path,
    url_path_for_request,
)
from nemo_gym.errors import ConfigError, RemoteError
from nemo_gym.records import codec, keys
from nemo_gym.records.failure_kinds import VERIFIER_ERROR
from nemo_gym.records.observation_models import AgentObservationBundle
from nemo_gym.servers.agent_evidence import attach_evidence, take_evidence
from nemo_gym.servers.agent_session_types import (
    AgentCloseSessionRequest,
    AgentCloseSessionResponse,
    AgentSeedSessionRequest,
    AgentSeedSessionResponse,
    ToolAccess,
)
from nemo_gym.servers.agent_sessions import AgentSession, AgentSessionMiddleware, AgentSessions
from nemo_gym.servers.base import BaseServer, SimpleServer
from nemo_gym.servers.boundary import ErrorAnswer, plain_error
from nemo_gym.servers.http import get_response_json, raise_for_status
from nemo_gym.servers.judging import resolved_signature
from nemo_gym.servers.metrics import AggregateMetrics, AggregateMetricsRequest, compute_aggregate_metrics
from nemo_gym.servers.run_types import BaseRunRequest
from nemo_gym.servers.server_config import BaseRunServerInstanceConfig
from nemo_gym.servers.unverified import UnverifiedError
from nemo_gym.servers.web import new_app

logger = logging.getLogger(__name__)

RESPONSES_PATH = "/v1/responses"
_VERIFIER_FAILED = {keys.FAILURE_KIND: VERIFIER_ERROR}
_PREFIXES = (
    "",
    f"/{keys.ROLLOUT_PATH_PREFIX}/{{rollout_id}}",
    f"/{keys.ROLLOUT_PATH_PREFIX}/{{rollout_id}}/{keys.TOKEN_CAPTURE_PATH_SEGMENT}",
    f"/{keys.ROLLOUT_PATH_PREFIX}/{{rollout_id}}/{keys.INVOCATION_PATH_SEGMENT}/{{invocation_id}}",
)


class BaseResponsesAPIAgentConfig(BaseRunServerInstanceConfig):
    """An agent server's own configuration; times are seconds.

    `tool_accesses` are grants by unique name, which a session's own grants overlay. The answer to the close of a
    session is given again for `session_close_retry_window_seconds`.
    """

    session_close_retry_window_seconds: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    skip_verification: bool = False
    skip_verification_reward: float = 0.0
    token_id_capture: bool = False
    tool_accesses: list[dict[str, Any]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _unique_grants(self) -> BaseResponsesAPIAgentConfig:
        names = [grant.get("name") for grant in self.tool_accesses]
        if len(names) != len({str(name) for name in names}):
            raise ValueError(f"`tool_accesses` need unique names, these are {names}")
        return self


class BaseResponsesAPIAgent(BaseServer):
    """A server that acts."""

    config: BaseResponsesAPIAgentConfig


class _CurrentRollout:
    """Makes the rollout of a prefixed path current, without changing the path: its routes name the id themselves."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = split_rollout_path(scope["path"], scope.get("raw_path")) if scope["type"] == "http" else None
        if route is None or route.problem is not None:
            await self.app(scope, receive, send)
            return
        with rollout_context(route.rollout_id, route.invocation_id):
            await self.app(scope, receive, send)


class SimpleResponsesAPIAgent(BaseResponsesAPIAgent, AggregateMetricsMixin, SimpleServer):
    """Write `responses`, one activation, and `run`, one rollout; `run_episode` is the usual body of `run`.

    The annotations of an override decide how its body is parsed and how its answer is filtered.
    """

    config: BaseResponsesAPIAgentConfig

    @abstractmethod
    async def responses(self, *args: Any, **kwargs: Any) -> Any:
        """Act on `body`, Responses params, until there is an answer; may also take `request` and `response`."""

    @abstractmethod
    async def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run a whole rollout of `body`, a run request: seed the session, act, verify."""

    def setup_webserver(self) -> FastAPI:
        """Return the app; an override calls this one and adds its routes."""
        app = new_app()
        app.state.agent_sessions = self._new_sessions()
        app.add_middleware(cast(Any, AgentSessionMiddleware), sessions=app.state.agent_sessions, ends=RESPONSES_PATH)
        self.setup_session_middleware(app)
        app.add_middleware(_CurrentRollout)
        for prefix in _PREFIXES:
            app.post(prefix + RESPONSES_PATH)(self.responses)
        app.post("/v1/agent_sessions")(self.seed_agent_session)
        app.post("/v1/agent_sessions/close")(self.end_agent_session)
        app.post("/run")(_in_rollout_context(self.run))
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        return app

    def _new_sessions(self) -> AgentSessions:
        try:
            granted = TypeAdapter(list[ToolAccess]).validate_python(self.config.tool_accesses)
        except ValidationError as error:
            raise ConfigError(f"`tool_accesses` of `{self.config.name}` are no grants: {error}") from error
        return AgentSessions(
            window_s=self.config.session_close_retry_window_seconds,
            granted=granted,
            opened=self.open_agent_session,
            closing=self.close_agent_session,
        )

    async def seed_agent_session(
        self, request: Request, body: AgentSeedSessionRequest = Body()
    ) -> AgentSeedSessionResponse:
        """Open a session in which this agent is activated several times, bound to the caller's cookie."""
        if (self.config.num_workers or 1) > 1:
            raise ConfigError(
                f"`{self.config.name}` has {self.config.num_workers} workers, and a session lives in one of them: "
                "agent sessions need `num_workers: 1`"
            )
        sessions: AgentSessions = request.app.state.agent_sessions
        return await sessions.seed(body, request.session)

    async def end_agent_session(
        self, request: Request, body: AgentCloseSessionRequest = Body()
    ) -> AgentCloseSessionResponse:
        """Close a session, and return what was observed in it."""
        sessions: AgentSessions = request.app.state.agent_sessions
        return await sessions.close(body, request.session)

    async def open_agent_session(self, session: AgentSession) -> None:
        """Set up what a session needs; an agent that holds nothing leaves this as it is."""

    async def close_agent_session(self, session: AgentSession) -> AgentObservationBundle | None:
        """Release what a session holds and return what was observed; may be called again when it raised."""
        return session.bundle()

    def agent_session_of(self, request: Request) -> AgentSession | None:
        """Return the session that an activation belongs to, None for one outside of any."""
        session: AgentSession | None = getattr(request.state, "agent_session", None)
        return session

    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """Return the metrics of result rows, with this agent's hooks."""
        return compute_aggregate_metrics(
            body.verify_responses,
            compute_metrics_fn=self.compute_metrics,
            get_key_metrics_fn=self.get_key_metrics,
            compute_repeat_metrics_fn=self.compute_repeat_metrics,
        )

    def observability_enabled(self) -> bool:
        """Return whether this run collects evidence; False when the configuration is missing (A2)."""
        return observability_enabled_from_config(self.global_config())

    def captures_token_ids(self) -> bool:
        """Return whether training-token capture is on for this agent."""
        return self.config.token_id_capture or bool(self.global_config().get("token_id_capture"))

    def rollout_id_from_run(self, body: object) -> str | None:
        """Return the capture key of a run body, or None when calls are not to be correlated (C10)."""
        if not (self.observability_enabled() or self.captures_token_ids()):
            return None
        return maybe_rollout_id_from_run_body(body)

    def url_path_for_run(self, url_path: str, body: object) -> str:
        """Return a path on a server of this run, with the rollout prefix when the body has an id (C8)."""
        return self._prefix_for_run(body) + url_path

    def base_url_for_run(self, base_url: str, body: object) -> str:
        """Return a server's root URL with the prefix, for clients configured once; append `/v1` (C10)."""
        return base_url.rstrip("/") + self._prefix_for_run(body)

    def _prefix_for_run(self, body: object) -> str:
        return rollout_path_prefix(self.rollout_id_from_run(body), token_capture=self.captures_token_ids())

    def url_path_for_request(self, url_path: str, request: Request | None) -> str:
        """Return a path under the prefix of the inbound request; unchanged when it has none, or is None (C8)."""
        return url_path_for_request(url_path, request)

    def resolve_model_base_url(self, model_server_name: str, rollout_id: str | None = None) -> str:
        """Return the URL of a model server for an SDK, `/v1` included, under the prefix when an id is given (C10)."""
        root = self.server_client._resolve_base_url(model_server_name)
        token_capture = rollout_id is not None and self.captures_token_ids()
        return apply_rollout_prefix(root, rollout_id, token_capture=token_capture).rstrip("/") + "/v1"

    async def verified(
        self,
        judged: Mapping[str, Any],
        *,
        resources_server: str,
        cookies: Mapping[str, str],
        evidence: Callable[[], Mapping[str, Any]],
    ) -> dict[str, Any]:
        """Return what the verifier says of `judged`, a row with its `response`.

        When it fails, cannot be reached or returns no JSON object, raises UnverifiedError, whose answer hands the
        response and `evidence()` over to collection: the work is done, and its verifier's fault must not lose it.
        """
        try:
            answer = await self.server_client.post(
                server_name=resources_server, url_path="/verify", json=judged, cookies=cookies
            )
            await raise_for_status(answer)
            return _verdict(await get_response_json(answer), resources_server)
        except (aiohttp.ClientError, RemoteError, TimeoutError, ValueError) as error:
            kind = {} if isinstance(error, (aiohttp.ClientConnectionError, TimeoutError)) else _VERIFIER_FAILED
            rollout = {
                **evidence(),
                **kind,
                keys.FAILURE_STAGE: "verification",
                keys.FAILURE_PARTIAL_RESPONSE: judged[keys.RESPONSE],
            }
            status = getattr(error, "status", None)
            raise UnverifiedError(server=resources_server, status=status, rollout=rollout) from error

    def _error_answer(self) -> ErrorAnswer:
        return _agent_error

    async def run_episode(
        self,
        request: Request,
        body: BaseRunRequest,
        *,
        resources_server: str,
        activate: Callable[[Mapping[str, str]], Awaitable[Mapping[str, Any]]] | None = None,
    ) -> dict[str, Any]:
        """Seed the session, act, verify, and return the verifier's result with the agent's evidence beside it.

        `activate` acts in process, given the session's cookies, and returns a Response as a mapping; by default this
        agent's own `/v1/responses` is called. Evidence on the Response's private keys never reaches the verifier. With
        `skip_verification` the configured reward is returned instead of a verdict. A 4xx or 5xx of another server
        raises; the verifier's hands over what was done, as `verified` says.
        """
        row = body.model_dump(mode="json", exclude_unset=True)
        seeded = await self.server_client.post(
            server_name=resources_server, url_path="/seed_session", json=row, cookies=dict(request.cookies)
        )
        await raise_for_status(seeded)
        cookies = _merged(request.cookies, seeded)
        if activate is not None:
            response = dict(await activate(cookies))
        else:
            answer = await self.server_client.post(
                server_name=self.config.name,
                url_path=self.url_path_for_run(RESPONSES_PATH, body),
                json=row[keys.RESPONSES_CREATE_PARAMS],
                cookies=cookies,
            )
            await raise_for_status(answer)
            cookies = _merged(cookies, answer)
            response = await get_response_json(answer)
        evidence = take_evidence(response)
        judged = {**row, keys.RESPONSE: response}
        if self.config.skip_verification:
            result = {**judged, keys.REWARD: self.config.skip_verification_reward, "verification_skipped": True}
        else:
            result = await self.verified(
                judged, resources_server=resources_server, cookies=cookies, evidence=lambda: evidence
            )
        attach_evidence(result, evidence)
        return result


def _agent_error(scope: Scope, error: BaseException, description: str) -> Response:
    """Answer 500 with the description as a JSON string; of a rollout that was not verified, with what was done too."""
    if not isinstance(error, UnverifiedError):
        return plain_error(scope, error, description)
    body = {"detail": description, keys.FAILED_ROLLOUT: error.rollout}
    return Response(codec.encode(body), status_code=500, media_type="application/json")


def _verdict(value: Any, server: str) -> dict[str, Any]:
    """Return what `verify` returned; raises RemoteError when it cannot be a rollout's record."""
    if isinstance(value, dict):
        return value
    raise RemoteError(
        f"`verify` of `{server}` must return a verify response, a JSON object with a `reward`; it returned "
        f"{'null' if value is None else f'a {type(value).__name__}'}",
        server=server,
        status=200,
    )


def _merged(cookies: Mapping[str, str], answer: Any) -> dict[str, str]:
    """Return the cookies with those that an answer set; an answer sets only its own server's."""
    return {**cookies, **{name: morsel.value for name, morsel in answer.cookies.items()}}


def _in_rollout_context(run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Make the rollout of the body current while `run` runs, keeping the signature that FastAPI reads."""

    @functools.wraps(run)
    async def run_in_context(*args: Any, **kwargs: Any) -> Any:
        with rollout_context(_rollout_id_of((*args, *kwargs.values()))):
            return await run(*args, **kwargs)

    run_in_context.__signature__ = resolved_signature(run)  # type: ignore[attr-defined]
    return run_in_context


def _rollout_id_of(values: tuple[Any, ...]) -> str | None:
    for value in values:
        if isinstance(value, (BaseModel, Mapping)):
            return maybe_rollout_id_from_run_body(value)
    return None


__all__ = [
    "BaseResponsesAPIAgent",
    "BaseResponsesAPIAgentConfig",
    "Body",
    "Response",
    "SimpleResponsesAPIAgent",
]
