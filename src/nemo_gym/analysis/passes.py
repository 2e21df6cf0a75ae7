"""The pass@k family, in percent. Tasks are lists of result dicts, one per rollout, in rollout order."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from nemo_gym.analysis import statistics
from nemo_gym.analysis.rows import number
from nemo_gym.records import codec
from nemo_gym.records.codec import JsonObject, JsonValue

Scores: TypeAlias = dict[str, float]
ScoreFunction: TypeAlias = Callable[[JsonObject], Mapping[str, Any]]

NO_ANSWER = "no_answer"
STD_DEV, STD_ERR, SAMPLE_STD_DEV = "std_dev_across_runs", "std_err_across_runs", "avg_sample_std_dev"
_DEVIATIONS = (STD_DEV, STD_ERR, SAMPLE_STD_DEV)


def compute_pass_majority_metrics(
    tasks: Sequence[Sequence[JsonObject]], score_fn: ScoreFunction | None = None, answer_key: str | None = None
) -> tuple[dict[str, Any], list[list[Scores]], list[str], int]:
    """Return (metrics, scores per task and rollout, sorted score names, largest number of rollouts of a task).

    For k up to that number and each score: `pass@k/<name>`, `pass@1[avg-of-k]/<name>` with its deviation and error
    across runs for k >= 2, and with `answer_key` `majority@k/<name>` and the score `no_answer`. `per_sample_aggregate`
    lists the mean of each run. `score_fn` gives a result's scores, booleans allowed; default: accuracy = reward.
    Values of k with no task to average have no key.
    """
    if not tasks:
        return {}, [], [], 0
    scores = [[_scores_of(result, score_fn or _accuracy, answer_key) for result in task] for task in tasks]
    answers = [[None if answer_key is None else result.get(answer_key) for result in task] for task in tasks]
    names = sorted({name for task in scores for rollout in task for name in rollout})
    max_k = max(len(task) for task in tasks)
    metrics: dict[str, Any] = {}
    per_run = {name: _run_means(scores, name) for name in names}
    for k in range(1, max_k + 1):
        for name in names:
            columns = [[rollout[name] for rollout in task if name in rollout] for task in scores]
            _put(metrics, f"pass@{k}/{name}", [_pass_at_k(values, k) for values in columns if len(values) >= k])
            averages = [statistics.mean(values[:k]) for values in columns if values]
            _put(metrics, f"pass@1[avg-of-{k}]/{name}", averages)
            if k >= 2:
                _put_deviation(metrics, f"pass@1[avg-of-{k}]/{name}", per_run[name][:k])
            if answer_key is not None:
                majority = [
                    _majority(list(zip(task_answers[:k], task_scores[:k], strict=True)), name)
                    for task_answers, task_scores in zip(answers, scores, strict=True)
                ]
                _put(metrics, f"majority@{k}/{name}", majority)
    metrics["per_sample_aggregate"] = per_run
    return metrics, scores, names, max_k


def _accuracy(result: JsonObject) -> Mapping[str, Any]:
    return {"accuracy": result.get("reward")}


def _scores_of(result: JsonObject, score_fn: ScoreFunction, answer_key: str | None) -> Scores:
    given = {name: number(value) for name, value in score_fn(result).items()}
    scores = {name: value for name, value in given.items() if value is not None}
    if answer_key is not None:
        scores[NO_ANSWER] = int(result.get(answer_key) is None)
    return scores


def _pass_at_k(values: list[float], k: int) -> float:
    """Return the chance that one of k drawn without replacement is right, or the best of the first k for grades."""
    if any(value not in (0, 1) for value in values):
        return max(values[:k])
    wrong = len(values) - sum(value == 1 for value in values)
    return 1 - math.comb(wrong, k) / math.comb(len(values), k)


def _majority(pairs: list[tuple[JsonValue, Scores]], name: str) -> float:
    """Return the score of the most frequent (answer, score) pair, ties averaged; 0 when nobody answered."""
    votes: Counter[tuple[bytes, float]] = Counter(
        (codec.encode(answer), scores[name]) for answer, scores in pairs if answer is not None and name in scores
    )
    if not votes:
        return 0.0
    most = max(votes.values())
    return statistics.mean([score for (_, score), count in votes.items() if count == most])


def _run_means(scores: list[list[Scores]], name: str) -> list[float]:
    """Return for each run, by position, the mean over the tasks that have it, in percent."""
    means = []
    for run in range(max(len(task) for task in scores)):
        values = [task[run][name] for task in scores if len(task) > run and name in task[run]]
        if values:
            means.append(100 * statistics.mean(values))
    return means


def _put(metrics: dict[str, Any], key: str, values: list[float]) -> None:
    if values:
        metrics[key] = 100 * statistics.mean(values)


def _put_deviation(metrics: dict[str, Any], key: str, run_means: list[float]) -> None:
    deviation = statistics.sample_std(run_means)
    if deviation is not None:
        metrics[f"{key}/{STD_DEV}"] = deviation
        metrics[f"{key}/{STD_ERR}"] = deviation / math.sqrt(len(run_means))


def add_avg_sample_std_dev(
    metrics: dict[str, Any], all_score_dicts: Sequence[Sequence[Mapping[str, float]]], score_names: Sequence[str],
    max_k: int,
) -> None:  # fmt: skip
    """Add `pass@1[avg-of-k]/<name>/avg_sample_std_dev` for k >= 2, in place.

    The mean over tasks of the sample deviation of a task's first k scores, not in percent; tasks with fewer than two
    of them do not count.
    """
    for k in range(2, max_k + 1):
        for name in score_names:
            columns = [[rollout[name] for rollout in task if name in rollout][:k] for task in all_score_dicts]
            deviations = [std for values in columns if (std := statistics.sample_std(values)) is not None]
            if deviations:
                metrics[f"pass@1[avg-of-{k}]/{name}/{SAMPLE_STD_DEV}"] = statistics.mean(deviations)


def compute_subset_metrics(
    tasks: Sequence[Sequence[JsonObject]],
    subset_key: str,
    score_fn: ScoreFunction | None = None,
    answer_key: str | None = None,
) -> dict[str, Any]:
    """Return the pass@k family of each subset as `<value>/<metric>`.

    A task belongs to the first truthy value of the field `subset_key` among its rollouts; a task without one to none.
    """
    subsets: dict[str, list[Sequence[JsonObject]]] = {}
    for task in tasks:
        value = next((row[subset_key] for row in task if row.get(subset_key)), None)
        if value is not None:
            subsets.setdefault(str(value), []).append(task)
    metrics: dict[str, Any] = {}
    for value, members in subsets.items():
        found, _, _, _ = compute_pass_majority_metrics(members, score_fn, answer_key)
        metrics.update({f"{value}/{key}": item for key, item in found.items() if key != "per_sample_aggregate"})
    return metrics


def highest_k_metrics(
    agent_metrics: Mapping[str, Any],
    pattern: str,
    score_names: Collection[str] | None = None,
    exclude_names: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return the entries `<pattern>/<name>` with the largest k; `{k}` in the pattern stands for it.

    `score_names` keeps only these names, `exclude_names` drops some; deviations and errors are never returned.
    """
    shape = re.compile(re.escape(pattern).replace(re.escape("{k}"), r"(\d+)") + r"/(.+)")
    found: dict[int, dict[str, Any]] = {}
    for key, value in agent_metrics.items():
        match = shape.fullmatch(key)
        if match is None or key.endswith(_DEVIATIONS):
            continue
        name = match[match.lastindex or 0]
        if (score_names is not None and name not in score_names) or name in (exclude_names or ()):
            continue
        k = int(match[1]) if match.lastindex == 2 else 0
        found.setdefault(k, {})[key] = value
    return found[max(found)] if found else {}
