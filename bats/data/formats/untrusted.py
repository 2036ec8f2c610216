"""Checks that every reader makes before it trusts a file, and library errors turned into `DataError`.

Readers raise errors without the name of the file, which `load_dataset` adds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bats.data.dataset import require
from bats.errors import DataError, printable

FREE_BYTES = 2**24
"""arrays up to this size in all are accepted whatever the size of the file"""
MAX_COMPRESSION = 1100
"""deflate, which HDF5 and npz use, cannot shrink anything more than 1032 times"""

ZIP = "a zip archive, as npz files are"
SIGNATURES = {
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"PK\x03\x04": ZIP,
    b"PAR1": "a Parquet file",
    b"\x93NUMPY": "a single npy array",
    b"\x1f\x8b": "a gzip file",
}

Result = TypeVar("Result")


@contextmanager
def library_call(expected: str, *, field: str | None = None, hint: str = "") -> Iterator[None]:
    """Turns whatever a library raises over a file into a `DataError`.

    Only the library's call belongs inside: an error in our own code must not be reported as a damaged file.
    """
    try:
        yield
    except Exception as error:  # damaged files make h5py, zipfile, NumPy's parsers and pyarrow raise nearly anything
        reason = "more data than fits into memory" if isinstance(error, MemoryError) else one_line(error)
        raise DataError(expected, reason, field=field, hint=hint) from error


def guarded(expected: str, call: Callable[..., Result], *args: Any, field: str | None = None, **options: Any) -> Result:
    """The result of one function of a library, called with these arguments inside a `library_call`."""
    with library_call(expected, field=field):
        return call(*args, **options)


def one_line(error: BaseException) -> str:
    """A library's error message in one short line."""
    return printable(" ".join(str(error).split()) or type(error).__name__, limit=200).rstrip(".")


def check_file(path: Path, expected: str) -> int:
    """The size of a plain, readable file that is not empty; anything else raises a `DataError`."""
    with library_call(expected):  # fails for a closed folder above the file or a name that is too long
        exists, is_link, is_file, is_folder = path.exists(), path.is_symlink(), path.is_file(), path.is_dir()
    require(exists, expected, "a link to a missing file" if is_link else "no such file")
    # opening a pipe or a device could block forever
    require(is_file, expected, "a folder" if is_folder else "something that is not a regular file")
    with library_call(expected), path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
    require(size > 0, expected, "an empty file")
    return size


def guess_format(path: Path) -> str:
    """The format that the first bytes of a file suggest, for messages."""
    with path.open("rb") as stream:
        head = stream.read(8)
    matches = (name for signature, name in SIGNATURES.items() if head.startswith(signature))
    return next(matches, f"a file that begins with {head!r}")


class SizeGuard:
    """Adds up the sizes that a file's headers declare and refuses a total that cannot be true or cannot fit.

    Memory is allocated only for arrays that were admitted.
    """

    def __init__(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.declared = self.stored = 0

    def admit(self, field: str, declared: int, stored: int) -> None:
        """`declared`: bytes of the array in memory; `stored`: bytes it takes in the file."""
        # sums, because many small arrays can exhaust memory like one large one
        self.declared += declared
        self.stored += stored
        possible = stored <= self.file_bytes and self.declared <= MAX_COMPRESSION * self.stored + FREE_BYTES
        expected = f"arrays that fit into a file of {self.file_bytes:,} bytes"
        require(possible, expected, f"a header that declares {declared:,} bytes", field=field)
        check_fits(field, self.declared)


def check_fits(field: str, needed: int) -> None:
    """Refuses an array that is larger than the machine's memory."""
    # Windows does not report its memory this way; there a MemoryError has to do
    known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else 2**63 - 1
    expected = f"a log that fits into this machine's memory of {memory:,} bytes"
    require(needed <= memory, expected, f"a log of at least {needed:,} bytes", field=field)


def clean_flags(values: np.ndarray) -> np.ndarray:
    """Makes every true byte a 1, in place: a file may hold any byte, but NumPy relies on 0 or 1."""
    if values.dtype == bool:
        np.not_equal(values.view(np.uint8), 0, out=values)
    return values
