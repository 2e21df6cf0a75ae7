"""The manifest of an environment or a benchmark: what it is, who made it, what its reward means, what it is made of."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.servers.server_config import Domain

Profile: TypeAlias = Literal[
    "custom-gym-verifier", "custom-gym-agent-loop", "external-agent-loop", "external-rollout-driver"
]
NonEmpty: TypeAlias = Annotated[str, Field(min_length=1)]

_NEEDS: dict[str, tuple[str, ...]] = {
    "custom-gym-verifier": ("model_server", "resources_server"),
    "custom-gym-agent-loop": ("model_server",),
    "external-agent-loop": (),
    "external-rollout-driver": ("rollout_driver",),
}
_DRIVER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Reward(_Strict):
    """What rewards may be, and which end is the good one."""

    range: tuple[float, float]
    higher_is_better: bool = True

    @model_validator(mode="after")
    def _is_ordered(self) -> Reward:
        if not self.range[0] < self.range[1]:
            raise ValueError(f"the range {list(self.range)} must begin with its lower end")
        return self


class ManifestDataset(_Strict):
    """A dataset, as the configuration declares it too."""

    name: NonEmpty
    type: Literal["train", "validation", "example", "benchmark"]
    jsonl_fpath: NonEmpty
    prepare_script: str | None = None
    prompt_config: str | None = None
    num_repeats: int = Field(default=1, ge=1)


class EnvironmentManifest(_Strict):
    """`manifest.yaml` beside a `config.yaml`; further keys are refused."""

    name: NonEmpty
    version: NonEmpty
    experimental: bool = True
    kind: Literal["environment", "benchmark"]
    integration_profile: Profile
    domain: Domain
    description: str
    modality: NonEmpty
    licensing: NonEmpty
    authors: list[NonEmpty] = Field(min_length=1)
    reward: Reward
    determinism: Literal["seeded", "stochastic", "unknown"]
    config_path: NonEmpty = "config.yaml"
    dataset_owner: str | None = None
    resources_server: str | None = None
    agent_server: str | None = None
    datasets: list[ManifestDataset] = Field(default_factory=list)
    model_server: str | None = None
    rollout_driver: str | None = None
    grading_mode: str | None = None
    session_model: str | None = None
    state: Any = None
    sandbox: Any = None
    canonical_split: str | None = None
    prompt_source: NonEmpty = "template"
    standard_prompt_config: str | None = None
    adopted_from: Any = None
    lifecycle: Literal["active", "deprecated"] = "active"

    @model_validator(mode="after")
    def _check(self) -> EnvironmentManifest:
        if len(set(self.authors)) < len(self.authors):
            raise ValueError("`authors` names somebody twice")
        for key in _NEEDS[self.integration_profile]:
            if getattr(self, key) is None:
                raise ValueError(f"the profile `{self.integration_profile}` needs `{key}`")
        if self.rollout_driver is not None:
            if self.integration_profile != "external-rollout-driver":
                raise ValueError("`rollout_driver` belongs to the profile `external-rollout-driver` alone")
            if not _DRIVER.match(self.rollout_driver):
                raise ValueError(f"`rollout_driver` is `module:function`, not `{self.rollout_driver}`")
        if self.kind == "benchmark":
            self._check_benchmark()
        return self

    def _check_benchmark(self) -> None:
        if self.canonical_split is None:
            raise ValueError("a benchmark needs `canonical_split`")
        if not any(dataset.type == "benchmark" and dataset.prepare_script for dataset in self.datasets):
            raise ValueError("a benchmark needs a dataset of type `benchmark` with a `prepare_script`")
        if self.prompt_source == "template" and self.standard_prompt_config is None:
            raise ValueError("a benchmark whose prompts are a template needs `standard_prompt_config`")
