from __future__ import annotations

import asyncio
import gc
import json
from types import SimpleNamespace

import pytest

from nemo_gym.errors import HeadServerUnreachableError
from nemo_gym.rollouts import RolloutCollectionHelper, RolloutFailureRecord, RolloutRequestError

RELAY = {
    "env_server": {
        "environment_servers": {"legacy_agent": {"agent_server": {"type": "responses_api_agents", "name": "agent_a"}}}
    }
}


async def collect(completions):
    return [await completion for completion in completions]


async def test_a_plain_result_is_what_run_answered_and_the_row_is_the_callers_own_A12(servers, head, make_rows):
    rows = make_rows(3)
    pairs = await collect(RolloutCollectionHelper().run_examples(rows, head))
    assert sorted(row["_ng_task_index"] for row, _ in pairs) == [0, 1, 2]
    for row, result in pairs:
        assert any(row is given for given in rows)
        assert set(result) == {*row, "response", "reward"}


async def test_results_come_in_completion_order_and_may_be_awaited_concurrently(servers, head, make_rows):
    release = asyncio.Event()

    async def slow_first(row):
        if row["_ng_task_index"] == 0:
            while not release.is_set():
                await asyncio.sleep(0.01)
        return {**row, "reward": 1}

    servers.behaviours["agent_a"] = slow_first
    tasks = [asyncio.ensure_future(c) for c in RolloutCollectionHelper().run_examples(make_rows(3), head)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    release.set()
    order = [row["_ng_task_index"] for row, _ in await asyncio.gather(*tasks)]
    assert sorted(order) == [0, 1, 2]
    assert order[-1] == 0


async def test_async_for_and_async_with_work_and_len_says_what_is_left(servers, head, make_rows):
    async with RolloutCollectionHelper().run_examples(make_rows(2), head) as completions:
        assert len(completions) == 2
        assert len([result async for _, result in completions]) == 2
        assert len(completions) == 0


async def test_a_failed_run_raises_from_its_awaitable_and_the_others_go_on(servers, head, make_rows):
    servers.behaviours["agent_a"] = lambda row: (500, "boom") if row["_ng_task_index"] == 1 else {**row, "reward": 1}
    outcomes = []
    for completion in RolloutCollectionHelper().run_examples(make_rows(3), head):
        try:
            outcomes.append(await completion)
        except RolloutRequestError as error:
            outcomes.append(error)
    errors = [item for item in outcomes if isinstance(item, RolloutRequestError)]
    assert len(outcomes) == 3
    assert [error.status for error in errors] == [500]


async def test_routed_failures_are_sidecar_rows_without_enrichment_and_typed_with_it_A13(servers, head, make_rows):
    servers.behaviours["agent_a"] = lambda _: (503, "upstream overloaded")
    helper = RolloutCollectionHelper()
    [(_, plain)] = await collect(helper.run_examples(make_rows(1), head, route_failures_to_sidecar=True))
    assert plain["_ng_failure_class"] == "agent_request_failed"
    assert plain["_ng_failure_http_status"] == 503
    assert plain["_ng_failure_response_body"] == "upstream overloaded"
    [(_, typed)] = await collect(
        helper.run_examples(make_rows(1), head, route_failures_to_sidecar=True, enrich_results=True)
    )
    assert isinstance(typed, RolloutFailureRecord)
    assert typed.failure.failure_kind == "provider_unavailable"
    assert typed.delivery == "possibly_delivered"
    assert typed.episode_id is not None
    assert typed.episode_id.rollout_id == "0-0"


@pytest.mark.parametrize(
    ("answer", "kind", "delivery"),
    [
        ((429, "slow down"), "agent_request_failed", "delivered"),
        ((500, '{"detail": "verifier broke"}'), "agent_run_error", "delivered"),
        (b"not json", "agent_run_error", "delivered"),
        (b"[1, 2]", "agent_run_error", "delivered"),
        (None, "transport_peer_drop", "possibly_delivered"),
    ],
)
async def test_each_way_to_fail_has_its_kind_and_its_delivery(servers, head, make_rows, answer, kind, delivery):
    servers.behaviours["agent_a"] = lambda _: answer
    completions = RolloutCollectionHelper().run_examples(
        make_rows(1), head, route_failures_to_sidecar=True, enrich_results=True
    )
    [(_, record)] = await collect(completions)
    assert (record.failure.failure_kind, record.delivery) == (kind, delivery)
    assert len(servers.received) == 1, "`/run` is never sent twice"


@pytest.mark.parametrize(("named", "said"), [("my_agent", "my_agent"), ("%C3%A9%20agent", "é agent"), (None, None)])
async def test_the_failure_names_the_server_that_raised(servers, head, make_rows, named, said):
    """`x-ng-failed-server` is set by every server of ours whose handler raises."""
    headers = {} if named is None else {"x-ng-failed-server": named}
    servers.behaviours["agent_a"] = lambda _: (500, "\"ValueError('no such tool')\"", headers)
    completions = RolloutCollectionHelper().run_examples(make_rows(1), head, route_failures_to_sidecar=True)
    [(_, row)] = await collect(completions)
    who = "" if said is None else f"server `{said}` failed: "
    url = f"http://127.0.0.1:{servers.ports['agent_a']}/run"
    assert row["_ng_failure_message"] == f"{who}`POST {url}` answered 500: ValueError('no such tool')"
    assert row["_ng_failure_response_body"] == "\"ValueError('no such tool')\""


HANDED_OVER = {
    "failure_kind": "verifier_error",
    "_ng_failure_stage": "verification",
    "_ng_failure_partial_response": {"output": []},
    "ng_agent_observations": {"source": "agent", "records": [], "gaps": []},
    "agent_process": {"exit_code": 0},
}
FORGED = {
    "reward": 1.0,
    "mask_sample": True,
    "_ng_failure_class": "skipped",
    "_ng_no_persist": True,
    "_ng_failure_terminal": True,
    "_ng_task_index": 99,
    "ng_perf": {"turns": 7},
}


async def test_what_an_agent_hands_over_with_its_error_is_on_the_failure_row(servers, head, make_rows, tmp_path):
    """The failed `/run` stays one: nothing that is handed over decides where the row goes or what it counts for."""
    said = "server `env` failed: `http://env/verify` answered 500: ValueError('x') (at `/env/app.py:7`)"
    body = {"detail": said, "ng_failed_rollout": {**HANDED_OVER, **FORGED}}
    servers.behaviours["agent_a"] = lambda _: (500, json.dumps(body), {"x-ng-failed-server": "env"})
    completions = RolloutCollectionHelper().run_examples(
        make_rows(1), head, route_failures_to_sidecar=True, enrich_results=True,
        record_output_dir=tmp_path, record_shard="s",
    )  # fmt: skip
    [(_, record)] = await collect(completions)
    assert isinstance(record, RolloutFailureRecord)
    assert (record.failure.failure_kind, record.failure.stage) == ("verifier_error", "verification")
    [row] = [json.loads(line) for line in (tmp_path / "rollouts-s_failures.jsonl").read_text().splitlines()]
    assert row["_ng_failure_message"] == row["_ng_failure_response_body"] == said
    assert (row["_ng_failure_class"], row["_ng_task_index"]) == ("agent_run_error", 0)
    assert {key: row[key] for key in HANDED_OVER if key != "ng_agent_observations"} == {
        key: value for key, value in HANDED_OVER.items() if key != "ng_agent_observations"
    }
    assert row["ng_agent_observations"]["source"] == "agent"
    assert not {"reward", "mask_sample", "_ng_no_persist", "_ng_failure_terminal"} & row.keys()
    assert row.get("ng_perf") != FORGED["ng_perf"]


@pytest.mark.parametrize(
    "handed_over", [None, 7, [], {"failure_kind": 7, "_ng_failure_stage": []}, {"failure_kind": "x"}]
)
async def test_odd_things_that_are_handed_over_are_no_harm(servers, head, make_rows, handed_over):
    servers.behaviours["agent_a"] = lambda _: (500, json.dumps({"detail": "no", "ng_failed_rollout": handed_over}))
    completions = RolloutCollectionHelper().run_examples(
        make_rows(1), head, route_failures_to_sidecar=True, enrich_results=True
    )
    [(_, record)] = await collect(completions)
    assert (record.failure.failure_kind, record.failure.stage) == ("agent_run_error", None)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"detail": [{"loc": ["body", "q"], "msg": "Field required", "input": "x" * 5000}]}, "`q`: Field required"),
        ({"detail": [{"loc": ["body"], "msg": "no object"}]}, "no object"),
        (
            {"detail": [{"loc": ["body", str(n)], "msg": "bad"} for n in range(5)]},
            "`0`: bad; `1`: bad; `2`: bad; and 2 more",
        ),
        ({"detail": "a text"}, "a text"),
        ({"detail": [1, 2]}, '{"detail": [1, 2]}'),
        ({"detail": []}, '{"detail": []}'),
    ],
)
async def test_a_row_that_a_server_refuses_is_told_by_its_fields(servers, head, make_rows, answer, said):
    servers.behaviours["agent_a"] = lambda _: (422, json.dumps(answer))
    completions = RolloutCollectionHelper().run_examples(make_rows(1), head, route_failures_to_sidecar=True)
    [(_, row)] = await collect(completions)
    assert row["_ng_failure_message"].endswith(f"/run` answered 422: {said}")
    assert row["_ng_failure_http_status"] == 422


