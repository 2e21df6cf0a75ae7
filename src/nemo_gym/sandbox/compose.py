"""Several sandboxes that are started together; no provider of this package can do that."""

from __future__ import annotations

from typing import Any, NoReturn

from nemo_gym.sandbox.errors import SandboxCreateError


class AsyncSandboxCompose:
    """The public name of a group of sandboxes. It can be imported; making one raises `SandboxCreateError`."""

    def __init__(self, *_arguments: Any, **_settings: Any) -> NoReturn:
        raise SandboxCreateError(
            "no sandbox provider of this package starts several sandboxes together. Start one `AsyncSandbox` each."
        )
