"""One writer per run: an advisory lock that the operating system releases when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType

from nemo_gym.errors import BoundaryError

_FOLDER_TRIES = 100


class RunLockedError(BoundaryError, RuntimeError):
    """Another live process, or another recording in this one, writes the same run."""


class RunLock:
    """An exclusive, non-blocking lock on a run's lock file; the file itself stays behind, empty of meaning.

    `make_folder` makes its folder where there is none.
    """

    def __init__(self, path: str | Path, *, make_folder: bool = False) -> None:
        self.path = Path(path)
        self._make_folder = make_folder
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock; raises RunLockedError when someone else holds it."""
        while True:
            fd = self._locked()
            if _is_at(fd, self.path):
                break
            os.close(fd)  # its holder removed it between our two steps
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._fd = fd

    def _locked(self) -> int:
        fd = self._opened()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            who = f" (process {holder})" if holder else ""
            raise RunLockedError(
                f"`{self._run()}` is being written by another process{who}. "
                "Wait for it, stop it, or write to another output."
            ) from None
        except OSError:
            os.close(fd)
            raise
        return fd

    def _run(self) -> Path:
        """Return what the lock stands for, as the names of a run's files begin."""
        return self.path.with_name(self.path.name.removeprefix(".").removesuffix(".lock"))

    def _opened(self) -> int:
        for further_tries in range(_FOLDER_TRIES if self._make_folder else 0, -1, -1):
            try:
                if self._make_folder:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except (FileNotFoundError, FileExistsError):
                # A run beside this one that came to nothing took the folder away again, between our two steps, or
                # between those of `mkdir`, which found it there and then did not.
                if not further_tries:
                    raise
        raise AssertionError("the last try returns or raises")

    def remove(self) -> None:
        """Remove the file of a lock that is held; it is given back as ever."""
        if self._fd >= 0:
            self.path.unlink(missing_ok=True)

    def release(self) -> None:
        """Give the lock back; idempotent."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _is_at(fd: int, path: Path) -> bool:
    """Return whether an open file is the one that has the name."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), path.stat())
    return False
