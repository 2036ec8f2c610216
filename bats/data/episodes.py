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
from jaxtyping import Bool, Float

from bats.arrays import Observations, RowFlags
from bats.data.distinct import number_rows, row_bits

TimeoutRule = Literal["auto", "trust", "ignore"]
"""auto: a flagged row ends an episode unless its states go on; trust: always; ignore: never"""

STEP_QUANTILE = 0.999
"""a step no longer than this share of the log's own steps is an ordinary step"""
FAR = 10.0
"""steps this many times longer than nine tenths of them are left out of that: they are boundaries, or faults"""
JUMP_FACTOR = 3.0
"""a step this many times longer than an ordinary one is a boundary, flagged or not"""
SUB_GOALS = 0.95
"""flags are sub-goals of an unbroken run if the states go on after this share of them; otherwise they are resets"""
MOSTLY_NEW = 0.9
"""with fewer distinct states than this share of the rows, a world counts as one whose states repeat"""


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
    ends: RowFlags | None = None,
) -> Episodes:
    """Finds the episodes of a log, whatever of next states and flags it carries.

    `ends`: rows known to end an episode, by episode ids for one; they are never doubted.
    """
    if next_observations is None:
        return _from_consecutive_rows(observations, terminations, ends, timeouts, rule)
    return _from_stored_next(observations, next_observations, terminations, ends, timeouts, rule)


def _from_stored_next(
    observations: Observations,
    next_observations: Observations,
    terminations: RowFlags,
    known_ends: RowFlags | None,
    timeouts: RowFlags | None,
    rule: TimeoutRule,
) -> Episodes:
    """With next states in the log, an episode goes on exactly where a row's next state is the next row's state."""
    continues = np.zeros(len(observations), dtype=bool)
    np.all(next_observations[:-1] == observations[1:], axis=1, out=continues[:-1])
    known = terminations if known_ends is None else terminations | known_ends
    ends = known | ~continues
    notes = []
    if timeouts is not None and rule != "ignore":
        joined = _sub_goals(timeouts, continues, rule)
        notes.append(_timeouts_note(timeouts, joined))
        ends |= timeouts & ~joined
    flagged = known if timeouts is None else known | timeouts
    loose = int(np.count_nonzero(~continues[:-1] & ~flagged[:-1]))
    if loose and timeouts is None and known_ends is None:
        text = f"{counted(loose, 'row')} with a next state that is not the next row's: episodes end there."
        notes.append(Note("decision", text))
    elif loose:
        text = f"{counted(loose, 'row')} with a next state that is not the next row's, though no flag ends the episode"
        notes.append(Note("problem", f"{text}; episodes were ended there."))
    everywhere = np.ones(len(observations), dtype=bool)
    return Episodes(next_observations, everywhere, ends, everywhere, tuple(notes))


def _from_consecutive_rows(
    observations: Observations,
    terminations: RowFlags,
    known_ends: RowFlags | None,
    timeouts: RowFlags | None,
    rule: TimeoutRule,
) -> Episodes:
    """Without next states, the next row's state is the next state, except across a boundary."""
    notes = [Note("decision", "The log has no next states: each was taken from the row that follows.")]
    ends = terminations.copy() if known_ends is None else terminations | known_ends
    ends[-1] = True
    if rule == "auto":
        flagged = ends if timeouts is None else ends | timeouts
        ordinary, jumps = _judged_steps(observations, ~flagged[:-1])
        told = timeouts is not None or known_ends is not None
        notes += _jumps_note(int(np.count_nonzero(jumps)), told=told)
        ends[:-1] |= jumps
    if timeouts is not None and rule != "ignore":
        goes_on = np.append(ordinary & ~ends[:-1], False) if rule == "auto" else np.zeros_like(timeouts)
        # in a world of few states every step is an ordinary one, so that proves nothing
        joined = _sub_goals(timeouts, goes_on, "trust" if _states_repeat(observations) else rule)
        notes.append(_timeouts_note(timeouts, joined))
        ends |= timeouts & ~joined

    next_observations = np.concatenate([observations[1:], observations[-1:]])
    next_observations[ends] = observations[ends]
    keep = ~ends | terminations
    if terminations.any():
        count = int(np.count_nonzero(terminations))
        text = f"{counted(count, 'terminal row')}: the state that followed was not logged, only the reward."
        notes.append(Note("decision", text))
    lost = len(keep) - int(np.count_nonzero(keep))
    if lost:
        text = f"{counted(lost, 'row')} at the end of an episode left out: the next state was never logged."
        notes.append(Note("decision", text))
    ends[:-1] |= ~keep[1:]  # the row before a dropped one is now its episode's last
    return Episodes(next_observations, ~ends | ~terminations, ends, keep, tuple(notes))


