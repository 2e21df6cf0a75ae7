"""The rows of a serving run: from the datasets that the configuration declares to one prepared file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError, ConfigFileNotFoundError
from nemo_gym.records import keys
from nemo_gym.records.codec import encode_line
from nemo_gym.rollouts.prepare import input_rows
from nemo_gym.rollouts.prompts import load_prompt
from nemo_gym.rollouts.row_places import RowPlaces
from nemo_gym.rollouts.topology import Topology
from nemo_gym.store.atomic import staged

EXAMPLE = "example"


@dataclass(frozen=True, slots=True)
class DeclaredDataset:
    """One dataset entry of one instance's configuration."""

    instance: str
    name: str
    split: str
    path: str
    num_repeats: int
    prompt_config: str | None


def declared_datasets(topology: Topology) -> list[DeclaredDataset]:
    """Return every dataset that an instance of the configuration declares, in order."""
    return [
        DeclaredDataset(
            instance=instance.name,
            name=str(entry.get("name") or instance.name),
            split=str(entry.get("type")),
            path=str(entry["jsonl_fpath"]),
            num_repeats=int(entry.get("num_repeats") or 1),
            prompt_config=entry.get("prompt_config"),
        )
        for instance in topology.instances.values()
        for entry in _entries(instance.settings)
        if entry.get("jsonl_fpath")
    ]


def datasets_of_split(topology: Topology, split: str) -> list[DeclaredDataset]:
    """Return the declared datasets of a split; raises ConfigError listing what is declared when there is none."""
    declared = declared_datasets(topology)
    chosen = [dataset for dataset in declared if dataset.split == split]
    if not chosen:
        splits = ", ".join(f"`{name}`" for name in sorted({dataset.split for dataset in declared}))
        raise ConfigError(
            f"no dataset of type `{split}` is declared in the configuration; declared: {splits or 'none'}. "
            "Choose one with `--split`, or name a file of rows with `--input`."
        )
    return chosen


def prepare_split(
    topology: Topology, datasets: list[DeclaredDataset], target: Path, *, resolve: Callable[[str], Path]
) -> int:
    """Write the rows of datasets as one file and return how many there are.

    Rows name the declaring instance as `task_source`. A row's own `agent_ref` stays only where that instance does not
    say which agent runs it. Repeats of a dataset are written out; its prompt is applied.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with staged(target) as file:
        for dataset in datasets:
            for line in _prepared_lines(topology, dataset, resolve):
                file.write(line)
                count += 1
    return count


def _prepared_lines(topology: Topology, dataset: DeclaredDataset, resolve: Callable[[str], Path]) -> Iterator[bytes]:
    prompt, _ = load_prompt(dataset.prompt_config)
    path = resolve(dataset.path)
    if not path.is_file():
        raise ConfigFileNotFoundError(
            f"dataset `{dataset.name}` of `{dataset.instance}` is not there: `{dataset.path}`. "
            "Prepare it as its README says, or choose another `--split`."
        )
    routed = topology.agent_of_source(dataset.instance)[0] is not None
    for row, _, number in input_rows(path, None):
        try:
            prepared = dict(row) if prompt is None else prompt(row)
        except ConfigError as error:
            raise ConfigError(f"{RowPlaces(path).one(number)}: {error}") from error
        if routed:
            prepared.pop(keys.AGENT_REF, None)
        prepared[keys.TASK_SOURCE] = dataset.instance
        line = encode_line(prepared)
        for _ in range(dataset.num_repeats):
            yield line


def _entries(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    datasets = settings.get("datasets")
    return [entry for entry in datasets if isinstance(entry, Mapping)] if isinstance(datasets, list) else []
