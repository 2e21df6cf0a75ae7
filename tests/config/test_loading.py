"""Where settings come from, and which one wins."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_gym.config import ResolvedConfig, assign_ports
from nemo_gym.config.sources import read_yaml
from nemo_gym.errors import ConfigError, ConfigFileNotFoundError

Load = Callable[..., ResolvedConfig]
Write = Callable[..., Path]


def test_an_includer_wins_over_what_it_includes_and_later_siblings_win(load: Load, write: Write) -> None:
    write("base.yaml", "limit: 1\nsplit: base\nagent_map: {a: base, b: base}\n")
    write("top.yaml", "config_paths: [base.yaml]\nsplit: top\nagent_map: {b: top}\n")
    write("late.yaml", "limit: 3\n")
    config = load(config_paths=["top.yaml", "late.yaml"])
    assert config.data["limit"] == 3
    assert config.data["split"] == "top"
    assert config.data["agent_map"] == {"a": "base", "b": "top"}
    assert "config_paths" not in config.data


def test_env_yaml_wins_over_files_the_initial_mapping_over_it_and_the_command_line_over_all(
    load: Load, write: Write, tmp_path: Path
) -> None:
    write("a.yaml", "limit: 1\nsplit: file\nagent_name: file\nprompt_config: file\n")
    write("env.yaml", "limit: 2\nsplit: env\nagent_name: env\n")
    config = load("++limit=4", config_paths=["a.yaml"], initial={"limit": 3, "split": "initial"})
    assert (config.data["limit"], config.data["split"]) == (4, "initial")
    assert (config.data["agent_name"], config.data["prompt_config"]) == ("env", "file")
    assert config.provenance["limit"] == "command line"
    assert config.provenance["split"] == "given by the program"
    assert config.provenance["agent_name"] == str(tmp_path / "env.yaml")
    assert config.provenance["prompt_config"] == str(tmp_path / "a.yaml")
    assert config.provenance["head_server.port"] == "default"


def test_config_paths_may_stand_in_env_yaml_and_on_the_command_line(load: Load, write: Write) -> None:
    write("a.yaml", "limit: 1\n")
    write("b.yaml", "limit: 2\n")
    write("env.yaml", "config_paths: [a.yaml]\n")
    assert load().data["limit"] == 1
    assert load("+config_paths=[b.yaml]").data["limit"] == 2
    assert load("+config_paths=b.yaml", config_paths=["a.yaml"]).data["limit"] == 2


def test_extra_roots_come_before_the_working_directory(load: Load, write: Write, tmp_path: Path) -> None:
    write("a.yaml", "limit: 1\n")
    write("one/a.yaml", "limit: 2\n")
    write("two/a.yaml", "limit: 3\n")
    extra = os.pathsep.join([str(tmp_path / "one"), str(tmp_path / "two")])
    assert load(config_paths=["a.yaml"], environ={"NEMO_GYM_EXTRA_ROOTS": extra}).data["limit"] == 2
    assert load(config_paths=["a.yaml"], search_dirs=[tmp_path / "two"]).data["limit"] == 3


def test_a_missing_file_is_named_with_every_place_that_was_tried(load: Load, write: Write, tmp_path: Path) -> None:
    write("includer.yaml", "config_paths: [nowhere.yaml]\n")
    (tmp_path / "extra").mkdir()
    with pytest.raises(ConfigFileNotFoundError) as caught:
        load(config_paths=["includer.yaml"], search_dirs=[tmp_path / "extra"])
    for place in (tmp_path / "extra" / "nowhere.yaml", tmp_path / "nowhere.yaml", tmp_path / "includer.yaml"):
        assert f"`{place}`" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_folder_in_place_of_a_file_is_called_one(load: Load, tmp_path: Path) -> None:
    (tmp_path / "some.yaml").mkdir()
    for path in ("some.yaml", str(tmp_path / "some.yaml")):
        with pytest.raises(ConfigFileNotFoundError, match=r"`.*some\.yaml` is a folder: `/.*some\.yaml`\. Name a file"):
            load(config_paths=[path])


def test_bad_yaml_is_named_with_file_line_and_column(load: Load, write: Write) -> None:
    file = write("bad.yaml", "limit: 1\nsplit: [a\n")
    with pytest.raises(ConfigError, match=rf"`{file}` line \d+, column \d+: not YAML"):
        load(config_paths=["bad.yaml"])
    write("list.yaml", "- a\n")
    with pytest.raises(ConfigError, match="no mapping"):
        load(config_paths=["list.yaml"])


@pytest.mark.parametrize(
    "text", ["policy_model_name=m1", "just text", "- a", '"quoted"', "policy_model_name m1\n\n# x"]
)
def test_a_file_of_text_without_a_key_is_refused_and_never_taken_for_settings(tmp_path: Path, text: str) -> None:
    """The library takes a text for a key without a value; a shell's `key=value` would be dropped silently."""
    file = tmp_path / "env.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"`{file}` holds no mapping"):
        read_yaml(file)


