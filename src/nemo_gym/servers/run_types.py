"""Bodies of `/run`, `/seed_session` and `/verify`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from nemo_gym.servers.failure_kind_check import validate_failure_kind
from nemo_gym.servers.openai_types import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming


class BaseRunRequest(BaseModel):
    """A rollout to run. Subclasses declare the row's fields that they want, or allow extra ones.

    `capture_rollout_id` arrives as `_ng_rollout_id` and is never part of a dump, so that it is not sent on.
    """

    model_config = ConfigDict(populate_by_name=True)

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    capture_rollout_id: str | None = Field(default=None, alias="_ng_rollout_id", exclude=True)


class BaseVerifyRequest(BaseRunRequest):
    """What an agent did, to be scored."""

    response: NeMoGymResponse


class BaseVerifyResponse(BaseVerifyRequest):
    """A score. `mask_sample` says that it is no measurement of the model, whatever the failure fields say."""

    reward: float
    mask_sample: bool = False
    failure_kind: Annotated[str, AfterValidator(validate_failure_kind)] | None = None
    failure_reason: str | None = None


class BaseMultiRewardVerifyResponse(BaseVerifyResponse):
    """A score with its parts; `reward` stays the one number that is trained on."""

    reward_components: dict[str, float]


class BaseSeedSessionRequest(BaseModel):
    """Opens the session of a rollout."""


class BaseSeedSessionResponse(BaseModel):
    """The session is open; its cookie names it."""
