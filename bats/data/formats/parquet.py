"""Parquet tables, read through pyarrow batch by batch. A column of equally long lists counts as a vector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bats.arrays import Progress
from bats.data.formats.columns import ColumnMap
from bats.data.formats.fields import RawLog
from bats.data.formats.names import numbered_names
from bats.data.formats.untrusted import check_file, check_fits, library_call, what_it_is
from bats.errors import BatsError, DataError

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

BATCH_ROWS = 65_536
SOUND = "a sound Parquet file"


def read_parquet(path: Path, columns: ColumnMap | None, progress: Progress) -> RawLog:
    """Reads the mapped columns in the types they are stored in."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise BatsError("Reading Parquet needs pyarrow: pip install 'bats-rl[parquet]'.") from error
    name = str(path)
    check_file(path, "a Parquet file")
    if not what_it_is(path).startswith("a Parquet"):
        raise DataError("a Parquet file", what_it_is(path), file=name)
    with library_call(name, SOUND, hint="It may be damaged or cut short."):
        file = pyarrow.parquet.ParquetFile(path)
    with file:
        with library_call(name, SOUND):
            header, rows = list(file.schema_arrow.names), int(file.metadata.num_rows)
        columns = ColumnMap.recognise(header, file=name) if columns is None else columns
        columns.check_against(header, file=name)
        fields = _read_fields(file, columns, rows, name, progress)
    used = {column for _, names in columns.by_field() for column in names}
    hints = {field: f"({field}: {', '.join(names)}.)" for field, names in columns.by_field()}
    return RawLog(
        fields,
        unused=tuple(column for column in header if column not in used),
        observation_names=_number_names(columns.observations, fields["observations"]),
        action_names=_number_names(columns.actions, fields["actions"]),
        field_hints=hints,
    )


def _number_names(columns: tuple[str, ...], values: np.ndarray) -> tuple[str, ...]:
    """The columns' names; of a single column of lists, one name for each place in them."""
    return columns if values.ndim == 1 or len(columns) > 1 else numbered_names([(columns[0], values.shape[1])])


def _read_fields(
    file: pyarrow.parquet.ParquetFile, columns: ColumnMap, rows: int, name: str, progress: Progress
) -> dict[str, np.ndarray]:
    """Fills one array per field; the memory for it is set aside once the first batch has shown its width."""
    fields: dict[str, np.ndarray] = {}
    codes: dict[object, int] = {}
    filled = 0
    for batch in _batches(file, columns, name):
        if filled + batch.num_rows > rows:
            raise DataError(f"{rows:,} rows, as its footer says", "more", file=name)
        for field, names in columns.by_field():
            if field == "episode":
                values = _episode_codes(batch.column(names[0]), codes, names[0], filled, name)
            else:
                values = _joined([_numbers(batch.column(one), one, filled, name) for one in names], field, name)
            if field not in fields:
                check_fits(name, field, rows * values[:1].nbytes)
                with library_call(name, SOUND, field=field):
                    fields[field] = np.empty((rows, *values.shape[1:]), values.dtype)
            if values.shape[1:] != fields[field].shape[1:]:
                expected, found = f"vectors of {fields[field].shape[1:]}", f"{values.shape[1:]}"
                raise DataError(expected, found, file=name, field=field, row=filled)
            fields[field][filled : filled + len(values)] = values
        filled += batch.num_rows
        progress(f"reading {Path(name).name}", filled, rows)
    if filled != rows or not fields:
        raise DataError(f"{rows:,} rows, as its footer says, at least one", f"{filled:,}", file=name)
    return fields


def _batches(file: pyarrow.parquet.ParquetFile, columns: ColumnMap, name: str) -> Iterator[pyarrow.RecordBatch]:
    used = list(dict.fromkeys(column for _, names in columns.by_field() for column in names))
    with library_call(name, SOUND):
        batches = file.iter_batches(batch_size=BATCH_ROWS, columns=used, use_threads=False)
    while True:
        with library_call(name, SOUND):
            batch = next(batches, None)
            if batch is not None:
                batch.validate(full=True)
        if batch is None:
            return
        yield batch


def _numbers(column: pyarrow.Array, name: str, first_row: int, file: str) -> np.ndarray:
    """One column as numbers: of rank 1, or of rank 2 where it holds lists."""
    from pyarrow import types

    with library_call(file, SOUND, field=name):
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        nested = types.is_list(column.type) or types.is_large_list(column.type)
        nested = nested or types.is_fixed_size_list(column.type)
    _refuse_nulls(column, name, first_row, file)
    if not nested:
        return _plain(column, name, file)
    with library_call(file, SOUND, field=name):
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        inside = column.flatten()
    odd = np.flatnonzero(lengths != lengths[0]) if len(lengths) else lengths
    if odd.size:
        row = first_row + int(odd[0])
        raise DataError(f"lists of {lengths[0]} numbers", f"one of {lengths[odd[0]]}", file=file, field=name, row=row)
    if inside.null_count:
        row = first_row + int(np.flatnonzero(inside.is_null().to_numpy(zero_copy_only=False))[0] // lengths[0])
        raise DataError("a number in every place", "an empty one", file=file, field=name, row=row)
    return _plain(inside, name, file).reshape(len(column), -1 if len(inside) else 0)


def _plain(column: pyarrow.Array, name: str, file: str) -> np.ndarray:
    from pyarrow import types

    kind = column.type
    if not (types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)):
        raise DataError("numbers", f"a column of type {kind}", file=file, field=name)
    with library_call(file, SOUND, field=name):
        return np.asarray(column.to_numpy(zero_copy_only=False))


def _refuse_nulls(column: pyarrow.Array, name: str, first_row: int, file: str) -> None:
    if column.null_count:
        with library_call(file, SOUND, field=name):
            missing = column.is_null().to_numpy(zero_copy_only=False)
        row = first_row + int(np.flatnonzero(missing)[0])
        raise DataError("a value in every row", "an empty cell", file=file, field=name, row=row)


def _joined(parts: list[np.ndarray], field: str, file: str) -> np.ndarray:
    """Several columns side by side; a single one as it is."""
    if len(parts) == 1:
        return parts[0]
    if field not in ("observations", "actions", "next_observations") or any(part.ndim != 1 for part in parts):
        raise DataError("one vector column, or columns of single numbers", "a mixture", file=file, field=field)
    return np.stack(parts, axis=1)


def _episode_codes(column: pyarrow.Array, codes: dict[object, int], name: str, first_row: int, file: str) -> np.ndarray:
    """Episode ids of any type as numbers, the same in every batch."""
    _refuse_nulls(column, name, first_row, file)
    with library_call(file, SOUND, field=name):
        encoded = column if hasattr(column, "indices") else column.dictionary_encode()
        labels = encoded.dictionary.to_pylist()
        places = encoded.indices.to_numpy(zero_copy_only=False)
    if any(not isinstance(label, (str, bytes, int, float)) for label in labels):
        raise DataError("ids that are numbers or texts", f"a column of type {column.type}", file=file, field=name)
    numbered = np.array([codes.setdefault(label, len(codes)) for label in labels], dtype=np.int64)
    return numbered[places]
