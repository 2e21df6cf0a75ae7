"""What a sandbox is asked to be, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeAlias


class SandboxStatus(StrEnum):
    """What a provider says about a sandbox."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SandboxExecResult:
    """How a command ended.

    `return_code`: the command's, negative for a signal. `error_type`: None when the command ended by itself, `timeout`
    (with return code 124) when it was ended.
    """

    stdout: str
    stderr: str
    return_code: int
    error_type: str | None = None


ExecResult: TypeAlias = SandboxExecResult


@dataclass(frozen=True, slots=True)
class SandboxResources:
    """What a sandbox may use; None leaves it to the provider."""

    cpu: float | None = None
    memory_mib: int | None = None
    disk_gib: int | None = None
    gpu: int | None = None
    gpu_type: str | None = None

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SandboxResources:
        """Return the resources of a block of the configuration. Raises `ValueError` listing what may be in it."""
        allowed = [item.name for item in fields(cls)]
        if unknown := [key for key in values if key not in allowed]:
            raise ValueError(f"unknown sandbox resources {_listed(unknown)}; allowed are {_listed(allowed)}")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a sandbox is asked to be.

    `ttl_s`: seconds after which it may be ended. `ready_timeout_s`: seconds that creating it may take. `workdir`: where
    commands run unless they say otherwise. `files`: path in the sandbox -> local path, or the content as bytes.
    `provider_options`: for the provider alone. `ports`: what is reachable through `endpoint`.
    """

    image: str | None = None
    ttl_s: float | None = None
    ready_timeout_s: float | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    provider_options: Mapping[str, Any] = field(default_factory=dict)
    resources: SandboxResources = field(default_factory=SandboxResources)
    entrypoint: Sequence[str] | None = None
    ports: Sequence[int] = ()

    def __post_init__(self) -> None:
        """Accept resources as a mapping; raise `TypeError` or `ValueError` for ports that are none."""
        resources: object = self.resources
        if isinstance(resources, Mapping):
            object.__setattr__(self, "resources", SandboxResources.from_mapping(resources))
        elif not isinstance(resources, SandboxResources):
            raise TypeError(f"`resources` must be `SandboxResources` or a mapping, not `{resources!r}`")
        object.__setattr__(self, "ports", _checked_ports(self.ports))


def _checked_ports(ports: object) -> tuple[int, ...]:
    if isinstance(ports, str | bytes) or not isinstance(ports, Sequence):
        raise TypeError(f"`ports` must be a list of port numbers, not `{ports!r}`")
    for port in ports:
        if not isinstance(port, int) or isinstance(port, bool):
            raise TypeError(f"port `{port!r}` must be a whole number")
        if not 0 < port < 65536:
            raise ValueError(f"port {port} is not from 1 to 65535")
    if len(set(ports)) != len(ports):
        raise ValueError(f"`ports` names a port twice: {list(ports)}")
    return tuple(ports)


def _listed(names: Sequence[object]) -> str:
    return ", ".join(f"`{name}`" for name in names)
