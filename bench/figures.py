"""What a benchmark reports, and how it is repeated."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_KERNEL_THREAD = 0x00200000
"""`PF_KTHREAD` among the flags in `/proc/N/stat`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure: `values` of at least five runs, the `floor` from the same run, and the budget it must keep.

    `budget` is an absolute bound in `unit`, `ratio_budget` one on the ratio to the floor; None means that there is
    none. `in_turns` says that value and floor were measured one right after the other each time: then the ratio is the
    median of theirs, which a machine that is busy for a while changes less than the ratio of the medians.
    `more_is_better` turns the comparison round.
    """

    path: str
    unit: str
    values: list[float]
    floor: list[float] | None = None
    budget: float | None = None
    ratio_budget: float | None = None
    in_turns: bool = False
    more_is_better: bool = False

    @property
    def median(self) -> float:
        """The median of the runs."""
        return statistics.median(self.values)

    @property
    def ratio(self) -> float | None:
        """The median beside the floor's, or the median of the runs' own ratios."""
        if self.floor and self.in_turns:
            return statistics.median(value / least for value, least in zip(self.values, self.floor, strict=True))
        return self.median / statistics.median(self.floor) if self.floor else None

    @property
    def keeps_its_budget(self) -> bool | None:
        """Whether the figure keeps what it must; None without a budget."""
        checks = []
        if self.budget is not None:
            checks.append(self.median >= self.budget if self.more_is_better else self.median <= self.budget)
        if self.ratio_budget is not None and self.ratio is not None:
            checks.append(self.ratio >= self.ratio_budget if self.more_is_better else self.ratio <= self.ratio_budget)
        return all(checks) if checks else None


def kernel_seconds() -> float | None:
    """Return the CPU time of all kernel threads of this machine so far; None where they cannot be seen.

    Writing back and syncing are done by them, for whoever asked: it is in no process's own CPU time.
    """
    nanoseconds = [_kernel_thread_ns(folder) for folder in Path("/proc").glob("[0-9]*")]
    known = [found for found in nanoseconds if found is not None]
    return sum(known) / 1e9 if known else None


def _kernel_thread_ns(folder: Path) -> int | None:
    try:
        flags = int((folder / "stat").read_text().rpartition(")")[2].split()[6])
        return int((folder / "schedstat").read_text().split()[0]) if flags & _KERNEL_THREAD else None
    except (OSError, ValueError, IndexError):  # gone meanwhile, or another kind of system
        return None


def cpu_seconds() -> float:
    """Return the CPU time of this process, user and system, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def repeated(measure: Callable[[], float], *, runs: int = 5) -> list[float]:
    """Return what `measure` returned in each run, after one that is thrown away."""
    measure()
    return [measure() for _ in range(runs)]


def alternated(*measures: Callable[[], float], runs: int = 5) -> list[list[float]]:
    """Return what each of `measures` returned in each run; they take turns, so that a slow minute is all theirs."""
    rounds = [[measure() for measure in measures] for _ in range(runs + 1)]
    return [list(values) for values in zip(*rounds[1:], strict=True)]


def wall_seconds(work: Callable[[], Any]) -> float:
    """Return how long `work` takes, in seconds."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def table(figures: list[Figure]) -> str:
    """Return the figures as aligned text: median, spread, floor, ratio, budget."""
    head = ("path", "unit", "median", "min..max", "floor", "ratio", "budget", "")
    rows = [head]
    for figure in figures:
        floor = f"{statistics.median(figure.floor):.4g}" if figure.floor else "-"
        ratio = f"{figure.ratio:.2f}x" if figure.ratio is not None else "-"
        sign = ">=" if figure.more_is_better else "<="
        budgets = [f"{sign} {figure.budget:g}"] if figure.budget is not None else []
        budgets += [f"{sign} {figure.ratio_budget:g}x"] if figure.ratio_budget is not None else []
        kept = {None: "", True: "ok", False: "OVER"}[figure.keeps_its_budget]
        spread = f"{min(figure.values):.4g}..{max(figure.values):.4g}"
        rows.append((figure.path, figure.unit, f"{figure.median:.4g}", spread, floor, ratio, ", ".join(budgets), kept))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
