"""The public names of rollout collection, imported when they are first used."""

from __future__ import annotations

from typing import Any

from nemo_gym.rollouts.collection_names import HOMES, find

__all__ = sorted(HOMES)  # noqa: PLE0605 - the table is the list


def __getattr__(name: str) -> Any:
    value = globals()[name] = find(__name__, name)
    return value
