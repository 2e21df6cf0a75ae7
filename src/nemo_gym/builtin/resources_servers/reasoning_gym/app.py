"""Procedural reasoning tasks with their own verifiers, from the `reasoning-gym` package (extra `envs`).

A row names its task family in `dataset` and carries the generated `entry`; `answer_format` says how the answer is read
off the model's text. The reward is the family's own score of that answer; with `last_number` it is 1.0 or 0.0, since a
wrong number that happens to contain the right digits is not half right.

Some scorers evaluate the answer as Python, so scoring happens in processes that can be killed, see `scoring`.
"""

from __future__ import annotations

import functools
from typing import Any

from pydantic import ConfigDict, Field

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.builtin.resources_servers.reasoning_gym.answers import AnswerFormat, extract_answer
from nemo_gym.builtin.resources_servers.reasoning_gym.scoring import ScorePool
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics


class ReasoningGymConfig(BaseResourcesServerConfig):
    """How answers are scored; what a task needs is in its row."""

    REVERIFY_MODE = ReverifyMode.STATELESS

    score_timeout_s: float = Field(
        default=10.0, gt=0, allow_inf_nan=False, description="An answer that takes longer earns 0."
    )
    score_memory_mb: int = Field(default=1024, ge=64, description="What scoring one answer may use.")
    score_workers: int = Field(default=2, ge=1, description="Processes that score.")


class ReasoningGymRunRequest(BaseRunRequest):
    """One task: `dataset` the family, `entry` the generated item, `answer_format` how its answer is read."""

    model_config = ConfigDict(extra="allow")

    dataset: str
    entry: dict[str, Any]
    answer_format: AnswerFormat = "text"


class ReasoningGymVerifyRequest(ReasoningGymRunRequest, BaseVerifyRequest):
    """The task and the response to score."""


class ReasoningGymVerifyResponse(BaseVerifyResponse):
    """The reward, the answer it was given for, and why an answer could not be scored."""

    model_config = ConfigDict(extra="allow")

    extracted_answer: str | None = Field(default=None, description="None when the text held no answer of the format.")
    score_error: str | None = Field(
        default=None, description="Why the family's scorer refused the answer; reward is then 0."
    )


class ReasoningGymServer(SimpleResourcesServer):
    """Scores answers with the verifier of the task's own family."""

    config: ReasoningGymConfig

    async def verify(self, body: ReasoningGymVerifyRequest) -> ReasoningGymVerifyResponse:
        """Score one answer; text that a scorer cannot read is worth 0 with its reason, never a lost rollout."""
        answer = extract_answer(body.response.output_text, body.answer_format)
        reward, problem = (0.0, None) if answer is None else await self._scores.score(body.dataset, body.entry, answer)
        if body.answer_format == "last_number":
            reward = 1.0 if reward >= 1.0 else 0.0
        return ReasoningGymVerifyResponse(
            **body.model_dump(), reward=reward, extracted_answer=answer, score_error=problem
        )

    @functools.cached_property
    def _scores(self) -> ScorePool:
        return ScorePool(
            workers=self.config.score_workers,
            timeout_s=self.config.score_timeout_s,
            memory_mb=self.config.score_memory_mb,
        )

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Pass@k over the repeats of each task; an answer that could not be read counts as `no_answer`."""
        return compute_pass_majority_metrics(tasks, answer_key="extracted_answer")[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """The mean reward, and pass@k at the largest k."""
        key = {"mean/reward": agent_metrics["mean/reward"]} if "mean/reward" in agent_metrics else {}
        for pattern in ("pass@{k}", "pass@1[avg-of-{k}]", "majority@{k}"):
            key |= highest_k_metrics(agent_metrics, pattern, score_names=["accuracy"])
        return key


if __name__ == "__main__":
    ReasoningGymServer.run_webserver()
