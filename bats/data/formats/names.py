"""The names a log's fields go by, and how names are told in messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from bats.errors import DataError

OTHER_NAMES = {"terminals": "terminations", "truncations": "timeouts"}
"""D4RL's and Gymnasium's names for fields that we name as on the right"""
REQUIRED = ("observations", "actions", "rewards")
KNOWN = (*REQUIRED, "next_observations", "terminations", "timeouts", "episode", *OTHER_NAMES)
USUAL_NAMES = {
    "observations": ("obs", "observation", "state", "states"),
    "actions": ("action", "act", "acts"),
    "rewards": ("reward", "rew", "rews"),
}
"""what the required fields are called elsewhere, for hints only: a field is never taken by a name that is not ours"""
LISTED = 30
"""names shown in a note or an error before the rest is only counted"""


def listed(names: Iterable[str]) -> str:
    """Names for a message, sorted, the rest counted when there are many."""
    ordered = sorted(names)
    if not ordered:
        return "nothing"
    more = f" and {len(ordered) - LISTED:,} more" if len(ordered) > LISTED else ""
    return ", ".join(map(repr, ordered[:LISTED])) + more


def closest(name: str, known: Sequence[str]) -> str:
    """A hint with the name that was probably meant, or nothing."""
    near = get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


def missing_field(field: str, present: Sequence[str], *, file: str) -> DataError:
    """The complaint that a field is missing, with all that is there instead."""
    usual = [name for name in present if name.lower() in USUAL_NAMES.get(field, ())]
    near = usual or get_close_matches(field, [name for name in present if name not in KNOWN], n=1)
    hint = f"Did you mean {near[0]!r}? Rename it to '{field}'." if near else ""
    return DataError(f"a field '{field}'", f"only {listed(present)}", file=file, hint=hint)


def numbered_names(parts: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """A name for each number of a vector made of parts: `speed` for one of width 1, `goal[0]`, `goal[1]` for 2."""
    names: list[str] = []
    for name, width in parts:
        names += [name] if width == 1 else [f"{name}[{place}]" for place in range(width)]
    return tuple(names)
