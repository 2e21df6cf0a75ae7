"""Files of a run: names, whole lines, atomic replacement, the writer's lock, and reading a run back."""

from __future__ import annotations

from nemo_gym.store.atomic import staged, sync_folder, write_atomic, writing
from nemo_gym.store.jsonl import Line, LineAppender, decode_line, lines_of, read_lines, read_objects, repair_tail
from nemo_gym.store.key_set import Inventory, RolloutKeySet
from nemo_gym.store.lock import RunLock, RunLockedError
from nemo_gym.store.rollout_store import RolloutStore, raw_outcomes_are_selected, read_manifest, read_status
from nemo_gym.store.row_index import Place, RowIndex
from nemo_gym.store.run_files import (
    RunFiles,
    aggregate_metrics_path_for,
    check_shard_label,
    failures_path_for,
    find_rollouts_files,
    is_derived_name,
    materialized_path_for,
    rollouts_files,
    shard_files,
    shard_label_of,
)

__all__ = [
    "Inventory",
    "Line",
    "LineAppender",
    "Place",
    "RolloutKeySet",
    "RolloutStore",
    "RowIndex",
    "RunFiles",
    "RunLock",
    "RunLockedError",
    "aggregate_metrics_path_for",
    "check_shard_label",
    "decode_line",
    "failures_path_for",
    "find_rollouts_files",
    "is_derived_name",
    "lines_of",
    "materialized_path_for",
    "raw_outcomes_are_selected",
    "read_lines",
    "read_manifest",
    "read_objects",
    "read_status",
    "repair_tail",
    "rollouts_files",
    "shard_files",
    "shard_label_of",
    "staged",
    "sync_folder",
    "write_atomic",
    "writing",
]
