"""Reading a log from arrays in memory, D4RL's HDF5, npz, CSV or Parquet tables, or a Minari data set.

Reading never executes or unpickles anything from a file, and any fault in a file is reported as a `DataError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bats.arrays import Progress, RowFlags, no_progress
from bats.data.dataset import Dataset, naming, require, row_numbers
from bats.data.episodes import Note, TimeoutRule, plural
from bats.data.formats.columns import ColumnMap
from bats.data.formats.csv import read_csv
from bats.data.formats.hdf5 import read_hdf5, write_hdf5
from bats.data.formats.minari import find_minari, read_minari, write_minari
from bats.data.formats.npz import read_npz
from bats.data.formats.parquet import read_parquet
from bats.data.formats.raw_log import KNOWN, OTHER_NAMES, REQUIRED, RawLog, listed, missing_field
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

    `source`: a path to `.hdf5`/`.h5` (D4RL's names), `.npz`, `.csv` or `.parquet`; the folder of a Minari data set, or
    `minari:ID` for one in Minari's own folder; or a dictionary of arrays. Required fields are `observations`, `actions`
    and `rewards`; optional are `next_observations`, `terminations` (or `terminals`), `timeouts` (or `truncations`) and
    `episode`, ids that change from one episode to the next. Other fields are noted and not used.

    `columns`: which columns of a table belong to which field, as a `ColumnMap`, a text (`observations=x,y actions=u
    rewards=r`) or a dictionary of column names; `discrete`: whether an action is an index (None: whole numbers are);
    `timeout_rule`: when a timeout ends an episode. Raises `DataError` for a log that cannot be used.
    """
    column_map = ColumnMap.from_any(columns)
    name = "arrays" if isinstance(source, Mapping) else str(source)
    with naming(name):
        raw = _read(source, name, column_map, progress)
        return _to_dataset(raw, name, discrete, timeout_rule)


def _read(
    source: str | Path | Mapping[str, ArrayLike], name: str, columns: ColumnMap | None, progress: Progress
) -> RawLog:
    """Calls the reader for the source's type, prefix or suffix."""
    if name in ("", MINARI_PREFIX):
        raise DataError(SOURCES, "no name given", file=repr(name))
    if "\0" in name:  # the system would raise a ValueError, not an OSError
        raise DataError("the path of a file", "one with a zero byte", file=repr(name))
    path, is_id = Path(name), isinstance(source, str) and source.startswith(MINARI_PREFIX)
    suffix = "" if is_id else path.suffix.lower()
    if suffix in TABLE_READERS:
        return TABLE_READERS[suffix](path, columns, progress)
    require(columns is None, "a CSV or Parquet table for a column map", "something else", field="columns")
    if isinstance(source, Mapping):
        known = {field: source[field] for field in source if field in KNOWN}
        return RawLog(known, unused=tuple(str(field) for field in source if field not in KNOWN))
    if is_id:
        return read_minari(find_minari(name.removeprefix(MINARI_PREFIX)), progress)
    if suffix in ARRAY_READERS:
        return ARRAY_READERS[suffix](path, progress)
    with library_call(SOURCES):
        is_folder, exists = path.is_dir(), path.exists()
    if is_folder:
        return read_minari(path, progress)
    raise DataError(SOURCES, f"a file ending in '{path.suffix}'" if exists else "no such file")


