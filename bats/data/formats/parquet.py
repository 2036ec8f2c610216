"""Parquet tables, read through pyarrow batch by batch. A column of equally long lists is a vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bats.arrays import Arrays, Progress
from bats.data.dataset import require
from bats.data.formats.fields import ColumnMap, RawLog
from bats.data.formats.parquet_pages import INTACT, PageSizes, column_sizes
from bats.data.formats.untrusted import ID_BYTES, MemoryBudget, check_file, guarded, guess_format, library_call
from bats.errors import BatsError, DataError

if TYPE_CHECKING:
    from pyarrow import Array, DataType
    from pyarrow.parquet import ParquetFile

BATCH_ROWS, BATCH_BYTES = 65_536, 2**25
"""read at a time, whichever is less"""
VALUE_BYTES = 16
"""memory that Arrow takes for each value of a batch, at most"""
MIN_TEXT_BYTES = 4
"""of a text in a page, which begins with its length"""
PARQUET = "a Parquet file"

Sizes = Mapping[str, PageSizes]
"""of each column that is used"""


def read_parquet(path: Path, columns: ColumnMap | None, budget: MemoryBudget, progress: Progress) -> RawLog:
    """Reads the mapped columns in the types they are stored in."""
    file_bytes = check_file(path, PARQUET)
    require(guess_format(path) == PARQUET, PARQUET, guess_format(path))
    with _open(path) as file:
        with library_call(INTACT):
            schema, rows = file.schema_arrow, int(file.metadata.num_rows)
            header, types = list(schema.names), schema.types
        columns = (columns or ColumnMap.recognise(header)).checked(header)
        used = {*columns.used()}
        kinds = {name: kind for name, kind in zip(header, types, strict=True) if name in used}
    sizes = column_sizes(path, file_bytes, kinds)
    require(rows > 0, "at least 1 row", "none")
    _check_types(kinds, columns)
    _admit(sizes, kinds, columns, rows, file_bytes, budget)
    # a text that the file stores once must not be in memory for each of its rows
    texts = [name for name, kind in kinds.items() if _is_text(kind)]
    with _open(path, texts) as file:
        row_bytes = VALUE_BYTES * sum(size.values for size in sizes.values()) // rows
        batch_rows = max(min(BATCH_ROWS, BATCH_BYTES // max(row_bytes, 1)), 1)
        fields = _read_fields(file, columns, rows, sizes, batch_rows, partial(progress, f"reading {path.name}"))
    _release_memory()
    return columns.raw_log(header, fields)


def _open(path: Path, texts: list[str] | None = None) -> ParquetFile:
    """Opens a file; the columns `texts` will be read as numbers that refer to their distinct texts."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise BatsError("Reading Parquet needs pyarrow: pip install 'bats-rl[parquet]'.") from error
    with library_call(INTACT, hint="It may be damaged or truncated."):
        return pyarrow.parquet.ParquetFile(path, read_dictionary=texts)


def _release_memory() -> None:
    """Gives memory that Arrow keeps for later back to the system: it may be as much as the log."""
    import pyarrow

    pyarrow.default_memory_pool().release_unused()


def _check_types(kinds: Mapping[str, DataType], columns: ColumnMap) -> None:
    """Refuses columns of types that a field cannot have."""
    from pyarrow import types

    for field, names in columns.by_field():
        for name in names:
            kind = _element_type(kinds[name], lists=field != "episode")
            usable = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
            if field == "episode":
                usable, expected = usable or _is_text(kind), "ids that are numbers or texts"
            else:
                expected = "numbers"
            require(usable, expected, f"a column of type {kind}", field=name)


