"""Environments with a manifest: written by `gym env init`, checked by `gym env validate NAME`, listed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ENTRY = "my.env-1"
FOLDER = Path("environments") / ENTRY
SHOWN = {
    *("name", "version", "kind", "declared_profile", "inferred_profile", "profile_evidence", "manifest_path"),
    *("config_path", "components", "datasets", "rollout_driver", "grading_mode", "synchronized_fields", "warnings"),
}


def made(inline: Any) -> list[str]:
    return str(inline("env", "init", "--environment", ENTRY).stdout).splitlines()


def change(**changes: Any) -> None:
    file = FOLDER / "manifest.yaml"
    manifest = {**yaml.safe_load(file.read_text(encoding="utf-8")), **changes}
    kept = {key: value for key, value in manifest.items() if value != "LEFT OUT"}
    file.write_text(yaml.safe_dump(kept), encoding="utf-8")


def test_a_new_environment_is_written_whole_and_valid(inline: Any) -> None:
    files = made(inline)
    assert {f"{FOLDER}/{name}" for name in ("config.yaml", "manifest.yaml", "README.md", "data/example.jsonl")} <= {
        *files
    }
    assert "resources_servers/my_env_1/app.py" in files
    assert all(Path(file).is_file() for file in files)
    assert inline("env", "validate", "--environment", ENTRY).stdout == "✓ Config is valid.\n"
    assert inline("env", "validate", ENTRY).stdout.count("✓") == 3


def test_json_tells_what_was_found(inline: Any) -> None:
    made(inline)
    told = json.loads(inline("env", "validate", ENTRY, "--json").stdout)
    assert set(told) == SHOWN
    assert told["components"] == ["my_env_1_resources_server", "my_env_1_simple_agent"]
    path = f"environments/{ENTRY}/data/example.jsonl"
    assert told["datasets"] == [{"name": "example", "type": "example", "path": path, "rows": 1}]
    assert told["declared_profile"] == told["inferred_profile"] == "custom-gym-verifier"
    assert told["warnings"] == []


def test_written_again_it_is_up_to_date_and_what_was_changed_is_not_touched(inline: Any) -> None:
    made(inline)
    assert "up to date" in inline("env", "init", "--environment", ENTRY).stdout
    (FOLDER / "README.md").unlink()
    changed = FOLDER / "config.yaml"
    changed.write_text("mine: 1\n", encoding="utf-8")
    told = inline("env", "init", "--environment", ENTRY, code=1).stderr
    assert f"conflict: `{changed}`" in told
    assert "README" not in told
    assert changed.read_text(encoding="utf-8") == "mine: 1\n"
    assert not (FOLDER / "README.md").exists()
    changed.unlink()
    assert made(inline)
    assert (FOLDER / "README.md").is_file()


@pytest.mark.parametrize("arguments", [(), ("--environment", "a", "--resources-server", "b")])
def test_one_thing_is_written_at_a_time(inline: Any, arguments: tuple[str, ...]) -> None:
    assert "name what is to be written" in inline("env", "init", *arguments, code=2).stderr


@pytest.mark.parametrize("name", ["A", "a/b", "..", "", "a b", "1a"])
def test_a_name_that_is_no_single_word_is_refused(inline: Any, name: str, tmp_path: Path) -> None:
    assert "cannot be the name" in inline("env", "init", "--environment", name, code=2).stderr
    assert list(tmp_path.iterdir()) == []


def test_an_entry_that_is_not_there_is_named_with_the_nearest(inline: Any) -> None:
    made(inline)
    told = inline("env", "validate", "my.env-2", code=1).stderr
    assert "Unknown catalog entry `my.env-2`" in told
    assert f"Did you mean `{ENTRY}`?" in told
    assert "cannot be given with it" in inline("env", "validate", ENTRY, "+a=1", code=2).stderr


BENCHMARK = {"name": "b", "type": "benchmark", "jsonl_fpath": "x", "prepare_script": "p.py"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"more": 1}, "`more`"),
        ({"authors": []}, "`authors`"),
        ({"authors": ["a", "a"]}, "twice"),
        ({"domain": "cooking"}, "`domain`"),
        ({"domain": "math"}, "`math` in the manifest and `other`"),
        ({"reward": {"range": [1, 0]}}, "lower end"),
        ({"determinism": "often"}, "`determinism`"),
        ({"name": "other"}, "is called `other`"),
        ({"resources_server": "LEFT OUT"}, "needs `resources_server`"),
        ({"model_server": "LEFT OUT"}, "needs `model_server`"),
        ({"resources_server": "my_env_1_resources_servr"}, "Did you mean `my_env_1_resources_server`?"),
        ({"agent_server": "nobody"}, "`agent_server` `nobody`"),
        ({"rollout_driver": "a:b"}, "belongs to the profile"),
        ({"integration_profile": "external-rollout-driver"}, "needs `rollout_driver`"),
        ({"integration_profile": "external-rollout-driver", "rollout_driver": "a.b"}, "`module:function`"),
        ({"datasets": [{"name": "example", "type": "example", "jsonl_fpath": "else.jsonl"}]}, "is not declared so in"),
        ({"kind": "benchmark"}, "canonical_split"),
        ({"kind": "benchmark", "canonical_split": "test"}, "prepare_script"),
        ({"kind": "benchmark", "canonical_split": "test", "datasets": [BENCHMARK]}, "standard_prompt_config"),
    ],
)
def test_a_manifest_that_does_not_hold_is_told(inline: Any, changes: dict[str, Any], said: str) -> None:
    made(inline)
    change(**changes)
    assert said in inline("env", "validate", ENTRY, code=2).stderr


def test_rows_that_cannot_run_are_told_with_their_line(inline: Any) -> None:
    made(inline)
    rows = FOLDER / "data" / "example.jsonl"
    whole = rows.read_text(encoding="utf-8")
    for broken in ('{"a": 1}', "[]", "{"):
        rows.write_text(f"{whole}{broken}\n", encoding="utf-8")
        assert "line 2" in inline("env", "validate", ENTRY, code=1).stderr
    rows.unlink()
    assert "is not there" in inline("env", "validate", ENTRY, code=2).stderr


def test_a_profile_that_looks_like_another_is_a_warning(inline: Any) -> None:
    made(inline)
    change(integration_profile="custom-gym-agent-loop")
    done = inline("env", "validate", ENTRY)
    assert "looks like `custom-gym-verifier`" in done.stderr


def test_the_list_of_environments_shows_kind_status_and_lifecycle(inline: Any) -> None:
    made(inline)
    plain = Path("environments/plain/config.yaml")
    plain.parent.mkdir()
    plain.write_text("config_paths: [resources_servers/my_env_1/configs/my_env_1.yaml]\n", encoding="utf-8")
    listed = {entry["name"]: entry for entry in json.loads(inline("list", "environments", "--json").stdout)}
    shown = {name: [entry[key] for key in ("kind", "status", "lifecycle", "domain")] for name, entry in listed.items()}
    assert shown[ENTRY] == ["environment", "experimental", "active", "other"]
    assert shown["plain"] == ["environment", "no-manifest", "active", "other"]
    change(lifecycle="deprecated", experimental=False)
    assert "NAME" in (text := inline("list", "environments").stdout)
    assert "stable" in text
    assert "deprecated" in text
    change(more=1)
    done = inline("list", "environments")
    assert "invalid-manifest" in done.stdout
    assert "`more`" in done.stderr
    assert "KIND" not in inline("list", "resources-servers").stdout


def test_the_cases_of_a_verifier_are_run_and_written_anew(inline: Any) -> None:
    made(inline)
    assert inline("env", "test", ENTRY).stdout == "3 cases hold\n"
    told = json.loads(inline("env", "test", ENTRY, "--json").stdout)
    assert told["cases"] == 3
    assert {result["kind"] for result in told["results"]} == {"full_reward", "zero_reward", "malformed"}
    cases = Path("resources_servers/my_env_1/tests/verifier_cases.jsonl")
    whole = cases.read_text(encoding="utf-8")
    cases.write_text(whole.replace("response: Field required", "other words"), encoding="utf-8")
    assert "other words" in inline("env", "test", ENTRY, code=2).stderr
    inline("env", "test", ENTRY, "--update-expected")
    assert [json.loads(line) for line in cases.read_text(encoding="utf-8").splitlines()] == [
        json.loads(line) for line in whole.splitlines()
    ]
    change(determinism="seeded")
    assert "`determinism`" in inline("env", "test", ENTRY, code=2).stderr
    app = Path("resources_servers/my_env_1/app.py")
    app.write_text(app.read_text(encoding="utf-8").replace("VERIFIER_FIXTURE =", "OTHER ="), encoding="utf-8")
    assert "has no `VERIFIER_FIXTURE`" in inline("env", "test", ENTRY, code=2).stderr


@pytest.mark.parametrize("arguments", [(), (ENTRY, "--resources-server", "x"), ("--resources-server", "x", "--json")])
def test_one_thing_is_tested_at_a_time(inline: Any, arguments: tuple[str, ...]) -> None:
    assert "Error: " in inline("env", "test", *arguments, code=2).stderr


def test_an_environment_with_placeholders_is_not_ready_for_others(inline: Any) -> None:
    made(inline)
    told = inline("env", "publish", ENTRY, code=2).stderr
    assert all(f"`{key}`" in told for key in ("description", "authors", "licensing"))
    change(description="Say hello", authors=["A Person"], licensing="Apache-2.0")
    assert "3 cases. Status: experimental." in inline("env", "publish", ENTRY).stdout
    assert json.loads(inline("env", "publish", ENTRY, "--json").stdout)["status"] == "experimental"


def test_a_new_benchmark_is_valid_and_runs_what_its_script_prepares(gym: Any) -> None:
    files = gym("env", "init", "--benchmark", "quiz").stdout.splitlines()
    entry = Path(gym.folder) / "benchmarks" / "quiz"
    names = ("config.yaml", "manifest.yaml", "README.md", "data/example.jsonl", "prepare.py", "prompts/default.yaml")
    assert {f"benchmarks/quiz/{name}" for name in names} <= {*files}
    assert "is not prepared" in gym("env", "validate", "quiz").stderr
    subprocess.run([sys.executable, str(entry / "prepare.py")], check=True, cwd=gym.folder)
    told = json.loads(gym("env", "validate", "quiz", "--json").stdout)
    assert told["kind"] == "benchmark"
    assert [dataset["rows"] for dataset in told["datasets"]] == [1, 1]
    assert told["warnings"] == []
    words = ("--benchmark", "quiz", "--split", "benchmark", "--model-type", "scripted_model", "-o", "runs/r.jsonl")
    gym("eval", "run", gym.head, *words)
    [row] = (Path(gym.folder) / "runs/r.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(row)["responses_create_params"]["input"][0]["content"] == "Say hello."
    assert json.loads(gym("list", "benchmarks", "--json").stdout)[0]["status"] == "experimental"


def test_list_and_search_are_there_as_commands_of_env(inline: Any) -> None:
    made(inline)
    for words in (("list", "environments"), ("search", "environments", ENTRY)):
        assert inline("env", *words).stdout == inline(*words).stdout
        assert ENTRY in inline(*words).stdout
