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
from io import BufferedIOBase
from pathlib import Path
from typing import cast

import numpy as np
from numpy.lib import format as npy_format

from bats.arrays import Progress
from bats.data.dataset import require
from bats.data.formats.raw_log import KNOWN, RawLog
from bats.data.formats.untrusted import ZIP, SizeGuard, check_file, clean_flags, guess_format, library_call
from bats.errors import DataError

BLOCK_BYTES = 2**22
SOUND = "a sound npz file"


def read_npz(path: Path, progress: Progress) -> RawLog:
    """Reads every array that has a known name; others are listed as unused."""
    guard = SizeGuard(check_file(path, "an npz file"))
    with library_call(SOUND):
        is_zip = zipfile.is_zipfile(path)
    if not is_zip:
        found = guess_format(path)
        if found != ZIP:
            raise DataError("an npz file", found)
        hint = "The list of its arrays, which belongs at the end, is missing."
        raise DataError("an npz file", "one that is cut short or damaged", hint=hint)
    with library_call(SOUND):
        archive = zipfile.ZipFile(path)
    with archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        fields = {
            field: _read_array(archive, entry, field, guard, partial(progress, f"reading {path.name} ({field})"))
            for field, entry in entries.items()
            if field in KNOWN
        }
    return RawLog(fields, unused=tuple(field for field in entries if field not in fields))


def _read_array(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, field: str, guard: SizeGuard, done: Callable[[int, int], None]
) -> np.ndarray:
    """Unpacks one array block by block; zipfile verifies its checksum at the end of the data."""
    method, expected = entry.compress_type, "an archive that is stored or deflated, as NumPy writes"
    require(method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED), expected, f"method {method}", field=field)
    with library_call(SOUND, field=field):
        stream = cast(BufferedIOBase, archive.open(entry))
    with stream:
        shape, fortran, dtype = _read_header(stream, field)
        # both sizes are claims of the file: the guard compares them with each other and with its length
        guard.admit(field, math.prod(shape) * dtype.itemsize, entry.compress_size)
        with library_call(SOUND, field=field):
            values = np.empty(math.prod(shape), dtype)
        target = values.view(np.uint8).data if values.size else memoryview(b"")
        filled = 0
        while filled < len(target):
            with library_call(SOUND, field=field):
                block = stream.read(min(BLOCK_BYTES, len(target) - filled))
            require(block, f"{len(target):,} bytes of numbers", f"{filled:,}", field=field)
            target[filled : filled + len(block)] = block
            filled += len(block)
            done(filled // values.itemsize, values.size)
        # reading to the end also makes zipfile compare the checksum
        with library_call(SOUND, field=field):
            surplus = stream.read(1)
        require(not surplus, f"{len(target):,} bytes of numbers", "more", field=field)
    return clean_flags(values).reshape(shape, order="F" if fortran else "C")


def _read_header(stream: BufferedIOBase, field: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of an array; only numbers and texts (as episode ids may be) are accepted."""
    with library_call(SOUND, field=field), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns that a header written by Python 2 is slow to read
        version = npy_format.read_magic(stream)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    require(min(shape, default=0) >= 0, "lengths from 0", f"shape {shape}", field=field)
    hint = "Objects are never unpickled." if dtype.hasobject else ""
    readable = dtype.kind in "biufSU" and dtype.itemsize > 0
    require(readable, "numbers", f"an array of type {dtype}", field=field, hint=hint)
    return shape, fortran, dtype
