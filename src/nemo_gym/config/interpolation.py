"""Resolves interpolations and finds what is not set, all problems at once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from nemo_gym.config.names import MODEL_VALUES
from nemo_gym.errors import ConfigError

UNSET = "???"
_FLAGS = {
    **dict(zip(MODEL_VALUES, ("--model-url URL", "--model-api-key KEY", "--model NAME"), strict=True)),
    "agent_command": "--agent-command CMD",
}

_MISSING_KEY = re.compile(r"Interpolation key '([^']*)' not found")
_MISSING_VARIABLE = re.compile(r"Environment variable '([^']*)' not found")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps a configuration from running.

    `about_model`: only the model is missing, so the rest of the configuration may still be called valid.
    `about_unknown_key`: a key that nothing reads, which a caller may let pass. `error`: the class that is raised when
    it is the only kind of problem.
    """

    message: str
    about_model: bool = False
    about_unknown_key: bool = False
    error: type[ConfigError] = ConfigError


@dataclass(slots=True)
class Resolution:
    """Resolved plain data. A value that could not be resolved is `???` and has its entry in `problems`."""

    data: dict[Any, Any]
    problems: list[Problem] = field(default_factory=list)


def resolve(data: dict[Any, Any]) -> Resolution:
    """Resolve every interpolation in unresolved plain data."""
    try:
        config = OmegaConf.create(data)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the configuration cannot be read: {_first_line(error)}.") from error
    needed_by: dict[str, list[str]] = {}
    other: list[Problem] = []
    result = _resolve_node(config, "", needed_by, other)
    problems = [_unset(name, paths) for name, paths in needed_by.items()]
    return Resolution(result, problems + other)


def _resolve_node(node: Any, prefix: str, needed_by: dict[str, list[str]], other: list[Problem]) -> Any:
    if isinstance(node, DictConfig):
        entries: list[Any] = list(node.keys())
    elif isinstance(node, ListConfig):
        entries = list(range(len(node)))
    else:
        return node
    values: list[Any] = []
    for key in entries:
        path = f"{prefix}.{key}" if prefix else str(key)
        if OmegaConf.is_missing(node, key):
            needed_by.setdefault(path, [])
            values.append(UNSET)
            continue
        try:
            values.append(_resolve_node(node[key], path, needed_by, other))
        except OmegaConfBaseException as error:
            values.append(UNSET)
            _note(error, path, needed_by, other)
        except RecursionError:
            values.append(UNSET)
            other.append(Problem(f"`{path}` is defined by itself."))
    return dict(zip(entries, values, strict=True)) if isinstance(node, DictConfig) else values


def _note(error: OmegaConfBaseException, path: str, needed_by: dict[str, list[str]], other: list[Problem]) -> None:
    text = str(error)
    if variable := _MISSING_VARIABLE.search(text):
        name = variable[1]
        other.append(
            Problem(f"environment variable `{name}` is not set; `{path}` needs it. Run `export {name}=VALUE`.")
        )
    elif key := _MISSING_KEY.search(text):
        needed_by.setdefault(key[1], []).append(path)
    elif not isinstance(error, InterpolationToMissingValueError):  # that value reports itself
        other.append(Problem(f"`{path}` cannot be resolved: {_first_line(error)}."))


def _unset(name: str, paths: list[str]) -> Problem:
    needs = f"; `{paths[0]}` needs it" if paths else ""
    if len(paths) > 1:
        needs = f"; `{paths[0]}` and {len(paths) - 1} more need it"
    flag = f"`{_FLAGS[name]}`, or " if name in _FLAGS else ""
    how = f"Give {flag}`++{name}=VALUE`, or set it in a configuration file or in `env.yaml`."
    return Problem(f"`{name}` is required and not set{needs}. {how}", about_model=name in MODEL_VALUES)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".")
