"""Sandboxes: a place of its own for the commands of one rollout, behind a provider that is chosen by configuration."""

from __future__ import annotations

from nemo_gym.sandbox.compose import AsyncSandboxCompose
from nemo_gym.sandbox.config import resolve_provider_config, resolve_provider_metadata
from nemo_gym.sandbox.errors import SandboxCreateError, SandboxCreateVerificationError
from nemo_gym.sandbox.images import rewrite_image
from nemo_gym.sandbox.lifecycle import AsyncSandbox
from nemo_gym.sandbox.providers.base import SandboxProvider
from nemo_gym.sandbox.registry import create_provider, get_provider_class, list_providers, register_provider
from nemo_gym.sandbox.spec import ExecResult, SandboxExecResult, SandboxResources, SandboxSpec, SandboxStatus

__all__ = [
    "AsyncSandbox",
    "AsyncSandboxCompose",
    "ExecResult",
    "SandboxCreateError",
    "SandboxCreateVerificationError",
    "SandboxExecResult",
    "SandboxProvider",
    "SandboxResources",
    "SandboxSpec",
    "SandboxStatus",
    "create_provider",
    "get_provider_class",
    "list_providers",
    "register_provider",
    "resolve_provider_config",
    "resolve_provider_metadata",
    "rewrite_image",
]
