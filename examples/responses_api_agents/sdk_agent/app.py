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
from nemo_gym.rollout_observability import AgentInvocation, AgentObservationBundle, ModelCallRef

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
        """Answer one request, and say which model call it took."""
        # The URL carries the rollout id, so the model server knows whose call it captures.
        rollout_id = request.path_params.get("rollout_id")
        url = self.resolve_model_base_url(self.config.model_server.name, rollout_id)
        client = AsyncOpenAI(base_url=url, api_key="unused", max_retries=0)
        begun = time.monotonic()
        answer = await client.responses.with_raw_response.create(**{"instructions": SYSTEM, "model": "policy", **body})
        response = answer.parse().model_dump(mode="json")
        asked = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
        invocation = AgentInvocation(
            invocation_id="root",
            status="completed",
            duration_ms=(time.monotonic() - begun) * 1000,
            # Every answer of the model server names its call.
            model_calls=[ModelCallRef(model_call_id=answer.headers["x-ng-model-call-id"])] if rollout_id else [],
            conversation=[*asked, *response["output"]],
        )
        carry_evidence(response, observations=AgentObservationBundle(source="sdk_agent", records=[invocation], gaps=[]))
        return response

    async def run(self, request: Request, body: SdkAgentRunRequest = Body()) -> dict[str, Any]:
        """Seed the environment, act, verify."""
        return await self.run_episode(request, body, resources_server=self.config.resources_server.name)


if __name__ == "__main__":
    SdkAgent.run_webserver()
