"""Reading a saved trajectory of any known version: `schema_version` selects the reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from nemo_gym.records.observation_models import TrajectoryRecord


class UnknownSchemaVersionError(ValueError):
    """A trajectory of a version that no reader here knows."""


_READERS: Mapping[str, Callable[[Any], TrajectoryRecord]] = MappingProxyType({"1.0": TrajectoryRecord.model_validate})


def read_trajectory(data: Mapping[str, Any]) -> TrajectoryRecord:
    """Return a record's `ng_trajectory`, read by the reader of its `schema_version`; none given means the first.

    Raises `UnknownSchemaVersionError` (a ValueError) for a version without a reader, and pydantic's `ValidationError`
    for a trajectory that its version does not allow.
    """
    version = data.get("schema_version", "1.0")
    reader = _READERS.get(version) if isinstance(version, str) else None
    if reader is None:
        known = ", ".join(f"`{name}`" for name in _READERS)
        raise UnknownSchemaVersionError(
            f"`schema_version` is `{version}`, which this version cannot read; it reads {known}"
        )
    return reader(data)
