"""Checks that every reader makes before it trusts a file, and library errors turned into `DataError`.

Readers raise errors without the name of the file, which `load_dataset` adds.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bats.data.dataset import require
from bats.errors import DataError, printable

FREE_BYTES = 2**24
"""arrays up to this size in all are accepted whatever the size of the file"""
MAX_COMPRESSION = 1100
"""deflate, which HDF5 and npz use, cannot shrink anything more than 1032 times"""

DEFAULT_SHARE = 0.5
"""of the memory that this process may use: fitting a log takes more than reading it"""
UNKNOWN_MEMORY = 16 * 10**9
"""assumed where the system does not say how much there is"""
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
COPIES, OTHER_COPIES = {"observations": 6, "next_observations": 1}, 4
"""times that a field is in memory as floats at the peak, beside the array that was read; measured"""
ID_BYTES = 200
"""memory for each episode id that is a text, while it is given a number"""
FIXED_BYTES = 4 * 10**7
"""memory for any log: what libraries keep, and what is read at a time; measured"""
ROW_BYTES, COMPONENT_BYTES = 120, 1000
"""further memory for each row (flags, indices, tables of hashes) and each component (its name and range); measured"""

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


class MemoryBudget:
    """Adds up the memory that reading a log takes, and refuses more than the limit before any of it is allocated.

    Counted is the peak: the arrays as they are stored, as `Dataset` holds them, and the copies that are made on the way
    and by `validate`. The limit is `max_memory` gigabytes, by default half of the memory that this process may use.
    """

    def __init__(self, max_memory: float | None = None) -> None:
        self.limit = int(DEFAULT_SHARE * usable_memory() if max_memory is None else max_memory * 1e9)
        self._lasting = self._width = self._working = 0

    @property
    def left(self) -> int:
        return self.limit - FIXED_BYTES - self._lasting - COMPONENT_BYTES * self._width - self._working

    def admit(self, field: str, shape: tuple[int, ...], dtype: np.dtype, *, working: int = 0, kind: str = "") -> None:
        """Counts an array; `working`: bytes needed only while it is read; `kind`: the field of a log it belongs to."""
        numbers, rows = math.prod(shape), (*shape, 1)[0]
        as_stored = numbers * dtype.itemsize
        as_floats = numbers * max(dtype.itemsize, 4 if dtype.kind == "f" else 8)
        kind = kind or field
        self._lasting += as_stored + COPIES.get(kind, OTHER_COPIES) * as_floats
        if kind == "observations":
            self._lasting += ROW_BYTES * rows
        self._width = max(self._width, math.prod(shape[1:]) if rows else 0)
        self.require(field, as_stored, working)

    def require(self, field: str, declared: int, working: int) -> None:
        """Counts bytes that are needed for a while, beside whatever else is read; `declared` is what the file says."""
        self._working = max(self._working, working)
        needed, limit = in_units(self.limit - self.left), in_units(self.limit)
        found = f"one that takes {needed}, and this field alone declares {in_units(max(declared, working))}"
        hint = "If you trust the file, raise the limit: --max-memory GIGABYTES (in Python: max_memory=…)."
        require(self.left >= 0, f"a log that takes at most {limit} of memory to read", found, field=field, hint=hint)


def in_units(count: int) -> str:
    """A number of bytes for a message."""
    units = ((10**9, "GB"), (10**6, "MB"))
    return next((f"{count / size:,.1f} {unit}" for size, unit in units if count >= size), f"{count:,} bytes")


def usable_memory() -> int:
    """The bytes that this process may use: the machine's memory, or less if a container or the system limits it."""
    known = []
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # there is no such file, or it says that there is no limit
            known.append(int(Path(file).read_text()))
    if sys.platform != "win32":
        import resource

        address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
        known += [] if address_space == resource.RLIM_INFINITY else [address_space]
    return min(known, default=UNKNOWN_MEMORY)


class SizeGuard:
    """Refuses arrays whose declared size a file cannot hold, or that do not fit into the budget."""

    def __init__(self, path: Path, expected: str, budget: MemoryBudget) -> None:
        self.path, self.file_bytes, self.budget = path, check_file(path, expected), budget
        self.declared = self.stored = 0

    def admit(
        self, field: str, shape: tuple[int, ...], dtype: np.dtype, stored: int, *, working: int = 0, kind: str = ""
    ) -> None:
        """`stored`: bytes that the array takes in the file; the rest as in `MemoryBudget.admit`."""
        # sums, because many small arrays can exhaust memory like one large one
        declared = math.prod(shape) * dtype.itemsize
        self.declared += declared
        self.stored += stored
        possible = stored <= self.file_bytes and self.declared <= MAX_COMPRESSION * self.stored + FREE_BYTES
        expected = f"arrays that fit into a file of {self.file_bytes:,} bytes"
        require(possible, expected, f"a header that declares {declared:,} bytes", field=field)
        self.budget.admit(field, shape, dtype, working=working, kind=kind)


def clean_flags(values: np.ndarray) -> np.ndarray:
    """Makes every true byte a 1, in place: a file may hold any byte, but NumPy relies on 0 or 1."""
    if values.dtype == bool:
        np.not_equal(values.view(np.uint8), 0, out=values)
    return values
