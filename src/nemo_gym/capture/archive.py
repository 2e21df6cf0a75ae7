"""Sealed captures: a finished rollout's lines as one zstd frame, `<id>.capture.jsonl.zst`.

Each turn repeats the history before it, so one frame with a long window over the whole file is 50 to 200 times smaller;
any `zstd` tool reads it (`zstd -d --long=27`).
"""

from __future__ import annotations

import os
from pathlib import Path

import zstandard

from nemo_gym.capture import files
from nemo_gym.errors import DataError

SEALED_SUFFIX = ".zst"
_WINDOW_LOG = 27
_LEVEL = 3


def sealed_path(path: Path) -> Path:
    """Return where the sealed form of a data file is."""
    return path.with_name(path.name + SEALED_SUFFIX)


def read_lines(path: Path, *, lock: bool = True) -> bytes:
    """Return all lines of a data file, sealed ones first; b"" without either file.

    Raises DataError when the sealed file is damaged. `lock` is False for who has locked the data file already.
    """
    plain = files.read_whole(path, lock=lock) or b""
    packed = files.read_whole(sealed_path(path))
    if packed is None:
        return plain
    try:
        sealed = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG).decompress(packed)
    except zstandard.ZstdError as error:
        raise DataError(f"not a whole zstd frame: {error}", path=sealed_path(path)) from error
    if plain.startswith(sealed):  # a crash came between sealing and removing what was sealed
        return plain
    return sealed + plain


def seal(path: Path) -> bool:
    """Replace a data file by its sealed form, durably; returns False when there is nothing to seal.

    Lines that arrive later go to a plain file again, and sealing again takes them in. Raises OSError, DataError; the
    lines are in at least one of the two files at any moment.
    """
    with files.locked(path) as present:
        if not present:
            return False
        target = sealed_path(path)
        lines = read_lines(path, lock=False)
        parameters = zstandard.ZstdCompressionParameters.from_level(
            _LEVEL, window_log=_WINDOW_LOG, enable_ldm=True, source_size=len(lines)
        )
        temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, files.FILE_MODE)
        with os.fdopen(fd, "wb") as file:
            file.write(zstandard.ZstdCompressor(compression_params=parameters).compress(lines))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        files.sync_directory(target.parent)
        path.unlink()
    return True
