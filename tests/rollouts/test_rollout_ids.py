"""Rollouts that would share a capture are refused before any is sent; task indices are given once."""

from __future__ import annotations

import json
import re

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts import RolloutCollectionHelper
from nemo_gym.rollouts.collect import collect_run
from nemo_gym.rollouts.settings import RolloutCollectionConfig

BASE = {"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}}
SHARED = [
    ([{"_ng_rollout_id": "same"}, {}, {"_ng_rollout_id": "same"}], "rows 0 and 2 have the same rollout id `same`"),
    ([{"_ng_rollout_id": "../x"}], "row 0: .*must start with a letter"),
    ([{}, {"_ng_rollout_id": "x-a1"}], "row 1: .*retry attempt"),
    ([{"_ng_rollout_id": 5}], "row 0: .*is a string"),
    ([{"_ng_rollout_id": "x" * 201}], "row 0: .*at most 200"),
]


def _after(digit):
    return str(int(digit[0]) + 1)


def rows_of(changes):
    return [{**BASE, "q": n, **change} for n, change in enumerate(changes)]


@pytest.fixture
def collect(servers, tmp_path):
    async def run(changes, **settings):
        path = tmp_path / "in.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(changes)))
        config = RolloutCollectionConfig(
            input_jsonl_fpath=str(path), output_jsonl_fpath=str(tmp_path / "r.jsonl"), disable_health_check=True,
            disable_aggregation=True, **settings,
        )  # fmt: skip
        return await collect_run(config, own_config=servers.own_config)

    return run


@pytest.mark.parametrize(
    ("changes", "message"), [*SHARED, ([{"_ng_rollout_id": "1-0"}, {}], "row 0 has the rollout id `1-0`, which")]
)
async def test_a_run_refuses_ids_that_are_unusable_or_shared_and_touches_no_earlier_output(
    servers, collect, tmp_path, changes, message
):
    await collect([{}])
    before = {path: path.read_bytes() for path in tmp_path.glob("r*")}
    servers.received.clear()
    # In a file a row is named by its line, which counts from 1; a list has no lines.
    of_file = re.sub(r"rows? ([\d and]+)", lambda found: re.sub(r"\d", _after, found[1]), message)
    with pytest.raises(ConfigError, match=rf"in.jsonl` lines? {of_file}") as caught:
        await collect(changes)
    assert "`_ng_rollout_id`" in str(caught.value)
    assert servers.received == []
    assert {path: path.read_bytes() for path in tmp_path.glob("r*")} == before


async def test_an_id_names_one_rollout_and_so_is_not_repeated(servers, collect):
    with pytest.raises(ConfigError, match=r"in.jsonl` line 2: `_ng_rollout_id` names one rollout.*num_repeats"):
        await collect([{}, {"_ng_rollout_id": "mine"}], num_repeats=2)
    with pytest.raises(ValueError, match="rows 0, 1: `_ng_rollout_id`"):
        RolloutCollectionHelper().preprocess_examples(
            rows_of([{"_ng_rollout_id": "a"}] * 2), fan_out={"agent_a": ["b", "c"]}
        )
    assert servers.received == []


async def test_ids_that_are_one_rollouts_alone_are_kept(servers, collect):
    await collect([{"_ng_rollout_id": "0-0"}, {"_ng_rollout_id": "b"}, {}])
    assert sorted(str(row.get("_ng_rollout_id")) for row in servers.received) == ["0-0", "None", "b"]


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *SHARED,
        ([{"_ng_rollout_id": "1-0"}, {}], "rows 0 and 1 have the same rollout id `1-0`"),
        ([{"_ng_attempt_index": float("inf")}], "row 0: `_ng_attempt_index`"),
        ([{"_ng_attempt_index": "2"}], "row 0: `_ng_attempt_index`"),
        ([{}, {"_ng_attempt_index": True}], "row 1: `_ng_attempt_index`"),
    ],
)
async def test_examples_with_evidence_refuse_the_same(servers, head, tmp_path, changes, message, record):
    rows = [{**row, "_ng_task_index": n, "_ng_rollout_index": 0} for n, row in enumerate(rows_of(changes))]
    place = {"record_output_dir": tmp_path / "runs", "record_shard": "s"} if record else {"enrich_results": True}
    with pytest.raises(ValueError, match=message):
        RolloutCollectionHelper().run_examples(rows, head, **place)
    assert servers.received == []
    assert not (tmp_path / "runs").exists()


async def test_a_retry_has_an_id_of_its_own(servers, head, make_rows):
    [row] = make_rows(1)
    completions = RolloutCollectionHelper().run_examples(
        [row, {**row, "_ng_attempt_index": 1}], head, enrich_results=True
    )
    assert len([result async for _, result in completions]) == 2


async def test_a_task_index_that_a_later_row_names_is_given_to_no_other_row(servers, collect):
    changes = [{}, {}, {"_ng_task_index": 0}, {"_ng_task_index": 1}, {}]
    await collect(changes)
    assert sorted((row["q"], row["_ng_task_index"]) for row in servers.received) == [
        (0, 2),
        (1, 3),
        (2, 0),
        (3, 1),
        (4, 4),
    ]
    prepared = RolloutCollectionHelper().preprocess_examples(rows_of(changes))
    assert [row["_ng_task_index"] for row in prepared] == [2, 3, 0, 1, 4]
