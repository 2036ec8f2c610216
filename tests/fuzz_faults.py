"""Ways to damage a file: in its bytes, or in what they stand for, so that the damage lies behind every checksum.

A fault is a function of the bytes of a sound file and a source of randomness. It returns the bytes of a damaged file.
"""

from __future__ import annotations

import csv
import io
import json
import random
import zipfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h5py
import numpy as np

Fault = Callable[[bytes, random.Random], bytes]

AWKWARD = (0, 1, 0x7F, 0x80, 0xFF)
AWKWARD_NUMBERS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 10**12)
AWKWARD_VALUES = (0.0, -0.0, 1.0, -1.0, 0.5, 7.0, 50_000.0, 1e-45, 1e-300, 1e30, -1e30, 1e38, 1.7e308, 2.0**31, 2.0**63)
AWKWARD_VALUES += (float("nan"), float("inf"), float("-inf"))
SHAPES = ((), (60,), (60, 1), (60, 3), (60, 0), (0, 3), (0, 10**24), (True, 60), (-1, 3), (3, 60), (2, 90), (10**9, 4))
SHAPES += ((59, 3), (61, 3), (60, 2, 2), (2**62, 4), (10**12,), (1,) * 32, (1,) * 71)
DTYPES = (
    "<f8",
    ">f8",
    "<f4",
    "<f2",
    "<f16",
    "|b1",
    "|i1",
    "|u1",
    "<i4",
    "<i8",
    "<u8",
    "<c16",
    "|O",
    "|S0",
    "|S5",
    "<U3",
)
DTYPES += ("<U100000", "<M8[s]", "|V8", "|V0")
CELLS = (
    "",
    " ",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "-1e999",
    "1e-999",
    "1e30",
    "1e31",
    "0x10",
    "1_000",
    "\u0663",
    "TRUE",
    "yes",
)
CELLS += (
    '"',
    '""',
    '"a,b"',
    "'",
    "\0",
    "\x1b[2J",
    "\x0b",
    "\x1c",
    "\u2028",
    "-",
    "+",
    ".",
    "e",
    "9" * 400,
    "50000",
    "2.5",
)
TEXTS = ("", "a", "\x1b[2J", "\u202e", "x" * 5000, "\n", "decision: x", "problem: \x07", "\ud800")


def damage(sound: bytes, rng: random.Random) -> bytes:
    """One to a few faults: flipped bits, awkward bytes and numbers, cuts, insertions, moved and exchanged pieces."""
    broken = bytearray(sound)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 12))):
        size = max(len(broken), 1)
        reach = min(size, 600) if rng.random() < 0.3 else size  # headers lie in front, and footers at the end
        offset = size - 1 - rng.randrange(reach) if rng.random() < 0.2 else rng.randrange(reach)
        start, length = rng.randrange(size), rng.choice((1, 8, 64, 512))
        fault = rng.randrange(9)
        if not broken:
            break
        if fault == 0:
            broken[offset] ^= 1 << rng.randrange(8)
        elif fault == 1:
            broken[offset] = rng.choice((*AWKWARD, rng.randrange(256)))
        elif fault == 2:
            width = rng.choice((2, 4, 8))
            number = rng.choice(AWKWARD_NUMBERS) % 256**width
            broken[offset : offset + width] = number.to_bytes(width, rng.choice(("little", "big")))
        elif fault == 3 and rng.random() < 0.4:
            del broken[offset:]
        elif fault == 4:
            del broken[offset : offset + rng.choice((1, 4, 16, 100))]
        elif fault == 5:
            piece = broken[start : start + length]
            broken[offset : offset + rng.choice((0, len(piece)))] = piece
        elif fault == 6:
            broken[offset:offset] = bytes(rng.choice(AWKWARD) for _ in range(length))
        elif fault == 7:
            one, other = sorted((offset, start))
            if one + length <= other:
                one_piece, other_piece = broken[one : one + length], broken[other : other + length]
                broken[other : other + length], broken[one : one + length] = one_piece, other_piece
        else:
            digits = [index for index, byte in enumerate(broken) if 48 <= byte <= 57]
            if digits:
                broken[rng.choice(digits)] = rng.choice(b"0123456789-.eE,")
    return bytes(broken)


def damage_inside(sound: bytes, rng: random.Random) -> bytes:
    """Damage that keeps the file's length: HDF5 compares it with its header first, and would look no further."""
    return damage(sound, rng)[: len(sound)].ljust(len(sound), b"\0")


