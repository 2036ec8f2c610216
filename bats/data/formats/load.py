"""Reading a log from arrays in memory, D4RL's HDF5, npz, CSV or Parquet tables, or a Minari data set.

Reading never executes or unpickles anything from a file, and any fault in a file is reported as a `DataError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bats.arrays import Progress, RowFlags, no_progress
from bats.config import Function, Positive, checked
from bats.data.dataset import FEW_ACTIONS, Dataset, naming, require, row_numbers
from bats.data.episodes import Note, TimeoutRule, plural
from bats.data.formats.csv import read_csv
from bats.data.formats.fields import (
    KNOWN,
    NAME_FIELDS,
    OWN_NAMES,
    ColumnMap,
    RawLog,
    check_required,
    listed,
    stored_name,
)
from bats.data.formats.hdf5 import read_hdf5, write_hdf5
from bats.data.formats.minari import find_minari, read_minari, write_minari
from bats.data.formats.npz import read_npz
from bats.data.formats.parquet import read_parquet
from bats.data.formats.untrusted import MemoryBudget, guarded, library_call
from bats.errors import DataError

__all__ = ["ColumnMap", "load_dataset", "write_hdf5", "write_minari"]

ARRAY_READERS = {".hdf5": read_hdf5, ".h5": read_hdf5, ".npz": read_npz}
TABLE_READERS = {".csv": read_csv, ".parquet": read_parquet}
MAX_EXCEPTIONS = 0.1
"""share of rows whose action is no index, up to which they may be mistakes"""
MINARI_PREFIX = "minari:"
Source = str | Path | Mapping[str, ArrayLike]
SOURCES = f"{', '.join([*ARRAY_READERS, *TABLE_READERS])}, a Minari data set's folder or minari:ID"


def load_dataset(
    source: Source,
    *,
    columns: ColumnMap | str | Mapping[str, str | Sequence[str]] | None = None,
    discrete: bool | None = None,
    timeout_rule: TimeoutRule = "auto",
    max_memory: float | None = None,
    progress: Progress = no_progress,
) -> Dataset:
    """Reads a log from a file, a Minari data set or arrays by name, checks it and finds its episodes.

    `source`: a path to `.hdf5`/`.h5` (D4RL's names), `.npz`, `.csv` or `.parquet`; the folder of a Minari data set, or
    `minari:ID` for one in Minari's own folder; or a dictionary of arrays. Required fields are `observations`, `actions`
    and `rewards`; optional are `next_observations`, `terminations` (or `terminals`), `timeouts` (or `truncations`) and
    `episode`, ids that change from one episode to the next. Other fields are noted and not used.

    `columns`: which columns of a table, or of a dictionary such as `dict(frame)`, belong to which field, as a
    `ColumnMap`, a text (`observations=x,y actions=u rewards=r`) or a dictionary of column names; `discrete`: whether an
    action is an index (None: whole numbers are); `timeout_rule`: when a timeout ends an episode; `max_memory`:
    gigabytes that reading and validating a file may take (None: half of the memory that this process may use).
    Raises `DataError` for a log that cannot be used.
    """
    discrete, progress = checked("discrete", bool | None, discrete), checked("progress", Function, progress)
    timeout_rule = checked("timeout_rule", TimeoutRule, timeout_rule)  # before a long log is read
    max_memory = checked("max_memory", Positive | None, max_memory)
    column_map, budget = ColumnMap.from_any(columns), MemoryBudget(max_memory)
    name = "arrays" if isinstance(source, Mapping) else str(source)
    with naming(name):
        try:
            raw = _read(source, name, column_map, budget, progress)
            return _to_dataset(raw, name, discrete, timeout_rule)
        except MemoryError as error:  # other programs may have taken what the limit allows
            raise DataError("a log that fits into memory", "one that does not") from error


def _read(source: Source, name: str, columns: ColumnMap | None, budget: MemoryBudget, progress: Progress) -> RawLog:
    """Calls the reader for the source's type, prefix or suffix."""
    if name in ("", MINARI_PREFIX):
        raise DataError(SOURCES, "an empty name", file=repr(name))
    if "\0" in name:  # the system would raise a ValueError, not an OSError
        raise DataError("the path of a file", "a path with a zero byte", file=repr(name))
    path, is_id = Path(name), isinstance(source, str) and source.startswith(MINARI_PREFIX)
    suffix = "" if is_id else path.suffix.lower()
    if suffix in TABLE_READERS:
        return TABLE_READERS[suffix](path, columns, budget, progress)
    if isinstance(source, Mapping) and columns is not None:
        return _read_columns(source, columns)
    expected = "a CSV or Parquet table or a dictionary of columns (only these have columns)"
    require(columns is None, expected, "another format", field="columns")
    if isinstance(source, Mapping):
        known = (*KNOWN, *NAME_FIELDS)
        return RawLog.of_arrays(source, unused=tuple(str(field) for field in source if field not in known))
    if is_id:
        return read_minari(find_minari(name.removeprefix(MINARI_PREFIX)), budget, progress)
    if suffix in ARRAY_READERS:
        return ARRAY_READERS[suffix](path, budget, progress)
    if guarded(SOURCES, path.is_dir):
        return read_minari(path, budget, progress)
    raise DataError(SOURCES, f"a file ending in '{path.suffix}'" if path.exists() else "no such file")


def _read_columns(table: Mapping[str, ArrayLike], columns: ColumnMap) -> RawLog:
    """The mapped columns of a table in memory, such as a DataFrame as a dictionary."""
    by_name = {str(name): column for name, column in table.items()}  # a DataFrame may number its columns
    header = list(by_name)
    columns = columns.checked(header)
    fields = {}
    for field, names in columns.by_field():
        with library_call("columns of equal length", field=field):  # NumPy is asked to join whatever is there
            parts = [np.asarray(by_name[name]) for name in names]
            fields[field] = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
    ids = fields.get("episode")
    if ids is not None and ids.dtype.kind == "O":  # as a DataFrame holds texts
        with library_call("ids that are numbers or texts", field="episode"):
            missing = np.array([label is None or label != label for label in ids.tolist()], dtype=bool)
            fields["episode"] = ids.astype(str)
        require(not missing.any(), "an id in every row", "none", field="episode", row=int(missing.argmax()))
    return columns.raw_log(header, fields)


def _to_dataset(raw: RawLog, name: str, discrete: bool | None, timeout_rule: TimeoutRule) -> Dataset:
    """Checks the arrays of a reader and makes them a `Dataset`."""
    fields: dict[str, Any] = {field: raw.fields[name] for field in OWN_NAMES for name in stored_name(field, raw.fields)}
    check_required((*raw.fields, *raw.unused), fields)
    notes = [*raw.notes]
    if raw.unused:
        notes.append(Note("fact", f"Fields that are not used: {listed(raw.unused)}."))
    if discrete is None and raw.actions_note is not None:
        notes.append(raw.actions_note)
    ids, timeouts, ends = fields.pop("episode", None), fields.pop("timeouts", None), None
    # episode ids and exact ends are never doubted; beside ids, timeouts carry no information
    if ids is not None:
        ends = _ends_of_ids(ids, notes)
        if timeouts is not None:
            notes.append(Note("decision", "Timeouts are ignored, because the episode ids say where episodes end."))
            timeouts = None
    elif raw.exact_ends:
        ends, timeouts = timeouts, None
    fields |= {"timeouts": timeouts, "episode_ends": ends, "timeout_rule": timeout_rule}
    fields |= {"discrete": discrete, "action_count": None if discrete is False else raw.action_count}
    fields |= {"observation_names": raw.observation_names, "action_names": raw.action_names}
    try:
        dataset = Dataset.from_arrays(**fields, name=name, notes=tuple(notes))
    except DataError as error:
        # the error is about our own field: it has to name the source's, and the line or the columns it was read from
        line = "" if raw.line_of is None or error.row is None else f"This row is in line {raw.line_of(error.row)}."
        hint = error.hinted(line).hinted((raw.field_hints or {}).get(error.field or "", "")).hint
        ends_field = "episode" if ids is not None else "timeouts"
        field = ends_field if error.field == "episode_ends" else error.field
        raise DataError(error.expected, error.found, field=field, row=error.row, hint=hint) from error.__cause__
    guessed = discrete is None and not raw.exact_ends  # in a file of this package it was decided when it was written
    if guessed and dataset.action_count is None and dataset.actions.shape[1] == 1:
        dataset = replace(dataset, notes=(*dataset.notes, *_notes_of_indices(fields["actions"], raw.line_of)))
    if raw.unknown_next is not None:
        unknown = np.isin(np.arange(len(dataset)), row_numbers("unknown_next", raw.unknown_next, len(dataset)))
        wrong, expected = unknown & ~dataset.terminations, "a termination in every row whose next state is unknown"
        require(not wrong.any(), expected, "no termination", field="unknown_next", row=int(wrong.argmax()))
        dataset = replace(dataset, next_known=~unknown)
    return dataset if raw.starts is None else dataset.with_starts(raw.starts, raw.start_weights)


def _notes_of_indices(actions: ArrayLike, line_of: Callable[[int], int] | None) -> list[Note]:
    """A note on continuous actions that look like indices, but for their type or for a few of them."""
    values = np.asarray(actions).reshape(-1)
    whole = (values >= 0) & (values == np.floor(values))
    wrong = np.flatnonzero(~whole)
    if wrong.size > MAX_EXCEPTIONS * len(values) or not 1 < len(np.unique(values[whole])) <= FEW_ACTIONS:
        return []
    option = "With --actions discrete (discrete=True) they are read as indices"
    if not wrong.size:
        text = f"Actions are whole numbers, but not of an integer type, so they are read as continuous. {option}."
        return [Note("decision", text)]
    row = int(wrong[0])
    line = "" if line_of is None else f", line {line_of(row)}"
    first = f"first: row {row}, value {values[row]:g}{line}"
    text = f"Actions are non-negative integers except in {plural(wrong.size, 'row')} ({first}), so all are read as "
    return [Note("decision", f"{text}continuous. {option}, and these rows are an error.")]


def _ends_of_ids(ids: ArrayLike, notes: list[Note]) -> RowFlags:
    """The rows after which the episode id changes, whatever kind of id it is; adds notes about the ids."""
    labels = np.asarray(ids)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    are_ids, found = labels.ndim == 1 and labels.dtype.kind in "biufSU", f"{labels.dtype} of shape {labels.shape}"
    require(are_ids, "one id per row, a number or a text", found, field="episode")
    if labels.size == 0:  # an empty log is reported later, as too few observations
        return np.zeros(0, dtype=bool)
    missing = labels != labels  # NaN is the only id that differs from itself
    require(not missing.any(), "an id in every row", "nan", field="episode", row=int(missing.argmax()))
    ends = np.append(labels[1:] != labels[:-1], True)
    runs, episodes = int(np.count_nonzero(ends)), len(np.unique(labels[ends]))
    notes.append(Note("fact", f"{plural(episodes, 'episode id')}: each episode ends where the id changes."))
    if runs > episodes:
        text = f"Episode ids reappear {plural(runs - episodes, 'time')} after a different id; are the rows in order?"
        notes.append(Note("problem", text))
    return ends
