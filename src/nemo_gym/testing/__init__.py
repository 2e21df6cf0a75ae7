"""For people who write agents: scripted scenarios with witnesses, and what an agent's evidence is worth in each.

`gym conformance` and `run_conformance` run them, on an agent server or on any program that takes a base URL;
`check_record` checks one saved record alone.
"""

from __future__ import annotations

from nemo_gym.testing.comparison import ALL_ROWS, HEALTH, NOTHING_REPORTED, check_scenario, rows_that_apply
from nemo_gym.testing.conformance import (
    AGENT_INSTANCE,
    COMPONENTS,
    FULFILLED,
    NOT_APPLICABLE,
    NOT_FULFILLED,
    NOT_PROVOKED,
    ConformanceReport,
    ScenarioResult,
    format_report,
    run_scenarios,
)
from nemo_gym.testing.evidence_rows import ROWS, check_record
from nemo_gym.testing.kit import run_conformance
from nemo_gym.testing.provoked import not_provoked
from nemo_gym.testing.scenarios import SUBAGENT, Scenario, row_of, scenarios, script_book
from nemo_gym.testing.witness import WhatHappened, WitnessFile

__all__ = [
    "AGENT_INSTANCE",
    "ALL_ROWS",
    "COMPONENTS",
    "FULFILLED",
    "HEALTH",
    "NOTHING_REPORTED",
    "NOT_APPLICABLE",
    "NOT_FULFILLED",
    "NOT_PROVOKED",
    "ROWS",
    "SUBAGENT",
    "ConformanceReport",
    "Scenario",
    "ScenarioResult",
    "WhatHappened",
    "WitnessFile",
    "check_record",
    "check_scenario",
    "format_report",
    "not_provoked",
    "row_of",
    "rows_that_apply",
    "run_conformance",
    "run_scenarios",
    "scenarios",
    "script_book",
]
