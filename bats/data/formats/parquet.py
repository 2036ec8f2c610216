"""Parquet tables, read through pyarrow batch by batch. A column of equally long lists is a vector."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bats.arrays import Arrays, Progress
from bats.data.dataset import require
from bats.data.formats.fields import ColumnMap, RawLog
from bats.data.formats.untrusted import check_file, check_fits, guarded, guess_format, library_call
from bats.errors import BatsError, DataError

if TYPE_CHECKING:
    from pyarrow import Array
    from pyarrow.parquet import ParquetFile

BATCH_ROWS = 65_536
PARQUET, INTACT = "a Parquet file", "an intact Parquet file"


def read_parquet(path: Path, columns: ColumnMap | None, progress: Progress) -> RawLog:
    """Reads the mapped columns in the types they are stored in."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise BatsError("Reading Parquet needs pyarrow: pip install 'bats-rl[parquet]'.") from error
    check_file(path, PARQUET)
    require(guess_format(path) == PARQUET, PARQUET, guess_format(path))
    with library_call(INTACT, hint="It may be damaged or truncated."):
        file = pyarrow.parquet.ParquetFile(path)
        header, rows = list(file.schema_arrow.names), int(file.metadata.num_rows)
    with file:
        columns = (columns or ColumnMap.recognise(header)).checked(header)
        fields = _read_fields(file, columns, rows, partial(progress, f"reading {path.name}"))
    return columns.raw_log(header, fields)


def _read_fields(file: ParquetFile, columns: ColumnMap, rows: int, done: Callable[[int, int], None]) -> Arrays:
    """One array per field, allocated when the first batch has shown its width and type."""
    fields: Arrays = {}
    codes: dict[object, int] = {}
    filled = 0
    batches = guarded(INTACT, file.iter_batches, batch_size=BATCH_ROWS, columns=columns.used(), use_threads=False)
    while (batch := guarded(INTACT, next, batches, None)) is not None:
        # offsets of a damaged batch may point outside of it, which reading its values would not notice
        guarded(INTACT, batch.validate, full=True)
        require(filled + batch.num_rows <= rows, f"{rows:,} rows, as the file's footer says", "more rows")
        for field, names in columns.by_field():
            if field == "episode":
                values = _episode_codes(batch.column(names[0]), names[0], filled, codes)
            else:
                parts = [_numbers(batch.column(name), name, filled) for name in names]
                plain = len(parts) == 1 or all(part.ndim == 1 for part in parts)
                require(plain, "one vector column or several columns of numbers", "a mixture of both", field=field)
                values = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
            if field not in fields:
                check_fits(field, rows * values[:1].nbytes)
                fields[field] = guarded(INTACT, np.empty, (rows, *values.shape[1:]), values.dtype, field=field)
            shape, expected = values.shape[1:], fields[field].shape[1:]
            require(shape == expected, f"vectors of shape {expected}", f"shape {shape}", field=field, row=filled)
            fields[field][filled : filled + len(values)] = values
        filled += batch.num_rows
        done(filled, rows)
    require(filled == rows, f"{rows:,} rows, as the file's footer says", f"{filled:,}")
    require(filled > 0, "at least 1 row", "none")
    return fields


def _numbers(column: Array, name: str, first_row: int) -> np.ndarray:
    """One column as numbers: of rank 1, or of rank 2 if it holds lists."""
    from pyarrow import types

    with library_call(INTACT, field=name):
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()  # before looking for nulls, which may be in the dictionary
        kind = column.type
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
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
    kind = values.type
    are_numbers = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    require(are_numbers, "numbers", f"a column of type {kind}", field=name)
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


def _episode_codes(column: Array, name: str, first_row: int, codes: dict[object, int]) -> np.ndarray:
    """Episode ids of any type as numbers; `codes` makes them the same in every batch."""
    _refuse_nulls(column, name, first_row)
    with library_call(INTACT, field=name):
        encoded = column if hasattr(column, "indices") else column.dictionary_encode()
        labels = encoded.dictionary.to_pylist()
        indices = encoded.indices.to_numpy(zero_copy_only=False)
    are_ids = all(isinstance(label, (str, bytes, int, float)) for label in labels)
    require(are_ids, "ids that are numbers or texts", f"a column of type {column.type}", field=name)
    return np.array([codes.setdefault(label, len(codes)) for label in labels], dtype=np.int64)[indices]
