"""The fields of a log: their names, `RawLog` (what a reader returns) and `ColumnMap` (the columns of a table by field).

Files written by this package have further entries, for which neither D4RL nor Minari has names. They are in a group of
an HDF5 file, and under a key in Minari's metadata.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import islice
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import ArrayLike

from bats.data.dataset import MAX_NAME, Dataset, Names, require
from bats.data.episodes import Note, NoteKind
from bats.errors import DataError, printable

NAME_FIELDS = ("observation_names", "action_names")
"""texts that an npz file or a dictionary may have beside its arrays"""
REQUIRED = ("observations", "actions", "rewards")
VECTOR_FIELDS = ("observations", "actions", "next_observations")
SINGLE_FIELDS = ("rewards", "terminations", "timeouts", "episode")
OTHER_NAMES = {"terminals": "terminations", "truncations": "timeouts"}
"""D4RL's and Gymnasium's names for our own"""
OWN_NAMES = (*VECTOR_FIELDS, *SINGLE_FIELDS)
KNOWN = (*OWN_NAMES, *OTHER_NAMES)
SYNONYMS = {"observations": "obs observation state states", "actions": "action act acts", "rewards": "reward rew rews"}
"""names in use elsewhere, for hints only: a field is never read under a name that is not in `KNOWN`"""
MAX_LISTED = 30
"""names in a message; the rest is counted"""

EXTRAS, EXTRAS_VERSION = "bats", 1
"""where our own entries are; the version is raised when the meaning of one changes"""
EXTRA_TEXTS = (*NAME_FIELDS, "notes")
MAX_NOTES, MAX_NOTE = 100, 2000
"""notes that are read from a file, and letters of each"""
ORIGIN = "In the original log: "
"""put before notes from a file: they say how the log was read or made before this file was written"""

EXAMPLE = "observations=x,y actions=u rewards=r"
FORM = f"{EXAMPLE} [next_observations=…] [terminations=…] [timeouts=…] [episode=…]"

_NAME = r"""(?:'[^']*'|"[^"]*"|[^\s,'"][^\s,]*)"""
_PART = re.compile(rf"\s*([^\s=,]+)=({_NAME}(?:,{_NAME})*)(?=\s|$)")
"""one field and its columns; a name with spaces or commas is quoted"""


@dataclass(frozen=True)
class RawLog:
    """The contents of a source, not yet checked."""

    fields: Mapping[str, ArrayLike]
    """arrays by a name in `KNOWN`"""
    unused: Names = ()
    """full names of everything else in the source"""
    notes: tuple[Note, ...] = ()
    actions_note: Note | None = None
    """how the kind of the actions was guessed; dropped if the user says what they are"""
    action_count: int | None = None
    exact_ends: bool = False
    """`timeouts` are episode ends for certain, as in files written by this package"""
    unknown_next: np.ndarray | None = None
    """rows whose next state was never logged; `next_observations` holds a placeholder"""
    starts: np.ndarray | None = None
    start_weights: np.ndarray | None = None
    observation_names: Names | None = None
    action_names: Names | None = None
    field_hints: Mapping[str, str] | None = None
    """added to an error about a field, such as the columns it was read from"""
    line_of: Callable[[int], int] | None = None
    """the line of a text file that holds a row"""

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, ArrayLike], unused: Names) -> RawLog:
        """Arrays by names in `KNOWN` or `NAME_FIELDS`."""
        fields = {name: values for name, values in arrays.items() if name in KNOWN}
        of_states, of_actions = (_texts(name, arrays[name]) if name in arrays else None for name in NAME_FIELDS)
        return cls(fields, unused, observation_names=of_states, action_names=of_actions)

    def with_extras(self, entries: dict[str, Any]) -> RawLog:
        """The log with the entries of its file, which was written by this package and has exact episode ends."""
        notes = (*self.notes, *(_parse_note(line) for line in islice(entries.pop("notes", ()), MAX_NOTES)))
        return replace(self, exact_ends=True, notes=notes, **entries)


