"""NumPy's `.npz`: a zip archive with one array per field.

The arrays are unpacked here and not by `np.load`, which allocates whatever memory a header asks for. Arrays of Python
objects, which would have to be unpickled, are refused.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from io import BytesIO
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format

from bats.arrays import Progress
from bats.data.dataset import require
from bats.data.formats.fields import KNOWN, NAME_FIELDS, RawLog
from bats.data.formats.untrusted import (
    ZIP,
    MemoryBudget,
    SizeGuard,
    clean_flags,
    guarded,
    guess_format,
    library_call,
)
from bats.errors import DataError

BLOCK_BYTES = 2**22
MAX_HEADER = 2**14
"""bytes; NumPy refuses more than 10,000 letters"""
NPZ, INTACT = "an npz file", "an intact npz file"


def read_npz(path: Path, budget: MemoryBudget, progress: Progress) -> RawLog:
    """Reads every array that has a known name; others are listed as unused."""
    guard = SizeGuard(path, NPZ, budget)
    if not guarded(INTACT, zipfile.is_zipfile, path):
        found, hint = guess_format(path), "The list of arrays at the end of the file is missing."
        require(found == ZIP, NPZ, found)
        raise DataError(NPZ, "a truncated or damaged one", hint=hint)
    with guarded(INTACT, zipfile.ZipFile, path) as archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        fields = {}
        for field in [name for name in entries if name in (*KNOWN, *NAME_FIELDS)]:
            done = partial(progress, f"reading {path.name} ({field})")
            fields[field] = _read_array(archive, entries[field], field, guard, done)
    return RawLog.of_arrays(fields, unused=tuple(field for field in entries if field not in fields))


def _read_array(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, field: str, guard: SizeGuard, done: Callable[[int, int], None]
) -> np.ndarray:
    """Unpacks one array of numbers or texts block by block; zipfile verifies its checksum at the end of the data."""
    method, expected = entry.compress_type, "an array that is stored or deflated, as NumPy writes it"
    require(method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED), expected, f"compression method {method}", field=field)
    with guarded(INTACT, archive.open, entry, field=field) as stream:
        # NumPy reads a header of any length before it looks at it, so it gets only the front of the array
        front = BytesIO(guarded(INTACT, stream.read, MAX_HEADER, field=field))
        with library_call(INTACT, field=field), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns that a header written by Python 2 is slow to read
            version = npy_format.read_magic(front)
            read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
            shape, fortran, dtype = read(front)
        # `type` and not `isinstance`: true and false are integers in Python
        are_lengths = all(type(length) is int and length >= 0 for length in shape)
        require(are_lengths, "non-negative lengths", f"shape {shape}", field=field)
        hint = "Python objects are not read, for safety." if dtype.hasobject else ""
        readable = dtype.kind in "biufSU" and dtype.itemsize > 0  # episode ids may be texts
        require(readable, "numbers", f"an array of type {dtype}", field=field, hint=hint)
        # both sizes are claims of the file: the guard compares them with each other and with its length
        guard.admit(field, shape, dtype, entry.compress_size)
        values = guarded(INTACT, np.empty, shape, dtype, order="F" if fortran else "C", field=field)
        target, filled = values.reshape(-1, order="A").view(np.uint8).data, 0
        expected = f"{len(target):,} bytes of numbers"
        # read to the end, where zipfile compares the checksum
        rest = iter(partial(guarded, INTACT, stream.read, BLOCK_BYTES, field=field), b"")
        for block in chain([front.read()], rest):
            require(len(block) <= len(target) - filled, expected, "more bytes", field=field)
            target[filled : filled + len(block)] = block
            filled += len(block)
            done(filled // values.itemsize, values.size)
        require(filled == len(target), expected, f"{filled:,}", field=field)
    return clean_flags(values)
