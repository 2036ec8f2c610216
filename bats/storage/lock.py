"""A lock on a folder, so that only one process writes into it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bats.errors import OutputError
from bats.storage.atomic import output_errors

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


POLL_SECONDS = 0.2
"""between two attempts to get a lock that another process holds"""


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Holds a lock that the system releases when the process ends, however it ends.

    If another process holds it, this is an error, or with `wait` it takes until that process releases it.
    """
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # a link could lead anywhere, so it is not followed
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    with os.fdopen(handle, "rb") as stream:
        with output_errors(path, "locked"):
            while not _try_lock(stream.fileno()):
                if not wait:
                    raise OutputError(f"Another process is working in {path.parent}; wait until it ends.")
                time.sleep(POLL_SECONDS)
        yield  # closing the file releases the lock


def _try_lock(handle: int) -> bool:
    """Whether an open file could be locked; False if another process holds its lock."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
