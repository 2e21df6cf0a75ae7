"""Runs an agent through the scenarios and says which rows of evidence it fulfils.

The agent, the collector and the servers are the real ones. Nothing here supplies evidence: the runner starts rollouts,
ends one of them, and reads what was saved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject, decode_object
from nemo_gym.rollouts import RolloutCollectionHelper
from nemo_gym.rollouts.enrich import attach_evidence
from nemo_gym.store.run_files import shard_files
from nemo_gym.testing.comparison import ALL_ROWS, check_scenario
from nemo_gym.testing.evidence_rows import ROWS
from nemo_gym.testing.provoked import not_provoked, remarks
from nemo_gym.testing.scenarios import CANCELLED, Scenario, row_of
from nemo_gym.testing.witness import CUT_OFF, WhatHappened, WitnessFile

COMPONENTS = Path(__file__).parent / "components"
"""The search root of the model and the tools that testify."""

AGENT_INSTANCE = "conformance_agent"
"""The name that the agent under test has in the run's configuration."""

FULFILLED, NOT_FULFILLED, NOT_APPLICABLE = "fulfilled", "not_fulfilled", "not_applicable"
NOT_PROVOKED = "not_provoked"
_TOOL_DEADLINE_S = 90.0
_RUN_DEADLINE_S = 180.0
_LOOK_EVERY_S = 0.02


class ScenarioResult(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario: what happened by the witnesses' count, and the problems of each row; None where it is not owed.

    `not_provoked` says why the scenario's event was seen by no witness; then no row of it is fulfilled.
    """

    scenario: str
    meaning: str
    model_calls: int
    tool_executions: int
    verdicts: int
    problems: dict[str, list[str] | None]
    not_provoked: str | None = None
    remarks: list[str] = []

    def status(self, row: str) -> str:
        """Return whether a row is fulfilled in this scenario."""
        found = self.problems[row]
        if found:
            return NOT_FULFILLED
        if self.not_provoked is not None:
            return NOT_PROVOKED
        return NOT_APPLICABLE if found is None else FULFILLED


class ConformanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent's evidence is worth, scenario by scenario."""

    agent: str
    scenarios: list[ScenarioResult]

    def status(self, row: str) -> str:
        """Return whether a row is fulfilled wherever it is owed and its scenario was provoked."""
        found = {scenario.status(row) for scenario in self.scenarios}
        return next(status for status in (NOT_FULFILLED, FULFILLED, NOT_PROVOKED, NOT_APPLICABLE) if status in found)

    @property
    def not_provoked(self) -> list[str]:
        """The scenarios whose event no witness saw."""
        return [scenario.scenario for scenario in self.scenarios if scenario.not_provoked is not None]

    @property
    def fulfilled(self) -> bool:
        """Whether every scenario was provoked, at least one row is owed, and every one that is owed is fulfilled."""
        found = {self.status(row) for row in ALL_ROWS}
        return not self.not_provoked and NOT_FULFILLED not in found and FULFILLED in found

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "agent": self.agent,
            "fulfilled": self.fulfilled,
            "rows": {row: self.status(row) for row in ALL_ROWS},
            "not_provoked": self.not_provoked,
            "scenarios": msgspec.to_builtins(self.scenarios),
        }


def format_report(report: ConformanceReport) -> str:
    """Return the table of rows and scenarios, and below it what is not fulfilled."""
    marks = {FULFILLED: "yes", NOT_FULFILLED: "NO", NOT_APPLICABLE: "-", NOT_PROVOKED: "?"}
    width = max(len(scenario.scenario) for scenario in report.scenarios)
    lines = ["  ".join([" " * width, *(row.ljust(6) for row in ALL_ROWS), "calls", "tools"])]
    for scenario in report.scenarios:
        cells = [marks[scenario.status(row)].ljust(6) for row in ALL_ROWS]
        cells += [str(scenario.model_calls).ljust(5), str(scenario.tool_executions)]
        lines.append("  ".join([scenario.scenario.ljust(width), *cells]).rstrip())
    lines.append(
        "  ".join(["together".ljust(width), *(marks[report.status(row)].ljust(6) for row in ALL_ROWS)]).rstrip()
    )
    lines.append("")
    for scenario in report.scenarios:
        if scenario.not_provoked is not None:
            lines.append(f"? {scenario.scenario} was not provoked, so nothing is shown: {scenario.not_provoked}")
        lines += [f"{scenario.scenario}: {remark}" for remark in scenario.remarks]
    lines += _problem_lines(report)
    lines += [] if lines[-1] == "" else [""]
    lines += [f"{row}: {meaning}" for row, meaning in ROWS.items()]
    if report.not_provoked and NOT_FULFILLED not in {report.status(row) for row in ALL_ROWS}:
        names = " ".join(f"--skip {name}" for name in report.not_provoked)
        verdict = f"shows nothing in some scenarios. If it has no such thing, leave them out: {names}"
    else:
        verdict = ("fulfils" if report.fulfilled else "does not fulfil") + " every row that applies"
    return "\n".join([*lines, "", f"`{report.agent}` {verdict}."])


