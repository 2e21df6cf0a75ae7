"""A rollout whose `/run` had no outcome is tried again in its run, as often as asked: each try is an attempt."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from stub_servers import verified

from nemo_gym.errors import RunFailedError
from nemo_gym.rollouts import retries
from nemo_gym.rollouts.budget import DispatchBudget
from nemo_gym.rollouts.collect import collect_run
from nemo_gym.rollouts.settings import RolloutCollectionConfig
from nemo_gym.store.run_files import RunFiles

ROWS = 3


def test_pauses_double_up_to_the_longest_however_many_there_are():
    tries = retries.Retries(5000)
    pauses = [tries.take() for _ in range(5000)]
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.08]
    assert pauses[-1] == max(pauses) == 30.0
    assert tries.left == 0


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(retries, "_FIRST_PAUSE_S", 0.01)


@pytest.fixture
def collect(servers, tmp_path):
    path = tmp_path / "in.jsonl"
    row = {"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}}
    path.write_text("".join(json.dumps({**row, "q": n}) + "\n" for n in range(ROWS)))

    async def run(**settings):
        config = RolloutCollectionConfig(
            input_jsonl_fpath=str(path), output_jsonl_fpath=str(tmp_path / "r.jsonl"), disable_health_check=True,
            **{"num_samples_in_parallel": 2, "route_failures_to_sidecar": True, "connection_retries": 0, **settings},
        )  # fmt: skip
        return await collect_run(config, own_config=servers.own_config)

    run.files = RunFiles(tmp_path / "r.jsonl")
    return run


def drops(servers, times):
    """Let the agent lose the connection of the first tries of each task; return how often each was asked."""
    asked = Counter()

    def behave(row):
        task = row["_ng_task_index"]
        asked[task] += 1
        return None if asked[task] <= times.get(task, 0) else verified(row)

    servers.behaviours["agent_a"] = behave
    return asked


def counts_of(files):
    return json.loads(files.status.read_text())["counts"]


async def test_each_further_try_is_an_attempt_with_a_row_and_an_id_of_its_own(servers, collect, read_rows):
    asked = drops(servers, {0: 2, 1: 1})
    summary = await collect(rollout_retries=2)
    assert asked == {0: 3, 1: 2, 2: 1}
    assert summary.status.counts.succeeded == ROWS
    counts = counts_of(collect.files)
    assert {name: counts[name] for name in ("failed", "failed_final", "pending", "in_flight", "omitted")} == {
        "failed": 0, "failed_final": 0, "pending": 0, "in_flight": 0, "omitted": 0
    }  # fmt: skip
    failed = sorted(
        (row["_ng_task_index"], row.get("_ng_attempt_index", 0), row["_ng_failure_class"], row["failure_kind"])
        for row in read_rows(collect.files.failures)
    )
    lost = ("agent_request_failed", "transport_peer_drop")
    assert failed == [(0, 0, *lost), (0, 1, *lost), (1, 0, *lost)]
    assert Counter((row["_ng_task_index"], row.get("_ng_attempt_index")) for row in servers.received) == Counter(
        [(0, None), (0, 1), (0, 2), (1, None), (1, 1), (2, None)]
    )
    results = {row["_ng_task_index"]: row for row in read_rows(collect.files.rollouts)}
    kinds = [{"class": lost[0], "kind": lost[1], "attempt": attempt} for attempt in (0, 1)]
    assert results[0]["_ng_prior_failures"] == kinds
    assert results[1]["_ng_prior_failures"] == kinds[:1]
    assert "_ng_prior_failures" not in results[2]


async def test_what_fails_to_the_end_is_one_failed_rollout_and_a_resume_goes_on_counting(
    servers, collect, monkeypatch, read_rows
):
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "9")
    asked = drops(servers, {0: 3})
    await collect(rollout_retries=1)
    counts = counts_of(collect.files)
    assert (counts["succeeded"], counts["failed"], counts["failed_final"]) == (2, 1, 0)
    assert asked[0] == 2
    await collect(rollout_retries=1, resume_from_cache=True)
    assert asked[0] == 4
    [result] = [row for row in read_rows(collect.files.rollouts) if row["_ng_task_index"] == 0]
    assert [failure["attempt"] for failure in result["_ng_prior_failures"]] == [0, 1, 2]
    assert result["_ng_attempt_index"] == 3


async def test_no_more_tries_than_a_rollout_may_have(servers, collect, monkeypatch, read_rows):
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "2")
    asked = drops(servers, {0: 99})
    await collect(rollout_retries=5)
    assert asked[0] == 2
    counts = counts_of(collect.files)
    assert (counts["failed"], counts["failed_final"]) == (1, 1)
    assert len(read_rows(collect.files.failures)) == 2


@pytest.mark.parametrize("answer", [(500, "x"), (404, "nothing here"), (422, "no"), b"[]"])
async def test_an_answer_is_an_outcome_also_when_it_says_no(servers, collect, answer):
    servers.behaviours["agent_a"] = lambda row: answer if row["q"] == 0 else verified(row)
    await collect(rollout_retries=3)
    assert len(servers.received) == ROWS


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_status_that_leaves_the_outcome_open_is_none(servers, collect, status):
    answers = {0: [(status, "not now")]}
    servers.behaviours["agent_a"] = lambda row: answers[0].pop() if row["q"] == 0 and answers[0] else verified(row)
    await collect(rollout_retries=1)
    assert len(servers.received) == ROWS + 1
    assert counts_of(collect.files)["succeeded"] == ROWS


async def test_without_routing_the_last_try_ends_the_run(servers, collect, read_rows):
    asked = drops(servers, {0: 99})
    with pytest.raises(RunFailedError):
        await collect(rollout_retries=2, route_failures_to_sidecar=False)
    assert asked[0] == 3
    assert [bool(row.get("_ng_unrouted_run_error")) for row in read_rows(collect.files.failures)] == [
        False, False, True
    ]  # fmt: skip


@pytest.mark.parametrize("recorded", [False, True])
async def test_who_waits_for_its_next_try_when_the_run_is_interrupted_is_still_owed(
    servers, collect, monkeypatch, read_rows, recorded
):
    monkeypatch.setattr(retries, "_FIRST_PAUSE_S", 3600)
    monkeypatch.setattr(retries, "_LONGEST_PAUSE_S", 3600)
    drops(servers, {0: 1, 1: 1})
    running = asyncio.ensure_future(
        collect(rollout_retries=1, record_omitted_rollouts=recorded, num_samples_in_parallel=ROWS)
    )
    async with asyncio.timeout(60):
        # Two wait and the third is done: whatever runs still would count as well.
        while [len(read_rows(path)) if path.exists() else 0 for path in collect.files.derived()[:2]] != [1, 2]:
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    counts = counts_of(collect.files)
    assert counts["in_flight"] == counts["failed"] == 0
    assert counts["omitted" if recorded else "pending"] == 2
    monkeypatch.setattr(retries, "_LONGEST_PAUSE_S", 0)
    await collect(resume_from_cache=True, record_omitted_rollouts=recorded)
    results = {row["_ng_task_index"]: row for row in read_rows(collect.files.rollouts)}
    assert [results[task].get("_ng_attempt_index") for task in range(ROWS)] == [1, 1, None]


async def test_an_agent_that_stays_away_ends_the_run_whatever_retries_are_left(
    servers, collect, monkeypatch, read_rows
):
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "9")
    alive, servers.ports["agent_a"] = servers.ports["agent_a"], 1
    with pytest.raises(RunFailedError, match="cannot be reached"):
        await collect(rollout_retries=9)
    counts = counts_of(collect.files)
    assert counts["failed"] == counts["failed_final"] == counts["in_flight"] == 0
    assert len(read_rows(collect.files.failures)) <= 6
    servers.ports["agent_a"] = alive
    await collect(resume_from_cache=True)
    assert {row["_ng_task_index"] for row in read_rows(collect.files.rollouts)} == set(range(ROWS))


async def test_no_try_begins_after_the_budget(servers, collect, monkeypatch, read_rows):
    asked = drops(servers, {0: 1})
    monkeypatch.setattr(DispatchBudget, "refusal", lambda budget: "time is up" if asked else None)
    with pytest.raises(RunFailedError, match="1 omitted"):
        await collect(rollout_retries=3, limit=1, dispatch_budget_s=3600, record_omitted_rollouts=True)
    assert asked == {0: 1}
    counts = counts_of(collect.files)
    assert (counts["failed"], counts["omitted"], counts["pending"]) == (0, 1, 0)
    assert [bool(row.get("_ng_omitted_rollout")) for row in read_rows(collect.files.failures)] == [False, True]
