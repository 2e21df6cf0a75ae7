"""The prompt file of a run: what turns a row without input into one with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from nemo_gym.errors import ConfigError
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject


def load_prompt(path: str | None) -> tuple[Callable[[JsonObject], JsonObject] | None, str | None]:
    """Return what applies the prompt file to a row, and the file's digest; (None, None) without a file.

    Raises what reading the file raises, and ConfigError from a row that has an input of its own.
    """
    if path is None:
        return None, None
    from nemo_gym.servers.prompts import apply_prompt_to_row, load_prompt_config  # most runs have no prompt file

    prompt = load_prompt_config(path)
    digest = hashlib.sha256(f"{prompt.system}\0{prompt.user}".encode()).hexdigest()

    def apply(row: JsonObject) -> JsonObject:
        params = row.get(keys.RESPONSES_CREATE_PARAMS)
        if isinstance(params, dict) and params.get("input"):
            raise ConfigError(
                f"`--prompt-config {path}` (`prompt_config`) needs rows without `responses_create_params.input`; "
                "this one has it"
            )
        return apply_prompt_to_row(row, prompt)

    return apply, digest
