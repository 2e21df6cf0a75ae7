"""Values of settings that only show what is wrong with them when something is already running, checked before."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nemo_gym.config import names
from nemo_gym.config.interpolation import UNSET, Problem
from nemo_gym.config.roots import INSTALL_ROOT
from nemo_gym.config.servers import ServerBlock
from nemo_gym.errors import nearest_name

DATASET_TYPES = ("train", "validation", "example", "benchmark")

_TEXT_SETTINGS = (names.DEFAULT_HOST, names.LOG_DIR, "results_dir", "cache_dir")
_DATASET_KEYS = (
    *("name", "type", "jsonl_fpath", "num_repeats", "prompt_config", "prepare_script", "prepare_dependencies"),
    *("license", "source", "gitlab_identifier", "huggingface_identifier", "taskset", "agent"),
)
_TYPO_CUTOFF = 0.85


def setting_problems(data: Mapping[Any, Any]) -> list[Problem]:
    """Find top-level settings of the launcher that are no number, port or text."""
    problems: list[Problem] = []
    for key in (names.SPINUP_TIMEOUT, names.ENDPOINT_TIMEOUT):
        if not _absent(value := data.get(key)) and not _is_duration(value):
            problems.append(Problem(f"`{key}` must be a number of seconds, 0 or more, not `{value}`."))
    for key in (names.PORT_RANGE_LOW, names.PORT_RANGE_HIGH):
        if not _absent(value := data.get(key)) and not _is_port(value):
            problems.append(Problem(f"`{key}` must be a number from 1 to 65535, not `{value}`."))
    ports = data.get(names.DISALLOWED_PORTS)
    if not _absent(ports) and not (isinstance(ports, list) and all(map(_is_port, ports))):
        problems.append(Problem(f"`{names.DISALLOWED_PORTS}` must be a list of port numbers, not `{ports}`."))
    for key in _TEXT_SETTINGS:
        if not _absent(value := data.get(key)) and not isinstance(value, str):
            problems.append(Problem(f"`{key}` must be text, not `{value}`."))
    repeats = data.get("num_repeats")
    if not _absent(repeats) and not isinstance(repeats, Mapping) and not _is_count(repeats):
        problems.append(Problem(f"`num_repeats` must be a whole number, 1 or more, not `{repeats}`."))
    head = data.get(names.HEAD_SERVER)
    if isinstance(head, Mapping) and not _absent(host := head.get("host")) and not isinstance(host, str):
        problems.append(Problem(f"`{names.HEAD_SERVER}.host` must be text, not `{host}`."))
    return problems


def dataset_problems(blocks: Sequence[ServerBlock]) -> list[Problem]:
    """Find what is wrong with the `datasets` that server blocks declare, each with the place where it is."""
    problems: list[Problem] = []
    for block in blocks:
        declared = block.settings.get("datasets")
        if _absent(declared):
            continue
        if not isinstance(declared, list):
            problems.append(Problem(f"{block.label}: `datasets` must be a list of mappings, not `{declared}`."))
            continue
        for position, entry in enumerate(declared):
            where = f"{block.label}: `datasets[{position}]`"
            problems += [Problem(f"{where}{text}") for text in _wrong_in_dataset(entry)]
    return problems


def _wrong_in_dataset(entry: object) -> Iterator[str]:
    if not isinstance(entry, Mapping):
        yield f" must be a mapping with `name`, `type` and `jsonl_fpath`, not `{entry}`."
        return
    for key in entry:
        close = difflib.get_close_matches(str(key), _DATASET_KEYS, n=1, cutoff=_TYPO_CUTOFF)
        if close and key not in _DATASET_KEYS:
            yield f": unknown key `{key}`. Did you mean `{close[0]}`?"
    for key in ("type", "jsonl_fpath"):
        if key not in entry:
            yield f" needs a `{key}`."
    for key in ("name", "type", "jsonl_fpath", "prompt_config", "prepare_script", "agent"):
        if not _absent(value := entry.get(key)) and not isinstance(value, str):
            yield f": `{key}` must be text, not `{value}`."
    kind = entry.get("type")
    if isinstance(kind, str) and kind not in (*DATASET_TYPES, UNSET):
        hint = nearest_name(kind, DATASET_TYPES) or f" Types are {', '.join(f'`{name}`' for name in DATASET_TYPES)}."
        yield f": `{kind}` is no type of dataset.{hint}"
    repeats = entry.get("num_repeats")
    if not _absent(repeats) and not _is_count(repeats):
        yield f": `num_repeats` must be a whole number, 1 or more, not `{repeats}`."


def model_url_problems(blocks: Sequence[ServerBlock]) -> list[Problem]:
    """Find addresses of models, in `..._base_url` settings of model servers, that are no URL."""
    problems: list[Problem] = []
    for block in blocks:
        if block.kind != names.MODELS:
            continue
        shipped = block.directory is not None and block.directory.is_relative_to(INSTALL_ROOT)
        for key, value in block.settings.items():
            if not str(key).endswith("base_url"):
                continue
            for url in value if isinstance(value, list) else [value]:
                # A server of the user's own may take an empty address for one that it knows itself.
                if isinstance(url, str) and url != UNSET and (url or shipped) and (wrong := url_problem(url)):
                    problems.append(Problem(f"{block.label}: `{key}` {wrong} `--model-url URL` gives another."))
    return problems


def url_problem(url: str) -> str | None:
    """Say why `url` is not where a model could be served, or None."""
    if not url.strip():
        return "is empty; it must be a URL such as `http://localhost:8000/v1`."
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in ("http", "https"):
        return f"`{url}` must begin with `http://` or `https://`, as in `http://{rest or url}`."
    return None if rest.strip("/") else f"`{url}` names no host."


def _absent(value: object) -> bool:
    return value is None or value == UNSET


def _is_duration(value: object) -> bool:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return False
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _is_count(value: object) -> bool:
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else value
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def _is_port(value: object) -> bool:
    """Whether a value is a port number; text from an environment variable counts."""
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 6 else value
    return isinstance(number, int) and not isinstance(number, bool) and 0 < number < 65536
