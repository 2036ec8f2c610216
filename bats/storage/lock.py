"""A lock on a folder, so that only one process writes into it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bats.errors import OutputError
from bats.storage.atomic import output_errors

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock that the system releases when the process ends, however it ends."""
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # a link could lead anywhere, so it is not followed
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    with os.fdopen(handle, "rb") as stream:
        with output_errors(path, "locked"):
            try:
                if sys.platform == "win32":
                    msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
                else:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                raise OutputError(f"Another process is working in {path.parent}; wait until it ends.") from error
        yield  # closing the file releases the lock
