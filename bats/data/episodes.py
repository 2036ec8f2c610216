"""Where one episode ends and the next begins, and which state follows each row.

A log is a table of rows in the order of time:

    row             0    1    2    3    4    5    6
    observation     s0   s1   s2   s3 | t0   t1   t2        an episode ends after row 3
    next state      s1   s2   s3   s4   t1   t2   t3        where the log stores it
    without it      s1   s2   s3   ?    t1   t2   ?         s4 and t3 were never logged

A false boundary costs a state its future; a missed one adds a transition that never happened. Therefore flags in a log
are checked against the states themselves: D4RL's maze2d, for example, raises `timeouts` at sub-goals of one continuous
run. Each decision is kept as a `Note` and shown by `bats-rl validate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from bats.arrays import Observations, RowFlags
from bats.config import checked
from bats.data.distinct import number_rows, row_bits

StepFlags = Bool[np.ndarray, "M"]
"""one for each step from a row to the next"""
TimeoutRule = Literal["auto", "trust", "ignore"]
"""auto: a flagged row ends an episode unless its states continue; trust: always; ignore: never"""

ORDINARY_QUANTILE = 0.999
"""a step no longer than this quantile of the log's own steps is an ordinary step"""
OUTLIER_FACTOR = 10.0
"""steps this many times longer than the 0.9-quantile are boundaries or faults and do not count in that quantile"""
JUMP_FACTOR = 3.0
"""a step this many times longer than an ordinary one is a boundary, flagged or not"""
SUB_GOAL_SHARE = 0.95
"""flags are sub-goals of one continuous run if the states continue after this share of them; otherwise resets"""
DISTINCT_SHARE = 0.9
"""with fewer distinct states than this share of the rows, the states of a log are said to repeat"""

NoteKind = Literal["problem", "decision", "fact"]


@dataclass(frozen=True)
class Note:
    """One thing a user should know about how their log was read."""

    kind: NoteKind
    text: str


@dataclass(frozen=True)
class EndFlags:
    """What a log itself says about the ends of its episodes."""

    terminations: RowFlags
    timeouts: RowFlags | None
    ends: RowFlags | None
    """rows that end an episode for certain, for example by episode ids; they are never doubted"""

    @property
    def certain(self) -> RowFlags:
        return self.terminations if self.ends is None else self.terminations | self.ends

    @property
    def complete(self) -> bool:
        """Whether no further end needs to be looked for: there are episode ids, or timeouts up to the last row."""
        if self.ends is not None:
            return True
        return self.timeouts is not None and bool(self.timeouts.any() and (self.terminations | self.timeouts)[-1])


@dataclass(frozen=True)
class Episodes:
    """The next state of each row, and the rows that end an episode."""

    next_observations: Observations
    next_known: RowFlags
    """false where the next state was never logged (`next_observations` then repeats the observation)"""
    ends: RowFlags
    keep: RowFlags
    """false for rows that cannot be used: they did not end the task, but their next state was never logged"""
    notes: tuple[Note, ...]


def split_episodes(
    observations: Observations, next_observations: Observations | None, flags: EndFlags, rule: TimeoutRule
) -> Episodes:
    """Finds the episodes of a log with or without next states and flags."""
    checked("timeout_rule", TimeoutRule, rule)
    if next_observations is None:
        return _without_next_states(observations, flags, rule)

    certain, timeouts = flags.certain, flags.timeouts
    # with next states, an episode continues exactly where a row's next state is the next row's state
    continues = np.zeros(len(observations), dtype=bool)
    np.all(next_observations[:-1] == observations[1:], axis=1, out=continues[:-1])
    is_end = certain | ~continues
    notes = []
    if timeouts is not None and rule != "ignore":
        notes.append(_end_at_timeouts(is_end, timeouts, continues, doubt=rule == "auto"))
    # a timeout explains a break even if the rule is to ignore timeouts
    flagged = certain if timeouts is None else certain | timeouts
    if breaks := int(np.count_nonzero(~continues[:-1] & ~flagged[:-1])):
        text = f"{plural(breaks, 'row')} had a next state that differs from the state of the next row"
        if timeouts is None and flags.ends is None:
            notes.append(Note("decision", f"{text}; episodes were ended there."))
        else:
            notes.append(Note("problem", f"{text}, but no flag that ends the episode; episodes were ended there."))
    all_rows = np.ones(len(observations), dtype=bool)
    return Episodes(next_observations, all_rows, is_end, all_rows, tuple(notes))


