"""Sealed captures: a finished rollout's lines as one zstd frame, `<id>.capture.jsonl.zst`.

Each turn repeats the history before it, so one frame with a long window over the whole file is 50 to 200 times smaller;
any `zstd` tool reads it (`zstd -d --long=27`).
"""

from __future__ import annotations

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


def read_lines(path: str) -> bytes:
    """Return all lines of a data file, sealed ones first; b"" without either file.

    Raises DataError when the sealed file is damaged.
    """
    # While a plain file is locked nobody seals it, so without a sealed one beside it these are all lines.
    plain = files.read_whole(path, unless=path + SEALED_SUFFIX)
    return _both(Path(path), lock=True) if plain is None else plain


def _both(path: Path, *, lock: bool) -> bytes:
    """Return the lines of both files. `lock` is False for who has locked the data file already."""
    while True:
        before = _identity(path, lock)
        plain = files.read_whole(path, lock=lock)
        packed = files.read_whole(sealed_path(path))
        if _identity(path, lock) == before:
            break  # else it was sealed or unsealed between the two looks
    if packed is None:
        return plain or b""
    sealed = _unpacked(packed, sealed_path(path))
    if plain is None:
        return sealed
    # A crash may have come before the other file was removed, which the one written last has all of.
    if plain.startswith(sealed):
        return plain
    if sealed.endswith(plain):
        return sealed
    return sealed + (b"" if sealed.endswith(b"\n") else b"\n") + plain if plain else sealed


def seal(path: Path) -> bool:
    """Replace a data file by its sealed form, durably; returns False when there is nothing to seal.

    Lines that arrive later go to a plain file again, and sealing again takes them in. Raises OSError, DataError; the
    lines are in at least one of the two files at any moment.
    """
    with files.locked(path) as present:
        if not present:
            return False
        lines = _both(path, lock=False)
        parameters = zstandard.ZstdCompressionParameters.from_level(
            _LEVEL, window_log=_WINDOW_LOG, enable_ldm=True, source_size=len(lines)
        )
        packed = zstandard.ZstdCompressor(compression_params=parameters).compress(lines)
        files.replace_durably(sealed_path(path), packed)
        path.unlink()
        files.sync_directory(path.parent)
    return True


def unseal(path: Path) -> bool:
    """Put the plain file back, byte for byte as it was, durably; returns False when there is no sealed one.

    Raises OSError, DataError; the lines are in at least one of the two files at any moment.
    """
    sealed = sealed_path(path)
    if not sealed.exists():
        return False
    path.touch(files.FILE_MODE)  # what appends are kept out of meanwhile
    with files.locked(path) as present:
        if present:
            files.replace_durably(path, _both(path, lock=False))
            sealed.unlink(missing_ok=True)
            files.sync_directory(path.parent)
    return present


def _identity(path: Path, lock: bool) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Which two files there are: another pair means that lines have moved."""
    plain = files.identity_of(path, lock=lock)
    return None if plain is None else (plain[0], 0), files.identity_of(sealed_path(path), lock=False)


def _unpacked(packed: bytes, path: Path) -> bytes:
    try:
        return zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG).decompress(packed)
    except zstandard.ZstdError as error:
        raise DataError(f"not a whole zstd frame: {error}", path=path) from error
