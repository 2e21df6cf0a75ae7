"""Files below one folder, opened so that neither `..` nor a symbolic link leads out of it.

The path is resolved first, so links that stay inside work; then every step is opened without following links, so that
a link which is put there in between is refused too.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path, PurePosixPath


def inside(root: Path, path: str) -> Path:
    """Return the resolved place of a path of the sandbox. Raises `ValueError` when it is outside `root`.

    An absolute path that is not below `root` is taken from `root`, as it would be in a container.
    """
    if "\0" in path:
        raise ValueError("a path cannot hold a zero byte")
    given = PurePosixPath(path)
    if given.is_absolute() and not given.is_relative_to(root):
        given = given.relative_to("/")
    resolved = (root / given).resolve()
    if not resolved.is_relative_to(root):
        raise ValueError(f"`{path}` is outside the sandbox")
    return resolved


def open_inside(root: Path, path: str, *, write: bool) -> int:
    """Return a descriptor of a regular file below `root`; when writing, the file and its folders are made.

    Raises `ValueError` for a path that leads out, `OSError` naming the path for what cannot be opened.
    """
    parts = inside(root, path).relative_to(root).parts
    if not parts:
        raise IsADirectoryError(21, "is a folder", path)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for part in parts[:-1]:
            if write:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        # Opening must not wait: what is there may be a pipe.
        flags = (os.O_WRONLY | os.O_CREAT if write else os.O_RDONLY) | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(parts[-1], flags, 0o666, dir_fd=folder)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from error
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ValueError(f"`{path}` is not a regular file")
    return file