@pytest.mark.parametrize("length", [0, 1, 1999, 2000, 2001, 5000])
@pytest.mark.parametrize("status", [500, 200])
@pytest.mark.parametrize("letter", ["x", "é", "😀"])
async def test_a_failure_keeps_2000_characters_of_what_was_answered(servers, head, make_rows, status, length, letter):
    body = letter * length
    servers.behaviours["agent_a"] = lambda row: (status, body)
    [completion] = RolloutCollectionHelper().run_examples(make_rows(), head, route_failures_to_sidecar=True)
    _, result = await completion
    kept = result["_ng_failure_response_body"]
    assert kept == (body if length <= 2000 else letter * 2000 + "…")
    assert len(result["failure_reason"]) <= 2000


async def test_a_refused_connection_is_tried_again_and_then_not_sent(servers, head, make_rows):
    servers.ports["agent_a"] = 1
    completions = RolloutCollectionHelper().run_examples(
        make_rows(1), head, route_failures_to_sidecar=True, enrich_results=True, connection_retries=1
    )
    [(_, record)] = await collect(completions)
    assert (record.failure.failure_kind, record.delivery) == ("transport_unreachable", "not_sent")
    assert "after 2 tries" in record.failure.failure_reason


async def test_the_semaphore_bounds_what_is_in_flight(servers, head, make_rows):
    async def slow(row):
        await asyncio.sleep(0.02)
        return row

    servers.behaviours["agent_a"] = slow
    await collect(RolloutCollectionHelper().run_examples(make_rows(12), head, semaphore=asyncio.Semaphore(3)))
    assert servers.most_in_flight <= 3
    assert sorted(row["_ng_task_index"] for row in servers.received) == list(range(12))