def _element_type(kind: DataType, *, lists: bool = True) -> DataType:
    """The type of the entries of a column, or of the entries of its lists."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return kind.value_type if is_list and lists else kind


def _is_text(kind: DataType) -> bool:
    from pyarrow import types

    return types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def _admit(
    sizes: Sizes, kinds: Mapping[str, DataType], columns: ColumnMap, rows: int, file_bytes: int, budget: MemoryBudget
) -> None:
    """Refuses a table whose columns take more memory than the budget has."""
    working = file_bytes
    for name, size in sizes.items():
        require(size.values >= rows, f"{rows:,} rows, as the file's footer says", f"{size.values:,}", field=name)
        # all values may be in the lists of a single row, and therefore in memory at once
        at_once = size.values if size.values > rows else min(rows, BATCH_ROWS)
        working += size.unpacked + VALUE_BYTES * at_once
        if _is_text(_element_type(kinds[name])):
            expected, hint = "ids in plain or dictionary encoding", "Write the file again with pyarrow's own settings."
            require(not size.prefixes, expected, "DELTA_BYTE_ARRAY", field=name, hint=hint)
            working += ID_BYTES * min(size.values, size.unpacked // MIN_TEXT_BYTES)
    for field, names in columns.by_field():
        kind = _element_type(kinds[names[0]])
        dtype = np.dtype(np.int64 if _is_text(kind) else kind.to_pandas_dtype())
        width = -(-sum(sizes[name].values for name in names) // rows)  # rounded up
        budget.admit(field, (rows, width), dtype, working=working)


def _read_fields(
    file: ParquetFile, columns: ColumnMap, rows: int, sizes: Sizes, batch_rows: int, done: Callable[[int, int], None]
) -> Arrays:
    """One array per field, allocated when the first batch has shown its width and type."""
    fields: Arrays = {}
    codes: dict[object, int] = {}
    filled = 0
    batches = guarded(INTACT, file.iter_batches, batch_size=batch_rows, columns=columns.used(), use_threads=False)
    while (batch := guarded(INTACT, next, batches, None)) is not None:
        # offsets of a damaged batch may point outside of it, which reading its values would not notice
        guarded(INTACT, batch.validate, full=True)
        require(filled + batch.num_rows <= rows, f"{rows:,} rows, as the file's footer says", "more rows")
        for field, names in columns.by_field():
            if field == "episode":
                values = _episode_ids(batch.column(names[0]), names[0], filled, codes)
            else:
                parts = [_numbers(batch.column(name), name, filled) for name in names]
                plain = len(parts) == 1 or all(part.ndim == 1 for part in parts)
                require(plain, "one vector column or several columns of numbers", "a mixture of both", field=field)
                values = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
            if field not in fields:
                declared, needed = sum(sizes[name].values for name in names), rows * math.prod(values.shape[1:])
                require(needed <= declared, f"{needed:,} numbers", f"{declared:,} in the file", field=field)
                fields[field] = guarded(INTACT, np.empty, (rows, *values.shape[1:]), values.dtype, field=field)
            shape, expected = values.shape[1:], fields[field].shape[1:]
            require(shape == expected, f"vectors of shape {expected}", f"shape {shape}", field=field, row=filled)
            fields[field][filled : filled + len(values)] = values
        filled += batch.num_rows
        done(filled, rows)
    require(filled == rows, f"{rows:,} rows, as the file's footer says", f"{filled:,}")
    return fields


def _numbers(column: Array, name: str, first_row: int) -> np.ndarray:
    """One column as numbers: of rank 1, or of rank 2 if it holds lists."""
    from pyarrow import types

    with library_call(INTACT, field=name):
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()  # before looking for nulls, which may be in the dictionary
    is_list = _element_type(column.type) != column.type
    _refuse_nulls(column, name, first_row)
    values = column
    if is_list:
        with library_call(INTACT, field=name):
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            values = column.flatten()
        wrong = np.flatnonzero(lengths != lengths[:1])
        if wrong.size:
            row = first_row + int(wrong[0])
            raise DataError(f"lists of {lengths[0]} numbers", f"a list of {lengths[wrong[0]]}", field=name, row=row)
        _refuse_nulls(values, name, first_row, width=int(lengths[0]) if len(lengths) else 1)
    numbers = np.asarray(guarded(INTACT, values.to_numpy, zero_copy_only=False, field=name))
    # an empty batch or empty lists leave nothing to infer a width from
    return numbers.reshape(len(column), -1 if len(numbers) else 0) if is_list else numbers


def _refuse_nulls(values: Array, name: str, first_row: int, width: int = 1) -> None:
    """Refuses missing values, of which each row holds `width`."""
    if values.null_count:
        with library_call(INTACT, field=name):
            missing = values.is_null().to_numpy(zero_copy_only=False)
        row = first_row + int(np.flatnonzero(missing)[0]) // width
        raise DataError("a value in every cell", "an empty cell", field=name, row=row)


def _episode_ids(column: Array, name: str, first_row: int, codes: dict[object, int]) -> np.ndarray:
    """Episode ids as numbers; `codes` has the numbers of texts, which are the same in every batch."""
    if not (hasattr(column, "indices") and _is_text(column.type.value_type)):
        return _numbers(column, name, first_row)
    _refuse_nulls(column, name, first_row)
    with library_call(INTACT, field=name):
        # the dictionary may be that of the whole file
        used, places = np.unique(column.indices.to_numpy(zero_copy_only=False), return_inverse=True)
        labels = column.dictionary.take(used).to_pylist()
    if None in labels:  # a dictionary may hold a null too
        row = first_row + int(np.argmax(places == labels.index(None)))
        raise DataError("a value in every cell", "an empty cell", field=name, row=row)
    return np.array([codes.setdefault(label, len(codes)) for label in labels], dtype=np.int64)[places]