def _without_next_states(observations: Observations, flags: EndFlags, rule: TimeoutRule) -> Episodes:
    """The next row's state is the next state, except across a boundary."""
    notes = [Note("decision", "The log has no next states; each next state was taken from the following row.")]
    terminations, timeouts, is_end = flags.terminations, flags.timeouts, flags.certain.copy()
    is_end[-1] = True  # nothing follows the last row
    continues = np.zeros_like(is_end)
    if rule == "auto":
        # steps across flagged rows may be resets and must not widen what counts as ordinary
        flagged = is_end if timeouts is None else is_end | timeouts
        ordinary, jumps = _classify_steps(observations, ~flagged[:-1])
        continues[:-1] = ordinary & ~is_end[:-1]
        if flags.complete and not (timeouts is not None and _are_sub_goals(timeouts, continues)):
            if long_steps := int(np.count_nonzero(jumps)):
                text = f"The log marks no end of an episode at {plural(long_steps, 'unusually long step')}."
                notes.append(Note("fact", f"{text} If episodes end there, mark these rows as timeouts."))
            jumps[:] = False
        count = int(np.count_nonzero(jumps))
        jump = f"(more than {JUMP_FACTOR:g} times as long as the longest ordinary steps)"
        text = f"{plural(count, 'jump')} {jump} that no flag marks as an episode end: episodes were ended there. "
        text += "Use `--timeouts trust` to end episodes only where a flag is."
        if not count:
            text = f"No jumps {jump} were found, so only the marked episode ends are used."
        if timeouts is None and flags.ends is None:
            guess = "Without next states, timeouts or episode ids, the ends of episodes are guessed."
            notes.append(Note("problem", f"{guess} {text}"))
        elif count:
            notes.append(Note("problem", text))
        is_end[:-1] |= jumps
        continues[:-1] &= ~jumps
    if timeouts is not None and rule != "ignore":
        # where the same states come back, as in a grid, every step is an ordinary one and proves nothing about a flag
        doubt = rule == "auto" and len(number_rows(row_bits(observations))[1]) >= DISTINCT_SHARE * len(observations)
        notes.append(_end_at_timeouts(is_end, timeouts, continues, doubt=doubt))

    # an end gets its own state as a placeholder; a termination keeps its row for the reward, any other end is dropped
    next_observations = np.concatenate([observations[1:], observations[-1:]])
    next_observations[is_end] = observations[is_end]
    keep = ~is_end | terminations
    if terminal := int(np.count_nonzero(terminations)):
        text = f"{plural(terminal, 'terminal row')} without a logged next state: kept for the reward."
        notes.append(Note("decision", text))
    if lost := int(np.count_nonzero(~keep)):
        text = f"{plural(lost, 'row')} at the end of an episode had no logged next state and were left out."
        notes.append(Note("decision", text))
    is_end[:-1] |= ~keep[1:]  # the row before a dropped one becomes its episode's last
    return Episodes(next_observations, ~is_end | ~terminations, is_end, keep, tuple(notes))


def _end_at_timeouts(is_end: RowFlags, timeouts: RowFlags, continues: RowFlags, *, doubt: bool) -> Note:
    """Marks the timeouts that end an episode in `is_end`; `doubt`: they may be sub-goals after which states continue.

    Decided for the whole log, because a single reset may well end near the state before it.
    """
    joined = timeouts & continues
    total, joined_count = int(np.count_nonzero(timeouts)), int(np.count_nonzero(joined))
    if not doubt or not _are_sub_goals(timeouts, continues):
        is_end |= timeouts
        return Note("decision", f"{plural(total, 'timeout')}: {'it' if total == 1 else 'each'} ends an episode.")
    is_end |= timeouts & ~joined
    text = f"{plural(total, 'timeout')}: {joined_count:,} did not end an episode, because the states continue; "
    text += f"{total - joined_count:,} ended an episode. Use `--timeouts trust` to treat all of them as ends."
    return Note("decision", text)


def _are_sub_goals(timeouts: RowFlags, continues: RowFlags) -> bool:
    """Whether the states continue after so many timeouts that these are sub-goals of one run."""
    joined = int(np.count_nonzero(timeouts & continues))
    return joined > 0 and joined >= SUB_GOAL_SHARE * int(np.count_nonzero(timeouts))


def _classify_steps(observations: Observations, unflagged: StepFlags) -> tuple[StepFlags, StepFlags]:
    """Which steps between consecutive rows are ordinary, and which of the unflagged ones are jumps.

    Each component of the state is measured in units of its own root mean square change. An ordinary step is short in
    Euclidean length; a jump is long in the median component, because a single one, such as a switch, may jump alone.
    """
    delta = np.diff(observations, axis=0)
    scale = np.sqrt(np.einsum("nd,nd->d", delta, delta, dtype=np.float64) / max(len(delta), 1))
    moving = scale >= np.finfo(delta.dtype).tiny  # a smaller one may be 0 when it is rounded
    delta = delta[:, moving] / scale[moving].astype(delta.dtype)
    if not delta.size:
        return np.ones(len(unflagged), dtype=bool), np.zeros(len(unflagged), dtype=bool)
    length = np.sqrt(np.einsum("nd,nd->n", delta, delta))
    median = np.median(np.abs(delta, out=delta), axis=1)
    ordinary = length <= _max_ordinary(length[unflagged])
    return ordinary, unflagged & (median > JUMP_FACTOR * _max_ordinary(median[unflagged]))


def _max_ordinary(steps: Float[np.ndarray, "n"]) -> float:
    # a log that rests most of the time would make any movement look like a jump
    moving = steps[steps > 0]
    if not moving.size:
        return 0.0
    near = moving[moving <= OUTLIER_FACTOR * np.quantile(moving, 0.9)]
    return float(np.quantile(near, ORDINARY_QUANTILE))


def plural(number: int, noun: str) -> str:
    """A number with its noun: `1 row`, `2,000 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
