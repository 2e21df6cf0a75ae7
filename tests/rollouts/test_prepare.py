from __future__ import annotations

import json

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts import RolloutCollectionHelper
from nemo_gym.rollouts.prepare import RowPreparer, expand_rows, interleaved, row_text, skills_ref_of

ROWS = [
    {"responses_create_params": {"input": "a"}, "agent_ref": {"name": "x"}},
    {"responses_create_params": {"input": "b"}, "agent_ref": {"name": "y"}},
]


def prepare(rows, **options):
    return RolloutCollectionHelper().preprocess_examples(rows, **options)


def indices(rows):
    return [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows]


def test_repeats_are_task_major_with_running_rollout_indices():
    rows = prepare(ROWS, num_repeats=2)
    assert indices(rows) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [row["responses_create_params"]["input"] for row in rows] == ["a", "a", "b", "b"]
    assert indices(interleaved(rows)) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_equal_rows_are_one_task_and_given_task_indices_are_honoured():
    assert indices(prepare([ROWS[0], ROWS[1], dict(ROWS[0])])) == [(0, 0), (1, 0), (0, 1)]
    assert indices(prepare([{**ROWS[0], "_ng_task_index": 7, "_ng_rollout_index": 5}, ROWS[1]])) == [(7, 0), (0, 0)]
    assert indices(prepare([{**ROWS[0], "_ng_task_index": 0}, ROWS[1]])) == [(0, 0), (1, 0)]


@pytest.mark.filterwarnings("ignore:rows are sent")
def test_input_rows_are_not_modified():
    before = json.dumps(ROWS)
    prepare(ROWS, agent_map={"_default": "z"}, num_repeats=2, num_repeats_add_seed=True)
    assert json.dumps(ROWS) == before


def test_the_agent_map_is_tried_by_name_then_source_then_default_and_a_change_is_warned_about_once():
    rows = [ROWS[0], ROWS[1], {"task_source": "s", "q": 1}, {"task_source": "t", "q": 2}]
    with pytest.warns(UserWarning, match="`x` -> `x2`, `y` -> `d`") as caught:
        routed = prepare(rows, agent_map={"x": "x2", "s": "from_source", "_default": "d"})
    assert [row["agent_ref"]["name"] for row in routed] == ["x2", "d", "from_source", "d"]
    assert len(caught) == 1


def test_fan_out_runs_a_row_on_each_agent_with_its_own_rollout_index():
    rows = prepare(ROWS, fan_out={"x": ["x", "other"]}, num_repeats=2)
    assert [(row["agent_ref"]["name"], *key) for row, key in zip(rows, indices(rows), strict=True)] == [
        ("x", 0, 0), ("x", 0, 1), ("other", 0, 2), ("other", 0, 3), ("y", 1, 0), ("y", 1, 1),
    ]  # fmt: skip


def test_repeats_by_agent_name_the_missing_ones_in_one_error_and_warn_about_unused_ones():
    with pytest.raises(ValueError, match=r"`y` \(rows 1\)"):
        prepare(ROWS, num_repeats={"x": 2})
    with pytest.warns(UserWarning, match="`unused`"):
        assert len(prepare(ROWS, num_repeats={"x": 2, "_default": 1, "unused": 5})) == 3


def test_seeds_are_rollout_indices_inside_extra_body():
    rows = [{**ROWS[0], "responses_create_params": {"metadata": {"extra_body": '{"top_k": 3}'}}}]
    seeded = prepare(rows, num_repeats=2, num_repeats_add_seed=True)
    bodies = [json.loads(row["responses_create_params"]["metadata"]["extra_body"]) for row in seeded]
    assert bodies == [{"top_k": 3, "seed": 0}, {"top_k": 3, "seed": 1}]
    with pytest.raises(ValueError, match=r"row 0.*extra_body"):
        prepare([{"agent_ref": {"name": "x"}, "responses_create_params": {"metadata": {"extra_body": "oops"}}}],
                num_repeats_add_seed=True)  # fmt: skip


def test_rows_without_a_route_are_one_error_with_their_positions():
    with pytest.raises(ValueError, match="rows 1, 2 have neither"):
        prepare([ROWS[0], {"q": 1}, {"q": 2}])


