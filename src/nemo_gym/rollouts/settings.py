"""The settings of collecting, serving and aggregating, as the merged configuration holds them.

Unknown keys are ignored here, since the same mapping also configures servers; loading a configuration refuses keys
that nothing reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nemo_gym.errors import ConfigError, IncompleteEvaluationError
from nemo_gym.store.run_files import RunFiles

PositiveInt: TypeAlias = Annotated[int, Field(ge=1)]
DEFAULT_KEY = "_default"
"""In `agent_map` and `num_repeats`: what applies to everything not named."""

_SettingsT = TypeVar("_SettingsT", bound=BaseModel)


def check_fan_out(fan_out: Mapping[str, Sequence[object]]) -> None:
    """Raise ConfigError for targets that would make rows vanish, or run twice without being meant to."""
    for key, targets in fan_out.items():
        names = [] if isinstance(targets, str) else list(targets)
        if not names or not all(map(is_name, names)) or len(set(names)) != len(names):
            raise ConfigError(f"`fan_out.{key}` needs a list of at least one agent, each only once, not `{targets}`")


def is_name(value: object) -> bool:
    """Return whether a value can name an agent."""
    return isinstance(value, str) and bool(value)


class _Settings(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _HealthSettings(_Settings):
    disable_health_check: bool = Field(default=False, description="Make no health report after the run.")
    health_check_workers: PositiveInt | None = Field(
        default=None, description="Processes of the health check; default: CPUs, at most 8."
    )
    health_check_ignored_checks: list[str] = Field(
        default_factory=list, description="Ids of health checks that count for nothing; a list or a comma string."
    )
    count_failure_classes_as_zero: list[str] = Field(
        default_factory=list, description="Failure classes that enter the metrics as reward 0."
    )
    count_missing_rollouts_as_zero: bool = Field(
        default=False, description="Rollouts without any row enter the metrics as reward 0."
    )

    @field_validator("health_check_ignored_checks", "count_failure_classes_as_zero", mode="before")
    @classmethod
    def _comma_string(cls, value: object) -> object:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return [] if value is None else value

    @field_validator("health_check_ignored_checks")
    @classmethod
    def _known_checks(cls, value: list[str]) -> list[str]:
        if not value:
            return value
        from nemo_gym.health.registry import normalize_ignored_checks  # a run that ignores none does not need it

        return list(normalize_ignored_checks(value))


class SharedRolloutCollectionConfig(_HealthSettings):
    """What collecting against running servers and serving runs have in common."""

    output_jsonl_fpath: str = Field(description="The rollouts file; every other file of the run is named after it.")
    require_complete: bool = Field(default=False, description="Exit with an error when a rollout has no success.")
    num_samples_in_parallel: PositiveInt | None = Field(
        default=None, description="Rollouts in flight at a time; default: no limit but the connection pool's."
    )
    max_resident_rollout_tasks: PositiveInt | None = Field(
        default=None, description="Rollouts held in memory at a time, in flight or waiting to be written."
    )
    retain_results_in_memory: bool = Field(default=True, description="Return the records of the run, not only files.")
    responses_create_params: dict[str, Any] = Field(
        default_factory=dict, description="Laid over each row's `responses_create_params`; these values win."
    )
    disable_aggregation: bool = Field(default=False, description="Make no metrics, and no health report.")
    route_failures_to_sidecar: bool = Field(
        default=False, description="A failed `/run` becomes a row of the failures file instead of ending the run."
    )
    record_omitted_rollouts: bool = Field(
        default=False, description="Keep a row for a try that was interrupted or never started."
    )
    rollout_collection_driver: str | None = Field(
        default=None, description="`module.path:function`, awaited with (config, configuration) instead of collecting."
    )
    environment_routing_mode: Literal["agent", "legacy", "taskset"] = Field(
        default="agent", description="How rows find their server."
    )
    environment_server_name: str | None = Field(default=None, description="With mode `legacy`: where every row goes.")
    environment_server_routes: dict[str, str] = Field(
        default_factory=dict, description="Taskset to environment server, for materialized rows."
    )
    upload_rollouts: bool = Field(default=True, description="Accepted and without effect: there are no exporters.")
    rollout_timeout_s: float | None = Field(
        default=None, gt=0, description="Seconds after which one rollout is given up; default: never."
    )
    connection_retries: int = Field(
        default=8, ge=0, description="Further tries to connect for `/run`, made only while nothing was sent."
    )
    rollout_retries: int = Field(
        default=0,
        ge=0,
        description="How often a rollout of class `agent_request_failed` is tried again in the same run.",
    )
    overwrite: bool = Field(default=False, description="Replace an earlier run's files without keeping a copy.")

    @model_validator(mode="after")
    def _routing_is_complete(self) -> SharedRolloutCollectionConfig:
        if self.environment_routing_mode == "legacy" and not self.environment_server_name:
            raise ValueError("`environment_routing_mode=legacy` needs `environment_server_name`")
        if self.environment_routing_mode == "taskset" and not self.environment_server_routes:
            raise ValueError("`environment_routing_mode=taskset` needs `environment_server_routes`")
        return self

    @field_validator("responses_create_params")
    @classmethod
    def _finite(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(value, allow_nan=False, default=str)
        except ValueError as error:  # a request would silently carry null in its place
            raise ValueError("a number must be finite; leave a value out to have the server's own") from error
        return value

    @property
    def files(self) -> RunFiles:
        """The file names of the run."""
        return RunFiles(self.output_jsonl_fpath)

    def check_completion(self, expected: int, results: int) -> None:
        """Raise IncompleteEvaluationError when completeness is required and a rollout has no success."""
        if self.require_complete and results < expected:
            raise IncompleteEvaluationError(
                f"{results} of {expected} rollouts succeeded. What is saved in `{self.output_jsonl_fpath}` is fine; "
                "run the same command with `--resume` for the rest."
            )


class RolloutCollectionConfig(SharedRolloutCollectionConfig):
    """One evaluation run over an input file."""

    input_jsonl_fpath: str = Field(description="Rows to run, one JSON object per line.")
    agent_name: str | None = Field(default=None, description="Agent for every row: `agent_map._default`.")
    agent_map: dict[str, str] | None = Field(
        default=None, description="Re-routes rows by agent name, then by `task_source`, then `_default`."
    )
    fan_out: dict[str, list[str]] | None = Field(
        default=None, description="Agent name or `task_source` to the agents that each such row runs on."
    )
    limit: int | None = Field(default=None, ge=0, description="Only the first so many rows; 0 means all.")
    num_repeats: PositiveInt | dict[str, PositiveInt] = Field(
        default=1, description="Rollouts of each row; a mapping gives them per agent."
    )
    num_repeats_add_seed: bool = Field(default=False, description="Give each repeat its index as sampling seed.")
    interleave_repeats: bool = Field(default=False, description="All first repeats before all second ones.")
    resume_from_cache: bool = Field(default=False, description="Run only what the output lacks.")
    resume_ignore_drift: bool = Field(
        default=False, description="Resume although rows or configuration differ from the saved run's."
    )
    prompt_config: str | None = Field(default=None, description="Prompt file that gives each row its input.")
    skills: dict[str, Any] | None = Field(default=None, description="`path` of a skills folder, stamped on each row.")
    dispatch_budget_s: float | None = Field(default=None, ge=0, description="Seconds in which rollouts may start.")
    drain_margin_s: float | None = Field(
        default=None, ge=0, description="Start nothing with less than this left; default: from observed latencies."
    )
    dispatch_longest_first: bool = Field(default=False, description="On resume: rows known to be slow go first.")
    retry_terminal_timeouts: bool = Field(default=False, description="Retry timeouts that are marked final.")
    retry_invalid_judge_responses: bool = Field(default=False, description="Judge rows with unusable answers again.")

    @field_validator("num_repeats", mode="before")
    @classmethod
    def _null_repeats(cls, value: object) -> object:
        return 1 if value is None else value

    @field_validator("agent_name")
    @classmethod
    def _names_an_agent(cls, value: str | None) -> str | None:
        if value == "":
            raise ValueError("it names no agent; leave it out to send rows where they say")
        return value

    @field_validator("skills")
    @classmethod
    def _names_a_folder(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and (not isinstance(value.get("path"), str) or not value["path"]):
            raise ValueError("it needs the `path` of a skills folder")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> RolloutCollectionConfig:
        if self.agent_name is not None:
            named = (self.agent_map or {}).get(DEFAULT_KEY)
            if named is not None and named != self.agent_name:
                raise ValueError(f"`--agent {self.agent_name}` (`agent_name`) contradicts `agent_map._default={named}`")
            self.agent_map = {**(self.agent_map or {}), DEFAULT_KEY: self.agent_name}
        check_fan_out(self.fan_out or {})
        if self.dispatch_budget_s is not None and self.num_samples_in_parallel is None:
            raise ValueError(
                "`dispatch_budget_s` needs `--concurrency N` (`num_samples_in_parallel`): without it every row starts "
                "at once"
            )
        return self

    @property
    def materialized_jsonl_fpath(self) -> Path:
        """Where the fully expanded rows are written."""
        return self.files.materialized


class E2ERolloutCollectionConfig(SharedRolloutCollectionConfig):
    """A run over the datasets that the configuration declares."""

    split: Literal["train", "validation", "benchmark", "example"] = Field(
        default="example", description="Which declared datasets to run."
    )
    reuse_existing_data_preparation: bool = Field(default=False, description="Use rows that were prepared before.")


class RolloutAggregationConfig(_HealthSettings):
    """Metrics over several rollouts files."""

    input_glob: str = Field(description="One glob, or several separated by commas, relative to the working directory.")
    output_jsonl_fpath: str = Field(description="The merged rollouts file; the metrics file is named after it.")
    merge_shards: bool = Field(default=True, description="Write the merged rollouts file.")


def parse_settings(model: type[_SettingsT], data: Mapping[str, Any]) -> _SettingsT:
    """Return the settings in a merged configuration; every problem is in the one ConfigError that is raised."""
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        missing = [str(item["loc"][0]) for item in error.errors() if item["type"] == "missing"]
        wrong = [
            f"{_named('.'.join(str(part) for part in item['loc']) or model.__name__)}: {item['msg']}"
            for item in error.errors()
            if item["type"] != "missing"
        ]
        parts = []
        if missing:
            parts.append("missing required configuration: " + ", ".join(_how_to_give(name) for name in missing))
        if wrong:
            parts.append("invalid configuration: " + "; ".join(wrong))
        raise ConfigError(". ".join(parts)) from error


_FLAGS = {
    "input_jsonl_fpath": "--input",
    "output_jsonl_fpath": "--output",
    "input_glob": "--input-glob",
    "num_samples_in_parallel": "--concurrency",
}


def _named(setting: str) -> str:
    """Name a setting, with its flag where that is called otherwise."""
    flag = _FLAGS.get(setting)
    return f"`{setting}`" if flag is None else f"`{setting}` (`{flag}`)"


def _how_to_give(name: str) -> str:
    flag = _FLAGS.get(name)
    return f"`+{name}=<value>`" + (f" (or `{flag} <value>`)" if flag else "")
