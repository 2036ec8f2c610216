"""`RawLog`: the result of every reader, and the names of a log's fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

import numpy as np
from numpy.typing import ArrayLike

from bats.data.episodes import Note
from bats.errors import DataError

OTHER_NAMES = {"terminals": "terminations", "truncations": "timeouts"}
"""D4RL's and Gymnasium's names for our own"""
REQUIRED = ("observations", "actions", "rewards")
KNOWN = (*REQUIRED, "next_observations", "terminations", "timeouts", "episode", *OTHER_NAMES)
COMMON_NAMES = {
    "observations": ("obs", "observation", "state", "states"),
    "actions": ("action", "act", "acts"),
    "rewards": ("reward", "rew", "rews"),
}
"""names in use elsewhere, for hints only: a field is never read under a name that is not in `KNOWN`"""
MAX_LISTED = 30
"""names in a message; the rest is counted"""


@dataclass(frozen=True)
class RawLog:
    """The contents of a source, not yet checked."""

    fields: Mapping[str, ArrayLike]
    """arrays by a name in `KNOWN`"""
    unused: tuple[str, ...] = ()
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
    observation_names: tuple[str, ...] | None = None
    action_names: tuple[str, ...] | None = None
    field_hints: Mapping[str, str] = field(default_factory=dict)
    """added to an error about a field, such as the columns it was read from"""
    line_of: Callable[[int], int] | None = None
    """the line of a text file that holds a row"""


def listed(names: Iterable[str]) -> str:
    """Names for a message, sorted; beyond `MAX_LISTED` only their number."""
    names = sorted(names)
    more = f" and {len(names) - MAX_LISTED:,} more" if len(names) > MAX_LISTED else ""
    return ", ".join(map(repr, names[:MAX_LISTED])) + more if names else "nothing"


def closest(name: str, known: Sequence[str]) -> str:
    """A hint with the most similar known name, or an empty one."""
    matches = get_close_matches(name, known, n=1)
    return f"Did you mean {matches[0]!r}?" if matches else ""


def missing_field(name: str, present: Sequence[str]) -> DataError:
    """The error that a required field is missing, with a hint where another name looks like it."""
    common = [other for other in present if other.lower() in COMMON_NAMES[name]]
    similar = common or get_close_matches(name, [other for other in present if other not in KNOWN], n=1)
    hint = f"Did you mean {similar[0]!r}? Rename it to '{name}'." if similar else ""
    return DataError(f"a field '{name}'", f"only {listed(present)}", hint=hint)


def numbered_names(parts: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """A name for each number of a vector made of parts: `speed` for one of width 1, `goal[0]`, `goal[1]` for 2."""
    return tuple(name if width == 1 else f"{name}[{index}]" for name, width in parts for index in range(width))