@dataclass(frozen=True)
class ColumnMap:
    """The columns of a CSV or Parquet table, by the field they belong to.

    Without a map, columns are recognised by name: `observations_0`, `observations_1`, … (or one column
    `observations`), likewise `actions` and `next_observations`; `rewards`, `terminations` (or `terminals`), `timeouts`
    (or `truncations`) and `episode`.
    """

    observations: Names
    actions: Names
    rewards: str
    next_observations: Names = ()
    terminations: str | None = None
    timeouts: str | None = None
    episode: str | None = None
    """ids of any kind; an episode ends where the id changes, whatever `timeouts` say"""

    @classmethod
    def parse(cls, text: str) -> ColumnMap:
        """Reads a map from one line of text: `observations=x,y actions=u rewards=r episode=ep`.

        Names with spaces are quoted: `observations='Pos X','Pos Y'`.
        """
        parts: list[tuple[str, Names]] = []
        start, text = 0, text.rstrip()
        while start < len(text):
            part = _PART.match(text, start)
            if part is None:
                hint = "Names with spaces must be in quotes, as in observations='Pos X','Pos Y'."
                rest = repr(text[start:].split()[0])
                raise DataError(f"a column map like '{FORM}'", rest, field="columns", hint=hint)
            names = re.findall(_NAME, part[2])
            parts.append((part[1], tuple(name[1:-1] if name[0] in "'\"" else name for name in names)))
            start = part.end()
        return cls._from_parts(parts, f"Use the form '{FORM}'.")

    @classmethod
    def from_any(cls, columns: object) -> ColumnMap | None:
        """A map as it is, or made from one line of text or from a dictionary of column names; None stays None."""
        if columns is None or isinstance(columns, ColumnMap):
            return columns
        if isinstance(columns, str):
            return cls.parse(columns)
        if not isinstance(columns, Mapping):
            expected = "a ColumnMap, a text or a dictionary of column names"
            raise DataError(expected, f"{type(columns).__name__} {columns!r}"[:80], field="columns")
        parts = []
        for field, given in columns.items():
            # a text is a sequence too, but of letters
            names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
            valid = names and all(isinstance(name, str) for name in names)
            require(valid, f"one or several column names for {field!r}", f"{given!r}"[:80], field="columns")
            parts.append((str(field), names))
        return cls._from_parts(parts, f"Use the form '{FORM}'.")

    @classmethod
    def _from_parts(cls, parts: Iterable[tuple[str, Names]], hint: str, header: Sequence[str] = ()) -> ColumnMap:
        columns: dict[str, Any] = {}  # fields that are absent keep the defaults of the class
        for given, names in parts:
            field, similar = OTHER_NAMES.get(given, given), closest(given, KNOWN)
            require(given in KNOWN, f"one of {', '.join(KNOWN)}", f"'{given}'", field="columns", hint=similar)
            require(field not in columns, f"'{field}' only once", "it twice", field="columns")
            is_vector, count = field in VECTOR_FIELDS, len(names)
            require(is_vector or count == 1, f"one column for '{field}'", f"{count}", field="columns")
            columns[field] = names if is_vector else names[0]
        for field in REQUIRED:
            expected = f"columns for '{field}'" if field in VECTOR_FIELDS else f"a column for '{field}'"
            require(field in columns, expected, f"only {listed(header or columns)}", hint=hint)
        return cls(**columns)

    @classmethod
    def recognise(cls, header: Sequence[str]) -> ColumnMap:
        """Finds the columns of each field by the names described above."""
        columns: dict[str, Names] = {}
        for field in VECTOR_FIELDS:
            numbered = [name for name in header if re.fullmatch(rf"{field}_[0-9]{{1,9}}", name)]
            # by number: as texts, 10 would come before 2
            in_order = tuple(sorted(numbered, key=lambda name: int(name.rpartition("_")[2])))
            columns[field] = in_order or ((field,) if field in header else ())
        for field in SINGLE_FIELDS:
            columns[field] = stored_name(field, header)
        hint = f'Name the columns of each field, for example --columns "{EXAMPLE}" (in Python: columns="…").'
        return cls._from_parts([part for part in columns.items() if part[1]], hint, header)

    def by_field(self) -> Iterator[tuple[str, Names]]:
        """Each field that the map names, with its columns."""
        for field in OWN_NAMES:
            columns = getattr(self, field)
            if columns is not None and columns != ():
                yield field, (columns,) if isinstance(columns, str) else columns

    def used(self) -> list[str]:
        """Every column that the map names, once."""
        return list(dict.fromkeys(name for _, names in self.by_field() for name in names))

    def raw_log(self, header: Sequence[str], fields: Mapping[str, np.ndarray]) -> RawLog:
        """The fields read from a table, with the names of their components and of the columns that were not used."""
        used, hints, names = {*self.used()}, {}, {}
        for field, columns in self.by_field():
            hints[field] = f"Columns of {field}: {shortened(columns)}."
            # a single column may hold lists
            width = math.prod(fields[field].shape[1:]) // len(columns)
            names[field] = number_names((name, width) for name in columns)
        unused = tuple(name for name in header if name not in used)
        states, actions = names["observations"], names["actions"]
        return RawLog(fields, unused, observation_names=states, action_names=actions, field_hints=hints)

    def checked(self, header: Sequence[str]) -> ColumnMap:
        """The map itself; refuses a column that the table does not have, or has twice."""
        counts = Counter(header)
        for field, names in self.by_field():
            for name in names:
                if name not in counts:  # the hint takes long to find in a wide table
                    hint = closest(name, header)
                    raise DataError(f"a column '{name}'", f"only {listed(header)}", field=field, hint=hint)
                require(counts[name] == 1, f"one column '{name}'", "several columns of that name", field=field)
        return self


