"""Secrets out of what is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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


def masked_values(value: Any, *, path: str = "", secret: bool = False) -> Iterator[str]:
    """Yield the dotted place of every secret that is `****`: what was copied from where secrets are hidden."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            place = f"{path}.{key}" if path else str(key)
            yield from masked_values(inner, path=place, secret=secret or is_secret_key(key))
    elif isinstance(value, (list, tuple)):
        for position, inner in enumerate(value):
            yield from masked_values(inner, path=f"{path}[{position}]", secret=secret)
    elif isinstance(value, str):
        password = _URL_PASSWORD.search(value)
        if (secret and value.strip() == MASK) or (password is not None and password[2] == MASK):
            yield path


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
