"""The pages of gap codes and health checks: one for each, and a list of all, made from the two registries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from check_examples import CHECK_EXAMPLES, CheckExample
from gap_examples import GAP_EXAMPLES

from nemo_gym.health import CHECK_REGISTRY, CheckScope, CheckSpec, CheckSubject
from nemo_gym.records.gaps import GAP_PARAMETERS, GAP_REGISTRY, GapSpec

GAPS_HEAD = """\
# What a gap means

A gap is a typed statement that something was not observed: a `code`, the invocation it is about if it is about one,
and a `detail`. It stands in `ng_trajectory.gaps` of a record. It makes the health checks that would have needed the
evidence unobserved, and says nothing about whether the task was solved. Codes that are not listed here are legal, and
neutral.

This page and those it leads to are made from the registry in `nemo_gym.records.gaps`.

| code | what it means | health |
|---|---|---|
"""

CHECKS_HEAD = """\
# What a health check finds

`gym eval health-check RUN_DIR` looks at each saved record, and at nothing else: is the evidence complete, and does it
agree with itself. Whether the task was solved is the verifier's to say. A rollout is unhealthy with any finding; else
unobserved when a check could not be made because its evidence is missing; else healthy. Tasks get flags instead of a
verdict. Gaps are counted too, of healthy rollouts as well: this command and `gym eval run` print which codes the
records carry and in how many rollouts each, and [the page of a code](gaps.md) says what to do.

| where | what it holds |
|---|---|
| `rollout_verdicts.jsonl` | a line for each record: verdict, findings, unobserved checks |
| `quality_summary.json` | verdicts, findings and gaps counted, flags of tasks, how often each check could be made |

| option | what it does |
|---|---|
| `--ignore-checks ID,ID` | leaves checks out |
| `--fail-on unhealthy`, `--fail-on unobserved` | makes the exit code 4 |
| `--junit FILE` | writes the result for a build server |

This page and those it leads to are made from the registry in `nemo_gym.health`.

