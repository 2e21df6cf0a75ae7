"""A word of warning about failure kinds that no dashboard knows."""

from __future__ import annotations

import logging

from nemo_gym.records.failure_kinds import is_namespaced, is_registered

logger = logging.getLogger(__name__)

_MAX_WARNED = 1000
_warned: set[str] = set()


def validate_failure_kind(kind: str) -> str:
    """Return `kind` unchanged; an unknown one is logged once per value."""
    if not is_registered(kind) and not is_namespaced(kind) and kind not in _warned and len(_warned) < _MAX_WARNED:
        _warned.add(kind)
        logger.warning("failure kind `%s` is not registered; use a registered kind or `<server>:<kind>`", kind[:200])
    return kind