async def test_resident_tasks_are_bounded_and_start_in_input_order(servers, head, make_rows):
    completions = RolloutCollectionHelper().run_examples(make_rows(1000), head, max_resident_tasks=8)
    await collect(completions)
    assert completions._dispatch.most_resident <= 8
    assert servers.most_in_flight <= 8


async def test_a_spent_budget_starts_nothing(servers, head, make_rows):
    completions = RolloutCollectionHelper().run_examples(make_rows(2), head, dispatch_budget_s=0.0)
    results = [result for _, result in await collect(completions)]
    assert servers.received == []
    assert all(result["_ng_dispatch_drained"] and result["_ng_failure_class"] == "cancelled" for result in results)


async def wait_until(condition, seconds=120.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def hang(row):
    await asyncio.Event().wait()
    return row


async def test_aclose_cancels_what_runs_and_closes_its_connections(servers, head, make_rows):
    servers.behaviours["agent_a"] = hang
    completions = RolloutCollectionHelper().run_examples(make_rows(3), head)
    waiting = asyncio.ensure_future(next(completions))
    await wait_until(lambda: servers.in_flight == 3)
    await completions.aclose()
    await completions.aclose()
    await wait_until(lambda: len(servers.cancelled) == 3)
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_cancelling_the_consumer_cancels_the_rows(servers, head, make_rows):
    servers.behaviours["agent_a"] = hang

    async def consume():
        for completion in RolloutCollectionHelper().run_examples(make_rows(2), head):
            await completion

    task = asyncio.create_task(consume())
    await wait_until(lambda: servers.in_flight == 2)
    task.cancel()
    await asyncio.wait({task})
    await wait_until(lambda: len(servers.cancelled) == 2)


async def test_dropping_the_last_reference_cancels_the_rows(servers, head, make_rows):
    servers.behaviours["agent_a"] = lambda row: row if row["_ng_task_index"] == 0 else hang(row)
    completions = RolloutCollectionHelper().run_examples(make_rows(3), head)
    await next(completions)
    await wait_until(lambda: servers.in_flight == 2)
    del completions
    gc.collect()
    await wait_until(lambda: len(servers.cancelled) == 2)


async def test_no_head_server_is_one_clear_error(make_rows):
    with pytest.raises(HeadServerUnreachableError, match="gym env start"):
        RolloutCollectionHelper().run_examples(make_rows(1), SimpleNamespace(host="127.0.0.1", port=9))


async def test_an_unknown_agent_names_the_nearest_one(servers, head, make_rows):
    with pytest.raises(ValueError, match="Did you mean `agent_a`"):
        RolloutCollectionHelper().run_examples(make_rows(1, agent="agent_b"), head)


async def test_rows_without_a_route_are_listed_by_position(servers, head):
    with pytest.raises(ValueError, match="rows 0, 1 have neither"):
        RolloutCollectionHelper().run_examples([{}, {"x": 1}], head)


async def test_a_task_source_becomes_the_agent_that_uses_it(servers, head):
    rows = [{"task_source": "env_a", "responses_create_params": {}}]
    await collect(RolloutCollectionHelper().run_examples(rows, head))
    assert rows[0]["agent_ref"] == {"name": "agent_a"}
    assert servers.received[0]["agent_ref"] == {"name": "agent_a"}


@pytest.mark.parametrize("recorded", [False, True])
async def test_what_is_no_row_is_named_by_position(servers, head, make_rows, tmp_path, recorded):
    options = {"record_output_dir": tmp_path / "run", "record_shard": "s"} if recorded else {}
    with pytest.raises(ValueError, match="rows 1, 2 are no objects"):
        RolloutCollectionHelper().run_examples([*make_rows(1), 3, None], head, **options)
    assert servers.received == []
    assert not (tmp_path / "run").exists()


async def test_rows_may_come_from_any_iterable(servers, head, make_rows):
    assert len(await collect(RolloutCollectionHelper().run_examples(iter(make_rows(2)), head))) == 2


async def test_no_rows_end_at_once(servers, head):
    assert list(RolloutCollectionHelper().run_examples([], head)) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"record_output_dir": "x"}, "go together"),
        ({"record_shard": "x"}, "go together"),
        ({"record_output_dir": "x", "record_shard": "../x"}, "shard label"),
        ({"record_output_dir": "x", "record_shard": 7}, "a shard label is a string, not `int`"),
        ({"record_output_dir": "x", "record_shard": "a_failures"}, "must not end"),
        ({"record_omitted_rollouts": True}, "needs `record_output_dir`"),
        ({"delete_model_call_capture": True, "enrich_results": True, "include_model_call_payloads": False}, "bodies"),
        ({"delete_model_call_capture": True}, "nothing else keeps"),
        ({"max_resident_tasks": 0}, "at least 1"),
        ({"dispatch_budget_s": float("nan")}, "dispatch_budget_s.*number of seconds"),
        ({"dispatch_budget_s": "5"}, "dispatch_budget_s.*number of seconds"),
        ({"drain_margin_s": float("nan")}, "drain_margin_s.*number of seconds"),
    ],
)
async def test_contradicting_options_are_refused_at_the_call(servers, head, make_rows, options, message):
    with pytest.raises(ValueError, match=message):
        RolloutCollectionHelper().run_examples(make_rows(1), head, **options)
    assert servers.received == []


