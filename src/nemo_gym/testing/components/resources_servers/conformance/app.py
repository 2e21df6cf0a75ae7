"""The tools and the verifier of the conformance scenarios: they do little, and testify to all of it."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Response
from pydantic import BaseModel

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.judge import JudgeError
from nemo_gym.records import codec
from nemo_gym.testing.witness import TOOL_ENDED, TOOL_STARTED, VERIFIED, WitnessFile

SLOW_TOOL_S = 3.0


class ConformanceConfig(BaseResourcesServerConfig):
    """Where to testify."""

    witness_fpath: str


class ToolRequest(BaseModel):
    """What every tool takes: the scenario that it is called in, and a text."""

    scenario: str
    text: str = ""


class ConformanceVerifyRequest(BaseVerifyRequest):
    """The row's own fields."""

    scenario: str
    verifier_breaks: bool = False


class ConformanceVerifyResponse(ConformanceVerifyRequest, BaseVerifyResponse):
    """The score beside them."""


class ConformanceServer(SimpleResourcesServer):
    """Three tools: one answers, one fails, one is slow."""

    config: ConformanceConfig

    def setup_webserver(self) -> FastAPI:
        """The usual routes, and the tools."""
        app = super().setup_webserver()
        app.post("/lookup")(self.lookup)
        app.post("/fail")(self.fail)
        app.post("/slow")(self.slow)
        return app

    async def lookup(self, body: ToolRequest) -> Response:
        """Tool: answer with a text made of the one that was given."""
        return self._answer("lookup", body, 200, {"value": f"{body.text}-found"})

    async def fail(self, body: ToolRequest) -> Response:
        """Tool: end as a command does that exits with 7."""
        return self._answer("fail", body, 500, {"error": "exit code 7"})

    async def slow(self, body: ToolRequest) -> Response:
        """Tool: answer after a while."""
        self._witness.write(TOOL_STARTED, body.scenario, name="slow", text=body.text)
        await asyncio.sleep(SLOW_TOOL_S)
        return self._answer("slow", body, 200, {"value": "at last"}, started=True)

    async def verify(self, body: ConformanceVerifyRequest) -> ConformanceVerifyResponse:
        """Reward 1.0 for any answer; in one scenario the judge cannot be asked."""
        reward = None if body.verifier_breaks else 1.0
        self._witness.write(VERIFIED, body.scenario, reward=reward)
        if reward is None:
            raise JudgeError("the judge of this scenario never answers")
        return ConformanceVerifyResponse(**body.model_dump(), reward=reward)

    def _answer(
        self, name: str, body: ToolRequest, status: int, output: dict[str, Any], *, started: bool = False
    ) -> Response:
        content = codec.encode(output)
        if not started:
            self._witness.write(TOOL_STARTED, body.scenario, name=name, text=body.text)
        self._witness.write(TOOL_ENDED, body.scenario, name=name, status=status, output=content.decode())
        return Response(content, status_code=status, media_type="application/json")

    @property
    def _witness(self) -> WitnessFile:
        return WitnessFile(self.config.witness_fpath)


if __name__ == "__main__":
    ConformanceServer.run_webserver()
