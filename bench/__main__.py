"""`python -m bench [NAME ...]`: every benchmark, or those named."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import bench
from bench.figures import table

SHARED = {"__main__", "figures"}


def main(names: list[str]) -> int:
    """Run benchmarks one after the other and print their figures; 2 for an unknown name."""
    known = sorted(module.name for module in pkgutil.iter_modules(bench.__path__) if module.name not in SHARED)
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no benchmark `{unknown[0]}`; there are {', '.join(known)}", file=sys.stderr)
        return 2
    for name in names or known:
        module = importlib.import_module(f"bench.{name}")
        if not hasattr(module, "run"):
            continue
        print(f"\n# {name}: {(module.__doc__ or '').splitlines()[0]}", flush=True)
        print(table(module.run()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
