"""A stateless server in the style that users write: another model judges the answer."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.config_types import ModelServerRef
from nemo_gym.judge import call_judge
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)


class JudgedAnswersConfig(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS

    judge_model_server: ModelServerRef
    judge_responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    verdict_label: Literal["CORRECT", "RIGHT"] = "CORRECT"


class JudgedAnswersRunRequest(BaseRunRequest):
    expected_answer: str
    verifier_metadata: dict[str, Any] | None = None


class JudgedAnswersVerifyRequest(JudgedAnswersRunRequest, BaseVerifyRequest):
    pass


class JudgedAnswersVerifyResponse(BaseVerifyResponse):
    expected_answer: str
    judge_said: str


class JudgedAnswers(SimpleResourcesServer):
    config: JudgedAnswersConfig

    async def verify(self, body: JudgedAnswersVerifyRequest) -> JudgedAnswersVerifyResponse:
        params = self.config.judge_responses_create_params.model_copy(deep=True)
        question = f"Expected: {body.expected_answer}\nGiven: {body.response.output_text}"
        params.input = [NeMoGymEasyInputMessage(role="user", content=question)]
        verdict = await call_judge(
            self.server_client,
            server_name=self.config.judge_model_server.name,
            url_path="/v1/responses",
            json=params,
            response_model=NeMoGymResponse,
        )
        said = verdict.output_text.strip()
        return JudgedAnswersVerifyResponse(
            **body.model_dump(), reward=float(said == self.config.verdict_label), judge_said=said
        )


if __name__ == "__main__":
    JudgedAnswers.run_webserver()
