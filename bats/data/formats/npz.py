"""NumPy's `.npz`: a zip archive with one array per field.

The arrays are unpacked here rather than by `np.load`, which sets memory aside for whatever a header claims. Arrays of
Python objects, which would have to be unpickled, are refused.
"""

from __future__ import annotations

import lzma
import math
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import cast

import numpy as np
from numpy.lib import format as npy_format

from bats.arrays import Progress
from bats.data.formats.fields import RawLog
from bats.data.formats.names import KNOWN, missing_field
from bats.data.formats.untrusted import ZIP, SizeGuard, check_file, clean_flags, library_call, one_line, what_it_is
from bats.errors import DataError

BLOCK_BYTES = 2**22
SOUND = "a sound npz file"


def read_npz(path: Path, progress: Progress) -> RawLog:
    """Reads every array that has a known name, and notes all others."""
    name = str(path)
    size = check_file(path, "an npz file")
    with _zip_call(name):
        recognised = zipfile.is_zipfile(path)
    if not recognised:
        begins_like_one = what_it_is(path) == ZIP
        hint = "The list of its arrays, which stands at the end, is not there." if begins_like_one else ""
        found = "one that is cut short or damaged" if begins_like_one else what_it_is(path)
        raise DataError("an npz file", found, file=name, hint=hint)
    with _zip_call(name):
        archive = zipfile.ZipFile(path)
    with archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        wanted = {field: entry for field, entry in entries.items() if field in KNOWN}
        if not wanted:
            raise missing_field("observations", [*entries], file=name)
        guard, fields = SizeGuard(name, size), {}
        for field, entry in wanted.items():
            fields[field] = _read_member(archive, entry, field, guard, progress)
    return RawLog(fields, unused=tuple(field for field in entries if field not in wanted))


def _read_member(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, field: str, guard: SizeGuard, progress: Progress
) -> np.ndarray:
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        found = f"method {entry.compress_type}"
        raise DataError("an archive that is stored or deflated, as NumPy writes", found, file=guard.file, field=field)
    with _zip_call(guard.file, field):
        stream = cast(BufferedIOBase, archive.open(entry))
    with stream:
        shape, fortran, dtype = _read_header(stream, field, guard.file)
        if dtype.kind not in "biufSU" or dtype.itemsize == 0:
            hint = "Objects are never unpickled." if dtype.hasobject else ""
            raise DataError("numbers", f"an array of type {dtype}", file=guard.file, field=field, hint=hint)
        guard.admit(field, math.prod(shape) * dtype.itemsize, entry.compress_size)
        with library_call(guard.file, SOUND, field=field):
            values = np.empty(math.prod(shape), dtype)
        _fill(values, stream, field, guard.file, progress)
    return clean_flags(values).reshape(shape, order="F" if fortran else "C")


def _read_header(stream: BufferedIOBase, field: str, file: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    with _zip_call(file, field), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a header as Python 2 wrote it costs a moment more, which nobody needs to hear
        version = npy_format.read_magic(stream)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    if any(length < 0 for length in shape):
        raise DataError("lengths from 0", f"shape {shape}", file=file, field=field)
    return shape, fortran, dtype


def _fill(values: np.ndarray, stream: BufferedIOBase, field: str, file: str, progress: Progress) -> None:
    """Unpacks into `values` a block at a time; the archive's own checksum is verified at the end of it."""
    target = values.view(np.uint8).data if values.size else memoryview(b"")
    filled = 0
    while filled < len(target):
        with _zip_call(file, field):
            block = stream.read(min(BLOCK_BYTES, len(target) - filled))
        if not block:
            raise DataError(f"{len(target):,} bytes of numbers", f"{filled:,}", file=file, field=field)
        target[filled : filled + len(block)] = block
        filled += len(block)
        progress(f"reading {Path(file).name} ({field})", filled // values.itemsize, values.size)
    with _zip_call(file, field):
        rest = stream.read(1)
    if rest:
        raise DataError(f"{len(target):,} bytes of numbers", "more", file=file, field=field)


@contextmanager
def _zip_call(file: str, field: str | None = None) -> Iterator[None]:
    """`library_call`, with the errors that only archives and npy headers raise."""
    try:
        with library_call(file, SOUND, field=field):
            yield
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError) as error:
        raise DataError(SOUND, one_line(error), file=file, field=field) from error