def awkward_array(rng: random.Random, like: np.ndarray) -> np.ndarray:
    """An array with a few other values, of another type, or of another shape."""
    values = like.copy()
    choice = rng.randrange(4)
    with np.errstate(all="ignore"):
        if choice == 0 and values.dtype.kind in "biuf":
            values = values.astype(np.float64)
            for _ in range(rng.choice((1, 3, values.size or 1))):
                if values.size:
                    values.flat[rng.randrange(values.size)] = rng.choice(AWKWARD_VALUES)
        elif choice == 1:
            with suppress(ValueError, TypeError):  # not every number has every type
                values = values.astype(
                    rng.choice(("f8", "f4", "f2", "i8", "i4", "i1", "u1", "u8", "?", "S3", ">f8", "g"))
                )
        elif choice == 2:
            values = values[: rng.choice((0, 1, 2, len(values) - 1))] if values.ndim else values.reshape(1)
        else:
            values = values.reshape(rng.choice(((-1,), (1, -1), (-1, 1), (-1, 1, 1), (*values.shape, 1))))
    return values


def rebuild_npz(sound: bytes, rng: random.Random) -> bytes:
    """Damages an array or its header inside the archive and packs it again, with a fresh checksum."""
    packed = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(io.BytesIO(sound)) as old, zipfile.ZipFile(packed, "w", method) as new:
        victim = rng.choice(old.namelist())
        for name in old.namelist():
            content = old.read(name)
            if name == victim:
                content = rng.choice((_damage_front, damage, _replace_header, _replace_array))(content, rng)
            new.writestr(name, content)
    return packed.getvalue()


def _damage_front(content: bytes, rng: random.Random) -> bytes:
    return damage(content[:128], rng) + content[128:]


def _replace_header(content: bytes, rng: random.Random) -> bytes:
    shape, dtype = rng.choice(SHAPES), rng.choice(DTYPES)
    text = f"{{'descr': {dtype!r}, 'fortran_order': {rng.random() < 0.3}, 'shape': {shape}, }}\n"
    version = rng.choice((1, 1, 2, 3))
    length = len(text) if rng.random() < 0.9 else rng.choice((0, 2**16 - 1))
    head = b"\x93NUMPY" + bytes((version, 0)) + length.to_bytes(2 if version == 1 else 4, "little")
    size = rng.choice((0, 480, 1440, len(content), 10**6))
    return head + text.encode() + bytes(rng.randrange(256) for _ in range(min(size, 2000))).ljust(size, b"\0")


def _replace_array(content: bytes, rng: random.Random) -> bytes:
    written = io.BytesIO()
    np.save(written, awkward_array(rng, np.load(io.BytesIO(content))))
    return written.getvalue()


def rebuild_hdf5(sound: bytes, rng: random.Random) -> bytes:
    """Replaces an array of the file by another, a link, a group or nothing."""
    content = io.BytesIO(sound)
    with h5py.File(content, "r+") as file:
        arrays: dict[str, np.ndarray] = {}
        file.visititems(lambda name, node: arrays.update({name: node[()]}) if isinstance(node, h5py.Dataset) else None)
        for _ in range(rng.choice((1, 1, 2))):
            name = rng.choice(list(arrays))
            with suppress(ValueError, TypeError, RuntimeError, KeyError, OSError):  # HDF5 does not write everything
                del file[name]
                _write_node(file, name, np.asarray(arrays[name]), rng)
    return content.getvalue()


def _write_node(file: h5py.File, name: str, values: np.ndarray, rng: random.Random) -> None:
    choice = rng.randrange(9)
    if choice < 4:
        file[name] = awkward_array(rng, values)
    elif choice == 4:
        packed = rng.choice(("gzip", "lzf", None))
        options: dict[str, Any] = {"compression": packed, "shuffle": True, "fletcher32": rng.random() < 0.5}
        options["scaleoffset"] = 3 if packed is None and values.dtype.kind == "f" else None
        chunks = tuple(rng.choice((1, 7, length or 1, 1000)) for length in values.shape)
        growing = tuple(None for _ in values.shape)
        file.create_dataset(name, data=values, chunks=chunks or None, maxshape=growing or None, **options)
    elif choice == 5:
        target = rng.choice(("/", "/observations", "/nowhere", f"/{name}"))
        file[name] = h5py.SoftLink(target) if rng.random() < 0.5 else h5py.ExternalLink("log.hdf5", target)
    elif choice == 6:
        file[name] = rng.choice((h5py.Empty("f8"), np.dtype("f8"), "text", b"bytes", 3.0, 2**40))
    elif choice == 7:
        shape = tuple(rng.choice((0, 1, 60, 10**9)) for _ in range(rng.randrange(4)))
        file.create_dataset(name, shape, rng.choice(("f8", "i1", "f2", "S9", h5py.string_dtype())), chunks=True)


