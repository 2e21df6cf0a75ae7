"""Whether saved rollouts belong to the run at hand: the manifest's identity, made and compared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from nemo_gym.errors import IncompleteEvaluationError, ResumeRefusedError
from nemo_gym.records.codec import encode
from nemo_gym.records.manifest import Configuration, RunManifest, changed_keys
from nemo_gym.rollouts.settings import RolloutCollectionConfig
from nemo_gym.rollouts.topology import Instance

_TASK_SETTINGS: Final = (
    "responses_create_params", "num_repeats", "num_repeats_add_seed", "agent_map", "fan_out", "limit",
    "environment_routing_mode", "environment_server_name", "environment_server_routes",
)  # fmt: skip
_EXPANSION_SETTINGS: Final = frozenset(
    {"num_repeats", "num_repeats_add_seed", "agent_map", "fan_out", "limit", "prompt_config", "skills"}
)
"""What only decides how rows become materialized rows: irrelevant when those are the input themselves."""

# Endpoints, process counts, reporting: they decide where and how fast, not what.
_IRRELEVANT = frozenset({"host", "port", "num_workers", "entrypoint", "datasets", "domain", "description", "verified"})
_ENDPOINT = re.compile(r"(^|_)(url|urls|endpoint|endpoints|hosts?|ports?|address|capture_dir|log_dir)$")
_CREDENTIAL = re.compile(r"(api[_-]?key|token|password|secret|authorization|credentials?)$", re.IGNORECASE)
_NAMED_DIFFERENCES = 20


def configuration_of(
    settings: RolloutCollectionConfig | None,
    instances: Iterable[Instance],
    *,
    prompt_digest: str | None = None,
    skills_digest: str | None = None,
) -> Configuration:
    """Return the digests of everything that affects results: collection settings and the reached servers' blocks.

    `settings` is None for rows that were dispatched as given; that equals a run with every setting at its default.
    """
    values: dict[str, Any] = {}
    if settings is not None:
        defaults = RolloutCollectionConfig(input_jsonl_fpath="-", output_jsonl_fpath="-")
        for name in _TASK_SETTINGS:
            value = getattr(settings, name)
            if value != getattr(defaults, name) and not (name == "limit" and not value):
                values.update(_flat(name, value, ignored=_is_credential))
    if prompt_digest is not None:
        values["prompt_config"] = prompt_digest
    if skills_digest is not None:
        values["skills"] = skills_digest
    for instance in instances:
        prefix = f"{instance.name}.{instance.kind}.{instance.implementation}"
        values.update(_flat(prefix, instance.settings, ignored=_is_beside_the_point))
    digests = {name: _digest(value) for name, value in sorted(values.items())}
    return Configuration(sha256=_digest(digests), keys=digests)


def check_same_run(
    manifest: RunManifest,
    *,
    source_sha256: str | None,
    materialized_sha256: str,
    configuration: Configuration,
    output: Path,
) -> None:
    """Raise ResumeRefusedError naming what changed since the saved rollouts were made.

    `source_sha256` is None when the run's own materialized file is the input; then the settings that only expand rows
    are not compared, since nothing is expanded.
    """
    changes: list[str] = []
    if materialized_sha256 != manifest.materialized.sha256:
        changes.append("the materialized inputs file")
    if source_sha256 is not None and source_sha256 != manifest.source.sha256:
        changes.append("the input file")
    differing = changed_keys(manifest.configuration, configuration)
    if source_sha256 is None:
        differing = [
            name for name in differing if name.split(".")[0] not in _EXPANSION_SETTINGS or name in configuration.keys
        ]
    changes.extend(f"`{name}`" for name in differing[:_NAMED_DIFFERENCES])
    if len(differing) > _NAMED_DIFFERENCES:
        changes.append(f"and {len(differing) - _NAMED_DIFFERENCES} more keys")
    if changes:
        raise ResumeRefusedError(
            f"`{output}` was made from other rows or under another configuration; nothing was touched. "
            f"Changed: {', '.join(changes)}. "
            "Restore it, or write to another output, or accept the mix with `+resume_ignore_drift=true`."
        )


def file_sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex. Raises OSError, which names the file."""
    with Path(path).open("rb") as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            error.filename = error.filename or str(path)  # a failing read does not say of what
            raise


def _flat(prefix: str, value: Any, *, ignored: Callable[[str], bool]) -> Iterable[tuple[str, Any]]:
    """Yield dotted keys and their leaf values, without the keys that are ignored."""
    if not isinstance(value, Mapping):
        yield prefix, value
        return
    for key, item in value.items():
        name = str(key)
        if not ignored(name):
            yield from _flat(f"{prefix}.{name}", item, ignored=ignored)


def _is_credential(name: str) -> bool:
    return _CREDENTIAL.search(name) is not None


def _is_beside_the_point(name: str) -> bool:
    """Whether a key of a server's block says nothing about what the server does with a row."""
    return name in _IRRELEVANT or _ENDPOINT.search(name) is not None or _is_credential(name)


def _digest(value: Any) -> str:
    return hashlib.sha256(encode(_canonical(value))).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _canonical(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    return value


__all__ = [
    "IncompleteEvaluationError",
    "ResumeRefusedError",
    "RunManifest",
    "check_same_run",
    "configuration_of",
    "file_sha256",
]
