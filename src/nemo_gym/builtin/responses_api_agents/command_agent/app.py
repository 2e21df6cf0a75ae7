"""Runs a program of yours for each rollout: it gets a model URL, a task and tools, and may report what it did.

Its model calls are captured whatever it reports; what it does not report is a gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import Field, PrivateAttr
from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.base_responses_api_agent import (
    AgentSession,
    BaseResponsesAPIAgentConfig,
    Body,
    SimpleResponsesAPIAgent,
    attach_evidence,
    carry_evidence,
    take_evidence,
)
from nemo_gym.builtin.responses_api_agents.command_agent import command
from nemo_gym.builtin.responses_api_agents.command_agent.outcome import Outcome, not_started, outcome_of
from nemo_gym.builtin.responses_api_agents.command_agent.process import report_lines, run_process
from nemo_gym.builtin.responses_api_agents.command_agent.report import (
    observation_bundle,
    producer_trajectory,
    read_report,
)
from nemo_gym.builtin.responses_api_agents.command_agent.tools import TOOLS_PATH, ToolRelay, ToolSession
from nemo_gym.builtin.responses_api_agents.simple_agent.inputs import check_input
from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest, ModelServerRef, ResourcesServerRef
from nemo_gym.engine.local.leftovers import LAUNCH_ID_ENV
from nemo_gym.errors import ConfigError
from nemo_gym.records import codec, keys
from nemo_gym.records.identity import TrajectoryIdentity, trajectory_identity_of
from nemo_gym.rollout_correlation import apply_rollout_prefix, rollout_context
from nemo_gym.server_utils import get_response_json, raise_for_status
from nemo_gym.servers.access import server_token
from nemo_gym.servers.web import json_object_of, unfit_body

NO_KEY = "unused"
_ANY_NAME = "any-invocation"
PROCESS_FACTS = "agent_process"
"""The record's key for what is known of the program's process."""


class CommandAgentConfig(BaseResponsesAPIAgentConfig):
    """Which program to run, and what it is given. Texts may hold the placeholders of a command."""

    model_server: ModelServerRef
    resources_server: ResourcesServerRef | None = Field(default=None, description="Needed for whole rollouts.")
    command: str | list[str] = Field(description="The program and its arguments; no shell runs it.")
    directory: str | None = Field(
        default=None, description="Absolute path to run it in; by default an empty folder of the rollout's own."
    )
    env: dict[str, str] = Field(default={}, description="Further environment variables, such as a key of a service.")
    inherit_env: list[str] = Field(default=[], description="Variables of this machine that the program sees.")
    files: dict[str, str] = Field(
        default={}, description="Files to write below the program's HOME before it starts: path to content."
    )
    invocation: str | None = Field(
        default=None,
        description="Says that the program holds one conversation: the invocation that owns all of its calls.",
    )
    model: str | None = Field(default=None, description="The model name it is told; by default the policy model's.")
    timeout_s: float = Field(default=3600.0, gt=0, allow_inf_nan=False, description="Its deadline.")
    grace_s: float = Field(default=5.0, ge=0, allow_inf_nan=False, description="Time to write at the deadline.")


class CommandAgent(SimpleResponsesAPIAgent):
    """One process per rollout."""

    config: CommandAgentConfig
    _words: list[str] = PrivateAttr(default_factory=list)
    _relay: ToolRelay = PrivateAttr()

    def setup_webserver(self) -> FastAPI:
        """The usual routes and those of the tools; a command that cannot be run stops the start."""
        self._words = command.words_of(self.config.command)
        if (self.config.num_workers or 1) > 1:
            raise ConfigError(f"agent `{self.config.name}` needs one worker: its programs do the work")
        if self.config.directory is not None and not Path(self.config.directory).is_absolute():
            raise ConfigError(f"`directory` of agent `{self.config.name}` must be an absolute path")
        path = self.config.env.get("PATH", os.environ.get("PATH"))
        command.check_program(self._words, directory=self.config.directory, path=path)
        resources = self.config.resources_server
        self._relay = ToolRelay(self.server_client, None if resources is None else resources.name)
        app = super().setup_webserver()
        app.post(TOOLS_PATH)(self.use_tool)
        return app

    async def open_agent_session(self, session: AgentSession) -> None:
        """Refuse: a program is started anew for each activation, so that nothing of one reaches the next."""
        raise ConfigError(
            f"agent `{self.config.name}` runs a program once and holds no sessions; an environment server that "
            "activates an agent several times needs another one, such as `simple_agent`"
        )

    async def use_tool(self, request: Request) -> Response:
        """Pass a tool call of a running program on to the resources server."""
        return await self._relay.call(request)

    async def responses(self, request: Request) -> Response:
        """Run the program once for a caller without a row; a correlated call carries its evidence on private keys."""
        params = await json_object_of(request)
        check_input(params)
        rollout_id, cookies = request.path_params.get("rollout_id"), dict(request.cookies)
        identity = TrajectoryIdentity(task_id="", rollout_id=rollout_id or "", override_invalid=False)
        outcome = await self._act(params, cookies, rollout_id, identity)
        answer = _json(outcome.response if rollout_id is None else self._with_evidence(outcome, identity, None))
        for cookie, value in cookies.items():
            answer.set_cookie(cookie, value)
        return answer

    async def run(self, request: Request) -> Response:
        """Run a whole rollout: seed the session, run the program, verify; its result with the evidence beside it."""
        row = await json_object_of(request)
        params = row.get(keys.RESPONSES_CREATE_PARAMS)
        if params is not None and not isinstance(params, dict):
            raise unfit_body("a JSON object is needed", at=(keys.RESPONSES_CREATE_PARAMS,))
        check_input(params or {}, at=(keys.RESPONSES_CREATE_PARAMS,))
        with rollout_context(self.rollout_id_from_run(row)):
            return _json(await self._run(row, params or {}, request.cookies))

    async def _run(
        self, row: dict[str, Any], params: dict[str, Any], given_cookies: Mapping[str, str]
    ) -> dict[str, Any]:
        resources = self.config.resources_server
        if resources is None:
            raise ConfigError(f"agent `{self.config.name}` needs a `resources_server` to run whole rollouts")
        cookies = dict(given_cookies)
        seeded = await self.server_client.post(
            server_name=resources.name, url_path="/seed_session", json=row, cookies=cookies
        )
        await raise_for_status(seeded)
        await seeded.read()
        cookies |= {name: morsel.value for name, morsel in seeded.cookies.items()}
        identity = trajectory_identity_of(row)
        outcome = await self._act(params, cookies, self.rollout_id_from_run(row), identity)
        judged = {**row, keys.RESPONSE: outcome.response}
        if outcome.failure is not None:
            reply = outcome.failed_row(row)
        elif self.config.skip_verification:
            reply = {**judged, keys.REWARD: self.config.skip_verification_reward, "verification_skipped": True}
        else:
            reply = await self.verified(
                judged,
                resources_server=resources.name,
                cookies=cookies,
                evidence=lambda: self._seen(outcome, identity, None),
            )
        attach_evidence(reply, self._seen(outcome, identity, reply.get("resolved")))
        reply[PROCESS_FACTS] = outcome.process_facts()
        return reply

    def _seen(self, outcome: Outcome, identity: TrajectoryIdentity, resolved: object) -> dict[str, Any]:
        """Return what is known of the program, and what was seen where this run collects evidence."""
        evidence = take_evidence(self._with_evidence(outcome, identity, resolved))
        return {PROCESS_FACTS: outcome.process_facts(), **evidence}

    def _with_evidence(self, outcome: Outcome, identity: TrajectoryIdentity, resolved: object) -> dict[str, Any]:
        """Return the outcome's Response, with what was seen on its private keys when this run collects evidence."""
        response = dict(outcome.response)
        if self.observability_enabled():
            ids = {"task_id": identity.task_id, "rollout_id": identity.rollout_id}
            carry_evidence(
                response,
                observations=observation_bundle(outcome.report, own=outcome.own_invocation(self.config.invocation)),
                trajectory=producer_trajectory(outcome.report, **ids, resolved=resolved),
            )
        return response

    async def _act(
        self, params: dict[str, Any], cookies: dict[str, str], rollout_id: str | None, identity: TrajectoryIdentity
    ) -> Outcome:
        """Run the program on one task. `cookies` is brought up to date with what the tools set."""
        with self._relay.session(params, cookies, rollout_id) as tools:
            async with _folder() as folder:
                outcome = await self._run_program(params, folder, tools, rollout_id, identity)
        cookies.update(tools.cookies)
        return outcome

    async def _run_program(
        self,
        params: dict[str, Any],
        folder: Path,
        tools: ToolSession,
        rollout_id: str | None,
        identity: TrajectoryIdentity,
    ) -> Outcome:
        places = self._places(folder, tools, rollout_id, identity, params)
        environment = self._environment(places)
        try:
            arguments = command.arguments(self._words, params, places)
            self._write_files(params, places)
            ended = await run_process(
                arguments,
                cwd=Path(self.config.directory or places.work_dir),
                env=environment,
                mark=f"agent-{secrets.token_hex(16)}",
                timeout_s=self.config.timeout_s,
                grace_s=self.config.grace_s,
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in an argument, or an unusable task
            return not_started(params, f"the program `{self._words[0]}` was not started: {error}")
        ended = replace(
            ended,
            stdout=command.without_secrets(ended.stdout, environment),
            stderr_tail=command.without_secrets(ended.stderr_tail, environment),
        )
        lines = _without(command.secret_values(environment), report_lines(Path(places.report_file)))
        report = await asyncio.to_thread(read_report, lines, task_id=identity.task_id, rollout_id=identity.rollout_id)
        return outcome_of(params, report, ended, unreachable=tools.unreachable)

    def _places(
        self,
        folder: Path,
        tools: ToolSession,
        rollout_id: str | None,
        identity: TrajectoryIdentity,
        params: Mapping[str, Any],
    ) -> command.Places:
        model_root = self.server_client._resolve_base_url(self.config.model_server.name)
        own_root = self.server_client._resolve_base_url(self.config.name)
        model = self.config.model or params.get("model") or self.global_config().get("policy_model_name")
        token_capture = rollout_id is not None and self.captures_token_ids()

        def model_url(invocation: str | None) -> str:
            name = invocation if rollout_id is not None else None
            return apply_rollout_prefix(model_root, rollout_id, token_capture=token_capture, invocation_id=name).rstrip(
                "/"
            )

        return command.Places(
            base_url=model_url(self.config.invocation),
            invocation_url=model_url(_ANY_NAME).replace(_ANY_NAME, "{invocation}"),
            tools_url=own_root + TOOLS_PATH.format(key=tools.key, name="").rstrip("/"),
            task_file=str(folder / "task.json"),
            report_file=str(folder / "report.jsonl"),
            work_dir=str(folder / "work"),
            home=str(folder / "home"),
            model=str(model or self.config.model_server.name),
            task_id=identity.task_id,
            rollout_id=identity.rollout_id,
        )

    def _environment(self, places: command.Places) -> dict[str, str]:
        # The id of the launch is how a program is found and ended when this server was killed.
        inherited = (*command.INHERITED, LAUNCH_ID_ENV, *self.config.inherit_env)
        own = {name: command.filled(value, places.placeholders) for name, value in self.config.env.items()}
        machine = {name: os.environ[name] for name in inherited if name in os.environ}
        return {**places.environment(server_token() or NO_KEY), **machine, **own}

    def _write_files(self, params: Mapping[str, Any], places: command.Places) -> None:
        for path in (places.work_dir, places.home):
            Path(path).mkdir()
        Path(places.task_file).write_bytes(codec.encode(dict(params)))
        for name, content in self.config.files.items():
            file = Path(places.home, name)
            if not file.resolve().is_relative_to(Path(places.home).resolve()):
                raise ValueError(f"the file `{name}` would not be in the program's HOME")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(command.filled(content, places.placeholders), encoding="utf-8")

    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """Return the resources server's metrics of these results; none when verification was skipped."""
        if self.config.skip_verification:
            return AggregateMetrics()
        if self.config.resources_server is None:
            return await super().aggregate_metrics(body)
        answer = await self.server_client.post(
            server_name=self.config.resources_server.name, url_path="/aggregate_metrics", json=body
        )
        await raise_for_status(answer)
        return AggregateMetrics.model_validate(await get_response_json(answer))


@contextlib.asynccontextmanager
async def _folder() -> AsyncIterator[Path]:
    """A folder of one rollout, which nobody else on this machine can read; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="gym-agent-"))
    try:
        yield folder
    finally:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))


def _without(secrets: Sequence[str], lines: Iterable[bytes]) -> Iterator[bytes]:
    hidden = [value.encode("utf-8", "surrogateescape") for value in secrets]
    for line in lines:
        shown = line
        for value in hidden:
            shown = shown.replace(value, b"[hidden]")
        yield shown


def _json(value: dict[str, Any]) -> Response:
    return Response(codec.encode(value), media_type="application/json")


if __name__ == "__main__":
    CommandAgent.run_webserver()
