"""The run manifest: what a run's rows were made from and made under, as digests only.

No configuration value is in it, so it can be shared; per-key digests let a refused resume name what changed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FORMAT_VERSION = 1


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The rows the run was asked to do: path as given (None for a recorded shard) and the digest of the bytes."""

    path: str | None
    sha256: str


class Materialized(msgspec.Struct, frozen=True, kw_only=True):
    """The materialized inputs: digest of the file, its rows, and how many distinct tasks they are."""

    sha256: str
    rows: int
    tasks: int


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """Digest of everything that affects results, and one digest for each dotted key."""

    sha256: str
    keys: dict[str, str] = {}


class RunManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of one run or one recorded shard. `created_at` is in Unix seconds.

    `executions` says how often a rollout was sent, as far as rows tell, for those sent more than once; it is written
    before they are sent, and nothing depends on it.
    """

    format_version: int = FORMAT_VERSION
    run_id: str
    kind: Literal["eval", "record"]
    created_at: float
    gym_version: str | None = None
    output: str
    shard: str | None = None
    source: Source
    materialized: Materialized
    configuration: Configuration
    max_rollout_attempts: int = 3
    executions: dict[str, int] = {}
    parents: list[str] = []


def encode_manifest(manifest: RunManifest) -> bytes:
    """Return the manifest as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_manifest(data: bytes) -> RunManifest:
    """Return the manifest in `data`; raises ValueError when it is unreadable or of a newer format."""
    try:
        manifest = msgspec.json.decode(data, type=RunManifest)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a run manifest: {error}") from error
    if manifest.format_version > FORMAT_VERSION:
        raise ValueError(f"manifest format {manifest.format_version} is newer than this version reads")
    return manifest


def changed_keys(saved: Configuration, current: Configuration) -> list[str]:
    """Return the dotted keys whose value differs between two configurations, sorted."""
    names = saved.keys.keys() | current.keys.keys()
    return sorted(name for name in names if saved.keys.get(name) != current.keys.get(name))
