"""Reading arrays out of HDF5 files that nobody vouches for.

Only hard links are followed, so a file cannot lead the reader to another one; values kept in other files are refused;
and what a header claims is checked before memory is set aside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
from h5py import h5d, h5g, h5l, h5o, h5s

from bats.data.formats.untrusted import SizeGuard, check_file, clean_flags, library_call, what_it_is
from bats.errors import DataError

BLOCK_BYTES = 2**23
"""read at a time, so that progress can be told"""
MOST_NAMES = 1000
"""where listing what else is in a file stops"""

SOUND = "a sound HDF5 file"
NUMBERS, TEXTS = "biuf", "S"
"""NumPy's kinds of arrays that are read"""


class Member(NamedTuple):
    """One entry of a group."""

    kind: str
    """`data`, `group` or `link`; a link is never followed"""
    node: h5d.DatasetID | h5g.GroupID | None


class Admitted(NamedTuple):
    """An array that may be read."""

    shape: tuple[int, ...]
    dtype: np.dtype
    chunk_rows: int
    """rows that are packed together, 1 where none are"""


@contextmanager
def open_hdf5(path: Path) -> Iterator[tuple[h5g.GroupID, SizeGuard]]:
    """The file's root group and a guard over its claims."""
    name = str(path)
    size = check_file(path, "an HDF5 file")
    with library_call(name, "an HDF5 file"):
        recognised = h5py.is_hdf5(name)
    if not recognised:
        raise DataError("an HDF5 file", what_it_is(path), file=name)
    with library_call(name, SOUND, hint="It may be damaged or cut short."):
        file = h5py.File(name, "r")
    try:
        with library_call(name, SOUND):
            root = h5g.open(file.id, b"/")
        yield root, SizeGuard(name, size)
    finally:
        with library_call(name, SOUND):
            file.close()


def member(group: h5g.GroupID, name: str, *, file: str) -> Member | None:
    """What stands under `name` in a group; None where there is nothing."""
    key = name.encode()
    with library_call(file, SOUND, field=name):
        links = group.links
        if not links.exists(key):
            return None
        if links.get_info(key).type != h5l.TYPE_HARD:
            return Member("link", None)
        node = h5o.open(group, key)
    if isinstance(node, h5d.DatasetID):
        return Member("data", node)
    return Member("group", node) if isinstance(node, h5g.GroupID) else None


def member_names(group: h5g.GroupID, *, file: str) -> list[str]:
    """The names in a group, sorted; one that is no UTF-8 text cannot be a field and is left out."""
    with library_call(file, SOUND):
        names = list(group)
    return sorted(name.decode() for name in names if _is_text(name))


def other_names(group: h5g.GroupID, *, skip: tuple[str, ...], file: str) -> list[str]:
    """Full names of all arrays and links below a group that are not in `skip`."""
    found: list[str] = []
    waiting, visited = [(group, "")], set()
    while waiting and len(found) < MOST_NAMES:
        here, prefix = waiting.pop()
        with library_call(file, SOUND):
            address = h5o.get_info(here).addr
        if address in visited:  # groups may hold each other
            continue
        visited.add(address)
        for name in member_names(here, file=file):
            if not prefix and name in skip:
                continue
            entry = member(here, name, file=file)
            if entry is not None and entry.kind == "group":
                waiting.append((entry.node, f"{prefix}{name}/"))
            else:
                found.append(f"{prefix}{name}")
    return found[:MOST_NAMES]


def admit(node: h5d.DatasetID, field: str, guard: SizeGuard, *, kinds: str = NUMBERS) -> Admitted:
    """Looks at an array before it is read: of the right kind, kept in this file, no larger than the file can hold."""
    file = guard.file
    with library_call(file, SOUND, field=field):
        plan = node.get_create_plist()
        layout = plan.get_layout()
        elsewhere = layout == h5d.VIRTUAL or (layout == h5d.CONTIGUOUS and plan.get_external_count() > 0)
        chunk_rows = plan.get_chunk()[0] if layout == h5d.CHUNKED else 1
        shape, dtype = node.shape, node.dtype
        stored = node.get_storage_size()
    if elsewhere:
        raise DataError("values in the file itself", "values kept in other files", file=file, field=field)
    if shape is None:
        raise DataError("an array", "an empty placeholder", file=file, field=field)
    if dtype.kind not in kinds or (kinds == NUMBERS and dtype.itemsize > 8):
        expected = "numbers" if kinds == NUMBERS else "texts of a fixed length"
        raise DataError(expected, f"an array of type {dtype}", file=file, field=field)
    guard.admit(field, math.prod(shape) * dtype.itemsize, stored)
    return Admitted(shape, dtype, chunk_rows)


def read_names(node: h5d.DatasetID, field: str, guard: SizeGuard) -> tuple[str, ...]:
    """A list of texts in UTF-8, as our own files hold it; a byte that is no text becomes a mark."""
    shape, dtype, _ = admit(node, field, guard, kinds=TEXTS)
    if len(shape) != 1:
        raise DataError("a list of names", f"shape {shape}", file=guard.file, field=field)
    with library_call(guard.file, SOUND, field=field):
        values = np.empty(shape, dtype)
        if values.size:
            node.read(h5s.ALL, h5s.ALL, values)
    return tuple(text.decode(errors="replace") for text in values.tolist())


def read_array(node: h5d.DatasetID, field: str, guard: SizeGuard, done: Callable[[int], None]) -> np.ndarray:
    """An array, block by block; `done` is told the bytes of each."""
    shape, dtype, chunk_rows = admit(node, field, guard)
    with library_call(guard.file, SOUND, field=field):
        values = np.empty(shape, dtype)
        at_once = values.nbytes <= BLOCK_BYTES or not shape
        if at_once and values.size:
            node.read(h5s.ALL, h5s.ALL, values)
    if at_once:
        done(values.nbytes)
        return clean_flags(values)
    # whole chunks only: half a chunk costs as much to unpack as all of it
    rows = max(BLOCK_BYTES // values[0].nbytes // chunk_rows, 1) * chunk_rows
    source = h5py.Dataset(node)
    for start in range(0, shape[0], rows):
        block = np.s_[start : start + rows]
        with library_call(guard.file, SOUND, field=field):
            source.read_direct(values, block, block)
        done(values[block].nbytes)
    return clean_flags(values)


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
