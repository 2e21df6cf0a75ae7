"""What lies beside the results that are checked: tries that failed have no result, so no check sees them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from nemo_gym.records.codec import decode_object
from nemo_gym.records.failures import is_attempt
from nemo_gym.store.jsonl import read_lines
from nemo_gym.store.run_files import RunFiles


def explain_failures(rollouts: Iterable[str | Path]) -> list[str]:
    """Return a line that says how many failed tries lie beside rollouts files; [] when there are none.

    Omitted rollouts are none. A line of a sidecar that cannot be read is not counted.
    """
    found = {sidecar: count for path in rollouts if (count := _failed_tries(sidecar := RunFiles(path).failures))}
    if not found:
        return []
    tries = sum(found.values())
    where = f"`{next(iter(found))}`" if len(found) == 1 else f"{len(found)} files `*_failures.jsonl`"
    return [f"not checked: {tries} failed {'try' if tries == 1 else 'tries'}, which left no result, in {where}"]


def _failed_tries(sidecar: Path) -> int:
    count = 0
    with contextlib.suppress(OSError):
        for line in read_lines(sidecar):
            with contextlib.suppress(ValueError):
                count += is_attempt(decode_object(line.data))
    return count
