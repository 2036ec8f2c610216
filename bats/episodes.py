"""Where one episode ends and the next begins, and what state follows each row.

A log is a table of rows in the order of time:

    row             0    1    2    3    4    5    6
    observation     s0   s1   s2   s3 | t0   t1   t2        an episode ends after row 3
    next state      s1   s2   s3   s4   t1   t2   t3        where the log stores it
    without it      s1   s2   s3   ?    t1   t2   ?         s4 and t3 were never written down

A false boundary costs a state its future; a missed one makes an edge that nobody ever travelled. So flags in a log
are checked against the states themselves: D4RL's maze2d, for one, raises `timeouts` at sub-goals of one continuous
run. Each decision is kept as a `Note` and shown by `bats-rl validate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from bats.types import Observations, RowFlags

TimeoutRule = Literal["auto", "trust", "ignore"]
"""auto: a flagged row ends an episode unless its states go on; trust: always; ignore: never"""

STEP_QUANTILE = 0.999
"""a step no longer than this share of the log's own steps is an ordinary step"""
JUMP_FACTOR = 3.0
"""without any flags, a step this many times longer than an ordinary one is a boundary"""


@dataclass(frozen=True)
class Note:
    """One thing a user should know about how their log was read."""

    kind: Literal["problem", "decision", "fact"]
    text: str


@dataclass(frozen=True)
class Episodes:
    """The rows of a log put in order: what follows each row, and which rows end an episode."""

    next_observations: Observations
    next_known: RowFlags
    """false where the log never said what came next (`next_observations` then repeats the observation)"""
    ends: RowFlags
    keep: RowFlags
    """false where a row cannot be used: it did not end the task, yet its next state was never logged"""
    notes: tuple[Note, ...]


def split_episodes(
    observations: Observations,
    next_observations: Observations | None,
    terminations: RowFlags,
    timeouts: RowFlags | None,
    *,
    rule: TimeoutRule,
) -> Episodes:
    """Finds the episodes of a log, whatever of next states and flags it carries."""
    if next_observations is None:
        return _from_consecutive_rows(observations, terminations, timeouts, rule)
    return _from_stored_next(observations, next_observations, terminations, timeouts, rule)


def _from_stored_next(
    observations: Observations,
    next_observations: Observations,
    terminations: RowFlags,
    timeouts: RowFlags | None,
    rule: TimeoutRule,
) -> Episodes:
    """With next states in the log, an episode goes on exactly where a row's next state is the next row's state."""
    continues = np.zeros(len(observations), dtype=bool)
    np.all(next_observations[:-1] == observations[1:], axis=1, out=continues[:-1])
    ends = terminations | ~continues
    notes = []
    if timeouts is not None and rule != "ignore":
        notes.append(_timeouts_note(timeouts, timeouts & continues, rule))
        if rule == "trust":
            ends |= timeouts
    flagged = terminations if timeouts is None else terminations | timeouts
    loose = int(np.count_nonzero(~continues[:-1] & ~flagged[:-1]))
    if loose and timeouts is None:
        text = f"{loose:,} rows lead to a state that is not the next row's: episodes end there."
        notes.append(Note("decision", text))
    elif loose:
        text = f"{loose:,} rows lead to a state that is not the next row's, though no flag ends the episode there"
        notes.append(Note("problem", f"{text}; episodes were ended there."))
    everywhere = np.ones(len(observations), dtype=bool)
    return Episodes(next_observations, everywhere, ends, everywhere, tuple(notes))


def _from_consecutive_rows(
    observations: Observations,
    terminations: RowFlags,
    timeouts: RowFlags | None,
    rule: TimeoutRule,
) -> Episodes:
    """Without next states, the next row's state is the next state, except across a boundary."""
    notes = [Note("decision", "The log has no next states: each was taken from the row that follows.")]
    step = _step_sizes(observations)
    ends = terminations.copy()
    ends[-1] = True
    if rule == "trust" and timeouts is not None:
        notes.append(_timeouts_note(timeouts, np.zeros_like(timeouts), rule))
        ends |= timeouts
    elif rule == "auto":
        flagged = ends if timeouts is None else ends | timeouts
        inside = step[~flagged[:-1]]
        ordinary = float(np.quantile(inside, STEP_QUANTILE)) if inside.size else 0.0
        if timeouts is None:
            jumps = np.append(step > JUMP_FACTOR * ordinary, False) & ~terminations
            notes += _jumps_note(int(np.count_nonzero(jumps)))
            ends |= jumps
        else:
            joined = timeouts & ~ends & np.append(step <= ordinary, False)
            notes.append(_timeouts_note(timeouts, joined, rule))
            ends |= timeouts & ~joined

    next_observations = np.concatenate([observations[1:], observations[-1:]])
    next_observations[ends] = observations[ends]
    keep = ~ends | terminations
    if terminations.any():
        count = int(np.count_nonzero(terminations))
        text = f"{count:,} terminal rows: the state they lead to was not logged, only their reward."
        notes.append(Note("decision", text))
    lost = len(keep) - int(np.count_nonzero(keep))
    text = f"{lost:,} rows that end an episode were left out: their next state was never logged."
    notes.append(Note("decision", text))
    ends[:-1] |= ~keep[1:]  # the row before a dropped one is now its episode's last
    return Episodes(next_observations, ~ends | ~terminations, ends, keep, tuple(notes))


def _step_sizes(observations: Observations) -> Float[np.ndarray, "M"]:
    """Distance between consecutive rows, each dimension in units of its own root mean square change."""
    change = np.diff(observations, axis=0)
    scale = np.sqrt(np.einsum("nd,nd->d", change, change, dtype=np.float64) / max(len(change), 1))
    change /= np.where(scale > 0, scale, 1).astype(change.dtype)
    return np.sqrt(np.einsum("nd,nd->n", change, change))


def _timeouts_note(timeouts: RowFlags, joined: RowFlags, rule: TimeoutRule) -> Note:
    total, kept_on = int(np.count_nonzero(timeouts)), int(np.count_nonzero(joined))
    if rule == "trust":
        return Note("decision", f"{total:,} timeouts: each ends an episode.")
    text = f"{total:,} timeouts: {kept_on:,} were joined because the states go on, {total - kept_on:,} end an episode."
    return Note("decision", text)


def _jumps_note(count: int) -> list[Note]:
    missing = "The log has neither next states nor timeouts, so boundaries are a guess"
    found = f"{count:,} steps over {JUMP_FACTOR:g} times the longest ordinary step were taken as episode ends."
    return [Note("problem", f"{missing}: {found}")]