def extras(dataset: Dataset) -> dict[str, Any]:
    """The entries that this package adds to the file of a log."""
    entries: dict[str, Any] = {"version": EXTRAS_VERSION, "unknown_next": np.flatnonzero(~dataset.next_known)}
    notes = [f"{note.kind}: {note.text}" for note in dataset.notes]
    texts = zip(EXTRA_TEXTS, (dataset.observation_names, dataset.action_names, notes), strict=True)
    return entries | {name: list(values) for name, values in texts if values}


def _parse_note(line: str) -> Note:
    """A note as it was stored; a damaged one is shown as a fact."""
    # the file may have been edited: its text is shown to people, and never with control characters
    line = printable(line, MAX_NOTE)
    kind, _, text = line.partition(": ")
    if kind not in get_args(NoteKind):
        kind, text = "fact", line
    return Note(cast(NoteKind, kind), ORIGIN + text.removeprefix(ORIGIN))


def _texts(field: str, values: ArrayLike) -> Names:
    """The texts of an array."""
    array = np.asarray(values)
    require(array.dtype.kind in "SU", "texts", f"an array of type {array.dtype}", field=field)
    entries = array.reshape(-1).tolist()
    return tuple(entry.decode(errors="replace") if isinstance(entry, bytes) else entry for entry in entries)


def listed(names: Iterable[str]) -> str:
    """Names for a message, sorted and quoted; beyond `MAX_LISTED` only their number."""
    return shortened([repr(name) for name in sorted(names)]) or "nothing"


def shortened(names: Sequence[str]) -> str:
    """Names for a message, each cut at `MAX_NAME`; beyond `MAX_LISTED` only their number."""
    more = f" and {len(names) - MAX_LISTED:,} more" if len(names) > MAX_LISTED else ""
    return ", ".join(printable(name, MAX_NAME) for name in names[:MAX_LISTED]) + more


def closest(name: str, known: Sequence[str]) -> str:
    """A hint with the most similar known name, or an empty one."""
    matches = get_close_matches(name, known, n=1)
    return f"Did you mean {matches[0]!r}?" if matches else ""


def stored_name(field: str, present: Container[str]) -> Names:
    """The name under which a field is present, its own or another; nothing if it is missing, and both are refused."""
    candidates = (field, *(other for other, same in OTHER_NAMES.items() if same == field))
    names = tuple(name for name in candidates if name in present)
    require(len(names) < 2, f"only one of {' and '.join(map(repr, names))}", "both")
    return names


def check_required(present: Sequence[str], fields: Container[str], hint: str = "") -> None:
    """Refuses a source in which a required field is missing; an error hints at a name that looks like the field's."""
    for name in REQUIRED:
        if name not in fields:
            common = [other for other in present if other.lower() in SYNONYMS[name].split()]
            similar = common or get_close_matches(name, [other for other in present if other not in KNOWN], n=1)
            rename = f"Did you mean {similar[0]!r}? Rename it to '{name}'." if similar else ""
            raise DataError(f"a field '{name}'", f"only {listed(present)}", hint=f"{rename} {hint}".strip())


def number_names(parts: Iterable[tuple[str, int]]) -> Names:
    """A name for each component of a vector made of parts: `speed` for one of width 1, `goal[0]`, `goal[1]` for 2."""
    return tuple(name if width == 1 else f"{name}[{index}]" for name, width in parts for index in range(width))
