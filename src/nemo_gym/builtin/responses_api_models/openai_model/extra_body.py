"""Request fields that travel as JSON text in `metadata.extra_body`, since metadata holds only strings. Pure.

Collection puts a rollout's seed there; a row may put anything there that its endpoint understands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def extra_body_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in `metadata.extra_body`; {} when there are none, or when the text is no JSON object."""
    metadata = body.get("metadata")
    text = metadata.get("extra_body") if isinstance(metadata, Mapping) else None
    try:
        extra = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return {}
    return extra if isinstance(extra, dict) else {}


def merge_extra_body(body: Mapping[str, Any], configured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with its extra fields: configured ones, then `metadata.extra_body`, then its own keys win.

    The text itself is taken out of the metadata, and empty metadata out of the request: many endpoints refuse it.
    """
    extra = extra_body_of(body)
    own = dict(body)
    metadata = own.get("metadata")
    if isinstance(metadata, Mapping) and "extra_body" in metadata:
        rest = {key: value for key, value in metadata.items() if key != "extra_body"}
        own.pop("metadata")
        if rest:
            own["metadata"] = rest
    return {**configured, **extra, **own}
