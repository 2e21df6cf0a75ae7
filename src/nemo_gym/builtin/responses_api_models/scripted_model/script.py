"""Scripts: what `scripted_model` answers, step by step. Pure.

A script is chosen by the request's `metadata.script`, else by the first script whose `match` finds the last user
message, else by the first script without `match`. The step is the number of model turns since that message, so the
same request always gets the same answer, whoever asked before. Texts and arguments may hold `{name}`: a named group of
`match`, or `tool.<key>` of the last tool output; `{name|int}` makes a number of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nemo_gym.errors import ConfigError, ConfigFileNotFoundError, nearest_name

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.]*)(\|int)?\}")
_MODEL_ITEMS = ("function_call", "custom_tool_call", "reasoning")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScriptedCall(_Strict):
    """One tool call of a step; `call_id` is made from the step when it is not given."""

    name: str
    arguments: dict[str, Any] | str = {}
    call_id: str | None = None


class ScriptedError(_Strict):
    """An error answer: HTTP `status`, and `retry_after` in seconds as the Retry-After header."""

    status: int = Field(default=500, ge=400, le=599)
    message: str = "scripted error"
    code: str | None = None
    retry_after: float | None = Field(default=None, ge=0)


class ScriptedUsage(_Strict):
    """Token counts that a step reports."""

    input_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=0)
    cached_tokens: int | None = Field(default=None, ge=0)
    reasoning_tokens: int | None = Field(default=None, ge=0)


class Outcome(_Strict):
    """What one model call comes to.

    `usage` left out means counts made from the lengths of the texts; null means that the answer carries none.
    `delay_s` passes before the first byte, `event_delay_s` between the events of a stream. `cut_after_events` ends a
    stream there without its last event. `finish` is null, `length` or `content_filter`.
    """

    text: str | None = None
    reasoning: str | None = None
    calls: list[ScriptedCall] = []
    usage: ScriptedUsage | None = ScriptedUsage(input_tokens=0, output_tokens=0)
    finish: str | None = Field(default=None, pattern="^(length|content_filter)$")
    error: ScriptedError | None = None
    delay_s: float = Field(default=0.0, ge=0)
    event_delay_s: float = Field(default=0.0, ge=0)
    cut_after_events: int | None = Field(default=None, ge=0)

    @property
    def counts_usage(self) -> bool:
        """Whether the counts are to be made from the lengths of the texts."""
        return "usage" not in self.model_fields_set


class Step(Outcome):
    """One model turn. `attempts` are the outcomes of its first tries, for example two 429 before the answer."""

    attempts: list[Outcome] = []


class Script(_Strict):
    """The turns of one conversation. `variants` are other lists of steps, chosen by the request's seed."""

    name: str
    match: str | None = None
    steps: list[Step] = Field(min_length=1)
    variants: list[list[Step]] = []

    @field_validator("match")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"`match` is not a regular expression: {error}") from error
        return value

    def steps_for(self, seed: int | None) -> list[Step]:
        """Return the steps that a seed selects: the seed modulo the number of step lists, 0 being `steps`."""
        choices = [self.steps, *self.variants]
        return choices[(seed or 0) % len(choices)]


class Chosen(NamedTuple):
    """The step that answers a request, with the values for its placeholders."""

    script: Script
    step_index: int
    step: Step
    values: dict[str, Any]


class ScriptBook(_Strict):
    """All scripts of one server, in the order in which they are tried."""

    scripts: list[Script] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_unique(self) -> ScriptBook:
        names = [script.name for script in self.scripts]
        double = {name for name in names if names.count(name) > 1}
        if double:
            raise ValueError(f"two scripts have the same name: {sorted(double)}")
        return self

    @cached_property
    def by_name(self) -> dict[str, Script]:
        """The scripts by name."""
        return {script.name: script for script in self.scripts}

    def choose(self, request: Mapping[str, Any], *, seed: int | None = None) -> Chosen | str:
        """Return the step for a Responses request, or why there is none."""
        items = input_items(request)
        user_text, after = _last_user_message(items)
        script, values = self._script_for(request, user_text)
        if isinstance(script, str):
            return script
        steps = script.steps_for(seed)
        index = _model_turns(after)
        if index >= len(steps):
            if steps[-1].calls:
                return f"script `{script.name}` has {len(steps)} steps, and the conversation is already past them"
            index = len(steps) - 1
        return Chosen(script, index, steps[index], values | _tool_values(after))

    def _script_for(self, request: Mapping[str, Any], user_text: str) -> tuple[Script | str, dict[str, Any]]:
        metadata = request.get("metadata")
        named = metadata.get("script") if isinstance(metadata, dict) else None
        if named is not None and not isinstance(named, str):
            return f"`metadata.script` must be the name of a script, it is a {type(named).__name__}", {}
        if named is not None:
            script = self.by_name.get(named)
            if script is None:
                return f"there is no script `{named}`.{nearest_name(named, self.by_name)}", {}
            found = re.search(script.match, user_text) if script.match else None
            return script, found.groupdict() if found else {}
        for script in self.scripts:
            found = re.search(script.match, user_text) if script.match else None
            if found is not None:
                return script, found.groupdict()
        for script in self.scripts:
            if script.match is None:
                return script, {}
        return "no script matches the last user message, and none is without `match`", {}


def load_script_book(path: Path) -> ScriptBook:
    """Read a YAML file with a `scripts` list; raises ConfigError naming the place of a mistake."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigFileNotFoundError(f"script file `{path}` does not exist") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"script file `{path}` is not YAML: {error}") from error
    try:
        return ScriptBook.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"script file `{path}`, at `{where}`: {first['msg']}") from error


def render(value: Any, values: Mapping[str, Any]) -> Any:
    """Fill placeholders in strings, inside lists and objects too; an unknown one stays as it is written."""
    if isinstance(value, dict):
        return {key: render(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [render(item, values) for item in value]
    if not isinstance(value, str):
        return value
    whole = _PLACEHOLDER.fullmatch(value)
    if whole and whole[1] in values:
        return int(values[whole[1]]) if whole[2] else values[whole[1]]
    return _PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), value)


def input_items(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the input of a Responses request as a list of items."""
    given = request.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [item for item in given or [] if isinstance(item, dict)]


def text_of(item: Mapping[str, Any]) -> str:
    """Return the text of a message item, its parts joined."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or [] if isinstance(part, dict))


def _last_user_message(items: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    for position in range(len(items) - 1, -1, -1):
        if items[position].get("role") == "user":
            return text_of(items[position]), items[position + 1 :]
    return "", items


def _model_turns(items: list[dict[str, Any]]) -> int:
    turns, inside = 0, False
    for item in items:
        produced = item.get("type") in _MODEL_ITEMS or item.get("role") == "assistant"
        turns += produced and not inside
        inside = produced
    return turns


def _tool_values(items: list[dict[str, Any]]) -> dict[str, Any]:
    for item in reversed(items):
        if str(item.get("type", "")).endswith("_call_output"):
            output = item.get("output")
            try:
                parsed = json.loads(output) if isinstance(output, str) else output
            except ValueError:
                parsed = None
            values = {"tool": output}
            if isinstance(parsed, dict):
                values |= {f"tool.{key}": value for key, value in parsed.items()}
            return values
    return {}