def _to_dataset(raw: RawLog, name: str, discrete: bool | None, timeout_rule: TimeoutRule) -> Dataset:
    """Checks the arrays of a reader and makes them a `Dataset`."""
    fields = _renamed_fields(raw)
    notes = [*raw.notes]
    if raw.unused:
        notes.append(Note("fact", f"Fields not used: {listed(raw.unused)}."))
    if discrete is None and raw.actions_note is not None:
        notes.append(raw.actions_note)
    ids, timeouts, ends = fields.pop("episode", None), fields.pop("timeouts", None), None
    # episode ids and exact ends are never doubted; beside ids, timeouts carry no information
    if ids is not None:
        ends = _ends_of_ids(ids, notes)
        if timeouts is not None:
            notes.append(Note("decision", "Timeouts left aside: the episode ids say where episodes end."))
            timeouts = None
    elif raw.exact_ends:
        ends, timeouts = timeouts, None
    try:
        dataset = Dataset.from_arrays(
            **fields,
            timeouts=timeouts,
            episode_ends=ends,
            discrete=discrete,
            action_count=None if discrete is False else raw.action_count,
            timeout_rule=timeout_rule,
            observation_names=raw.observation_names,
            action_names=raw.action_names,
            name=name,
            notes=tuple(notes),
        )
    except DataError as error:
        raise _in_terms_of_source(error, raw) from error.__cause__
    if raw.unknown_next is not None:
        dataset = _mark_unknown_next(dataset, raw.unknown_next)
    return dataset if raw.starts is None else dataset.with_starts(raw.starts, raw.start_weights)


def _renamed_fields(raw: RawLog) -> dict[str, Any]:
    """The fields under our own names; refuses a field that is missing or stored under two names."""
    fields: dict[str, Any] = {}
    for name, values in raw.fields.items():
        field = OTHER_NAMES.get(name, name)
        if field in fields:
            other = next(other for other, same in OTHER_NAMES.items() if same == field)
            raise DataError(f"one of '{field}' and '{other}'", "both")
        fields[field] = values
    for field in REQUIRED:
        if field not in fields:
            raise missing_field(field, (*raw.fields, *raw.unused))
    return fields


def _ends_of_ids(ids: ArrayLike, notes: list[Note]) -> RowFlags:
    """The rows after which the episode id changes, whatever kind of id it is; adds notes about the ids."""
    labels = np.asarray(ids)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    are_ids = labels.ndim == 1 and labels.dtype.kind in "biufSU"
    found = f"{labels.dtype} of shape {labels.shape}"
    require(are_ids, "one id a row, a number or a text", found, field="episode")
    if labels.size == 0:  # an empty log is reported later, as too few observations
        return np.zeros(0, dtype=bool)
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        row = int(np.flatnonzero(np.isnan(labels))[0])
        raise DataError("an id in every row", "nan", field="episode", row=row)
    ends = np.append(labels[1:] != labels[:-1], True)
    runs, episodes = int(np.count_nonzero(ends)), len(np.unique(labels[ends]))
    notes.append(Note("fact", f"{plural(episodes, 'episode id')}: an episode ends where the id changes."))
    if runs > episodes:
        text = f"{plural(runs - episodes, 'time')} an episode id comes back after another one; are the rows in order?"
        notes.append(Note("problem", text))
    return ends


def _in_terms_of_source(error: DataError, raw: RawLog) -> DataError:
    """The same error with the field's name in the source, and hints about the line and the columns."""
    field, hints = error.field, [error.hint]
    if field == "episode_ends":
        field = "episode" if "episode" in raw.fields else "timeouts"
    if raw.line_of is not None and error.row is not None:
        hints.append(f"It is in line {raw.line_of(error.row)}.")
    hints.append(raw.field_hints.get(error.field or "", ""))
    hint = " ".join(text for text in hints if text)
    return DataError(error.expected, error.found, file=error.file, field=field, row=error.row, hint=hint)


def _mark_unknown_next(dataset: Dataset, rows: np.ndarray) -> Dataset:
    """Marks rows whose next state is a placeholder; only a termination may have one."""
    known = np.ones(len(dataset), dtype=bool)
    known[row_numbers("unknown_next", rows, len(dataset))] = False
    wrong = np.flatnonzero(~known & ~dataset.terminations)
    if wrong.size:
        expected = "a termination where the next state is unknown"
        raise DataError(expected, "none", field="unknown_next", row=int(wrong[0]))
    return replace(dataset, next_known=known)
