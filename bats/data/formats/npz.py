"""NumPy's `.npz`: a zip archive with one array per field.

The arrays are unpacked here and not by `np.load`, which allocates whatever memory a header asks for. Arrays of Python
objects, which would have to be unpickled, are refused.
"""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format

from bats.arrays import Progress
from bats.data.dataset import require
from bats.data.formats.fields import KNOWN, RawLog
from bats.data.formats.untrusted import ZIP, SizeGuard, check_file, clean_flags, guarded, guess_format, library_call
from bats.errors import DataError

BLOCK_BYTES = 2**22
NPZ, INTACT = "an npz file", "an intact npz file"


def read_npz(path: Path, progress: Progress) -> RawLog:
    """Reads every array that has a known name; others are listed as unused."""
    guard = SizeGuard(check_file(path, NPZ))
    if not guarded(INTACT, zipfile.is_zipfile, path):
        found, hint = guess_format(path), "The list of arrays at the end of the file is missing."
        require(found == ZIP, NPZ, found)
        raise DataError(NPZ, "a truncated or damaged one", hint=hint)
    with guarded(INTACT, zipfile.ZipFile, path) as archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        fields = {}
        for field in [name for name in entries if name in KNOWN]:
            done = partial(progress, f"reading {path.name} ({field})")
            fields[field] = _read_array(archive, entries[field], field, guard, done)
    return RawLog(fields, unused=tuple(field for field in entries if field not in fields))


def _read_array(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, field: str, guard: SizeGuard, done: Callable[[int, int], None]
) -> np.ndarray:
    """Unpacks one array of numbers or texts block by block; zipfile verifies its checksum at the end of the data."""
    method, expected = entry.compress_type, "an array that is stored or deflated, as NumPy writes it"
    require(method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED), expected, f"compression method {method}", field=field)
    with guarded(INTACT, archive.open, entry, field=field) as stream:
        with library_call(INTACT, field=field), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns that a header written by Python 2 is slow to read
            version = npy_format.read_magic(stream)
            read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
            shape, fortran, dtype = read(stream)
        require(min(shape, default=0) >= 0, "non-negative lengths", f"shape {shape}", field=field)
        hint = "Python objects are not read, for safety." if dtype.hasobject else ""
        readable = dtype.kind in "biufSU" and dtype.itemsize > 0  # episode ids may be texts
        require(readable, "numbers", f"an array of type {dtype}", field=field, hint=hint)
        # both sizes are claims of the file: the guard compares them with each other and with its length
        guard.admit(field, math.prod(shape) * dtype.itemsize, entry.compress_size)
        values = guarded(INTACT, np.empty, math.prod(shape), dtype, field=field)
        target, filled = values.view(np.uint8).data, 0
        while filled < len(target):
            block = guarded(INTACT, stream.read, min(BLOCK_BYTES, len(target) - filled), field=field)
            require(block, f"{len(target):,} bytes of numbers", f"{filled:,}", field=field)
            target[filled : filled + len(block)] = block
            filled += len(block)
            done(filled // values.itemsize, values.size)
        # reading to the end also makes zipfile compare the checksum
        surplus = guarded(INTACT, stream.read, 1, field=field)
        require(not surplus, f"{len(target):,} bytes of numbers", "more bytes", field=field)
    return clean_flags(values).reshape(shape, order="F" if fortran else "C")