async def test_a_materialized_row_travels_as_an_episode_and_comes_back_as_its_result(servers, head):
    servers.extra_config = RELAY
    servers.behaviours["agent_a"] = lambda body: {
        "episode_id": body["episode_id"],
        "task_id": body["task"]["task_id"],
        "result": {"reward": 0.5},
    }
    row = {
        "task_id": {"taskset": "t", "task_id": "7"},
        "task_input": {"q": 1},
        "_ng_task_index": 0,
        "_ng_rollout_index": 0,
        "_ng_attempt_index": 2,
    }
    completions = RolloutCollectionHelper().run_examples(
        [row], head, environment_server_name="env_server", enrich_results=True
    )
    [(_, result)] = await collect(completions)
    assert servers.received[0]["episode_id"] == {"rollout_id": "0-0", "attempt": 2}
    assert result["reward"] == 0.5
    assert result["_ng_task_id"] == {"taskset": "t", "task_id": "7"}
    assert result["_ng_environment_server"] == "env_server"


async def test_an_episode_reply_of_another_attempt_is_a_failure(servers, head):
    servers.extra_config = RELAY
    servers.behaviours["agent_a"] = lambda body: {
        "episode_id": {**body["episode_id"], "attempt": 9},
        "task_id": {},
        "result": {"reward": 0.5},
    }
    row = {"task_id": {"taskset": "t", "task_id": "7"}, "task_input": {}, "_ng_task_index": 0, "_ng_rollout_index": 0}
    completions = RolloutCollectionHelper().run_examples([row], head, None, True, "env_server", enrich_results=True)
    [(_, record)] = await collect(completions)
    assert record.exception_type == "StaleRolloutResult"