def _sub_goals(timeouts: RowFlags, goes_on: RowFlags, rule: TimeoutRule) -> RowFlags:
    """Flagged rows that end nothing. Decided for the whole log: a reset may well land beside where the ball lay."""
    joined = timeouts & goes_on
    few = np.count_nonzero(joined) < SUB_GOALS * np.count_nonzero(timeouts)
    return np.zeros_like(timeouts) if rule == "trust" or few else joined


def _judged_steps(
    observations: Observations, unflagged: Bool[np.ndarray, "M"]
) -> tuple[Bool[np.ndarray, "M"], Bool[np.ndarray, "M"]]:
    """Which steps between consecutive rows are ordinary ones, and which unflagged ones are jumps.

    Each number of the state is measured in units of its own root mean square change. An ordinary step is short in
    all of them together; a jump is long in most of them, since a single one, a switch say, may leap by itself.
    """
    change = np.diff(observations, axis=0)
    scale = np.sqrt(np.einsum("nd,nd->d", change, change, dtype=np.float64) / max(len(change), 1))
    change = change[:, scale > 0] / scale[scale > 0].astype(change.dtype)
    if not change.size:
        return np.ones(len(unflagged), dtype=bool), np.zeros(len(unflagged), dtype=bool)
    length = np.sqrt(np.einsum("nd,nd->n", change, change))
    middle = np.median(np.abs(change, out=change), axis=1)
    ordinary = length <= _longest_ordinary(length[unflagged])
    return ordinary, unflagged & (middle > JUMP_FACTOR * _longest_ordinary(middle[unflagged]))


def _longest_ordinary(steps: Float[np.ndarray, "n"]) -> float:
    moving = steps[steps > 0]
    if not moving.size:
        return 0.0
    near = moving[moving <= FAR * np.quantile(moving, 0.9)]
    return float(np.quantile(near, STEP_QUANTILE))


def _states_repeat(observations: Observations) -> bool:
    """Whether the log comes back to exactly the same states, as it does where there are only so many."""
    _, first = number_rows(row_bits(observations))
    return len(first) < MOSTLY_NEW * len(observations)


def counted(number: int, noun: str) -> str:
    """A number of things, in words: `1 row`, `2,000 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _timeouts_note(timeouts: RowFlags, joined: RowFlags) -> Note:
    total, kept_on = int(np.count_nonzero(timeouts)), int(np.count_nonzero(joined))
    if not kept_on:
        return Note("decision", f"{counted(total, 'timeout')}: each ends an episode.")
    ends = f"{total - kept_on:,} taken as an end. `--timeouts trust` would take them all as ends."
    return Note("decision", f"{counted(total, 'timeout')}: {kept_on:,} joined because the states go on, {ends}")


def _jumps_note(count: int, *, told: bool) -> list[Note]:
    found = f"{counted(count, 'step')} over {JUMP_FACTOR:g} times the longest ordinary step taken as episode ends"
    if told:
        return [Note("problem", f"{found}, though no flag is there.")] if count else []
    return [Note("problem", f"The log has neither next states nor timeouts, so boundaries are a guess: {found}.")]
