"""Showing a run while it goes: a bar on a terminal, a plain line every ten seconds elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import time
from collections.abc import Iterator
from typing import Protocol, TextIO

from nemo_gym.records.status import RunStatus, mean_reward
from nemo_gym.records.visible import visible

logger = logging.getLogger(__name__)

LINE_INTERVAL_S = 10.0
_BAR_INTERVAL_S = 0.25
# OSError: the terminal or the reader is gone. ValueError: the stream was closed.
_WRITE_ERRORS = (OSError, ValueError)


class CollectionObserver(Protocol):
    """What a collection tells its caller while it goes."""

    def note(self, text: str) -> None:
        """Say one line to the user."""

    async def watch(self, status: RunStatus) -> None:
        """Show the counts, which change in place, until cancelled."""


class LoggingObserver:
    """Says notes through logging and shows no progress: for callers that are no terminal."""

    def note(self, text: str) -> None:
        """Log the line."""
        logger.info("%s", text)

    async def watch(self, status: RunStatus) -> None:
        """Do nothing."""


class TerminalProgress:
    """Progress on a text stream, stderr as a rule. `NO_COLOR` and a stream that is no terminal get plain lines.

    A stream that can no longer be written, as when its terminal was closed, is written no more: showing progress never
    fails a run.
    """

    def __init__(self, stream: TextIO, *, line_interval_s: float = LINE_INTERVAL_S) -> None:
        self._stream = stream
        self._interval = line_interval_s
        self._gone = False
        self._draws = stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"

    def note(self, text: str) -> None:
        """Write the line."""
        if self._gone:
            return
        try:
            self._stream.write(visible(text) + "\n")
            self._stream.flush()
        except _WRITE_ERRORS:
            self._gone = True

    async def watch(self, status: RunStatus) -> None:
        """Show done, failed, rate, time left and mean reward until cancelled; the last state stays on the screen."""
        pace = Pace(status)
        if not self._draws:
            await self._write_lines(status, pace)
            return
        try:
            await self._draw(status, pace)
        except _WRITE_ERRORS:
            self._gone = True

    async def _write_lines(self, status: RunStatus, pace: Pace) -> None:
        while not self._gone:
            await asyncio.sleep(self._interval)
            self.note(progress_line(status, pace))

    async def _draw(self, status: RunStatus, pace: Pace) -> None:
        # Only a terminal needs the import.
        from rich.console import Console
        from rich.file_proxy import FileProxy
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("collecting"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[facts]}"))

        class QuietConsole(Console):
            def on_broken_pipe(self) -> None:
                raise BrokenPipeError  # the library's own answer is to end the process

        bar_console = QuietConsole(file=self._stream)
        with (
            Progress(*columns, console=bar_console, auto_refresh=False) as bar,
            _logging_through(FileProxy(bar_console, self._stream), instead_of=self._stream),
        ):
            task = bar.add_task("collecting", total=status.counts.expected, facts="")
            try:
                while True:
                    bar.update(task, completed=finished(status), facts=" · ".join(facts_of(status, pace)), refresh=True)
                    await asyncio.sleep(_BAR_INTERVAL_S)
            finally:
                bar.update(task, completed=finished(status), facts=" · ".join(facts_of(status, pace)), refresh=True)


@contextlib.contextmanager
def _logging_through(proxy: io.TextIOBase, *, instead_of: TextIO) -> Iterator[None]:
    """Let log lines pass above the bar instead of through it."""
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is instead_of
    ]
    for handler in handlers:
        handler.setStream(proxy)
    try:
        yield
    finally:
        for handler in handlers:
            handler.setStream(instead_of)


class Pace:
    """How fast rollouts finish, since this object was made."""

    def __init__(self, status: RunStatus) -> None:
        self._began = time.monotonic()
        self._already = finished(status)

    def rate(self, status: RunStatus) -> float | None:
        """Return rollouts per second, None before the first one finished."""
        done, seconds = finished(status) - self._already, time.monotonic() - self._began
        return done / seconds if done > 0 and seconds > 0 else None

    def seconds_left(self, status: RunStatus) -> float | None:
        """Return the expected time to the end in seconds, None when unknown."""
        rate = self.rate(status)
        return None if rate is None else (status.counts.pending + status.counts.in_flight) / rate


def finished(status: RunStatus) -> int:
    """Return how many rollouts have an outcome; one that was cancelled or never started has none."""
    return status.counts.succeeded + status.counts.failed


def facts_of(status: RunStatus, pace: Pace) -> list[str]:
    """Return what is shown beside the count."""
    rate, left, reward = pace.rate(status), pace.seconds_left(status), mean_reward(status)
    facts = [f"{status.counts.failed} failed"]
    if rate is not None:
        facts.append(f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min")
    if left is not None:
        facts.append(f"{duration_text(left)} left")
    if reward is not None:
        facts.append(f"mean reward {reward:.3f}")
    return facts


def progress_line(status: RunStatus, pace: Pace) -> str:
    """Return one line of progress."""
    counts = status.counts
    percent = 100 * finished(status) / counts.expected if counts.expected else 100.0
    return f"{finished(status)}/{counts.expected} rollouts ({percent:.0f}%), " + ", ".join(facts_of(status, pace))


def duration_text(seconds: float) -> str:
    """Return a duration as `h:mm:ss` or `m:ss`."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