def _problem_lines(report: ConformanceReport) -> list[str]:
    """Return a line for each problem of each row, with the scenarios that it was found in."""
    where: dict[tuple[str, str], list[str]] = {}
    for row in ALL_ROWS:
        for scenario in report.scenarios:
            for problem in scenario.problems[row] or ():
                where.setdefault((row, problem), []).append(scenario.scenario)
    return [f"{row} {', '.join(names)}: {problem}" for (row, problem), names in where.items()]


async def run_scenarios(
    chosen: Sequence[Scenario], *, agent: str, head: tuple[str, int], capture_dir: Path, folder: Path, witness: Path
) -> ConformanceReport:
    """Run scenarios on the agent behind a head server, all at once, and return what its evidence is worth.

    The servers are those of `COMPONENTS`, with the agent under the name `AGENT_INSTANCE`. Files go to `folder`. Must
    not run in the head server's own event loop. Raises TimeoutError when the agent does not come to an end.
    """
    rows = {scenario.name: row_of(scenario, at, agent=AGENT_INSTANCE) for at, scenario in enumerate(chosen)}
    kept = [rows[scenario.name] for scenario in chosen if not scenario.cut_off]
    file = WitnessFile(witness)
    async with asyncio.timeout(_RUN_DEADLINE_S), asyncio.TaskGroup() as group:
        collected = group.create_task(_collect(kept, head, folder))
        cut = [group.create_task(_cancel(rows[s.name], head, folder, file, capture_dir)) for s in chosen if s.cut_off]
    records = {**collected.result(), **{record["scenario"]: record for task in cut if (record := task.result())}}
    told = file.read()
    return ConformanceReport(
        agent=agent,
        scenarios=[
            _result(scenario, records.get(scenario.name), told.get(scenario.name, WhatHappened()))
            for scenario in chosen
        ],
    )


def _result(scenario: Scenario, record: Mapping[str, Any] | None, told: WhatHappened) -> ScenarioResult:
    if record is None:
        # Only the scenario that ends the rollout itself can come without: the agent never called the tool.
        problems: dict[str, list[str] | None] = dict.fromkeys(ALL_ROWS)
        if not scenario.cut_off:
            problems["TE-6"] = ["there is no record of the rollout"]
    else:
        problems = check_scenario(scenario, record, told)
    return ScenarioResult(
        scenario=scenario.name,
        not_provoked=not_provoked(scenario, told),
        remarks=remarks(scenario, told),
        meaning=scenario.meaning,
        model_calls=len(told.model_calls),
        tool_executions=len(told.tools_started),
        verdicts=len(told.verdicts),
        problems=problems,
    )


async def _collect(rows: list[JsonObject], head: tuple[str, int], folder: Path) -> dict[str, JsonObject]:
    """Run rows to their end and return what was saved of each, by scenario."""
    names = {row[keys.TASK_INDEX]: row["scenario"] for row in rows}
    async for _ in _dispatch(rows, head, folder, "conformance"):
        pass
    files = shard_files(folder, "conformance")
    saved = {}
    for path in (files.failures, files.rollouts):
        for line in path.read_bytes().splitlines() if path.exists() else ():
            record = decode_object(line)
            saved[names[record[keys.TASK_INDEX]]] = record
    return saved


async def _cancel(
    row: JsonObject, head: tuple[str, int], folder: Path, witness: WitnessFile, capture_dir: Path
) -> JsonObject | None:
    """Start a row, end it while its tool runs, and return what is known of it; None when it ended by itself."""
    async with _dispatch([row], head, folder, CANCELLED, record_omitted_rollouts=True) as completions:
        running = asyncio.ensure_future(anext(completions))
        async with asyncio.timeout(_TOOL_DEADLINE_S):
            while not running.done():
                told = witness.read().get(row["scenario"])
                if told is not None and told.tools_started:
                    break
                await asyncio.sleep(_LOOK_EVERY_S)
        if running.done():
            return None
        witness.write(CUT_OFF, row["scenario"])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    omitted = decode_object(shard_files(folder, CANCELLED).failures.read_bytes().splitlines()[-1])
    identity = {**row, keys.ROLLOUT_ID: omitted[keys.ROLLOUT_ID]}
    return attach_evidence(identity, {"scenario": row["scenario"]}, capture_dirs=[capture_dir])


def _dispatch(rows: list[JsonObject], head: tuple[str, int], folder: Path, shard: str, **options: Any) -> Any:
    return RolloutCollectionHelper().run_examples(
        rows,
        head_server_config=SimpleNamespace(host=head[0], port=head[1]),
        route_failures_to_sidecar=True,
        record_output_dir=folder,
        record_shard=shard,
        **options,
    )
