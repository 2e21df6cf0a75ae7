"""Entries of the catalogue, environments and benchmarks that have a manifest: found by name, and checked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from nemo_gym.cli.user_module import load_user_module
from nemo_gym.config import ResolvedConfig, ServerBlock, load_config, resolve_under_roots
from nemo_gym.config.names import AGENTS, RESOURCES
from nemo_gym.config.roots import find_component_directory
from nemo_gym.config.servers import DEFAULT_ENTRYPOINT
from nemo_gym.errors import ConfigError, DataError, nearest_name
from nemo_gym.records import codec
from nemo_gym.servers.manifest import EnvironmentManifest, ManifestDataset
from nemo_gym.servers.verifier_fixture import VerifierCaseResult, VerifierFixture, exercise_verifier_fixture

MANIFEST = "manifest.yaml"
FIXTURE = "VERIFIER_FIXTURE"
_PARTS = {"resources_server": RESOURCES, "agent_server": AGENTS}


class UnknownEntryError(ConfigError):
    """The catalogue has no entry of this name."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class CheckedEntry:
    """An entry that holds together."""

    manifest: EnvironmentManifest
    manifest_path: Path
    config_path: Path
    components: tuple[str, ...]
    datasets: tuple[tuple[ManifestDataset, int | None], ...]
    inferred_profile: str
    profile_evidence: str
    warnings: tuple[str, ...]
    resources_implementation: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `--json` shows."""
        return {
            "name": self.manifest.name,
            "version": self.manifest.version,
            "kind": self.manifest.kind,
            "declared_profile": self.manifest.integration_profile,
            "inferred_profile": self.inferred_profile,
            "profile_evidence": self.profile_evidence,
            "manifest_path": str(self.manifest_path),
            "config_path": str(self.config_path),
            "components": list(self.components),
            "datasets": [
                {"name": dataset.name, "type": dataset.type, "path": dataset.jsonl_fpath, "rows": rows}
                for dataset, rows in self.datasets
            ],
            "rollout_driver": self.manifest.rollout_driver,
            "grading_mode": self.manifest.grading_mode,
            "synchronized_fields": [],
            "warnings": list(self.warnings),
        }

    def as_text(self) -> str:
        """Return three paragraphs: the manifest, the rows, the profile."""
        counted = ", ".join(f"{dataset.name} {'-' if rows is None else rows}" for dataset, rows in self.datasets)
        return (
            f"✓ Manifest of {self.manifest.kind} `{self.manifest.name}` {self.manifest.version} fits "
            f"`{self.config_path}`: {', '.join(f'`{name}`' for name in self.components)}.\n\n"
            f"✓ Datasets can be read; rows: {counted or 'none declared'}.\n\n"
            f"✓ Profile `{self.manifest.integration_profile}` holds: {self.profile_evidence}."
        )


def manifest_of(folder: Path) -> EnvironmentManifest | None:
    """Return the manifest in a folder, None where there is none; raises ConfigError for one that does not hold."""
    file = folder / MANIFEST
    if not file.is_file():
        return None
    try:
        return EnvironmentManifest.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"`{file}` is no manifest: {_said(error)}") from error


def check_entry(name: str, roots: Sequence[Path], search_dirs: Iterable[str]) -> CheckedEntry:
    """Check an entry's manifest against its configuration, its rows and its profile; raises ConfigError."""
    folder = _folder_of(name, roots)
    manifest = manifest_of(folder)
    assert manifest is not None
    if manifest.name != name:
        raise ConfigError(f"`{folder / MANIFEST}` is called `{manifest.name}`, and its folder `{name}`.")
    config_path = folder / manifest.config_path
    config = load_config(config_paths=[config_path], search_dirs=search_dirs, allow_missing_model=True)
    blocks = config.server_blocks()
    components = tuple(_component(manifest, key, blocks) for key in _PARTS if getattr(manifest, key) is not None)
    _check_domain(manifest, blocks)
    datasets, warnings = _check_datasets(manifest, blocks, config)
    inferred, evidence = _profile_of(manifest, blocks)
    if inferred != manifest.integration_profile:
        warnings.append(f"the profile is declared `{manifest.integration_profile}`, and looks like `{inferred}`")
    wanted = manifest.resources_server
    own = [b.implementation for b in blocks if b.kind == RESOURCES and wanted in (None, b.name, b.implementation)]
    return CheckedEntry(
        manifest=manifest,
        manifest_path=folder / MANIFEST,
        config_path=config_path,
        components=components,
        datasets=tuple(datasets),
        inferred_profile=inferred,
        profile_evidence=evidence,
        warnings=tuple(warnings),
        resources_implementation=own[0] if own else None,
    )


def _folder_of(name: str, roots: Sequence[Path]) -> Path:
    found = {
        manifest.parent.name: manifest.parent
        for root in reversed(roots)
        for kind in ("benchmarks", "environments")
        for manifest in (root / kind).glob(f"*/{MANIFEST}")
    }
    if name not in found:
        raise UnknownEntryError(
            f"Unknown catalog entry `{name}`: no environment or benchmark of this name has a `{MANIFEST}`."
            f"{nearest_name(name, found)}"
        )
    return found[name]


