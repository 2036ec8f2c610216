"""Small files that ask for large amounts of memory."""

# ruff: noqa: E501 (a message is easier to check on one line)

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

ROWS = 80
BLOCK = 2**24

Bomb = Callable[[Path], Path]


def zeros_deflated(size: int) -> bytes:
    """`size` zero bytes in deflate's raw format, made without going through them; a multiple of `BLOCK`."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(BLOCK)) + packer.flush(zlib.Z_FULL_FLUSH)  # after which a block stands for itself
    return block * (size // BLOCK) + b"\x03\x00"


def zeros_zipped(size: int) -> bytes:
    """The same as a zlib stream, which ends with the sums of the bytes."""
    return b"\x78\x9c" + zeros_deflated(size) + struct.pack(">HH", size % 65521, 1)


def fields() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"observations": rng.random((ROWS, 3)), "actions": rng.random((ROWS, 1)), "rewards": rng.random(ROWS)}


def hdf5(path: Path, chunks: tuple[int, int], packed: bytes, deflates: int = 1) -> Path:
    """A log whose observations are one chunk with these bytes."""
    log = fields()
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk(chunks)
        for _ in range(deflates):
            properties.set_deflate(9)
        space = h5py.h5s.create_simple((ROWS, 3), (h5py.h5s.UNLIMITED, 3))
        node = h5py.h5d.create(file.id, b"observations", h5py.h5t.IEEE_F32LE, space, properties)
        node.write_direct_chunk((0, 0), packed)
        for name in ("actions", "rewards"):
            file[name] = log[name]
    return path


def hdf5_deflated_twice(folder: Path) -> Path:
    """10 kB that are 384 MiB in the end, in a chunk of 960 bytes."""
    packed = zlib.compress(zeros_zipped(3 * 2**27), 9)
    return hdf5(folder / "twice.hdf5", (ROWS, 3), packed, deflates=2)


def hdf5_large_chunk(folder: Path) -> Path:
    """One chunk of 384 MiB that is needed for 80 rows."""
    return hdf5(folder / "chunk.hdf5", (2**25, 3), zeros_zipped(3 * 2**27))


def hdf5_long_stream(folder: Path) -> Path:
    """A chunk of 960 bytes whose compressed stream goes on for 512 MiB."""
    return hdf5(folder / "stream.hdf5", (ROWS, 3), zeros_zipped(2**29))


def hdf5_claimed_by_a_filter(folder: Path) -> Path:
    """A filter that takes the size from its own parameters."""
    with h5py.File(hdf5(folder / "filter.hdf5", (ROWS, 3), zeros_zipped(BLOCK)), "a") as file:
        del file["rewards"]
        file.create_dataset("rewards", data=np.arange(ROWS), chunks=(ROWS,), scaleoffset=0)
        del file["observations"]
        file["observations"] = fields()["observations"]
    return folder / "filter.hdf5"


def npz(path: Path, head: bytes, zeros: int) -> Path:
    """A log whose observations begin with these bytes, and go on with zeros."""
    with path.open("wb") as file:
        np.savez(file, actions=np.zeros((ROWS, 1)), rewards=np.arange(ROWS))
    # an entry of the archive, written by hand: zipfile would go through all of the zeros
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH) + zeros_deflated(zeros)
    name, size = b"observations.npy", len(head) + zeros
    checksum = zlib.crc32(head)
    for _ in range(zeros // BLOCK):
        checksum = zlib.crc32(bytes(BLOCK), checksum)
    facts = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, checksum, len(packed), size, len(name), 0)
    old = path.read_bytes()
    end = old.rindex(b"PK\x05\x06")
    count, _, offset = struct.unpack("<HII", old[end + 10 : end + 20])
    directory = old[offset:end] + b"PK\x01\x02\x14\x00" + facts + struct.pack("<HHHII", 0, 0, 0, 0, offset) + name
    entry = b"PK\x03\x04" + facts + name + packed
    ending = struct.pack("<HHIIH", count + 1, count + 1, len(directory), offset + len(entry), 0)
    path.write_bytes(old[:offset] + entry + directory + b"PK\x05\x06\0\0\0\0" + ending)
    return path


def npz_of_zeros(folder: Path) -> Path:
    """256 MiB of zeros, as the header says."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**23, 4)})
    return npz(folder / "zeros.npz", header.getvalue(), 2**28)


def npz_long_header(folder: Path) -> Path:
    """A header of 512 MiB."""
    return npz(folder / "header.npz", b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**29), 2**29)


