"""Writing files so that a reader sees the old one, the new one or none, never half of one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bats.errors import OutputError


@contextmanager
def atomic_path(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yields a temporary path beside `path`; what was written there takes its place when the block ends well.

    A block that raises leaves nothing behind. An existing file is refused unless `overwrite`.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        if path.exists() and not overwrite:
            raise OutputError(f"{path} exists already; choose another name.")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()  # with the rights the user's other files get, which not every writer gives
        yield temporary
        _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)
    except OSError as error:
        raise OutputError(f"{path} could not be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):  # most often it has been moved away
            temporary.unlink()


def _flush(path: Path) -> None:
    """Puts a file, or a folder's list of names, on the disk before anything relies on it."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
