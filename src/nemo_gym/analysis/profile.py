"""Reward profile: per task, how a dataset's rows fare over their rollouts (collection.md 6.7)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from nemo_gym.analysis.aggregate import across_repeats, describe, group_entry, repeat_level_metrics
from nemo_gym.analysis.rows import agent_name, by_task, coverage_by_agent, numeric_fields, row_key, select_measured
from nemo_gym.errors import ConfigError
from nemo_gym.records import codec, keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.store.run_files import AGENT_METRICS, REPEAT_METRICS, REWARD_PROFILING

_INDICES = (keys.TASK_INDEX, keys.ROLLOUT_INDEX)
_SHOWN = 10


class RewardProfileConfig(BaseModel):
    """What `gym eval profile` reads; `allow_partial_rollouts` accepts inputs that have no rollout yet."""

    materialized_inputs_jsonl_fpath: str
    rollouts_jsonl_fpath: str
    allow_partial_rollouts: bool = False


class RewardProfile(NamedTuple):
    """One entry per task (and agent), per agent, and per agent and repeat."""

    group_level_metrics: list[JsonObject]
    agent_metrics: list[JsonObject]
    repeat_level_metrics: list[JsonObject]


class RewardProfiler:
    """Aligns materialized inputs with results and describes the rewards."""

    def profile_from_data(
        self, rows: Sequence[JsonObject], results: Sequence[JsonObject], *, allow_partial_rollouts: bool = False
    ) -> RewardProfile:
        """Return the profile of `results` over the materialized `rows`, which both carry their indices.

        Masked results count in the coverage alone. Raises ConfigError (a ValueError) when a result has no input, two
        share a key, or an input has no result and `allow_partial_rollouts` is False.
        """
        # A task that runs on several agents has its indices once per agent; only then does the agent tell rows apart.
        fan_out = len({row_key(row) for row in rows}) < len(rows)
        inputs = _by_key(rows, "materialized inputs", fan_out=fan_out)
        found = _by_key(results, "rollouts", fan_out=fan_out)
        _refuse(found.keys() - inputs.keys(), "rollouts have no materialized input")
        if not allow_partial_rollouts:
            owed = inputs.keys() - found.keys()
            leave = "`--allow-partial` (`allow_partial_rollouts`) accepts that"
            _refuse(owed, f"materialized inputs have no rollout; {leave}")
        expected: dict[tuple[str, bytes], list[JsonObject]] = {}
        agents: dict[str, list[JsonObject]] = {}
        for key in sorted(inputs, key=lambda key: (row_key(inputs[key]), key[0])):
            row, result = inputs[key], found.get(key)
            name = agent_name(row) or (None if result is None else agent_name(result)) or ""
            expected.setdefault((name, key[1]), []).append(row)
            members = agents.setdefault(name, [])
            if result is not None:
                members.append(result)
        coverage = coverage_by_agent(
            [{**row, keys.AGENT_REF: {"name": name}} for name in agents for row in agents[name]]
        )
        profile = RewardProfile([], [], [])
        for name, members in sorted(agents.items()):
            self._add_agent(profile, name, members, expected, coverage.get(name, {}))
        profile.group_level_metrics.sort(key=row_key)
        return profile

    def _add_agent(
        self,
        profile: RewardProfile,
        name: str,
        members: list[JsonObject],
        expected: dict[tuple[str, bytes], list[JsonObject]],
        coverage: dict[str, int],
    ) -> None:
        ref = {keys.AGENT_REF: {"name": name}} if name else {}
        tasks = by_task(select_measured(members).results)
        for task in tasks:
            owed = expected[name, codec.encode(task[0].get(keys.TASK_INDEX))]
            sample = {field: value for field, value in owed[0].items() if field not in _INDICES}
            profile.group_level_metrics.append({**group_entry(task, sample=sample, expected=len(owed)), **ref})
        repeats = repeat_level_metrics(tasks)
        numbers = [numeric_fields(row) for task in tasks for row in task]
        profile.agent_metrics.append({**ref, **describe(numbers), **across_repeats(repeats), **coverage})
        profile.repeat_level_metrics.extend({**ref, **entry} for entry in repeats)

    def files(self, profile: RewardProfile, output: str | Path) -> dict[Path, bytes]:
        """Return the three files that stand beside the rollouts file `output`, by path."""
        base = Path(output)
        return {
            base.with_name(f"{base.stem}{REWARD_PROFILING}.jsonl"): b"".join(
                codec.encode_line(entry) for entry in profile.group_level_metrics
            ),
            base.with_name(f"{base.stem}{AGENT_METRICS}.json"): codec.encode_pretty(profile.agent_metrics),
            base.with_name(f"{base.stem}{REPEAT_METRICS}.json"): codec.encode_pretty(profile.repeat_level_metrics),
        }


def _by_key(rows: Sequence[JsonObject], what: str, *, fan_out: bool) -> dict[tuple[str, bytes, bytes], JsonObject]:
    found: dict[tuple[str, bytes, bytes], JsonObject] = {}
    repeated = set()
    for row in rows:
        task, rollout = (codec.encode(row.get(name)) for name in _INDICES)
        key = ((agent_name(row) or "") if fan_out else "", task, rollout)
        if key in found:
            repeated.add(key)
        found[key] = row
    _refuse(repeated, f"keys occur twice in the {what}")
    return found


def _refuse(found: set[tuple[str, bytes, bytes]], problem: str) -> None:
    if found:
        shown = ", ".join(f"`{task.decode()}:{rollout.decode()}`" for _, task, rollout in sorted(found)[:_SHOWN])
        raise ConfigError(f"{len(found)} {problem}: {shown}")