def npz_wide(folder: Path) -> Path:
    """Two rows of 16 million small numbers, each of which would be a component with a name and a range."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|i1", "fortran_order": False, "shape": (2, BLOCK)})
    return npz(folder / "wide.npz", header.getvalue(), 2 * BLOCK)


def parquet(path: Path, columns: dict[str, object], **options: object) -> Path:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table(columns)
    pyarrow.parquet.write_table(table, path, write_statistics=False, **options)
    return path


def parquet_of_rows(folder: Path) -> Path:
    """Five million equal rows."""
    column = np.zeros(5 * 10**6, dtype=np.float32)
    return parquet(folder / "rows.parquet", {"observations": column, "actions": column, "rewards": column})


def parquet_of_lists(folder: Path) -> Path:
    """Three rows with 15 million numbers in all."""
    import pyarrow

    count = 15 * 10**6
    values = pyarrow.array(np.zeros(count, dtype=np.float32))
    lists = pyarrow.ListArray.from_arrays(pyarrow.array([0, count // 3, 2 * (count // 3), count], "int32"), values)
    columns = {"observations": lists, "actions": [0.0, 1.0, 2.0], "rewards": [0.0, 1.0, 2.0]}
    return parquet(folder / "lists.parquet", columns, data_page_size=2**30, max_rows_per_page=10**9)


def parquet_with_a_false_footer(folder: Path) -> Path:
    """The same, but its footer speaks of three numbers."""
    path, lists = folder / "footer.parquet", folder / "lists.parquet"
    content = (lists if lists.exists() else parquet_of_lists(folder)).read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    true, false = varint(2 * 15 * 10**6), bytearray(varint(2 * 3))
    while len(false) < len(true):  # the same length, so that nothing moves
        false[-1] |= 0x80
        false.append(0)
    path.write_bytes(content[:start] + content[start:].replace(true, bytes(false)))
    return path


def parquet_of_long_ids(folder: Path) -> Path:
    """An id of a million letters in 300 rows, which the file stores once."""
    column = np.arange(300.0)
    columns = {"observations": column, "actions": column, "rewards": column, "episode": ["x" * 10**6] * 300}
    return parquet(folder / "ids.parquet", columns)


def csv_of_long_ids(folder: Path) -> Path:
    """1,200 ids of 25,000 letters; one of these is beyond 16 bits, so that Python needs 4 bytes for each."""
    with (folder / "ids.csv").open("w", encoding="utf-8") as file:
        file.write("x,u,r,episode\n")
        for row in range(2400):
            file.write(f"{row},0.5,{row % 7},\N{BAT}{'x' * 25_000}{row // 2}\n")
    return folder / "ids.csv"


def parquet_of_ids_by_prefix(folder: Path) -> Path:
    """The same, each id stored as the part that it shares with the one before."""
    column = np.arange(300.0)
    columns = {"observations": column, "actions": column, "rewards": column, "episode": ["x" * 10**6] * 300}
    encoding = {"episode": "DELTA_BYTE_ARRAY"}
    return parquet(folder / "prefix.parquet", columns, use_dictionary=False, column_encoding=encoding)


def varint(number: int) -> bytes:
    """A number as Parquet's headers write it, seven bits at a time."""
    more = number >> 7
    return bytes([number & 0x7F | (0x80 if more else 0)]) + (varint(more) if more else b"")


def minari(folder: Path) -> Path:
    """An episode whose observations are a chunk of 384 MiB."""
    data = folder / "minari" / "data"
    data.mkdir(parents=True)
    (data / "metadata.json").write_text("{}")
    path = hdf5(data / "main_data.hdf5", (2**25, 3), zeros_zipped(3 * 2**27))
    with h5py.File(path, "a") as file:
        group = file.create_group("episode_0")
        for name in ("actions", "rewards"):
            group[name] = file[name][:-1]
        group["terminations"] = group["truncations"] = np.zeros(ROWS - 1, dtype=bool)
        file.move("observations", "episode_0/observations")
    return folder / "minari"


BOMBS: dict[Bomb, str] = {
    hdf5_deflated_twice: "twice.hdf5: field 'observations': expected at most one compression filter, gzip or lzf, found the filters [1, 1].",
    hdf5_large_chunk: "chunk.hdf5: field 'observations': {memory}",
    hdf5_long_stream: "stream.hdf5: field 'observations': expected chunks of 960 bytes, found a longer one.",
    hdf5_claimed_by_a_filter: "filter.hdf5: field 'rewards': expected at most one compression filter, gzip or lzf, found the filters [6].",
    npz_of_zeros: "zeros.npz: field 'observations': {memory}",
    npz_long_header: "header.npz: field 'observations': expected an intact npz file, found EOF: reading array header,",
    npz_wide: "wide.npz: field 'observations': {memory}",
    parquet_of_rows: "rows.parquet: field 'observations': {memory}",
    parquet_of_lists: "lists.parquet: field 'observations': {memory}",
    parquet_with_a_false_footer: "footer.parquet: field 'observations': {memory}",
    parquet_of_ids_by_prefix: "prefix.parquet: field 'episode': expected ids in plain or dictionary encoding, found DELTA_BYTE_ARRAY.",
    minari: "main_data.hdf5: field 'episode_0/observations': {memory}",
}  # fmt: skip
"""each with the message that refuses it"""
