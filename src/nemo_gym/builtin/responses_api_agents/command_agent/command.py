"""The command line and the environment of one rollout's process."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError, nearest_name

INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""What a program sees of this machine's environment, beside what `inherit_env` names."""

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_SECRET = re.compile("key|token|secret|passw|credential|auth(?!or)", re.IGNORECASE)


class UnusableTaskError(ValueError):
    """The row's input cannot be said in the words that the command asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where one rollout's process finds things. `base_url` is the model server under the rollout's prefix, no `/v1`.

    `invocation_url` is the same with `{invocation}` in the place of a conversation's name, where calls are captured.
    """

    base_url: str
    invocation_url: str
    tools_url: str
    task_file: str
    report_file: str
    work_dir: str
    home: str
    model: str
    task_id: str
    rollout_id: str

    @property
    def placeholders(self) -> dict[str, str]:
        """What `{name}` in a command stands for, texts of the task aside."""
        return {
            "base_url": self.base_url,
            "openai_base_url": f"{self.base_url}/v1",
            "tools_url": self.tools_url,
            "task_file": self.task_file,
            "report_file": self.report_file,
            "work_dir": self.work_dir,
            "model": self.model,
            "task_id": self.task_id,
            "rollout_id": self.rollout_id,
        }

    def environment(self, api_key: str) -> dict[str, str]:
        """Return the variables that say the same; the key is here and never on a command line."""
        openai_url = f"{self.base_url}/v1"
        return {
            "GYM_MODEL_URL": self.base_url,
            "GYM_INVOCATION_URL": self.invocation_url,
            "GYM_MODEL": self.model,
            "GYM_API_KEY": api_key,
            "GYM_TOOLS_URL": self.tools_url,
            "GYM_TASK_FILE": self.task_file,
            "GYM_REPORT_FILE": self.report_file,
            "GYM_WORK_DIR": self.work_dir,
            "GYM_TASK_ID": self.task_id,
            "GYM_ROLLOUT_ID": self.rollout_id,
            "OPENAI_BASE_URL": openai_url,
            "OPENAI_API_BASE": openai_url,
            "OPENAI_API_KEY": api_key,
            "OPENAI_MODEL": self.model,
            "ANTHROPIC_BASE_URL": self.base_url,
            "ANTHROPIC_API_KEY": api_key,
            "ANTHROPIC_MODEL": self.model,
            "HOME": self.home,
            "TMPDIR": self.work_dir,
        }


TASK_TEXTS = ("prompt", "system")
PLACEHOLDERS = (
    *TASK_TEXTS,
    "base_url",
    "openai_base_url",
    "tools_url",
    "task_file",
    "report_file",
    "work_dir",
    "model",
    "task_id",
    "rollout_id",
)
"""The names that a command may hold in braces."""


def words_of(command: str | Sequence[str]) -> list[str]:
    """Return the words of a command. A text is split as a shell does, but no shell runs it.

    Raises ConfigError when there is none, or when a `{name}` in it means nothing.
    """
    try:
        words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    except ValueError as error:
        raise ConfigError(f"the agent's command cannot be split into words: {error}") from error
    if not words or not words[0]:
        raise ConfigError("the agent has no command. Give one with `--agent-command 'PROGRAM ARGUMENTS'`")
    for word in words:
        for name in _PLACEHOLDER.findall(word):
            if name not in PLACEHOLDERS:
                known = ", ".join(f"`{{{known}}}`" for known in PLACEHOLDERS)
                raise ConfigError(
                    f"the agent's command has `{{{name}}}`, which stands for nothing."
                    f"{nearest_name(name, PLACEHOLDERS)} There are {known}. Braces that mean themselves belong into a "
                    "script that the command runs"
                )
    return words


def check_program(words: Sequence[str], *, directory: str | None, path: str | None) -> None:
    """Raise ConfigError when the program is not there; one with a placeholder in its name is left to the task."""
    name = words[0]
    at = str(Path(directory or "/", name)) if "/" in name else name
    if "{" not in name and shutil.which(at, path=path) is None:
        raise ConfigError(f"the agent's command names a program that is not there or cannot be run: `{name}`")


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its placeholders filled, once; other braces stay."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def arguments(words: Sequence[str], params: Mapping[str, Any], places: Places) -> list[str]:
    """Return the command line for a task; raises UnusableTaskError when `{prompt}` would leave something out."""
    asked = {name for word in words for name in _PLACEHOLDER.findall(word)}
    values = places.placeholders
    if asked & set(TASK_TEXTS):
        prompt, system = task_texts(params)
        if system and not asked & {"system", "task_file"}:
            raise UnusableTaskError(
                "the task has system text, which `{prompt}` leaves out; use `{system}` too, or `{task_file}`"
            )
        values = {**values, "prompt": prompt, "system": system}
    line = [filled(word, values) for word in words]
    if any("\0" in word for word in line):
        raise UnusableTaskError("the task's text has a NUL character, where a command line ends; use `{task_file}`")
    return line


def task_texts(params: Mapping[str, Any]) -> tuple[str, str]:
    """Return (prompt, system text) of Responses params whose input is one user message after system messages."""
    given, system = params.get("input"), []
    if params.get("instructions"):
        system.append(str(params["instructions"]))
    items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or [])
    while items and items[0].get("role") in ("system", "developer"):
        system.append(_text(items.pop(0)))
    if len(items) != 1 or items[0].get("role") != "user":
        raise UnusableTaskError(
            f"`{{prompt}}` needs a task of one user message, and this one has {len(items)} items; use `{{task_file}}`"
        )
    return _text(items[0]), "\n\n".join(system)


def _text(item: Mapping[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise UnusableTaskError("`{prompt}` holds text only, and the task's message has other parts; use `{task_file}`")
    return "".join(map(str, texts))


def without_secrets(text: str, environment: Mapping[str, str]) -> str:
    """Return a text without the values of variables that are named like a secret."""
    for value in secret_values(environment):
        text = text.replace(value, "[hidden]")
    return text


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return the values of variables that are named like a secret, longest first: one may begin with another."""
    values = {value for name, value in environment.items() if _SECRET.search(name) and len(value) >= 8}
    return sorted(values, key=len, reverse=True)
