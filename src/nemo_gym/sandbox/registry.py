"""Which sandbox providers there are, by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from nemo_gym.errors import ConfigError, nearest_name
from nemo_gym.sandbox.providers.base import SandboxProvider
from nemo_gym.sandbox.providers.local import LocalProvider

NOT_SHIPPED: Final = ("apptainer", "daytona", "docker", "e2b", "ecs_fargate", "enroot", "opensandbox", "openshell")
"""Names that configurations written for this interface use, and for which a class must be registered first."""

_registered: dict[str, type[Any]] = {"local": LocalProvider}


def register_provider(name: str, provider_class: type[Any], *, replace: bool = False) -> None:
    """Make a provider class known by `name`. Raises `ValueError` when another class has it, unless `replace`."""
    if not replace and _registered.get(name, provider_class) is not provider_class:
        raise ValueError(f"sandbox provider `{name}` is registered already, as `{_registered[name].__qualname__}`")
    _registered[name] = provider_class


def list_providers() -> list[str]:
    """Return the names of the providers that can be created, sorted."""
    return sorted(_registered)


def known_provider_names() -> list[str]:
    """Return the names of the providers that can be created or registered under a well-known name, sorted."""
    return sorted({*_registered, *NOT_SHIPPED})


def get_provider_class(name: str) -> type[Any]:
    """Return the class behind a name. Raises `ConfigError` (a `ValueError`) saying what there is."""
    if name in _registered:
        return _registered[name]
    if name in NOT_SHIPPED:
        raise ConfigError(
            f"sandbox provider `{name}` is not part of this package. Register a class of your own with "
            f'`nemo_gym.sandbox.register_provider("{name}", YourProvider)` before the sandbox is made, or use `local`.'
        )
    listed = ", ".join(f"`{known}`" for known in list_providers())
    raise ConfigError(f"no sandbox provider is called `{name}`.{nearest_name(name, list_providers())} Known: {listed}.")


def create_provider(config: Mapping[str, Any]) -> SandboxProvider:
    """Return a new provider from `{name: settings}`. Raises `ConfigError` for unknown names and settings."""
    if not isinstance(config, Mapping):
        raise TypeError(f"a sandbox provider is given as `{{name: settings}}`, not as `{config!r}`")
    if len(config) != 1:
        raise ConfigError(f"a sandbox provider is given as `{{name: settings}}` with one name, not {sorted(config)}.")
    name, settings = next(iter(config.items()))
    provider_class = get_provider_class(str(name))
    values = dict(settings or {})
    try:
        inspect.signature(provider_class).bind(**values)
    except TypeError as error:
        raise ConfigError(f"settings of sandbox provider `{name}`: {error}.") from error
    provider: SandboxProvider = provider_class(**values)
    return provider
