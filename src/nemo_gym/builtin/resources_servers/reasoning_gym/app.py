"""Procedural reasoning tasks with their own verifiers, from the `reasoning-gym` package (extra `envs`).

A row names its task family in `dataset` and carries the generated `entry`; `answer_format` says how the answer is read
off the model's text. The reward is the family's own score of that answer; with `last_number` it is 1.0 or 0.0, since a
wrong number that happens to contain the right digits is not half right.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
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
from nemo_gym.errors import MissingExtraError
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics

logger = logging.getLogger(__name__)

Scorer = Callable[..., float]


class ReasoningGymConfig(BaseResourcesServerConfig):
    """No settings of its own: what a task needs is in its row."""

    REVERIFY_MODE = ReverifyMode.STATELESS


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
        reward, problem = score_answer(body.dataset, body.entry, answer)
        if body.answer_format == "last_number":
            reward = 1.0 if reward >= 1.0 else 0.0
        return ReasoningGymVerifyResponse(
            **body.model_dump(), reward=reward, extracted_answer=answer, score_error=problem
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


def score_answer(dataset: str, entry: dict[str, Any], answer: str | None) -> tuple[float, str | None]:
    """Return (score in [0, 1], why it could not be scored or None)."""
    if answer is None:
        return 0.0, None
    try:
        return float(scorer_of(dataset)(answer, entry)), None
    except MissingExtraError:
        raise
    except Exception as error:  # noqa: BLE001 - over a hundred third-party scorers: each may raise anything on free text
        return 0.0, f"{type(error).__name__}: {error}"[:500]


@functools.cache
def scorer_of(dataset: str) -> Scorer:
    """Return the scorer of a task family, made once per process."""
    try:
        import reasoning_gym  # an optional extra, and a second of import time
    except ImportError as error:
        raise MissingExtraError(
            "the environment `reasoning_gym` needs the package `reasoning-gym`: `pip install 'evidence-gym[envs]'`"
        ) from error
    scorer: Scorer = reasoning_gym.get_score_answer_fn(dataset)
    return scorer


if __name__ == "__main__":
    ReasoningGymServer.run_webserver()
