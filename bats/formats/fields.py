"""The names a log's fields go by, and the way from named arrays to a `Dataset`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bats.dataset import Dataset
from bats.episodes import Note, TimeoutRule
from bats.errors import DataError
from bats.types import RowFlags

OTHER_NAMES = {"terminals": "terminations", "truncations": "timeouts"}
"""D4RL's and Gymnasium's names for fields that we name as on the right"""
REQUIRED = ("observations", "actions", "rewards")
KNOWN = (*REQUIRED, "next_observations", "terminations", "timeouts", "episode", *OTHER_NAMES)
LISTED = 12
"""names shown in a note or an error before the rest is only counted"""


@dataclass(frozen=True)
class RawLog:
    """What a reader found in a source, not yet checked."""

    fields: Mapping[str, ArrayLike]
    """arrays by one of the names in `KNOWN`"""
    notes: tuple[Note, ...] = ()
    action_count: int | None = None
    exact_ends: bool = False
    """`timeouts` are known to be episode ends, not to be doubted (our own files, and episode ids)"""
    unknown_next: np.ndarray | None = None
    """rows whose next state was never logged; a placeholder stands in `next_observations`"""
    starts: np.ndarray | None = None
    start_weights: np.ndarray | None = None
    field_hints: Mapping[str, str] = field(default_factory=dict)
    """what to add to a complaint about a field, such as the columns it came from"""


def to_dataset(raw: RawLog, *, name: str, discrete: bool | None, timeout_rule: TimeoutRule) -> Dataset:
    """Checks what a reader found and makes it a `Dataset`."""
    fields = one_name_each(raw.fields, name)
    notes, exact_ends = list(raw.notes), raw.exact_ends
    if "episode" in fields:
        fields["timeouts"], told = ends_of_ids(fields["episode"], name)
        notes += told
        exact_ends = True
    if exact_ends and timeout_rule == "auto":
        timeout_rule = "trust"
    try:
        dataset = Dataset.from_arrays(
            fields["observations"],
            fields["actions"],
            fields["rewards"],
            next_observations=fields.get("next_observations"),
            terminations=fields.get("terminations"),
            timeouts=fields.get("timeouts"),
            discrete=discrete,
            action_count=raw.action_count if discrete is not False else None,
            timeout_rule=timeout_rule,
            name=name,
            notes=tuple(notes),
        )
    except DataError as error:
        raise error.hinted(raw.field_hints.get(error.field or "", "")) from None
    if raw.unknown_next is not None:
        dataset = _with_unknown_next(dataset, raw.unknown_next)
    if raw.starts is not None:
        dataset = dataset.with_starts(raw.starts, raw.start_weights)
    return dataset


def one_name_each(fields: Mapping[str, ArrayLike], name: str) -> dict[str, ArrayLike]:
    """The fields under our own names; refuses a field that is missing or stands there twice."""
    renamed: dict[str, ArrayLike] = {}
    for given, values in fields.items():
        ours = OTHER_NAMES.get(given, given)
        if ours in renamed:
            also = next(other for other, same in OTHER_NAMES.items() if same == ours)
            raise DataError(f"one of '{ours}' and '{also}'", "both", file=name)
        renamed[ours] = values
    for required in REQUIRED:
        if required not in renamed:
            raise DataError(f"a field '{required}'", f"only {listed(fields)}", file=name)
    return renamed


def ends_of_ids(ids: ArrayLike, name: str) -> tuple[RowFlags, list[Note]]:
    """An episode ends where the next row carries another id, whatever kind of id it is."""
    labels = np.asarray(ids)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "biufSU" or labels.size == 0:
        found = f"{labels.dtype} of shape {labels.shape}"
        raise DataError("one id a row, a number or a text", found, file=name, field="episode")
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        row = int(np.flatnonzero(np.isnan(labels))[0])
        raise DataError("an id in every row", "nan", file=name, field="episode", row=row)
    ends = np.append(labels[1:] != labels[:-1], True)
    runs, episodes = int(np.count_nonzero(ends)), len(np.unique(labels[ends]))
    notes = [Note("fact", f"{episodes:,} episode ids: an episode ends where the id changes.")]
    if runs > episodes:
        text = f"{runs - episodes:,} times an episode id comes back after another one; are the rows in order?"
        notes.append(Note("problem", text))
    return ends, notes


def unused_note(names: list[str]) -> list[Note]:
    """Tells which fields of a source were left aside."""
    return [Note("fact", f"Fields not used: {listed(names)}.")] if names else []


def listed(names: Mapping[str, Any] | list[str]) -> str:
    """Names for a message, sorted, the rest counted when there are many."""
    ordered = sorted(names)
    if not ordered:
        return "nothing"
    more = f" and {len(ordered) - LISTED:,} more" if len(ordered) > LISTED else ""
    return ", ".join(map(repr, ordered[:LISTED])) + more


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
