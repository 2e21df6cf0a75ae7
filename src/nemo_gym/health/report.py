"""What a health result looks like to people and to other programs, and whether it fails a build. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Literal, TypeAlias
from xml.sax.saxutils import escape, quoteattr

from nemo_gym.health.types import HealthCheckResult, RolloutDigest, Verdict
from nemo_gym.records import codec
from nemo_gym.records.gaps import GAP_REGISTRY

FailOn: TypeAlias = Literal["unhealthy", "unobserved"]

GAPS_SHOWN = 20
"""So many gap codes are printed; the summary has all."""

_PLAIN_CODE = re.compile(r"[A-Za-z0-9_.:/-]+")
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def format_health_report(result: HealthCheckResult) -> str:
    """Return two lines: the counts, with the ignored checks if any, and the path of the summary."""
    run = result.run
    verdicts = run["verdicts"]
    line = (
        f"Rollout health: {run['artifacts']['records']} checked, {verdicts['healthy']} healthy, "
        f"{verdicts['unhealthy']} unhealthy, {verdicts['unobserved']} unobserved"
    )
    if run["ignored_checks"]:
        line += f" (ignored: {', '.join(run['ignored_checks'])})"
    return f"{line}\n{result.summary_path}"


def explain_verdicts(result: HealthCheckResult) -> list[str]:
    """Return why records are not healthy, a line per kind of reason; [] when all are."""
    run = result.run
    lines = []
    found = {check: count for check, count in run["issues"].items() if count}
    if found:
        lines.append("found: " + ", ".join(f"{check} {count}" for check, count in found.items()))
    if not run["verdicts"]["unobserved"]:
        return lines
    coverage = run["artifacts"]["coverage"]
    missing = {check: counts["unobserved"] for check, counts in coverage.items() if counts["unobserved"]}
    lines.append("not observed: " + ", ".join(f"{check} {count}" for check, count in missing.items()))
    if not run["artifacts"]["captures"]:
        lines.append(
            "no model call was captured: capture was off (`observability_enabled`, `model_call_capture_dir`), or the "
            "agent did not call the model under the rollout's URL"
        )
    return lines


def explain_gaps(result: HealthCheckResult) -> list[str]:
    """Return a line that says which gap codes stand in how many records; [] when there is none.

    Codes that nobody need act on, and those that are not registered, come last.
    """
    counts = result.run["gap_counts"]
    if not counts:
        return []
    ordered = sorted(counts, key=lambda code: (_gap_rank(code), code))
    shown = [f"{_shown_code(code)} {counts[code]}" for code in ordered[:GAPS_SHOWN]]
    if len(ordered) > GAPS_SHOWN:
        shown.append(f"and {len(ordered) - GAPS_SHOWN} more codes in the summary")
    return [f"gaps: {', '.join(shown)} (docs/gaps.md says what each means and what to do)"]


def _gap_rank(code: str) -> int:
    spec = GAP_REGISTRY.get(code)
    return 2 if spec is None else not spec.needs_action


def _shown_code(code: str) -> str:
    """Return a code as a terminal may show it: what is no plain word is shown as JSON, in ASCII."""
    return code if _PLAIN_CODE.fullmatch(code) else json.dumps(code).replace("\x7f", "\\u007f")


def should_fail(result: HealthCheckResult, fail_on: FailOn | None) -> bool:
    """Return whether a build that asked for `fail_on` fails.

    "unhealthy": a record is unhealthy; "unobserved": a record is anything but healthy; None: never. No record at all
    fails nothing.
    """
    verdicts = result.run["verdicts"]
    if fail_on is None:
        return False
    return bool(verdicts["unhealthy"] or (fail_on == "unobserved" and verdicts["unobserved"]))


def junit_report(result: HealthCheckResult) -> Iterator[str]:
    """Yield the result as JUnit XML, in pieces: a case per record and per task; unobserved ones count as skipped."""
    counts = result.run["verdicts"]
    flagged = sum(bool(task["flags"]) for _, task in result.tasks.items())
    yield '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n'
    yield _suite("rollouts", len(result.rollouts), failures=counts["unhealthy"], skipped=counts["unobserved"])
    yield from map(_record_case, result.rollouts)
    yield "  </testsuite>\n"
    yield _suite("tasks", len(result.tasks), failures=flagged, skipped=0)
    yield from (_task_case(name, task["flags"]) for name, task in result.tasks.items())
    yield "  </testsuite>\n</testsuites>\n"


def _suite(name: str, tests: int, *, failures: int, skipped: int) -> str:
    return f'  <testsuite name="{name}" tests="{tests}" failures="{failures}" errors="0" skipped="{skipped}">\n'


def _record_case(digest: RolloutDigest) -> str:
    head = f"    <testcase classname={_attribute(f'task {digest.task_index}')} name={_attribute(digest.rollout_id)}"
    if digest.verdict is Verdict.UNHEALTHY:
        checks = ", ".join(dict.fromkeys(finding.check for finding in digest.findings))
        lines = "\n".join(codec.encode(finding.as_row()).decode() for finding in digest.findings)
        return (
            f"{head}>\n      <failure message={_attribute(checks)}>{escape(_clean(lines))}</failure>\n    </testcase>\n"
        )
    if digest.verdict is Verdict.UNOBSERVED:
        message = f"unobserved: {', '.join(digest.unobserved)}"
        return f"{head}>\n      <skipped message={_attribute(message)}/>\n    </testcase>\n"
    return f"{head}/>\n"


def _task_case(name: str, flags: list[str]) -> str:
    head = f'    <testcase classname="tasks" name={_attribute(name)}'
    if not flags:
        return f"{head}/>\n"
    return f"{head}>\n      <failure message={_attribute(', '.join(flags))}/>\n    </testcase>\n"


def _attribute(text: str) -> str:
    return quoteattr(_clean(text))


def _clean(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