CONFIG = {
    "res": {"resources_servers": {"r": {"port": 1, "datasets": []}}},
    "shared": {"resources_servers": {"r": {"port": 1}}},
    "pinned": {"resources_servers": {"r": {"port": 1, "datasets": [{"name": "d", "agent": "b"}]}}},
    "a": {"responses_api_agents": {"s": {"port": 2, "resources_server": {"type": "resources_servers", "name": "res"}}}},
    "b": {
        "responses_api_agents": {"s": {"port": 3, "resources_server": {"type": "resources_servers", "name": "shared"}}}
    },
    "c": {
        "responses_api_agents": {"s": {"port": 4, "resources_server": {"type": "resources_servers", "name": "shared"}}}
    },
    "model": {"responses_api_models": {"m": {"port": 5}}},
    "note": "no server",
}


@pytest.mark.parametrize(("source", "agent"), [("res", "a"), ("b", "b"), ("pinned", "b")])
def test_a_task_source_resolves_to_its_agent(source, agent):
    [row] = prepare([{"task_source": source}], global_config_dict=CONFIG)
    assert row["agent_ref"] == {"name": agent}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("rez", "Did you mean `res`"),
        ("note", "is no server instance"),
        ("shared", "several agents use `shared`: `b`, `c`"),
        ("model", "rows cannot be sent there"),
    ],
)
def test_an_unresolvable_task_source_says_why(source, message):
    with pytest.raises(ValueError, match=message):
        prepare([{"task_source": source}], global_config_dict=CONFIG)


def test_all_unresolvable_sources_are_in_one_error():
    with pytest.raises(ValueError, match=r"(?s)rez.*rows 0.*shared.*rows 1, 2"):
        prepare([{"task_source": "rez"}, {"task_source": "shared"}, {"task_source": "shared", "q": 1}],
                global_config_dict=CONFIG)  # fmt: skip


def test_overrides_and_skills_are_laid_over_rows_but_never_over_materialized_ones(tmp_path):
    (tmp_path / "greet").mkdir()
    (tmp_path / "greet" / "SKILL.md").write_text("say hello")
    ref = skills_ref_of(tmp_path)
    assert ref["skills"] == ["greet"]
    assert len(ref["hash"]) == 12
    preparer = RowPreparer(create_params={"temperature": 0.1}, skills_ref=ref)
    [row] = expand_rows([(ROWS[0], row_text(ROWS[0]), 0)], preparer)
    assert row["responses_create_params"] == {"input": "a", "temperature": 0.1}
    assert row["skills_ref"] == ref
    task = {"task_id": {"taskset": "t", "task_id": "1"}, "task_input": {}}
    with pytest.raises(ValueError, match="rows 0 are materialized"):
        list(expand_rows([(task, b"x", 0)], RowPreparer(create_params={"temperature": 0.1})))


@pytest.mark.parametrize("repeats", [0, -1, True, 1.5, "2", {"x": 0, "y": 1}, {"_default": -1}, {"x": True, "y": 1}])
def test_a_number_of_repeats_that_is_none_is_refused_and_drops_no_row(repeats):
    with pytest.raises(ConfigError, match=r"`num_repeats.*whole number"):
        prepare(ROWS, num_repeats=repeats)


@pytest.mark.parametrize("targets", [[], "xy", ["x", "x"], ["", "x"], [None], [1]])
def test_a_fan_out_without_distinct_agents_is_refused(targets):
    with pytest.raises(ConfigError, match=r"`fan_out\.x`"):
        prepare(ROWS, fan_out={"x": targets})


@pytest.mark.parametrize("target", ["", None, 1])
def test_an_agent_map_that_leads_nowhere_is_refused(target):
    with pytest.raises(ConfigError, match=r"`agent_map\.x` names no agent"):
        prepare(ROWS, agent_map={"x": target})


@pytest.mark.parametrize("metadata", [5, "text", [1]])
def test_a_seed_needs_metadata_that_is_an_object(metadata):
    with pytest.raises(ConfigError, match=r"row 0.*metadata` must be an object"):
        prepare(
            [{**ROWS[0], "responses_create_params": {"input": "a", "metadata": metadata}}], num_repeats_add_seed=True
        )


def test_what_is_no_row_is_named_by_position():
    with pytest.raises(ValueError, match="rows 1, 2 are no objects"):
        prepare([ROWS[0], 1, "row"])
