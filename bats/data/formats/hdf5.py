"""HDF5 files with D4RL's names: one array per field, all of the same length.

    observations, actions, rewards, terminals (or terminations), timeouts, next_observations

Files written here always carry `next_observations`, and a group `bats` for what D4RL's names cannot express: unknown
next states, the number of actions, the start states, the names of the numbers, and the notes about the log.

A file may come from anywhere. Only hard links are followed, so that it cannot lead the reader to another file; values
stored in other files are refused; the memory that an array takes is counted before any is allocated; and its chunks
must unpack to the size that HDF5 relies on.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5g, h5l, h5o, h5s, h5t, h5z

from bats.arrays import Arrays, Progress
from bats.config import READ_LOG, FilePath, checked
from bats.data.dataset import Dataset, require
from bats.data.episodes import Note
from bats.data.formats.fields import EXTRA_TEXTS, EXTRAS, EXTRAS_VERSION, KNOWN, RawLog, check_required, extras
from bats.data.formats.untrusted import (
    MemoryBudget,
    SizeGuard,
    clean_flags,
    guarded,
    guess_format,
    library_call,
)
from bats.errors import DataError
from bats.storage.atomic import refuse_existing, write_atomic

HDF5, INTACT = "an HDF5 file", "an intact HDF5 file"
BLOCK_BYTES = 2**23
"""read at a time, so that progress can be reported"""
MAX_NAMES = 1000
"""unused arrays that are looked up, to be listed or counted"""
MIN_COMPRESSED_ROWS = 100
CHECKSUM_BYTES = 4
"""that the filter Fletcher32 adds to a chunk"""
UNPACKING_COPIES = 3
"""times that HDF5 has a chunk in memory while it unpacks it; measured"""
CHUNK_ENTRY_BYTES = 250
"""memory for each entry of the index of chunks; 200 were measured"""
TEXT_BYTES = 100
"""further memory for each text, as Python has it"""


def read_hdf5(path: Path, budget: MemoryBudget, progress: Progress) -> RawLog:
    """Reads every field that has a known name; other arrays are listed as unused."""
    with open_hdf5(path, budget) as (root, guard):
        present = member_names(root)
        arrays, notes = {}, []
        for name in present:
            if name in KNOWN:
                node = member(root, name)
                if isinstance(node, h5d.DatasetID):
                    arrays[name] = admit(node, name, guard)
                else:
                    kind = "a link, and links are not followed" if node is None else "not an array"
                    notes.append(Note("problem", f"'{name}' was not used: it is {kind}."))
        hint = (
            f"The file belongs to a Minari data set; give the folder {path.parent}." if "episode_0" in present else ""
        )
        check_required(present, arrays, hint)
        # all arrays have been admitted by now, so that a false size is refused before the first byte is read
        fields = _read_fields(arrays, progress, f"reading {path.name}")
        group = member(root, EXTRAS)
        entries = _read_extras(group, guard) if isinstance(group, h5g.GroupID) else None
        # a group `bats` of another origin is listed like any other
        others = members_below(root, skip=KNOWN if entries is None else (*KNOWN, EXTRAS))
        unused = tuple(name for name, _ in islice(others, MAX_NAMES))
    log = RawLog(fields, unused=unused, notes=tuple(notes))
    return log if entries is None else log.with_extras(entries)


def _read_fields(arrays: Mapping[str, StoredArray], progress: Progress, stage: str) -> Arrays:
    """Reads the arrays and reports progress in rows: the share of bytes that was read, times the rows of the log."""
    rows = max((array.shape[0] for array in arrays.values() if array.shape), default=0)
    total_bytes, read_bytes = sum(array.nbytes for array in arrays.values()), 0

    def done(count: int) -> None:
        nonlocal read_bytes
        read_bytes += count
        progress(stage, rows * read_bytes // max(total_bytes, 1), rows)

    return {field: array.read(done) for field, array in arrays.items()}


def _read_extras(group: h5g.GroupID, guard: SizeGuard) -> dict[str, Any] | None:
    """The arrays that `write_hdf5` adds; None if the group is not ours, which always has a version."""
    names = ("version", "action_count", "unknown_next", "starts", "start_weights", *EXTRA_TEXTS)
    arrays = {name: node for name in names if isinstance(node := member(group, name), h5d.DatasetID)}
    if "version" not in arrays:
        return None
    entries: dict[str, Any] = {}
    for name, node in arrays.items():
        field = f"{EXTRAS}/{name}"
        entries[name] = values = admit(node, field, guard, texts=name in EXTRA_TEXTS).read()
        if name in EXTRA_TEXTS:
            require(values.ndim == 1, "a list of texts", f"shape {values.shape}", field=field)
            entries[name] = tuple(text.decode(errors="replace") for text in values.tolist())
        elif name in ("version", "action_count"):
            require(values.shape == () and values.dtype.kind in "iu", "an integer", f"{values.dtype}", field=field)
            entries[name] = int(values)
    version, hint = entries.pop("version"), "The file was written by another version of this package."
    expected, field = f"layout version {EXTRAS_VERSION}", f"{EXTRAS}/version"
    require(version == EXTRAS_VERSION, expected, f"version {version}", field=field, hint=hint)
    return entries


@contextmanager
def open_hdf5(path: Path, budget: MemoryBudget) -> Iterator[tuple[h5g.GroupID, SizeGuard]]:
    """The root group of a file, and a guard for the sizes of its arrays."""
    guard = SizeGuard(path, HDF5, budget)
    # not decided by the first bytes: HDF5 allows other data before its signature
    require(guarded(HDF5, h5py.is_hdf5, str(path)), HDF5, guess_format(path))
    with library_call(INTACT, hint="It may be damaged or truncated."):
        file = h5py.File(str(path), "r")
    try:
        yield guarded(INTACT, h5g.open, file.id, b"/"), guard
    finally:
        guarded(INTACT, file.close)  # closing a damaged file may fail too


def member(group: h5g.GroupID, name: str) -> h5d.DatasetID | h5g.GroupID | h5t.TypeID | None:
    """The array or group under a name; None if there is none or only a link, which is not followed."""
    # soft and external links are paths, and a path may lead to any file of the machine
    key, links = name.encode(), group.links
    with library_call(INTACT, field=name):
        if not links.exists(key) or links.get_info(key).type != h5l.TYPE_HARD:
            return None
        return h5o.open(group, key)


def member_names(group: h5g.GroupID) -> list[str]:
    """The names in a group, sorted."""
    names: list[bytes] = guarded(INTACT, list, group)
    # a name that is no UTF-8 is listed with replacements and cannot be opened, which no field needs
    return sorted(name.decode(errors="replace") for name in names)


def members_below(group: h5g.GroupID, *, skip: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """The full name and node of everything below a group that is not a group itself, except names in `skip`.

    Each group is visited once, because groups may contain each other.
    """
    pending, visited = [(group, "")], set()
    while pending:
        parent, prefix = pending.pop()
        address = guarded(INTACT, h5o.get_info, parent).addr
        if address in visited:
            continue
        visited.add(address)
        for name in member_names(parent):
            if prefix or name not in skip:
                node = member(parent, name)
                if isinstance(node, h5g.GroupID):
                    pending.append((node, f"{prefix}{name}/"))
                else:
                    yield f"{prefix}{name}", node


@dataclass(frozen=True)
class StoredArray:
    """An array of a file that was admitted: it may be read."""

    node: h5d.DatasetID
    field: str
    shape: tuple[int, ...]
    dtype: np.dtype
    nbytes: int
    chunk_rows: int
    """rows that are compressed together; 1 if none are"""

    def read(self, done: Callable[[int], None] = lambda count: None) -> np.ndarray:
        """The values, read block by block; `done` is called with the bytes of each block."""
        one_block = self.nbytes <= BLOCK_BYTES or not self.shape
        with library_call(INTACT, field=self.field):
            values = np.empty(self.shape, self.dtype)
            if one_block and values.size:
                self.node.read(h5s.ALL, h5s.ALL, values)
        if one_block:
            done(self.nbytes)
            return clean_flags(values)
        # whole chunks only: to read a part of a chunk, HDF5 decompresses all of it
        rows = max(BLOCK_BYTES // values[0].nbytes // self.chunk_rows, 1) * self.chunk_rows
        source = h5py.Dataset(self.node)
        for start in range(0, len(values), rows):
            block = np.s_[start : start + rows]
            guarded(INTACT, source.read_direct, values, block, block, field=self.field)
            done(values[block].nbytes)
        return clean_flags(values)


def admit(node: h5d.DatasetID, field: str, guard: SizeGuard, *, texts: bool = False, kind: str = "") -> StoredArray:
    """Checks an array before it is read: its type, that its values are in this file, and the memory it takes."""
    with library_call(INTACT, field=field):
        properties = node.get_create_plist()
        layout = properties.get_layout()
        elsewhere = layout == h5d.VIRTUAL or (layout == h5d.CONTIGUOUS and properties.get_external_count() > 0)
        chunk, chunks = (properties.get_chunk(), node.get_num_chunks()) if layout == h5d.CHUNKED else ((1,), 0)
        filters = [properties.get_filter(index)[0] for index in range(properties.get_nfilters())]
        shape, dtype, stored_bytes = node.shape, node.dtype, node.get_storage_size()
    require(not elsewhere, "values in this file", "values stored in other files", field=field)
    require(shape is not None, "an array", "an empty placeholder", field=field)
    readable = dtype.kind == "S" if texts else dtype.kind in "biuf" and dtype.itemsize <= 8
    if not readable:  # a data set may have a hundred thousand arrays, and a type's name takes long to format
        expected = "texts of a fixed length" if texts else "numbers"
        raise DataError(expected, f"an array of type {dtype}", field=field)
    chunk_bytes = math.prod(chunk) * dtype.itemsize if layout == h5d.CHUNKED else 0
    texts_bytes = TEXT_BYTES * math.prod(shape) if texts else 0
    working = UNPACKING_COPIES * chunk_bytes + CHUNK_ENTRY_BYTES * chunks + texts_bytes
    guard.admit(field, shape, dtype, stored_bytes, working=working, kind=kind)
    if layout == h5d.CHUNKED:
        _check_chunks(node, field, chunk_bytes, filters, guard.path)
    return StoredArray(node, field, shape, dtype, math.prod(shape) * dtype.itemsize, chunk[0])


def _check_chunks(node: h5d.DatasetID, field: str, chunk_bytes: int, filters: list[int], path: Path) -> None:
    """Refuses an array with a chunk that does not unpack to the size of a chunk.

    HDF5 relies on that size: it reads beyond the end of a shorter one, and unpacks a longer one to whatever size.
    """
    packers = [one for one in filters if one in UNPACKED_SIZE]
    known = len(packers) <= 1 and {*filters} <= {*UNPACKED_SIZE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}
    # other filters take sizes from parameters of their own
    hint = "Write the file again, for example with `h5repack -f GZIP=4`."
    require(known, "at most one compression filter, gzip or lzf", f"the filters {filters}", field=field, hint=hint)
    chunks: list[Any] = []
    guarded(INTACT, node.chunk_iter, chunks.append, field=field)
    for size in _unpacked_sizes(path, field, chunks, filters, chunk_bytes) if filters else (one.size for one in chunks):
        if size != chunk_bytes:
            found = "a longer one" if size > chunk_bytes else "a damaged one" if size < 0 else f"one of {size:,}"
            raise DataError(f"chunks of {chunk_bytes:,} bytes", found, field=field)


def _unpacked_sizes(path: Path, field: str, chunks: list[Any], filters: list[int], limit: int) -> Iterator[int]:
    """The size of each chunk after its filters are undone, as in `_unpacked_size`."""
    with library_call(INTACT, field=field):
        stream = path.open("rb")
    with stream:
        for chunk in chunks:
            with library_call(INTACT, field=field):
                # by its place in the file: a damaged index may lead elsewhere when it is asked for this chunk
                stream.seek(chunk.byte_offset)
                packed = stream.read(chunk.size)
            applied = [one for place, one in enumerate(filters) if not chunk.filter_mask >> place & 1]
            yield _unpacked_size(packed, applied, limit)


def _unpacked_size(packed: bytes, filters: list[int], limit: int) -> int:
    """The size of a chunk after its filters are undone, or any size above the limit; -1 if it cannot be unpacked."""
    checksums = 0
    for one in reversed(filters):
        if one == h5z.FILTER_FLETCHER32:
            checksums += CHECKSUM_BYTES
        elif one in UNPACKED_SIZE:
            # checksums behind the compressed bytes do not matter, and those within them are undone afterwards
            inside = CHECKSUM_BYTES * filters[: filters.index(one)].count(h5z.FILTER_FLETCHER32)
            return UNPACKED_SIZE[one](packed[: len(packed) - checksums], limit + inside) - inside
    return len(packed) - checksums


def _inflated_size(packed: bytes, limit: int) -> int:
    unpacker, size = zlib.decompressobj(), 0
    try:
        while packed and not unpacker.eof and size <= limit:
            size += len(unpacker.decompress(packed, BLOCK_BYTES))
            packed = unpacker.unconsumed_tail
    except zlib.error:
        return -1
    return size


def _lzf_size(packed: bytes, limit: int) -> int:
    """LZF is a sequence of literal bytes, up to 32 at a time, and of references to up to 264 earlier bytes."""
    size = position = 0
    while position < len(packed) and size <= limit:
        control, after = packed[position], packed[position + 1 : position + 2]
        if control < 32:
            size, position = size + control + 1, position + control + 2
        elif control >= 224:
            size, position = size + 9 + (after[0] if after else 0), position + 3
        else:
            size, position = size + (control >> 5) + 2, position + 2
    return size if position == len(packed) or size > limit else -1


UNPACKED_SIZE: dict[int, Callable[[bytes, int], int]] = {
    h5z.FILTER_DEFLATE: _inflated_size,
    h5z.FILTER_LZF: _lzf_size,
}
"""the compression that is read, each with a function for the size of what it unpacks to"""


def write_hdf5(dataset: Dataset, path: Path | str, *, overwrite: bool = False) -> None:
    """Writes a log with D4RL's names; `load_dataset` gives back the same log.

    A terminal row whose next state was never logged repeats its own state in `next_observations`, and is listed in
    `bats/unknown_next`. Raises `OutputError` for a file that exists, unless `overwrite`.
    """
    dataset, path = checked("dataset", Dataset, dataset, READ_LOG), Path(checked("path", FilePath, path))
    overwrite = checked("overwrite", bool, overwrite)
    entries = extras(dataset) | {"starts": dataset.starts, "start_weights": dataset.start_weights}
    if dataset.action_count is not None:
        entries["action_count"] = dataset.action_count
    for name in entries.keys() & EXTRA_TEXTS:
        entries[name] = [text.encode(errors="replace") for text in entries[name]]
    fields = {name: getattr(dataset, name) for name in ("observations", "actions", "rewards", "next_observations")}
    fields |= {"terminals": dataset.terminations, "timeouts": dataset.episode_ends & ~dataset.terminations}
    fields |= {f"{EXTRAS}/{name}": np.asarray(value) for name, value in entries.items()}
    write_fields(fields, path, overwrite=overwrite)


def write_fields(fields: Arrays, path: Path, *, overwrite: bool = False) -> None:
    """Writes arrays under their names, in which a slash makes a group; the file appears whole or not at all."""
    refuse_existing(path, overwrite=overwrite)
    # built in memory first: when a disk runs full under it, the HDF5 library crashes instead of raising an error
    buffer = BytesIO()
    with h5py.File(buffer, "w") as file:
        for name, values in fields.items():
            small = values.ndim == 0 or len(values) < MIN_COMPRESSED_ROWS
            compression = {} if small else {"compression": "gzip", "compression_opts": 4, "shuffle": True}
            file.create_dataset(name, data=values, **compression)
    write_atomic(path, buffer.getbuffer(), overwrite=overwrite)
