"""Giving the memory that caches a long file back, where its bytes are durable and nobody is going to want them soon."""

from __future__ import annotations

import contextlib
import os

KEPT_BYTES = 1 << 30
"""The end of a file that stays in memory, for what reads it next. Shorter files stay whole."""
_STEP_BYTES = 8 << 20
_MOST_STEPS = 8
"""Released at once at most, so that the first call for a long file, after a resume, does not hold up the loop."""


class WrittenPages:
    """The cached pages of one file that is only appended to.

    A run of a hundred thousand rollouts writes more than many machines have memory. Left alone, its file takes the
    place of what agents and model servers have cached, counts towards the memory limit of a container, and every new
    line is copied into memory that was not used before, which costs several times the copy.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._released = 0

    def durable_until(self, end: int) -> None:
        """Release what lies more than KEPT_BYTES before `end`, up to which every byte is durable."""
        until = min((end - KEPT_BYTES) // _STEP_BYTES * _STEP_BYTES, self._released + _MOST_STEPS * _STEP_BYTES)
        if until <= self._released or not hasattr(os, "posix_fadvise"):
            return
        # It is advice: a file system that does not take it keeps its pages.
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._fd, self._released, until - self._released, os.POSIX_FADV_DONTNEED)
        self._released = until
