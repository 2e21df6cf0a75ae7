"""An environment in one file: a question, and a check of the answer."""

from __future__ import annotations

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)


class CapitalCitiesConfig(BaseResourcesServerConfig):
    """Settings under `capital_cities:` in the YAML file are fields here."""

    partial_reward: float = 0.0


class CapitalCitiesVerifyRequest(BaseVerifyRequest):
    """The fields of a row that the check needs, beside the model's `response`."""

    expected_answer: str


class CapitalCitiesServer(SimpleResourcesServer):
    """Rewards an answer that names the capital."""

    config: CapitalCitiesConfig

    async def verify(self, body: CapitalCitiesVerifyRequest) -> BaseVerifyResponse:
        """Reward 1.0 for the right city, the configured partial reward for any other answer."""
        right = body.expected_answer.lower() in body.response.output_text.lower()
        return BaseVerifyResponse(**body.model_dump(), reward=1.0 if right else self.config.partial_reward)


if __name__ == "__main__":
    CapitalCitiesServer.run_webserver()
