"""Prompts kept beside the data: a YAML file with placeholders that a row's fields fill."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from pydantic import BaseModel

from nemo_gym.config import component_search_roots
from nemo_gym.config.sources import read_yaml
from nemo_gym.errors import ConfigError, ConfigFileNotFoundError, DataError
from nemo_gym.records import codec, keys


class PromptConfig(BaseModel):
    """A prompt: what the user says, and optionally what the system says before."""

    user: str
    system: str | None = None


@functools.lru_cache(maxsize=64)
def load_prompt_config(path: str) -> PromptConfig:
    """Return the prompt in a YAML file, read once per path.

    A relative path is searched below the component roots. Raises `ConfigFileNotFoundError` (a FileNotFoundError),
    `ConfigError` for what is no YAML, or pydantic's ValidationError when `user` is missing.
    """
    wanted = Path(path)
    roots = [Path(root) for root in component_search_roots()]
    candidates = [wanted] if wanted.is_absolute() else [root / wanted for root in roots]
    found = next((candidate for candidate in candidates if candidate.is_file()), None)
    if found is None:
        listed = ", ".join(f"`{candidate}`" for candidate in candidates)
        raise ConfigFileNotFoundError(f"prompt file `{path}` was not found; looked at {listed}")
    return PromptConfig.model_validate(read_yaml(found))


class _PlainNames(Formatter):
    """Fills `{name}` only: attribute and index access would let data reach into objects."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        if any(mark in field_name for mark in ".["):
            raise ConfigError(f"placeholder `{{{field_name}}}` must be a plain field name")
        return self.get_value(field_name, args, kwargs), field_name


def fill_prompt(cfg: PromptConfig, row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the messages of a row, system first; an unknown placeholder raises KeyError listing the row's fields."""
    fill = functools.partial(_fill, row=row)
    messages = [{"role": "user", "content": fill(cfg.user)}]
    if cfg.system is not None:
        messages.insert(0, {"role": "system", "content": fill(cfg.system)})
    return messages


def _fill(text: str, *, row: Mapping[str, Any]) -> str:
    try:
        return _PlainNames().vformat(text, (), row)
    except (KeyError, IndexError) as error:
        fields = ", ".join(f"`{name}`" for name in row)
        raise KeyError(f"the prompt names {error}, which the row does not have; its fields are {fields}") from error


def apply_prompt_to_row(row: Mapping[str, Any], cfg: PromptConfig) -> dict[str, Any]:
    """Return a copy of the row whose request asks the filled prompt; other settings of the request are kept."""
    params = row.get(keys.RESPONSES_CREATE_PARAMS)
    request = dict(params) if isinstance(params, Mapping) else {}
    request["input"] = fill_prompt(cfg, row)
    return {**row, keys.RESPONSES_CREATE_PARAMS: request}


def validate_prompt_compatibility(rows: Sequence[Mapping[str, Any]], _cfg: PromptConfig) -> None:
    """Raise ValueError listing the rows that bring their own input, which a prompt would overwrite."""
    taken = [
        index
        for index, row in enumerate(rows)
        if isinstance(params := row.get(keys.RESPONSES_CREATE_PARAMS), Mapping) and params.get("input")
    ]
    if taken:
        more = " ..." if len(taken) > 20 else ""
        raise ConfigError(
            f"a prompt cannot be applied to rows that have an input already: {', '.join(map(str, taken[:20]))}{more}"
        )


def materialize_prompts(input_jsonl: str | Path, prompt_config: str, output_jsonl: str | Path) -> None:
    """Write a copy of a JSONL file with the prompt filled into each row; parent folders are made."""
    cfg = load_prompt_config(str(prompt_config))
    rows = _read_rows(Path(input_jsonl), codec.decode_object)
    validate_prompt_compatibility(rows, cfg)
    output = Path(output_jsonl)
    output.parent.mkdir(parents=True, exist_ok=True)
    lines = (codec.encode_line({**apply_prompt_to_row(row, cfg), "prompt_config_used": prompt_config}) for row in rows)
    with output.open("wb") as file:
        file.writelines(lines)


def _read_rows(path: Path, decode: Callable[[bytes], dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(decode(line))
        except ValueError as error:
            raise DataError(str(error), path=path, line=number) from error
    return rows
