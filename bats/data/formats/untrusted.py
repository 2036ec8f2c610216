"""What every reader asks of a file before it trusts it, and how a library's complaint becomes ours.

A file's header is a claim. Memory is set aside for it only while the claim stays within what the stored bytes could
possibly unfold to, and within what the machine has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bats.errors import DataError

SMALL_BYTES = 2**24
"""claims up to this size are granted without a question"""
LARGEST_RATIO = 1100
"""deflate, what HDF5 and npz compress with, cannot shrink anything more than 1032 times"""

ZIP = "a zip archive, as npz files are"
SIGNATURES = {
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"PK\x03\x04": ZIP,
    b"PAR1": "a Parquet file",
    b"\x93NUMPY": "a single npy array",
    b"\x1f\x8b": "a gzip file",
}

LIBRARY_ERRORS = (
    *(OSError, MemoryError, ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(RuntimeError, ArithmeticError, EOFError, SyntaxError, NotImplementedError),
)
"""what h5py, zipfile, NumPy's parsers and pyarrow raise over a damaged file, as seen when feeding them mutations"""


@contextmanager
def library_call(file: str, expected: str, *, field: str | None = None, hint: str = "") -> Iterator[None]:
    """Turns what a foreign library raises over a file into a `DataError`. Wrap the foreign call, nothing of ours."""
    try:
        yield
    except MemoryError as error:
        raise DataError(expected, "that it does not fit into memory", file=file, field=field, hint=hint) from error
    except LIBRARY_ERRORS as error:
        raise DataError(expected, one_line(error), file=file, field=field, hint=hint) from error


def one_line(error: BaseException) -> str:
    """A library's complaint in one line, short enough to read."""
    words = " ".join(str(error).split()) or type(error).__name__
    text = "".join(letter if letter.isprintable() else "?" for letter in words[:200])
    return text.rstrip(".") + ("…" if len(words) > 200 else "")


def check_file(path: Path, expected: str) -> int:
    """The size of a file that exists, is a plain file, may be read and is not empty; otherwise a `DataError`."""
    name = str(path)
    with library_call(name, expected):  # a folder on the way may be closed to us, a name too long
        exists, is_link, is_file, is_folder = path.exists(), path.is_symlink(), path.is_file(), path.is_dir()
    if not exists:
        raise DataError(expected, "a link to a file that is gone" if is_link else "no such file", file=name)
    if not is_file:  # a pipe or a device would be waited for, perhaps for ever
        raise DataError(expected, "a folder" if is_folder else "something that is not a plain file", file=name)
    with library_call(name, expected), path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
    if size == 0:
        raise DataError(expected, "an empty file", file=name)
    return size


def what_it_is(path: Path) -> str:
    """What a file looks like by its first bytes, for messages."""
    with path.open("rb") as stream:
        head = stream.read(8)
    for signature, name in SIGNATURES.items():
        if head.startswith(signature):
            return name
    return f"a file that begins with {head!r}"


class SizeGuard:
    """Adds up what a file claims to hold, and refuses as soon as that cannot be true or cannot fit."""

    def __init__(self, file: str, file_bytes: int) -> None:
        self.file, self.file_bytes = file, file_bytes
        self.claimed = self.stored = 0

    def admit(self, field: str, claimed: int, stored: int) -> None:
        """`claimed`: bytes once unpacked; `stored`: bytes they take in the file."""
        self.claimed += claimed
        self.stored += stored
        if stored > self.file_bytes or self.claimed > LARGEST_RATIO * self.stored + SMALL_BYTES:
            expected = f"no more than a file of {self.file_bytes:,} bytes can hold"
            raise DataError(expected, f"a claim of {claimed:,} bytes", file=self.file, field=field)
        check_fits(self.file, field, self.claimed)


def check_fits(file: str, field: str, needed: int) -> None:
    """Refuses what the machine's memory cannot hold at all."""
    memory = _machine_bytes()
    if needed > memory:
        expected = f"a log that fits into this machine's memory of {memory:,} bytes"
        raise DataError(expected, f"one of at least {needed:,} bytes", file=file, field=field)


def _machine_bytes() -> int:
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 2**63 - 1  # Windows does not say; a MemoryError will


def clean_flags(values: np.ndarray) -> np.ndarray:
    """Makes every true byte a 1, in place: a file may hold any byte where NumPy relies on 0 or 1."""
    if values.dtype == bool:
        np.not_equal(values.view(np.uint8), 0, out=values)
    return values
