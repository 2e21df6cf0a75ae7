"""Every block of code in a document is run, or read as what it says it is: nothing in a page is only printed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from documents import DOCUMENTS, REPOSITORY, Block, blocks_of, generator, name_of

from nemo_gym.builtin.responses_api_models.scripted_model.script import load_script_book
from nemo_gym.records.model_calls import ModelCallRecord
from nemo_gym.rollout_observability import AgentObservationBundle, ObservationGap, read_trajectory

LANGUAGES = {"bash", "python", "json", "yaml", "text"}
COMMAND = re.compile(
    r"^\s*\$?\s*(gym|ng|make|pip|python3?|curl|docker|export|cd|import|from) [-\w/.{\"']", re.MULTILINE
)
GENERATED = {f"docs/{name}" for name in generator().PAGES}
READ_YAML: dict[str, Callable[[Path], Any]] = {
    "src/nemo_gym/builtin/responses_api_models/scripted_model/README.md": load_script_book,
}
"""Page -> what reads its YAML; elsewhere YAML is a file of a page whose commands run."""


def unchecked(name: str, block: Block) -> str | None:
    """Return why nothing would notice that the block is wrong, or None."""
    if block.language not in LANGUAGES:
        return f"`{block.language}` is not one of {sorted(LANGUAGES)}: nothing runs or reads it"
    if block.language == "text" and name != "docs/command-line.md" and (found := COMMAND.search(block.text)):
        return f"a command in a `text` block is not run: {found[0].strip()}"
    if block.language == "yaml" and block.title is None and name not in READ_YAML:
        return "YAML without a file name is not used by any command: give it a title, or a reader in READ_YAML"
    return None


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_block_is_run_or_read(path: Path) -> None:
    """Blocks of bash and python are run by `test_commands`, whatever page they stand on."""
    assert [why for block in blocks_of(path) if (why := unchecked(name_of(path), block))] == []


@pytest.mark.parametrize(
    "block",
    [
        Block("", None, "gym env status\n"),
        Block("sh", None, "gym env status\n"),
        Block("text", None, "$ gym env status\n"),
        Block("text", None, "import nemo_gym\n"),
        Block("yaml", None, "a: 1\n"),
    ],
    ids=lambda block: block.language or "none",
)
def test_a_block_that_nothing_would_run_is_noticed(block: Block) -> None:
    assert unchecked("docs/new.md", block) is not None


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_fences_come_in_pairs(path: Path) -> None:
    fences = re.findall(r"^```", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks_of(path))


def gaps_in(value: Any) -> list[Any]:
    if isinstance(value, dict):
        own = value["gaps"] if isinstance(value.get("gaps"), list) else []
        return [*own, *(gap for inner in value.values() for gap in gaps_in(inner))]
    return [gap for inner in value for gap in gaps_in(inner)] if isinstance(value, list) else []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_json_is_json_and_whole_evidence_fits_its_schema(path: Path) -> None:
    """Pages of codes are made by the code itself, and some show evidence that does not fit on purpose."""
    for block in blocks_of(path):
        if block.language != "json":
            continue
        value = json.loads(block.text)
        if name_of(path) in GENERATED:
            continue
        for gap in gaps_in(value):
            ObservationGap.model_validate(gap)
        if "ng_agent_observations" in value:
            AgentObservationBundle.model_validate(value["ng_agent_observations"])
        if "ng_trajectory" in value:
            read_trajectory(value["ng_trajectory"])
        for call in value.get("ng_model_call_capture", {}).get("calls", ()):
            assert set(call) <= set(ModelCallRecord.__struct_fields__)


@pytest.mark.parametrize("name", sorted(READ_YAML))
def test_yaml_is_accepted_by_what_reads_it(name: str, tmp_path: Path) -> None:
    for number, block in enumerate(block for block in blocks_of(REPOSITORY / name) if block.language == "yaml"):
        file = tmp_path / f"{number}.yaml"
        file.write_text(block.text, encoding="utf-8")
        assert yaml.safe_load(block.text)
        READ_YAML[name](file)