| check | what it finds |
|---|---|
"""

REPORTERS = {
    "agent": "the agent",
    "capture": "collection, when it reads the capture",
    "join": "collection, when it joins references and calls",
    "projection": "collection, when it makes the trajectory",
}
ABOUT = {
    CheckSubject.CHECK_EXECUTION: "another check",
    CheckSubject.AGENT_TURN: "one turn",
    CheckSubject.MODEL_CALL: "one model call",
    CheckSubject.TRAJECTORY_CAPTURE: "a reference and the captured calls",
}
CONTRADICTION = "trajectory_capture_mismatch"


def gaps_page() -> str:
    """Return the list of all gap codes."""
    rows = [f"| [{spec.code}](gaps/{spec.code}.md) | {spec.meaning} | {_short_effect(spec)} |\n" for spec in _gaps()]
    return GAPS_HEAD + "".join(rows)


def gap_page(code: str) -> str:
    """Return the page of one gap code."""
    spec = GAP_REGISTRY[code]
    about = "one invocation" if spec.scope == "invocation" else "the rollout"
    rows = {"about": about, "reported by": REPORTERS[spec.reported_by], "health": _effect(spec)}
    if spec.detail:
        rows["detail"] = f"`{spec.detail}`"
        rows |= {f"`{name}`": GAP_PARAMETERS[name] for name in spec.parameters}
    example = GAP_EXAMPLES[code]()
    place, gap = example.gap(code)
    came = "" if example.given is None else f"What came in:\n\n{_json(example.given)}\n"
    return (
        f"# {code}\n\n{spec.meaning}\n\n{_table(rows)}\n"
        f"## When\n\n{spec.when}\n\n"
        f"## Example\n\n{example.story}\n\n{came}"
        f"What the record says (its other gaps are left out):\n\n{_json({place: {'gaps': [gap]}})}\n"
        f"## What to do\n\n{spec.remedy}\n\n"
        "[All gaps](../gaps.md) · [what is in a record](../records.md)\n"
    )


def checks_page() -> str:
    """Return the list of all checks."""
    rows = [f"| [{spec.id}](checks/{spec.id}.md) | {spec.meaning.finds} |\n" for spec in CHECK_REGISTRY.values()]
    return CHECKS_HEAD + "".join(rows)


def check_page(check: str) -> str:
    """Return the page of one check."""
    spec = CHECK_REGISTRY[check]
    meaning = spec.meaning
    rows = {
        "made for": f"each {spec.evaluation_scope.value}",
        "about": ABOUT.get(spec.subject, f"the {spec.subject.replace('_', ' ')}"),
        "looks at": meaning.looks_at,
        "passes when": meaning.passes,
        "unobserved when": meaning.unobserved,
        "to leave it out": f"`gym eval health-check RUN_DIR --ignore-checks {check}`",
    }
    gaps = [f"- [{code}](../gaps/{code}.md) makes it unobserved\n" for code in spec.blocking_gaps]
    if check == CONTRADICTION:
        gaps += [f"- [{gap.code}](../gaps/{gap.code}.md) makes it fail\n" for gap in _gaps() if gap.contradicts]
    gap_part = f"## Gaps\n\n{''.join(gaps)}\n" if gaps else ""
    return (
        f"# {check}\n\n{meaning.finds}\n\n{_table(rows)}\n{gap_part}"
        f"## Example\n\n{_shown(spec, CHECK_EXAMPLES[check]())}"
        f"## What to do\n\n{meaning.remedy}\n\n"
        "[All checks](../checks.md) · [what is in a record](../records.md)\n"
    )


def _shown(spec: CheckSpec, example: CheckExample) -> str:
    parts = [f"{example.story}\n\n"]
    if isinstance(example.given, str):
        parts += [f"The line:\n\n```text\n{example.given}\n```\n\n"] if example.given else []
    else:
        parts.append(f"Of the record:\n\n{_json(example.given)}\n")
    if not spec.in_verdict:
        stats = {"run": {"stats": {"model_call_errors": example.summary["run"]["stats"]["model_call_errors"]}}}
        parts.append(f"The rollout is {example.verdicts[0]['verdict']}; `quality_summary.json` counts the call:\n\n")
        parts.append(f"{_json(stats)}\n")
    elif spec.evaluation_scope is CheckScope.TASK:
        parts.append(f"`quality_summary.json`:\n\n{_json({'tasks': example.summary['tasks']})}\n")
    else:
        (finding, *_) = [item for item in example.verdicts[0]["findings"] if item["check"] == spec.id]
        parts.append(f"The finding in `rollout_verdicts.jsonl`:\n\n{_json({'findings': [finding]})}\n")
    keys = [f"| `locator.{name}` | {text} |\n" for name, text in spec.meaning.locator.items()]
    keys += [f"| `detail.{name}` | {text} |\n" for name, text in spec.meaning.detail.items()]
    if keys:
        parts.append(f"| key | what stands there |\n|---|---|\n{''.join(keys)}\n")
    return "".join(parts)


def _effect(spec: GapSpec) -> str:
    if spec.contradicts:
        return f"a contradiction: {_check_link(CONTRADICTION)} finds it"
    blocked = [check.id for check in CHECK_REGISTRY.values() if spec.code in check.blocking_gaps]
    if not blocked:
        return "no check depends on it"
    return "unobserved are then " + ", ".join(map(_check_link, blocked))


def _short_effect(spec: GapSpec) -> str:
    if spec.contradicts:
        return "unhealthy"
    return "unobserved" if spec.blocks else ""


def _check_link(check: str) -> str:
    return f"[{check}](../checks/{check}.md)"


def _gaps() -> Iterable[GapSpec]:
    return GAP_REGISTRY.values()


def _table(rows: Mapping[str, str]) -> str:
    return "| | |\n|---|---|\n" + "".join(f"| {name} | {text} |\n" for name, text in rows.items())


def _json(value: Any) -> str:
    return f"```json\n{_laid_out(value, 0)}\n```\n"


def _laid_out(value: Any, depth: int) -> str:
    """Return JSON that keeps on one line what fits there."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + 2 * depth <= 100 or not isinstance(value, (dict, list)) or not value:
        return line
    inner = "  " * (depth + 1)
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(key)}: {_laid_out(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(parts) + "\n" + "  " * depth + "}"
    return "[\n" + ",\n".join(inner + _laid_out(item, depth + 1) for item in value) + "\n" + "  " * depth + "]"
