"""Entries that this package adds to the files it writes, because neither D4RL nor Minari has names for them.

They are in a group of an HDF5 file, and under a key in Minari's metadata.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any, cast, get_args

import numpy as np

from bats.data.dataset import Dataset, printable
from bats.data.episodes import Note, NoteKind
from bats.data.formats.raw_log import RawLog

GROUP = "bats"
VERSION = 1
"""raised when the meaning of an entry changes"""
TEXTS = ("observation_names", "action_names", "notes")
MAX_NOTES, MAX_NOTE = 100, 2000
"""notes that are read from a file, and letters of each"""
ORIGIN = "In the original log: "
"""put before notes from a file: they say how the log was read or made before this file was written"""


def entries_of(dataset: Dataset) -> dict[str, Any]:
    """The entries for a log."""
    entries: dict[str, Any] = {"version": VERSION, "unknown_next": np.flatnonzero(~dataset.next_known)}
    notes = [f"{note.kind}: {note.text}" for note in dataset.notes]
    texts = zip(TEXTS, (dataset.observation_names, dataset.action_names, notes), strict=True)
    return entries | {name: list(values) for name, values in texts if values}


def complete(log: RawLog, entries: dict[str, Any]) -> RawLog:
    """Adds the entries of a file to the log read from it, whose timeouts are then exact episode ends."""
    notes = (*log.notes, *(_parse_note(line) for line in islice(entries.pop("notes", ()), MAX_NOTES)))
    return replace(log, exact_ends=True, notes=notes, **entries)


def _parse_note(line: str) -> Note:
    """A note as it was stored; a damaged one is shown as a fact."""
    # the file may have been edited: its text is shown to people, and never with control characters
    line = printable(line, MAX_NOTE)
    kind, _, text = line.partition(": ")
    if kind not in get_args(NoteKind):
        kind, text = "fact", line
    return Note(cast(NoteKind, kind), ORIGIN + text.removeprefix(ORIGIN))
