"""Loading a file of a component, as its own process would: what is beside it is imported by its bare name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_user_module(file: Path) -> ModuleType:
    """Return the module that a file of a component is; raises what its code raises."""
    for place in (str(file.parents[2]), str(file.parent)):
        if place not in sys.path:
            sys.path.insert(0, place)
    name = f"_gym_{file.stem}_{file.parent.name}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