def _component(manifest: EnvironmentManifest, key: str, blocks: Sequence[ServerBlock]) -> str:
    wanted, kind = getattr(manifest, key), _PARTS[key]
    known = [block for block in blocks if block.kind == kind]
    for block in known:
        if wanted in (block.name, block.implementation):
            return block.name
    names = [block.name for block in known]
    raise ConfigError(
        f"the manifest of `{manifest.name}` names the `{key}` `{wanted}`, which `{manifest.config_path}` does not "
        f"have.{nearest_name(wanted, names)}"
    )


def _check_domain(manifest: EnvironmentManifest, blocks: Sequence[ServerBlock]) -> None:
    for block in blocks:
        own, told = block.settings.get("domain"), manifest.domain.value
        is_it = block.kind == RESOURCES and manifest.resources_server in (block.name, block.implementation)
        if is_it and own != told:
            raise ConfigError(f"`domain` is `{told}` in the manifest and `{own}` in {block.label}.")


def _check_datasets(
    manifest: EnvironmentManifest, blocks: Sequence[ServerBlock], config: ResolvedConfig
) -> tuple[list[tuple[ManifestDataset, int | None]], list[str]]:
    listed = [entry for block in blocks for entry in block.settings.get("datasets") or ()]
    declared = [entry for entry in listed if isinstance(entry, Mapping)]
    counted: list[tuple[ManifestDataset, int | None]] = []
    warnings = []
    for dataset in manifest.datasets:
        wanted = {"name": dataset.name, "type": dataset.type, "jsonl_fpath": dataset.jsonl_fpath}
        if not any(all(entry.get(key) == value for key, value in wanted.items()) for entry in declared):
            raise ConfigError(
                f"dataset `{dataset.name}` of the manifest is not declared so in `{manifest.config_path}`."
            )
        file = resolve_under_roots(dataset.jsonl_fpath, config.roots)
        if file.is_file():
            counted.append((dataset, _rows_of(file, with_prompt=dataset.prompt_config is not None)))
        elif dataset.type == "example":
            raise ConfigError(f"dataset `{dataset.name}` is not there: `{dataset.jsonl_fpath}`.")
        else:
            counted.append((dataset, None))
            warnings.append(f"dataset `{dataset.name}` is not prepared: `{dataset.jsonl_fpath}` is not there")
    return counted, warnings


def _rows_of(file: Path, *, with_prompt: bool) -> int:
    count = 0
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = codec.decode_object(line)
        except ValueError as error:
            raise DataError(str(error), path=file, line=number) from error
        if not with_prompt and not isinstance(row.get("responses_create_params"), dict):
            raise DataError("a row has `responses_create_params`, an object", path=file, line=number)
        count += 1
    return count


def _profile_of(manifest: EnvironmentManifest, blocks: Sequence[ServerBlock]) -> tuple[str, str]:
    if manifest.rollout_driver is not None:
        return "external-rollout-driver", f"`{manifest.rollout_driver}` drives the rollouts"
    agents = [block for block in blocks if block.kind == AGENTS]
    if any(block.kind == RESOURCES for block in blocks):
        return "custom-gym-verifier", "a resources server verifies what an agent does with a model"
    if any("model_server" in block.settings for block in agents):
        return "custom-gym-agent-loop", "an agent calls the model and scores itself"
    return "external-agent-loop", "an agent runs a program of its own"


def _said(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(
            f"`{'.'.join(map(str, item['loc']))}`: {item['msg'].removeprefix('Value error, ')}"
            if item["loc"]
            else item["msg"].removeprefix("Value error, ")
            for item in error.errors()
        )
    return " ".join(str(error).split())


def exercise_entry(
    entry: CheckedEntry, roots: Sequence[Path], *, update_expected: bool = False
) -> tuple[VerifierCaseResult, ...]:
    """Hold an entry's verifier to its cases and return what came out; raises ConfigError where they differ."""
    implementation = entry.resources_implementation
    folder = implementation and find_component_directory(RESOURCES, implementation, DEFAULT_ENTRYPOINT, roots)
    if not folder:
        raise ConfigError(f"`{entry.manifest.name}` has no resources server whose verifier could be tried.")
    fixture = getattr(load_user_module(folder / DEFAULT_ENTRYPOINT), FIXTURE, None)
    if not isinstance(fixture, VerifierFixture):
        raise ConfigError(f"`{folder / DEFAULT_ENTRYPOINT}` has no `{FIXTURE}`, which says how its verifier is tried.")
    return asyncio.run(
        exercise_verifier_fixture(
            fixture,
            reward_range=entry.manifest.reward.range,
            higher_is_better=entry.manifest.reward.higher_is_better,
            determinism=entry.manifest.determinism,
            update_expected=update_expected,
        )
    )
