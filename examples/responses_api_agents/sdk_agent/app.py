"""An agent of your own: here a program written with the official OpenAI SDK, which gives evidence of what it did."""

from __future__ import annotations

import time
from typing import Any

from fastapi import Request
from openai import AsyncOpenAI
from pydantic import ConfigDict

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.base_responses_api_agent import (
    BaseResponsesAPIAgentConfig,
    Body,
    SimpleResponsesAPIAgent,
    carry_evidence,
)
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.rollout_observability import (
    AgentInvocation,
    AgentObservationBundle,
    ModelCallRef,
    TrajectoryRecord,
    TrajectoryTurn,
    trajectory_identity_of,
)

SYSTEM = "You answer in one short sentence."


class SdkAgentConfig(BaseResponsesAPIAgentConfig):
    """The servers it works with; `gym` fills them in."""

    resources_server: ResourcesServerRef
    model_server: ModelServerRef


class SdkAgentRunRequest(BaseRunRequest):
    """A row as it is: the environment knows its fields, this agent passes them on."""

    model_config = ConfigDict(extra="allow")


class SdkAgent(SimpleResponsesAPIAgent):
    """Asks the model once, through an SDK client that knows nothing of rollouts."""

    config: SdkAgentConfig

    async def responses(self, request: Request, body: dict[str, Any] = Body()) -> dict[str, Any]:
        """Act once, for a caller without a row."""
        return await self.act({"responses_create_params": body}, request.path_params.get("rollout_id"))

    async def run(self, request: Request, body: SdkAgentRunRequest = Body()) -> dict[str, Any]:
        """Seed the environment, act, verify."""
        row = await request.json()
        return await self.run_episode(
            request,
            body,
            resources_server=self.config.resources_server.name,
            activate=lambda _cookies: self.act(row, self.rollout_id_from_run(body)),
        )

    async def act(self, row: dict[str, Any], rollout_id: str | None) -> dict[str, Any]:
        """Answer one request; the Response carries what was seen, and `/run` takes it off before the verifier."""
        body, ids = row["responses_create_params"], trajectory_identity_of(row)
        # The URL carries the rollout id, so the model server knows whose call it captures.
        url = self.resolve_model_base_url(self.config.model_server.name, rollout_id)
        client = AsyncOpenAI(base_url=url, api_key="unused", max_retries=0)
        started, begun = time.time(), time.monotonic()
        answer = await client.responses.with_raw_response.create(**{"instructions": SYSTEM, "model": "policy", **body})
        response = answer.parse().model_dump(mode="json")
        if rollout_id is None:
            return response
        asked = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
        calls = [ModelCallRef(model_call_id=answer.headers["x-ng-model-call-id"])]  # every answer names its call
        invocation = AgentInvocation(
            invocation_id="root",
            status="completed",
            duration_ms=(time.monotonic() - begun) * 1000,
            model_calls=calls,
            conversation=[*asked, *response["output"]],
        )
        turn = TrajectoryTurn(
            invocation_id="root",
            task_id=ids.task_id,
            rollout_id=ids.rollout_id,
            turn_no=1,
            timestamp=started,
            question=asked,
            answer=response["output"],
            step_count=0,
            model_calls=calls,
        )
        carry_evidence(
            response,
            observations=AgentObservationBundle(source="sdk_agent", records=[invocation], gaps=[]),
            trajectory=TrajectoryRecord(task_id=ids.task_id, rollout_id=ids.rollout_id, turns=[turn]),
        )
        return response


if __name__ == "__main__":
    SdkAgent.run_webserver()