def rebuild_csv(sound: bytes, rng: random.Random) -> bytes:
    """Changes cells, columns and lines of a table."""
    rows = list(csv.reader(io.StringIO(sound.decode())))
    rows = [row for row in rows if row] or [[""]]
    for _ in range(rng.choice((1, 1, 2, 5))):
        row, other = rng.choice(rows), rng.randrange(len(rows))
        column = rng.randrange(len(row)) if row else 0
        fault = rng.randrange(7)
        if fault < 3 and row:
            (rows[0] if fault == 0 and rows[0] else row)[column % len(rows[0] or row)] = rng.choice(CELLS)
        elif fault == 3:
            rows[other : other + 1] = rng.choice(([], [[]], [row, row], [row[:-1]], [[*row, "1"]]))
        elif fault == 4:
            for each in rows:
                each[column : column + 1] = rng.choice(([], each[column : column + 1] * 2))
        elif fault == 5:
            for each in rows[1:]:
                each[column : column + 1] = [rng.choice(CELLS)]
        else:
            rows[1:] = rng.sample(rows[1:], len(rows[1:]))
        rows = rows or [[""]]
    ending, mark = rng.choice(("\n", "\n", "\r\n", "\r", "\n\n")), rng.choice((",",) * 20 + (";", "\t"))
    quoted = rng.random() < 0.3
    shown = [[f'"{cell}"' if quoted and '"' not in cell else cell for cell in row] for row in rows]
    text = ending.join(mark.join(row) for row in shown)
    return text.encode(rng.choice(("utf-8",) * 10 + ("utf-8-sig", "utf-16")), "surrogatepass")


def rebuild_parquet(sound: bytes, rng: random.Random) -> bytes:
    """Writes the table with other columns, in another way."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(sound))
    columns: dict[str, Any] = dict(zip(table.column_names, table.columns, strict=True))
    name = rng.choice(list(columns))
    errors = (pyarrow.ArrowException, ValueError, TypeError, OverflowError, NotImplementedError)
    with suppress(*errors):
        columns[name] = _other_column(columns[name], rng)
    if rng.random() < 0.1:
        del columns[rng.choice(list(columns))]
    page = {"data_page_size": rng.choice((1, 100, 10**6)), "data_page_version": rng.choice(("1.0", "2.0"))}
    packed = {"compression": rng.choice(("none", "snappy", "gzip", "zstd", "brotli", "lz4"))}
    with suppress(*errors):
        written = io.BytesIO()
        rows = rng.choice((1, 7, 25, 1000))
        table = pyarrow.table(columns)
        pyarrow.parquet.write_table(
            table, written, row_group_size=rows, use_dictionary=rng.random() < 0.5, **page, **packed
        )
        return written.getvalue()
    return damage(sound, rng)


def _other_column(column: Any, rng: random.Random) -> Any:
    import pyarrow

    kind = rng.choice(
        ("float32", "float16", "int8", "uint64", "int64", "bool", "string", "binary", "date32", "float64")
    )
    values = column.to_pylist()
    choice = rng.randrange(6)
    if choice == 0:
        return column.cast(kind)
    if choice == 1:
        return column.dictionary_encode()
    if choice == 2:
        values[rng.randrange(len(values))] = rng.choice((None, *AWKWARD_VALUES))
        return pyarrow.array(values)
    if choice == 3:
        return pyarrow.array([[value] * rng.choice((0, 1, 2, 2, 2)) for value in values])
    if choice == 4:
        return pyarrow.array([{"a": value} for value in values])
    return pyarrow.array(rng.choices((*AWKWARD_VALUES, 1.0, 2.0), k=len(values)), kind)


def damage_parquet_headers(sound: bytes, rng: random.Random) -> bytes:
    """Damages the footer, or what is around the beginning of a page."""
    footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    if rng.random() < 0.6:
        return sound[:footer] + damage_inside(sound[footer:-8], rng) + sound[-8:]
    start = rng.randrange(4, footer)
    return sound[:start] + damage_inside(sound[start : start + 40], rng) + sound[start + 40 :]


def rebuild_json(sound: bytes, rng: random.Random) -> bytes:
    """Replaces values anywhere in a JSON file."""
    content = json.loads(sound)
    for _ in range(rng.choice((1, 1, 3))):
        content = _other_json(content, rng)
    text = json.dumps(content)
    return text.replace("1e400", "1e400" if rng.random() < 0.5 else "NaN").encode()


def _other_json(content: Any, rng: random.Random) -> Any:
    inside = rng.random() < 0.8
    if isinstance(content, dict) and content and inside:
        name = rng.choice(list(content))
        return content | {name: _other_json(content[name], rng)}
    if isinstance(content, list) and content and inside:
        place = rng.randrange(len(content))
        return [*content[:place], _other_json(content[place], rng), *content[place + 1 :]]
    if isinstance(content, str) and content.startswith("{") and inside:  # JSON in JSON, as in Minari's spaces
        with suppress(ValueError):
            return json.dumps(_other_json(json.loads(content), rng))
    deep: Any = []
    for _ in range(rng.choice((5, 500, 900))):
        deep = [deep]
    numbers = (0, -1, 1, 3, 2**31, 2**62, 2**63, 2**64, 10**400, 0.5, float("inf"), float("nan"))
    return rng.choice((None, True, {}, [], deep, *numbers, *TEXTS, [1, 2], ["a"], {"a": 1}))
