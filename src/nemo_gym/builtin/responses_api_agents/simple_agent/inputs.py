"""What the `input` of a request may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_gym.servers.web import unfit_body


def check_input(params: Mapping[str, Any], *, at: tuple[str, ...] = ()) -> None:
    """Refuse an `input` that is neither text nor a list of items; what is in the items is for the model server."""
    given = params.get("input")
    if given is None or isinstance(given, str):
        return
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise unfit_body("`input` must be a text or a list of items", at=(*at, "input"))