@pytest.mark.parametrize(
    ("text", "settings"), [("", {}), ("# x", {}), ("null", {}), ("a:", {"a": None}), ("? a", {"a": None})]
)
def test_a_key_without_a_value_and_a_file_without_a_key_are_fine(
    tmp_path: Path, text: str, settings: dict[str, None]
) -> None:
    (tmp_path / "env.yaml").write_text(text)
    assert read_yaml(tmp_path / "env.yaml") == settings


def test_a_file_named_twice_is_noted_and_one_that_includes_itself_refused(load: Load, write: Write) -> None:
    write("a.yaml", "limit: 1\n")
    assert any("is named twice" in notice for notice in load(config_paths=["a.yaml", "a.yaml"]).notices)
    write("loop.yaml", "config_paths: [loop.yaml]\n")
    with pytest.raises(ConfigError, match="includes itself"):
        load(config_paths=["loop.yaml"])


def test_interpolations_are_resolved_across_sources(load: Load, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYM_TEST_VALUE", "from the environment")
    write(
        "a.yaml",
        """
        judge: {url: "${judge_url}", nested: "${oc.select:absent,${oc.env:GYM_TEST_VALUE}}"}
        fallback: ${oc.env:GYM_TEST_ABSENT,default}
        """,
    )
    config = load("+judge_url=http://j", config_paths=["a.yaml"])
    assert config.data["judge"] == {"url": "http://j", "nested": "from the environment"}
    assert config.data["fallback"] == "default"


def test_everything_that_is_not_set_is_named_at_once_with_how_to_set_it(load: Load, write: Write) -> None:
    write("a.yaml", "one: ${judge_url}\ntwo: ${oc.env:GYM_TEST_ABSENT}\nthree: {inner: '???'}\nfour: ${three.inner}\n")
    with pytest.raises(ConfigError) as caught:
        load(config_paths=["a.yaml"])
    message = str(caught.value)
    assert "`judge_url` is required and not set; `one` needs it. Give `++judge_url=VALUE`" in message
    assert "`export GYM_TEST_ABSENT=VALUE`" in message
    assert "`++three.inner=VALUE`" in message
    assert message.count("three.inner") == 2  # the value that refers to it does not repeat it


def test_a_block_is_moved_copied_and_trimmed_by_directives(load: Load, write: Write) -> None:
    write(
        "a.yaml",
        """
        base: {x: 1, y: {z: 2}, gone: 3}
        moved: {_inherit_from: base, y: {w: 4}}
        kept: {v: 1, u: 2}
        copied: {_copy: kept, u: 3}
        spelled: ${copy:kept}
        trimmed: {_copy: kept, _delete_key: "v, nothing"}
        local: {a: 1, b: 2, _delete_key: [a]}
        """,
    )
    data = load("++moved.y.q=5", config_paths=["a.yaml"]).data
    assert "base" not in data
    assert data["moved"] == {"x": 1, "y": {"z": 2, "w": 4, "q": 5}, "gone": 3}
    assert data["kept"] == {"v": 1, "u": 2}
    assert data["copied"] == {"v": 1, "u": 3}
    assert data["spelled"] == {"v": 1, "u": 2}
    assert data["trimmed"] == {"u": 2}
    assert data["local"] == {"b": 2}


def test_what_was_inherited_can_be_replaced_and_deleted_from_the_command_line(load: Load, write: Write) -> None:
    write("a.yaml", "base: {x: 1, y: 2}\nmoved: {_inherit_from: base}\n")
    assert load("moved.x=5", "~moved.y", config_paths=["a.yaml"]).data["moved"] == {"x": 5}


def test_a_directive_without_a_source_names_the_nearest(load: Load, write: Write) -> None:
    write("a.yaml", "base_agent: {x: 1}\nother: {_inherit_from: base_agnt}\n")
    with pytest.raises(ConfigError, match=r"`base_agnt` does not exist. Did you mean `base_agent`\?"):
        load(config_paths=["a.yaml"])
    write("loop.yaml", "a: {_copy: b}\nb: {_copy: a}\n")
    with pytest.raises(ConfigError, match="leads back to itself"):
        load(config_paths=["loop.yaml"])


def test_the_four_kinds_of_override(load: Load, write: Write) -> None:
    write("a.yaml", "limit: 1\nsplit: train\nagent_map: {a: x, b: y}\nlist: [{n: 1}, {n: 2}]\n")
    data = load(
        "+limit=2", "++limit=3", "split=validation", "~agent_map.a", "++list[1].n=5", "num_repeats=4",
        "responses_create_params.temperature=0.5", config_paths=["a.yaml"],
    ).data  # fmt: skip
    assert data["limit"] == 3
    assert data["split"] == "validation"
    assert data["agent_map"] == {"b": "y"}
    assert data["list"] == [{"n": 1}, {"n": 5}]
    assert data["num_repeats"] == 4, "a known top-level key needs no `+`"
    assert data["responses_create_params"] == {"temperature": 0.5}


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("+limit=1", "+limit=2"), r"`limit` was already given by `\+limit=1`. Write `\+\+limit=2`"),
        (("+agent_map={a:1}", "+agent_map.a=2"), "already given"),
        (("splitt.x=1",), r"there is no key `splitt.x`.*write `\+splitt.x=1`"),
        (("agent_nme=x",), r"Did you mean `agent_name`\?"),
        (("~limt",), r"there is no key `limt`. Did you mean `limit`\?"),
        (("++limit.inner=3",), "`limit` is `1`, which has no keys inside"),
        (("++list[7].n=5",), "the list has 1 entries"),
    ],
)
def test_an_override_that_cannot_be_meant_is_refused(
    load: Load, write: Write, overrides: tuple[str, ...], problem: str
) -> None:
    write("a.yaml", "limit: 1\nlist: [{n: 1}]\n")
    with pytest.raises(ConfigError, match=problem):
        load(*overrides, config_paths=["a.yaml"])


