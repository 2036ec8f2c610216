"""The way from what a reader found in a source to a `Dataset`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bats.arrays import RowFlags
from bats.data.dataset import Dataset
from bats.data.episodes import Note, TimeoutRule, counted
from bats.data.formats.names import OTHER_NAMES, REQUIRED, listed, missing_field
from bats.errors import DataError


@dataclass(frozen=True)
class RawLog:
    """What a reader found in a source, not yet checked."""

    fields: Mapping[str, ArrayLike]
    """arrays by one of the names in `KNOWN`"""
    unused: tuple[str, ...] = ()
    """everything else in the source, by its full name"""
    present: tuple[str, ...] | None = None
    """what to list where a field is missing; left out, `fields` and `unused`"""
    notes: tuple[Note, ...] = ()
    actions_note: Note | None = None
    """how the kind of the actions was guessed; told only where nobody said what they are"""
    action_count: int | None = None
    exact_ends: bool = False
    """`timeouts` are known to be episode ends, not to be doubted (our own files)"""
    unknown_next: np.ndarray | None = None
    """rows whose next state was never logged; a placeholder stands in `next_observations`"""
    starts: np.ndarray | None = None
    start_weights: np.ndarray | None = None
    observation_names: tuple[str, ...] | None = None
    action_names: tuple[str, ...] | None = None
    field_hints: Mapping[str, str] = field(default_factory=dict)
    """what to add to a complaint about a field, such as the columns it came from"""
    line_of: Callable[[int], int] | None = None
    """the line of a text file in which a row stands"""


def to_dataset(raw: RawLog, *, name: str, discrete: bool | None, timeout_rule: TimeoutRule) -> Dataset:
    """Checks what a reader found and makes it a `Dataset`."""
    fields = one_name_each(raw, name)
    guessed = [raw.actions_note] if discrete is None and raw.actions_note is not None else []
    ends, timeouts, told = known_ends(fields, name, exact_ends=raw.exact_ends)
    try:
        dataset = Dataset.from_arrays(
            fields["observations"],
            fields["actions"],
            fields["rewards"],
            next_observations=fields.get("next_observations"),
            terminations=fields.get("terminations"),
            timeouts=timeouts,
            episode_ends=ends,
            discrete=discrete,
            action_count=raw.action_count if discrete is not False else None,
            timeout_rule=timeout_rule,
            observation_names=raw.observation_names,
            action_names=raw.action_names,
            name=name,
            notes=(*raw.notes, *unused_note(raw.unused), *guessed, *told),
        )
    except DataError as error:
        raise _located(error, raw) from None
    if raw.unknown_next is not None:
        dataset = _with_unknown_next(dataset, raw.unknown_next)
    if raw.starts is not None:
        dataset = dataset.with_starts(raw.starts, raw.start_weights)
    return dataset


def _located(error: DataError, raw: RawLog) -> DataError:
    """The complaint in the source's terms: its own field, the line of the row, the columns of the field."""
    if error.field == "episode_ends":
        read_from = "episode" if "episode" in raw.fields else "timeouts"
        known: dict[str, Any] = {"file": error.file, "row": error.row, "hint": error.hint}
        error = DataError(error.expected, error.found, field=read_from, **known)
    if raw.line_of is not None and error.row is not None:
        error = error.hinted(f"It stands in line {raw.line_of(error.row)}.")
    return error.hinted(raw.field_hints.get(error.field or "", ""))


def one_name_each(raw: RawLog, name: str) -> dict[str, ArrayLike]:
    """The fields under our own names; refuses a field that is missing or stands there twice."""
    renamed: dict[str, ArrayLike] = {}
    for given, values in raw.fields.items():
        ours = OTHER_NAMES.get(given, given)
        if ours in renamed:
            also = next(other for other, same in OTHER_NAMES.items() if same == ours)
            raise DataError(f"one of '{ours}' and '{also}'", "both", file=name)
        renamed[ours] = values
    for required in REQUIRED:
        if required not in renamed:
            present = (*raw.fields, *raw.unused) if raw.present is None else raw.present
            raise missing_field(required, present, file=name)
    return renamed


def known_ends(
    fields: Mapping[str, ArrayLike], name: str, *, exact_ends: bool
) -> tuple[ArrayLike | None, ArrayLike | None, list[Note]]:
    """Rows that surely end an episode, flags that may, and what to tell about them.

    Episode ids outrank timeouts, which then say nothing more; so do timeouts known to be exact.
    """
    timeouts = fields.get("timeouts")
    if "episode" in fields:
        ends, told = ends_of_ids(fields["episode"], name)
        if timeouts is not None:
            told.append(Note("decision", "Timeouts left aside: the episode ids say where episodes end."))
        return ends, None, told
    return (timeouts, None, []) if exact_ends else (None, timeouts, [])


def ends_of_ids(ids: ArrayLike, name: str) -> tuple[RowFlags, list[Note]]:
    """An episode ends where the next row carries another id, whatever kind of id it is."""
    labels = np.asarray(ids)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "biufSU":
        found = f"{labels.dtype} of shape {labels.shape}"
        raise DataError("one id a row, a number or a text", found, file=name, field="episode")
    if labels.size == 0:  # too few rows, which is told of the observations
        return np.zeros(0, dtype=bool), []
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        row = int(np.flatnonzero(np.isnan(labels))[0])
        raise DataError("an id in every row", "nan", file=name, field="episode", row=row)
    ends = np.append(labels[1:] != labels[:-1], True)
    runs, episodes = int(np.count_nonzero(ends)), len(np.unique(labels[ends]))
    notes = [Note("fact", f"{counted(episodes, 'episode id')}: an episode ends where the id changes.")]
    if runs > episodes:
        text = f"{counted(runs - episodes, 'time')} an episode id comes back after another one; are the rows in order?"
        notes.append(Note("problem", text))
    return ends, notes


def unused_note(names: tuple[str, ...]) -> list[Note]:
    """Tells which fields of a source were left aside."""
    return [Note("fact", f"Fields not used: {listed(names)}.")] if names else []


def _with_unknown_next(dataset: Dataset, rows: np.ndarray) -> Dataset:
    """Marks the rows whose next state is a placeholder; only a row that ends the task may have one."""
    plain = rows.ndim == 1 and rows.dtype.kind in "iu"
    if not plain or (rows.size and (rows.min() < 0 or rows.max() >= len(dataset))):
        found = f"{rows.dtype} of shape {rows.shape}"
        raise DataError(f"row numbers from 0 to {len(dataset) - 1}", found, file=dataset.name, field="unknown_next")
    known = np.ones(len(dataset), dtype=bool)
    known[rows] = False
    odd = np.flatnonzero(~known & ~dataset.terminations)
    if odd.size:
        expected = "a termination where the next state is unknown"
        raise DataError(expected, "none", file=dataset.name, field="unknown_next", row=int(odd[0]))
    return replace(dataset, next_known=known)
