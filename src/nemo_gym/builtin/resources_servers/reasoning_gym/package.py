"""Importing `reasoning_gym`, which loads all its task families with whatever they need."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

_NEEDED_BY_ONE = "cellpylib"
"""What one family makes its boards with. It brings a plotting library: half of the time that the import takes."""


def load_package() -> ModuleType:
    """Import the package; raises ImportError without it. What a single family needs is loaded when it is used."""
    if "reasoning_gym" not in sys.modules and _NEEDED_BY_ONE not in sys.modules:
        _load_when_used(_NEEDED_BY_ONE)
    import reasoning_gym

    module: ModuleType = reasoning_gym
    return module


def _load_when_used(name: str) -> None:
    """Have something stand in for a package until an attribute of it is asked for.

    `importlib.util.LazyLoader` would not do: the second module that imports the package makes it load.
    """
    spec = importlib.util.find_spec(name)
    if spec is None:
        return
    stand_in = importlib.util.module_from_spec(spec)

    def attribute_of(attribute: str) -> Any:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
            importlib.import_module(name)
        return getattr(sys.modules[name], attribute)

    stand_in.__getattr__ = attribute_of  # type: ignore[method-assign]
    sys.modules[name] = stand_in