@pytest.mark.parametrize(
    "outcome",
    [
        {"result": None, "failure": None}, {"result": None}, {"failure": None}, {"result": 5}, {"failure": "why"},
        {"result": {"reward": 1.0}, "task_id": None},
    ],
)  # fmt: skip
async def test_an_episode_reply_without_an_outcome_is_no_result(servers, head, outcome):
    servers.extra_config = RELAY
    servers.behaviours["agent_a"] = lambda body: {
        "episode_id": body["episode_id"], "task_id": body["task"]["task_id"], **outcome,
    }  # fmt: skip
    row = {"task_id": {"taskset": "t", "task_id": "7"}, "task_input": {}, "_ng_task_index": 0, "_ng_rollout_index": 0}
    completions = RolloutCollectionHelper().run_examples([row], head, None, True, "env_server", enrich_results=True)
    [(_, record)] = await collect(completions)
    assert (record.exception_type, record.source) == ("InvalidRolloutResult", "collector")


async def test_a_failure_that_the_environment_reports_is_typed_too_A13(servers, head):
    servers.extra_config = RELAY
    failure = {"failure_reason": "no sandbox", "terminal": True, "failure_kind": "session_lost", "stage": "seed"}
    servers.behaviours["agent_a"] = lambda body: {
        "episode_id": body["episode_id"], "task_id": body["task"]["task_id"], "failure": failure
    }  # fmt: skip
    row = {"task_id": {"taskset": "t", "task_id": "7"}, "task_input": {}, "_ng_task_index": 0, "_ng_rollout_index": 0}
    completions = RolloutCollectionHelper().run_examples([row], head, None, True, "env_server", enrich_results=True)
    [(_, record)] = await collect(completions)
    assert isinstance(record, RolloutFailureRecord)
    assert (record.source, record.delivery) == ("environment", "delivered")
    assert record.failure.model_dump() == failure


async def test_the_body_on_the_wire_is_the_row_as_it_is(servers, head, make_rows):
    [row] = make_rows(1)
    row["verifier_metadata"] = {"é": [1, None, 2.5]}
    await collect(RolloutCollectionHelper().run_examples([row], head))
    assert servers.received[0] == json.loads(json.dumps(row))
