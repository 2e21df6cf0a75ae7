"""The command line that continues an interrupted run, fit to be shown."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from nemo_gym.config.masking import MASK, is_secret_key, mask_secrets
from nemo_gym.config.overrides import parse_override
from nemo_gym.errors import ConfigError

_KEY_OF_FLAG = {"--model-api-key": "policy_api_key", "--model-url": "policy_base_url"}
"""What the flags that may hold a secret are called in a file."""


def resume_text(argv: Sequence[str]) -> str:
    """Return the command line that continues an interrupted run, and what must be put back into it."""
    _, hidden = _without_secrets(argv[1:])
    lines = [f"  {resume_command(argv)}"]
    if hidden:
        keys = [f"`{_KEY_OF_FLAG.get(name, name)}`" for name in hidden]
        lines.append(
            f"`{MASK}` hides the value of {', '.join(f'`{name}`' for name in hidden)}: put it back before you run "
            f"this, or leave it out of the command and set {', '.join(keys)} in env.yaml."
        )
    return "\n".join(lines)


def resume_command(argv: Sequence[str]) -> str:
    """Return the command line that continues an interrupted run; secrets in it are masked."""
    words = ["gym", *_without_secrets(argv[1:])[0]]
    if "--resume" not in words and not any(word.endswith("resume_from_cache=true") for word in words):
        words.append("--resume")
    return shlex.join(words)


def _without_secrets(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words with the values of secret-looking flags and settings masked, and whose values those are."""
    masked: list[str] = []
    hidden: dict[str, None] = {}
    flag = ""
    for before, word in zip(["", *words], words, strict=False):
        name, equals, value = word.partition("=")
        if flag:
            shown, holder = word if _is_count(flag, word) else MASK, flag
            flag = ""
        elif equals and not _is_count(name, value) and _holds_secret(word):
            shown, holder = f"{name}={MASK}", name
        else:
            shown = str(mask_secrets(word))
            holder = name if equals and "://" not in name else before
            flag = name if name.startswith("--") and not equals and is_secret_key(name) else ""
        masked.append(shown)
        if shown != word:
            hidden[holder.lstrip("+")] = None
    return masked, list(hidden)


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
