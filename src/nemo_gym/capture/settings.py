"""The global settings of capture, checked where a server starts (A1, A2, C1, C2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.capture.store import CaptureStore
from nemo_gym.capture.writer import root_is_writable
from nemo_gym.errors import ConfigError
from nemo_gym.records import keys

ARCHIVE_FORMATS = ("none", "zstd")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True, slots=True)
class ModelCallCaptureConfig:
    """Whether model calls are captured, and where. Raises ConfigError when enabled without an absolute directory.

    While capture is off the directory is not looked at. `model_call_capture_archive` is `none` or `zstd`: whether a
    rollout's capture is sealed once its record is written.
    """

    observability_enabled: bool = False
    model_call_capture_dir: Path | None = None
    model_call_capture_archive: str = ARCHIVE_FORMATS[0]

    def __post_init__(self) -> None:
        enabled = _flag(self.observability_enabled)
        object.__setattr__(self, "observability_enabled", enabled)
        archive = self.model_call_capture_archive
        if archive not in ARCHIVE_FORMATS:
            raise ConfigError(f"model_call_capture_archive must be `none` or `zstd`, not `{archive}`")
        given: object = self.model_call_capture_dir
        if given is not None:
            object.__setattr__(self, "model_call_capture_dir", Path(str(given)) if str(given) else None)
        if not enabled:
            return
        if self.model_call_capture_dir is None:
            raise ConfigError("model_call_capture_dir is required when observability_enabled=true")
        if not self.model_call_capture_dir.is_absolute():
            raise ConfigError("model_call_capture_dir must be an absolute path")

    @classmethod
    def from_global_config(cls, config: Mapping[str, Any]) -> ModelCallCaptureConfig:
        """Read the settings from the top level of the global configuration; every other key is ignored."""
        enabled = config.get(keys.OBSERVABILITY_ENABLED)
        archive = config.get(keys.MODEL_CALL_CAPTURE_ARCHIVE)
        return cls(
            False if enabled is None else enabled,
            config.get(keys.MODEL_CALL_CAPTURE_DIR),
            ARCHIVE_FORMATS[0] if archive is None else str(archive).lower(),
        )

    model_validate = from_global_config


def make_capture_store(config: ModelCallCaptureConfig | Mapping[str, Any]) -> CaptureStore | None:
    """Return the store of the run, or None when capture is off.

    Raises ConfigError when the directory cannot be made or written: a run must not start without the evidence it was
    asked for.
    """
    settings = config
    if not isinstance(settings, ModelCallCaptureConfig):
        settings = ModelCallCaptureConfig.from_global_config(settings)
    directory = settings.model_call_capture_dir
    if not settings.observability_enabled or directory is None:
        return None
    problem = root_is_writable(directory)
    if problem is not None:
        raise ConfigError(
            f"model_call_capture_dir `{directory}` cannot be written: {problem.strerror or problem}. "
            "Create it with write permission for the model servers, or set observability_enabled=false"
        )
    return CaptureStore(directory)


def model_call_capture_dirs_from_config(config: Mapping[str, Any]) -> list[Path]:
    """Return the directories that captured calls are in: none when capture is off, else the one configured."""
    settings = ModelCallCaptureConfig.from_global_config(config)
    directory = settings.model_call_capture_dir
    return [directory] if settings.observability_enabled and directory is not None else []


def capture_archive_from_config(config: Mapping[str, Any]) -> bool:
    """Return whether a rollout's capture is sealed once its record is written."""
    return ModelCallCaptureConfig.from_global_config(config).model_call_capture_archive == "zstd"


def observability_enabled_from_config(config: Mapping[str, Any]) -> bool:
    """Return whether `observability_enabled` is on; nothing else is looked at."""
    return _flag(config.get(keys.OBSERVABILITY_ENABLED) or False)


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ConfigError(f"observability_enabled must be true or false, not `{value}`")