def test_different_keys_of_one_mapping_may_each_be_added(load: Load) -> None:
    data = load("+agent_map={a: x}", "+agent_map.b=y", "+skills.path=z").data
    assert data["agent_map"] == {"a": "x", "b": "y"}


@pytest.mark.usefixtures("world")
def test_servers_get_a_free_port_each_and_keep_the_ones_they_were_given(
    load: Load, files: list[str], model: tuple[str, ...]
) -> None:
    config = load(*model, "++quiz.resources_servers.quiz.port=15432", "+port_range_low=16000", config_paths=files)
    assert [block.port for block in config.server_blocks()] == [15432, None, None]
    blocks = assign_ports(config).server_blocks()
    assert blocks[0].port == 15432
    ports = [block.port for block in blocks]
    assert len(set(ports)) == 3
    assert all(port is not None and (port == 15432 or 16000 <= port <= 20000) for port in ports)
    assert {block.host for block in blocks} == {"127.0.0.1"}


def test_defaults_are_filled(load: Load, tmp_path: Path) -> None:
    data = load("+default_host=localhost").data
    assert data["head_server"] == {"host": "localhost", "port": 11000}
    assert data["server_spinup_timeout_seconds"] == 600
    assert data["results_dir"] == str(tmp_path / "results")


@pytest.mark.usefixtures("world")
def test_skip_verification_holds_for_every_agent_that_says_nothing(
    load: Load, files: list[str], model: tuple[str, ...]
) -> None:
    data = load(*model, "+skip_verification=true", config_paths=files).data
    assert data["quiz_agent"]["responses_api_agents"]["talker"]["skip_verification"] is True
    assert "skip_verification" not in data["quiz"]["resources_servers"]["quiz"]
