"""Makes rows for the `reasoning_gym` environment: `gym dataset make reasoning_gym -o rows.jsonl`.

The default is one-digit arithmetic, which even a very small model solves now and then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from nemo_gym.builtin.resources_servers.reasoning_gym.package import load_package
from nemo_gym.errors import ConfigError, MissingExtraError, nearest_name

ONE_DIGIT: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "products": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "gcd": {"min_numbers": 2, "max_numbers": 2, "min_value": 2, "max_value": 9},
    "lcm": {"min_numbers": 2, "max_numbers": 2, "min_value": 2, "max_value": 9},
}
"""Two terms of one digit each, by task family."""


def make_rows(
    *,
    size: int = 8,
    seed: int = 0,
    datasets: Mapping[str, Mapping[str, Any] | None] | list[str] | None = None,
    answer_format: str = "last_number",
    max_output_tokens: int = 64,
    temperature: float = 0.8,
) -> Iterator[dict[str, Any]]:
    """Yield `size` rows, the families taking turns.

    `datasets` maps a family to its own settings (a list of names means their defaults); None is one-digit arithmetic.
    `max_output_tokens` bounds each answer: a small model rambles.
    """
    try:
        reasoning_gym = load_package()  # an optional extra
    except ImportError as error:
        raise MissingExtraError(
            "making this dataset needs the package `reasoning-gym`: `pip install 'evidence-gym[envs]'`"
        ) from error
    families = ONE_DIGIT if datasets is None else _settings_of(datasets)
    if not families:
        raise ConfigError("`datasets` is empty: name at least one task family, for example `+datasets=[chain_sum]`")
    per_family = -(-size // len(families))
    made = []
    for name, settings in families.items():
        try:
            made.append((name, reasoning_gym.create_dataset(name, size=per_family, seed=seed, **settings)))
        except ValueError as error:
            known = getattr(reasoning_gym.factory, "DATASETS", {})
            raise ConfigError(f"task family `{name}`: {error}.{nearest_name(name, known)}") from error
        except TypeError as error:
            raise ConfigError(f"task family `{name}`: {error}") from error
    for index in range(size):
        name, dataset = made[index % len(made)]
        entry = dataset[index // len(made)]
        yield {
            "responses_create_params": {
                "input": [{"role": "user", "content": str(entry["question"])}],
                "max_output_tokens": max_output_tokens,
                "temperature": temperature,
            },
            "dataset": name,
            "answer_format": answer_format,
            "question": str(entry["question"]),
            "answer": None if entry["answer"] is None else str(entry["answer"]),
            # Tuples and the like become what a row can hold; the scorers read them back the same way.
            "entry": json.loads(json.dumps(dict(entry), default=str)),
        }


def _settings_of(datasets: Mapping[str, Mapping[str, Any] | None] | list[str]) -> dict[str, dict[str, Any]]:
    if isinstance(datasets, Mapping):
        return {name: dict(settings or {}) for name, settings in datasets.items()}
    return {name: {} for name in datasets}
