"""The prompt file of a run: what turns a row without input into one with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from nemo_gym.errors import ConfigError
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject


def load_prompt(path: str | None) -> tuple[Callable[[JsonObject], JsonObject] | None, str | None]:
    """Return what applies the prompt file to a row, and the file's digest; (None, None) without a file.

    Raises ConfigError for a file that is no prompt, and from a row that has an input of its own or lacks a field.
    """
    if path is None:
        return None, None
    from pydantic import ValidationError

    from nemo_gym.servers.prompts import apply_prompt_to_row, load_prompt_config  # most runs have no prompt file

    try:
        prompt = load_prompt_config(path)
    except ValidationError as error:
        wrong = "; ".join(f"`{'.'.join(map(str, each['loc']))}`: {each['msg']}" for each in error.errors())
        raise ConfigError(f"`prompt_config={path}` is no prompt: {wrong}. It needs a text `user`") from error
    digest = hashlib.sha256(f"{prompt.system}\0{prompt.user}".encode()).hexdigest()

    def apply(row: JsonObject) -> JsonObject:
        params = row.get(keys.RESPONSES_CREATE_PARAMS)
        if isinstance(params, dict) and params.get("input"):
            raise ConfigError(
                f"`--prompt-config {path}` (`prompt_config`) needs rows without `responses_create_params.input`; "
                "this one has it"
            )
        try:
            return apply_prompt_to_row(row, prompt)
        except (KeyError, ValueError, TypeError) as error:  # what filling in a field raises, whatever is in it
            raise ConfigError(f"`prompt_config={path}` cannot be filled in: {error.args[0]}") from error

    return apply, digest
