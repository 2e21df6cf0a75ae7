"""Secrets out of what is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "****"

_SECRET_KEY = re.compile(
    r"api_?key|(^|_)(token|tokens|auth|cookie)$|access_key|password|passwd|secret|credential|authorization|bearer",
    re.IGNORECASE,
)
_URL_PASSWORD = re.compile(r"(?<=://)([^/@:\s]*):([^/@\s]+)@")


def is_secret_key(key: object) -> bool:
    """Tell whether a key's name says that its text is a secret. Numbers are never secrets: `max_tokens` stays."""
    return isinstance(key, str) and _SECRET_KEY.search(key.replace("-", "_")) is not None


def mask_secrets(value: Any, *, secret: bool = False) -> Any:
    """Return a copy in which the text under secret-looking keys, and passwords inside URLs, are `****`.

    Empty text, `???`, numbers, booleans and null stay: they hold no secret, and that they are unset is worth seeing.
    """
    if isinstance(value, Mapping):
        return {key: mask_secrets(inner, secret=secret or is_secret_key(key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask_secrets(inner, secret=secret) for inner in value]
    if isinstance(value, str) and value and value != "???":
        return MASK if secret else _URL_PASSWORD.sub(rf"\1:{MASK}@", value)
    return value
