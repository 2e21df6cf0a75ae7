"""The examples of the pages of codes: each has its code, in the form that the registry says."""

from __future__ import annotations

import re
from typing import Any

import pytest
from documents import generator

from nemo_gym.health import CHECK_REGISTRY, CheckScope
from nemo_gym.records.gaps import GAP_REGISTRY
from nemo_gym.rollout_observability import ObservationGap

PAGES = generator()
GAPS, CHECKS = PAGES.GAP_EXAMPLES, PAGES.CHECK_EXAMPLES


def test_every_code_has_an_example() -> None:
    assert list(GAPS) == list(GAP_REGISTRY)
    assert list(CHECKS) == list(CHECK_REGISTRY)


@pytest.mark.parametrize("code", list(GAPS))
def test_the_gap_is_on_the_record_with_the_detail_that_is_described(code: str) -> None:
    spec = GAP_REGISTRY[code]
    _, gap = GAPS[code]().gap(code)
    ObservationGap.model_validate(gap)
    assert ("invocation_id" in gap) == (spec.scope == "invocation")
    shape = re.sub(r"\\{\w+\\}", ".*", re.escape(spec.detail))
    assert re.fullmatch(shape, gap.get("detail", ""))
    assert ("detail" in gap) == bool(spec.detail)


@pytest.mark.parametrize("check", list(CHECKS))
def test_the_check_finds_what_the_example_shows_and_every_key_is_described(check: str) -> None:
    example, spec = CHECKS[check](), CHECK_REGISTRY[check]
    findings: list[dict[str, Any]] = [item for row in example.verdicts for item in row["findings"]]
    mine = [item for item in findings if item["check"] == check]
    flags = [flag for task in example.summary["tasks"].values() for flag in task["flags"]]
    assert bool(mine) == (spec.in_verdict and spec.evaluation_scope is CheckScope.ROLLOUT)
    assert (check in flags) == (spec.evaluation_scope is CheckScope.TASK)
    if spec.evaluation_scope is CheckScope.ROLLOUT:
        assert len(findings) == len(mine)
    for item in mine:
        assert set(item["detail"]) <= set(spec.meaning.detail)
        assert set(item.get("locator", {})) <= set(spec.meaning.locator)
