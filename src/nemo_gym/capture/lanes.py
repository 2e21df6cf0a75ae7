"""The threads of the writer: a pool that runs tasks, started on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Lane:
    """Up to `threads` daemon threads that run tasks in the order given. Tasks must not raise."""

    def __init__(self, name: str, threads: int) -> None:
        self._name, self._limit = name, threads
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._open = 0

    def run(self, task: Callable[[], None]) -> None:
        """Queue a task, with one more thread for it when all are busy and more are allowed."""
        with self._lock:
            self._open += 1
            if self._threads < min(self._open, self._limit):
                name = f"{self._name}-{self._threads}"
                self._threads += 1
                threading.Thread(target=self._work, args=(self._tasks,), name=name, daemon=True).start()
        self._tasks.put(task)

    def close(self) -> None:
        """Let the threads end after what is queued."""
        with self._lock:
            for _ in range(self._threads):
                self._tasks.put(None)
            self._threads = 0

    def _work(self, tasks: SimpleQueue[Callable[[], None] | None]) -> None:
        while (task := tasks.get()) is not None:
            task()
            del task  # an idle thread keeps nothing alive
            with self._lock:
                self._open -= 1
