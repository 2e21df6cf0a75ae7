"""From a reference in a server's configuration to a provider and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config import get_global_config_dict
from nemo_gym.errors import ConfigError, nearest_name
from nemo_gym.sandbox.registry import known_provider_names

DEFAULT_METADATA = "default_metadata"


def resolve_provider_config(
    ref: str | Mapping[str, Any], named_configs: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Return `{provider: settings}` for the name of a top-level block, or for such a block itself.

    `named_configs`: where a name is looked up; None is the configuration of this process. Raises `ConfigError` (a
    `ValueError`) for a name that does not exist and a block without exactly one provider, `TypeError` for other types.
    """
    block = {key: value for key, value in _block(ref, named_configs).items() if key != DEFAULT_METADATA}
    if len(block) != 1:
        has = ", ".join(f"`{key}`" for key in block) or "none"
        raise ConfigError(f"sandbox provider {_named(ref)} must have exactly one provider in it; it has {has}.")
    provider, settings = next(iter(block.items()))
    if settings is not None and not isinstance(settings, Mapping):
        raise TypeError(f"the settings of sandbox provider `{provider}` must be a mapping, not `{settings!r}`")
    return {provider: dict(settings or {})}


def resolve_provider_metadata(
    ref: str | Mapping[str, Any], named_configs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the `default_metadata` of the block that `ref` means; {} without any."""
    metadata = _block(ref, named_configs).get(DEFAULT_METADATA)
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise TypeError(f"`{DEFAULT_METADATA}` of {_named(ref)} must be a mapping, not `{metadata!r}`")
    return dict(metadata)


def _block(ref: object, named_configs: Mapping[str, Any] | None) -> dict[str, Any]:
    if isinstance(ref, str):
        named = _plain(get_global_config_dict() if named_configs is None else named_configs)
        if ref not in named:
            candidates = sorted(name for name, value in named.items() if _is_provider_block(value))
            hint = nearest_name(ref, candidates)
            listed = ", ".join(f"`{name}`" for name in candidates) or "none"
            raise ConfigError(
                f"no sandbox provider block `{ref}` is in the configuration.{hint} Candidates: {listed}. "
                f"A block looks like `{ref}: {{local: {{}}}}`."
            )
        found = named[ref]
    else:
        found = _plain(ref) if isinstance(ref, Mapping | DictConfig) else ref
    if not isinstance(found, Mapping):
        raise TypeError(f"sandbox provider {_named(ref)} must be a mapping `{{provider: settings}}`, not `{found!r}`")
    return dict(found)


def _is_provider_block(value: object) -> bool:
    keys = [key for key in value if key != DEFAULT_METADATA] if isinstance(value, Mapping) else []
    return len(keys) == 1 and keys[0] in known_provider_names()


def _plain(config: Any) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else config
    return {str(key): _plain(value) if isinstance(value, DictConfig) else value for key, value in content.items()}


def _named(ref: object) -> str:
    return f"block `{ref}`" if isinstance(ref, str) else "block"
