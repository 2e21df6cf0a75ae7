"""Rollouts of LLM agents, with evidence.

The names that servers are written with are attributes of this package, resolved on first use: importing the package
itself loads nothing heavy.

Importing it also makes component folders (`resources_servers.<name>` and its siblings) importable, keeps tokenizers
from forking threads, and gives Hugging Face libraries a cache below the working directory unless they have one.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

ROOT_DIR = Path(__file__).resolve().parent
"""The package."""
PARENT_DIR = ROOT_DIR.parent
"""What holds the package: `site-packages`, or the source folder of a checkout."""
WORKING_DIR = PARENT_DIR if (PARENT_DIR / "pyproject.toml").is_file() else Path.cwd()
CACHE_DIR = WORKING_DIR / "cache"
RESULTS_DIR = WORKING_DIR / "results"
BUILTIN_DIR = ROOT_DIR / "builtin"
"""The shipped components, laid out like a user's own: `<kind>/<name>/app.py`."""

_BASES = {
    "base_resources_server": (
        "BaseMultiRewardVerifyResponse",
        "BaseResourcesServer",
        "BaseResourcesServerConfig",
        "BaseRunRequest",
        "BaseSeedSessionRequest",
        "BaseSeedSessionResponse",
        "BaseVerifyRequest",
        "BaseVerifyResponse",
        "ReverifyMode",
        "SimpleResourcesServer",
    ),
    "base_responses_api_agent": ("BaseResponsesAPIAgent", "BaseResponsesAPIAgentConfig", "SimpleResponsesAPIAgent"),
    "base_responses_api_model": ("BaseResponsesAPIModel", "BaseResponsesAPIModelConfig", "SimpleResponsesAPIModel"),
    "config_types": (
        "AggregateMetrics",
        "AggregateMetricsRequest",
        "BaseRunServerInstanceConfig",
        "BaseServerConfig",
        "Domain",
        "ModelServerRef",
    ),
    "global_config": ("component_search_roots",),
    "openai_utils": (
        "NeMoGymAsyncOpenAI",
        "NeMoGymChatCompletion",
        "NeMoGymChatCompletionCreateParamsNonStreaming",
        "NeMoGymResponse",
        "NeMoGymResponseCreateParamsNonStreaming",
    ),
    "server_utils": ("SESSION_ID_KEY", "ServerClient", "get_response_json", "raise_for_status"),
}
_LAZY = {name: f"nemo_gym.{module}" for module, names in _BASES.items() for name in names}

__all__ = sorted(  # noqa: PLE0605 - the lazy names are part of it
    [*_LAZY, "CACHE_DIR", "PARENT_DIR", "RESULTS_DIR", "ROOT_DIR", "WORKING_DIR", "__version__"]
)


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module `nemo_gym` has no attribute `{name}`")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def _component_roots() -> list[Path]:
    """Return where component folders are looked for, first wins: named roots, working folder, shipped."""
    named = [Path(entry) for entry in os.environ.get("NEMO_GYM_EXTRA_ROOTS", "").split(os.pathsep) if entry]
    return list(dict.fromkeys([*named, Path.cwd(), BUILTIN_DIR, PARENT_DIR]))


def _resolve_under_cwd_or_install(path: str | Path, *, validator: Callable[[Path], bool] | None = None) -> Path:
    """Return where a relative path is: the first component root that holds it, else the path below the first root.

    `validator` replaces "exists" as the test of a candidate. Absolute paths come back unchanged.
    """
    wanted = Path(path)
    if wanted.is_absolute():
        return wanted
    holds = validator or Path.exists
    roots = _component_roots()
    return next((root / wanted for root in roots if holds(root / wanted)), roots[0] / wanted)


def settle_in_working_folder() -> None:
    """Take the current folder for the working folder, as if imported only now: for a process that was forked."""
    for name in _CACHES:
        if os.environ.get(name) == _cache():
            del os.environ[name]
    working = PARENT_DIR if WORKING_DIR == PARENT_DIR else Path.cwd()
    globals().update(WORKING_DIR=working, CACHE_DIR=working / "cache", RESULTS_DIR=working / "results")
    _prepare_process()


def _prepare_process() -> None:
    for root in _component_roots():
        if str(root) not in sys.path:
            sys.path.append(str(root))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in _CACHES:
        os.environ.setdefault(name, _cache())


_CACHES = ("HF_HOME", "HF_DATASETS_CACHE")


def _cache() -> str:
    return str(CACHE_DIR / "huggingface")


_prepare_process()
