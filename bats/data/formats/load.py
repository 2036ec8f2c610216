"""Logs in and out: arrays in memory, D4RL's HDF5, npz, CSV and Parquet tables, Minari data sets.

Whatever a file holds, reading it runs nothing and unpickles nothing, and whatever is wrong with it is told in a
`DataError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from numpy.typing import ArrayLike

from bats.arrays import Progress, no_progress
from bats.data.dataset import Dataset
from bats.data.episodes import TimeoutRule
from bats.data.formats.columns import ColumnMap
from bats.data.formats.csv import read_csv
from bats.data.formats.fields import RawLog, to_dataset
from bats.data.formats.hdf5 import read_hdf5, write_hdf5
from bats.data.formats.minari import find_minari, read_minari
from bats.data.formats.minari_writer import write_minari
from bats.data.formats.names import KNOWN
from bats.data.formats.npz import read_npz
from bats.data.formats.parquet import read_parquet
from bats.data.formats.untrusted import library_call
from bats.errors import DataError

__all__ = ["ColumnMap", "load_dataset", "write_hdf5", "write_minari"]

ARRAY_READERS = {".hdf5": read_hdf5, ".h5": read_hdf5, ".npz": read_npz}
TABLE_READERS = {".csv": read_csv, ".parquet": read_parquet}
MINARI_PREFIX = "minari:"
SOURCES = f"{', '.join([*ARRAY_READERS, *TABLE_READERS])}, a Minari data set's folder or minari:ID"


def load_dataset(
    source: str | Path | Mapping[str, ArrayLike],
    *,
    columns: ColumnMap | str | Mapping[str, str | Sequence[str]] | None = None,
    discrete: bool | None = None,
    timeout_rule: TimeoutRule = "auto",
    progress: Progress = no_progress,
) -> Dataset:
    """Reads a log from a file, a Minari data set or arrays by name, checks it and finds its episodes.

    `source`: a path to `.hdf5`/`.h5` (D4RL's names), `.npz`, `.csv` or `.parquet`; a Minari data set's folder, or
    `minari:ID` for one in Minari's own place; or a dictionary of arrays. Fields are `observations`, `actions`,
    `rewards`, and where there are any `next_observations`, `terminations` (or `terminals`), `timeouts` (or
    `truncations`) and `episode`, ids that change from one episode to the next. Others are noted, not refused.

    `columns`: which columns of a table are which field, as a `ColumnMap`, as a text (`observations=x,y actions=u
    rewards=r`) or as a dictionary of column names; `discrete`: whether an action is one of several (left out:
    whole numbers are); `timeout_rule`: when a timeout ends an episode. Raises `DataError` for anything unusable.
    """
    mapped = ColumnMap.from_any(columns)
    if isinstance(source, Mapping):
        _no_columns(mapped, "arrays")
        known = {name: source[name] for name in source if name in KNOWN}
        raw = RawLog(known, unused=tuple(str(name) for name in source if name not in KNOWN))
        return to_dataset(raw, name="arrays", discrete=discrete, timeout_rule=timeout_rule)
    raw = _read(source, mapped, progress)
    return to_dataset(raw, name=str(source), discrete=discrete, timeout_rule=timeout_rule)


def _read(source: str | Path, columns: ColumnMap | None, progress: Progress) -> RawLog:
    name = str(source)
    if name in ("", MINARI_PREFIX):
        raise DataError(SOURCES, "no name given", file=repr(name))
    if "\0" in name:
        raise DataError("the path of a file", "one with a zero byte", file=repr(name))
    if isinstance(source, str) and source.startswith(MINARI_PREFIX):
        _no_columns(columns, name)
        return read_minari(find_minari(source.removeprefix(MINARI_PREFIX)), progress)
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix in TABLE_READERS:
        return TABLE_READERS[suffix](path, columns, progress)
    _no_columns(columns, name)
    if suffix in ARRAY_READERS:
        return ARRAY_READERS[suffix](path, progress)
    with library_call(name, SOURCES):
        is_folder, exists = path.is_dir(), path.exists()
    if is_folder:
        return read_minari(path, progress)
    raise DataError(SOURCES, f"a file ending in '{path.suffix}'" if exists else "no such file", file=name)


def _no_columns(columns: ColumnMap | None, name: str) -> None:
    if columns is not None:
        raise DataError("a CSV or Parquet table for a column map", "something else", file=name, field="columns")
