"""Hosted endpoints with Chat Completions, with a ready configuration for each well-known one."""

from __future__ import annotations

from pydantic import Field

from nemo_gym.builtin.responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig
from nemo_gym.server_utils import is_nemo_gym_fastapi_entrypoint


class InferenceProviderConfig(VLLMModelConfig):
    """As of `vllm_model`; `num_concurrent_requests` is bounded, since hosts answer more with 429."""

    num_concurrent_requests: int | None = Field(default=1000, ge=1, description="Of this process.")


class InferenceProvider(VLLMModel):
    """Forwards to a hosted endpoint."""

    config: InferenceProviderConfig


if __name__ == "__main__":
    InferenceProvider.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = InferenceProvider.run_webserver()
