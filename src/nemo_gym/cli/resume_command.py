"""The command line that continues an interrupted run, fit to be shown."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from nemo_gym.config.masking import MASK, is_secret_key, mask_secrets
from nemo_gym.config.overrides import parse_override
from nemo_gym.errors import ConfigError


def resume_command(argv: Sequence[str]) -> str:
    """Return the command line that continues an interrupted run; secrets in it are masked."""
    words = ["gym", *_without_secrets(argv[1:])]
    if "--resume" not in words and not any(word.endswith("resume_from_cache=true") for word in words):
        words.append("--resume")
    return shlex.join(words)


def _without_secrets(words: Sequence[str]) -> list[str]:
    """Return the words with the values of secret-looking flags and settings masked."""
    masked: list[str] = []
    flag = ""
    for word in words:
        name, equals, value = word.partition("=")
        if flag:
            masked.append(word if _is_count(flag, word) else MASK)
            flag = ""
        elif equals and not _is_count(name, value) and _holds_secret(word):
            masked.append(f"{name}={MASK}")
        else:
            masked.append(str(mask_secrets(word)))
            flag = name if name.startswith("--") and not equals and is_secret_key(name) else ""
    return masked


def _holds_secret(word: str) -> bool:
    """Return whether a `key=value` word sets a secret: by its key, or inside the mapping that it sets."""
    name, _, value = word.partition("=")
    if value and any(is_secret_key(part) for part in name.lstrip("+~-").split(".")):
        return True
    try:
        given = parse_override(word).value
    except ConfigError:
        return False
    return isinstance(given, (dict, list)) and mask_secrets(given) != given


def _is_count(name: str, value: str) -> bool:
    return name.endswith("tokens") and value.isdigit()
