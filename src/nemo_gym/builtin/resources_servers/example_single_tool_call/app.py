"""The smallest environment with a tool: one `get_weather` call, then an answer that uses it.

Copy this folder to begin an environment of your own.
"""

from __future__ import annotations

from fastapi import FastAPI
from pydantic import BaseModel

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.openai_utils import NeMoGymResponseFunctionToolCall


class ExampleSingleToolCallConfig(BaseResourcesServerConfig):
    """No settings of its own."""


class GetWeatherRequest(BaseModel):
    """The city asked about."""

    city: str


class GetWeatherResponse(BaseModel):
    """What the weather is."""

    city: str
    weather_description: str


class ExampleSingleToolCallServer(SimpleResourcesServer):
    """Offers one tool, and rewards an answer that was looked up before it was given."""

    config: ExampleSingleToolCallConfig

    def setup_webserver(self) -> FastAPI:
        """The usual routes, and the tool."""
        app = super().setup_webserver()
        app.post("/get_weather")(self.get_weather)
        return app

    async def get_weather(self, body: GetWeatherRequest) -> GetWeatherResponse:
        """Tool: the weather in a city; here it is always cold."""
        return GetWeatherResponse(city=body.city, weather_description=f"The weather in {body.city} is cold.")

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """Reward 1.0 when the tool was called and the final text says what it said, else 0.0."""
        calls = [item for item in body.response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
        called = any(call.name == "get_weather" for call in calls)
        return BaseVerifyResponse(
            **body.model_dump(), reward=float(called and "cold" in body.response.output_text.lower())
        )


if __name__ == "__main__":
    ExampleSingleToolCallServer.run_webserver()
