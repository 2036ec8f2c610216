"""`Dataset`: a log of transitions as flat arrays, checked once on entry and trusted ever after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from bats.arrays import Actions, Observations, RowFlags, RowNumbers
from bats.data.episodes import Note, TimeoutRule, split_episodes
from bats.errors import DataError

LARGEST_NUMBER = 1e30
"""beyond this a number in a log is a filler or a fault, and squares of it overflow"""

LONGEST_NAME = 100
"""letters kept of a number's name"""

StartRule = Callable[[Observations], Bool[np.ndarray, "N"]]
"""says of every logged state whether an episode may begin there"""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A log: one row per transition, in the order of time. Make one with `Dataset.from_arrays` or `load_dataset`."""

    observations: Observations
    actions: Actions
    rewards: RowNumbers
    next_observations: Observations
    terminations: RowFlags
    """the task itself ended here: nothing can be earned afterwards"""
    episode_ends: RowFlags
    """last row of an episode, for whatever reason"""
    next_known: RowFlags
    """false where the log never said what state followed (only ever at terminations)"""
    starts: Int[np.ndarray, "W"]
    """rows whose observation is a start state"""
    start_weights: Float[np.ndarray, "W"]
    """share of episodes that begin there; they sum to 1"""
    action_count: int | None
    """how many discrete actions there are; None where actions are numbers in a box"""
    name: str = "arrays"
    notes: tuple[Note, ...] = ()
    observation_names: tuple[str, ...] | None = None
    """what each number of an observation is called, where the source says so"""
    action_names: tuple[str, ...] | None = None
    """what each number of an action is called; of discrete actions there is one"""

    @classmethod
    def from_arrays(
        cls,
        observations: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        *,
        next_observations: ArrayLike | None = None,
        terminations: ArrayLike | None = None,
        timeouts: ArrayLike | None = None,
        episode_ends: ArrayLike | None = None,
        discrete: bool | None = None,
        action_count: int | None = None,
        timeout_rule: TimeoutRule = "auto",
        observation_names: Sequence[str] | None = None,
        action_names: Sequence[str] | None = None,
        name: str = "arrays",
        notes: tuple[Note, ...] = (),
    ) -> Dataset:
        """Checks the arrays and finds the episodes.

        `timeouts` may be doubted, as `timeout_rule` says; `episode_ends` flags rows known to be the last of an episode.
        `discrete` says whether an action is one of several (an index); left out, integer actions of rank 1 are.
        Raises `DataError`, naming field and row, for anything that cannot be used.
        """
        try:
            states, following = _states(observations, next_observations)
            choices, choice_count = _actions(actions, discrete, action_count)
            earned = _column("rewards", rewards)
            ended = np.zeros(len(states), dtype=bool) if terminations is None else _flags("terminations", terminations)
            cut = None if timeouts is None else _flags("timeouts", timeouts)
            last = None if episode_ends is None else _flags("episode_ends", episode_ends)
            others = {"actions": choices, "rewards": earned, "terminations": ended}
            _same_length(len(states), others | {"timeouts": cut, "episode_ends": last})
            state_names = _names("observation_names", observation_names, states.shape[1])
            choice_names = _names("action_names", action_names, 1 if choices.ndim == 1 else choices.shape[1])
        except DataError as error:
            raise error.within(name) from None

        episodes = split_episodes(states, following, ended, cut, rule=timeout_rule, ends=last)
        keep = episodes.keep
        usable = int(np.count_nonzero(keep))
        if usable < 2:
            raise DataError("at least 2 rows with a known next state", f"{usable}", file=name, field="observations")
        ends = _kept(episodes.ends, keep)
        first_rows = np.flatnonzero(np.concatenate([[True], ends[:-1]]))
        return cls(
            observations=_kept(states, keep),
            actions=_kept(choices, keep),
            rewards=_kept(earned, keep),
            next_observations=_kept(episodes.next_observations, keep),
            terminations=_kept(ended, keep),
            episode_ends=ends,
            next_known=_kept(episodes.next_known, keep),
            starts=first_rows,
            start_weights=np.full(len(first_rows), 1 / len(first_rows)),
            action_count=choice_count,
            name=name,
            notes=notes + episodes.notes,
            observation_names=state_names,
            action_names=choice_names,
        )

    def __len__(self) -> int:
        return len(self.rewards)

    def __repr__(self) -> str:
        discrete = self.action_count is not None
        actions = f"{self.action_count} actions" if discrete else f"{self.actions.shape[1]} action numbers"
        return (
            f"Dataset({self.name}: {len(self):,} rows, {self.observations.shape[1]} observation numbers, {actions}, "
            f"{self.episode_count:,} episodes, {len(self.starts):,} starts)"
        )

    @property
    def episode_count(self) -> int:
        return int(np.count_nonzero(self.episode_ends))

    def with_starts(self, starts: ArrayLike | StartRule, weights: ArrayLike | None = None) -> Dataset:
        """The same log with other start states: row numbers, or a rule on observations; equal weights unless given."""
        rows = np.asarray(np.flatnonzero(starts(self.observations)) if callable(starts) else starts)
        if rows.size == 0:
            raise DataError("at least one start state", "none", file=self.name, field="starts")
        if rows.ndim != 1 or rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= len(self):
            found = f"{rows.dtype} of shape {rows.shape}"
            raise DataError(f"row numbers from 0 to {len(self) - 1}", found, file=self.name, field="starts")
        shares = np.ones(len(rows)) if weights is None else np.asarray(weights, dtype=np.float64)
        if shares.shape != rows.shape or not np.isfinite(shares).all() or shares.min() < 0 or shares.sum() <= 0:
            expected = f"{len(rows)} weights, none negative, some positive"
            raise DataError(expected, f"{shares}", file=self.name, field="start_weights")
        total = shares.sum()
        if abs(total - 1) > 1e-12:  # weights that sum to 1 already stay as they are, to the last bit
            shares = shares / total
        return replace(self, starts=rows.astype(np.int64), start_weights=shares)


def _kept(rows: np.ndarray, keep: RowFlags) -> np.ndarray:
    """The rows to keep, without a copy where that is all of them."""
    return rows if keep.all() else rows[keep]


def _same_length(rows: int, fields: Mapping[str, np.ndarray | None]) -> None:
    for field, values in fields.items():
        if values is not None and len(values) != rows:
            raise DataError(f"{rows} rows, as in observations", f"{len(values)}", field=field)


def _states(observations: ArrayLike, next_observations: ArrayLike | None) -> tuple[Observations, Observations | None]:
    """Both tables of states, of the same shape and precision."""
    states = _matrix("observations", observations)
    if len(states) < 2:
        raise DataError("at least 2 rows", f"{len(states)}", field="observations")
    if next_observations is None:
        return states, None
    following = _matrix("next_observations", next_observations)
    _same_length(len(states), {"next_observations": following})
    if following.shape[1] != states.shape[1]:
        expected = f"{states.shape[1]} numbers a row, as in observations"
        raise DataError(expected, f"{following.shape[1]}", field="next_observations")
    return _same_precision(states, following)


def _names(field: str, names: Sequence[str] | None, count: int) -> tuple[str, ...] | None:
    """Names that may be shown anywhere: no control characters, and of a length one can read."""
    if names is None:
        return None
    if isinstance(names, str) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise DataError(f"{count} names, one for each number", f"{names!r}"[:LONGEST_NAME], field=field)
    return tuple("".join(one if one.isprintable() else "?" for one in name[:LONGEST_NAME]) for name in names)


def _matrix(field: str, values: ArrayLike) -> Observations:
    table = _numbers(field, values)
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or table.shape[1] == 0:
        raise DataError("a table of rank 2, rows by numbers", f"shape {table.shape}", field=field)
    return _finite(field, _as_float(table))


def _column(field: str, values: ArrayLike) -> RowNumbers:
    column = _numbers(field, values)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1:
        raise DataError("one number a row", f"shape {column.shape}", field=field)
    return _finite(field, _as_float(column))


def _flags(field: str, values: ArrayLike) -> RowFlags:
    flags = _numbers(field, values)
    if flags.ndim == 2 and flags.shape[1] == 1:
        flags = flags[:, 0]
    if flags.ndim != 1:
        raise DataError("one flag a row", f"shape {flags.shape}", field=field)
    if flags.dtype != bool:
        odd = np.flatnonzero((flags != 0) & (flags != 1))
        if odd.size:
            raise DataError("true or false (1 or 0)", f"{flags[odd[0]]}", field=field, row=int(odd[0]))
    return flags.astype(bool)


def _actions(values: ArrayLike, discrete: bool | None, count: int | None) -> tuple[Actions, int | None]:
    table = _numbers("actions", values)
    narrow = table.ndim == 1 or (table.ndim == 2 and table.shape[1] == 1)
    if discrete is None:
        discrete = count is not None or (narrow and table.dtype.kind in "iu")
    if not discrete:
        return _matrix("actions", table), None
    if not narrow:
        hint = "Number the combinations of several discrete actions to make them one."
        raise DataError("one discrete action a row", f"shape {table.shape}", field="actions", hint=hint)
    chosen = _finite("actions", table.reshape(-1))
    limit = 2**31 if count is None else count
    odd = np.flatnonzero((chosen != np.round(chosen)) | (chosen < 0) | (chosen >= limit))
    if odd.size:
        expected = "a whole number from 0" + ("" if count is None else f" to {count - 1}")
        raise DataError(expected, f"{chosen[odd[0]]}", field="actions", row=int(odd[0]))
    indices = chosen.astype(np.int32)
    return indices, int(indices.max(initial=-1)) + 1 if count is None else count


def _numbers(field: str, values: ArrayLike) -> np.ndarray:
    """The values as an array of plain numbers; object arrays are refused, never unpacked."""
    try:
        numbers = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DataError("rows of equal length", str(error), field=field) from None
    if numbers.dtype.kind not in "biuf" or numbers.dtype.itemsize > 8:
        raise DataError("numbers", f"an array of type {numbers.dtype}", field=field)
    if numbers.ndim == 0:
        raise DataError("an array with one entry a row", "a single number", field=field)
    return numbers


def _as_float(numbers: np.ndarray) -> np.ndarray:
    """Floats stay as precise as they came, at least single; integers become doubles, which hold them exactly."""
    kept = numbers.dtype.newbyteorder("=") if numbers.dtype.kind == "f" and numbers.dtype.itemsize >= 4 else None
    widened = np.float32 if numbers.dtype.kind == "f" else np.float64
    return np.ascontiguousarray(numbers, dtype=kept or widened)


def _finite(field: str, numbers: np.ndarray) -> np.ndarray:
    if numbers.size == 0 or (numbers.min() >= -LARGEST_NUMBER and numbers.max() <= LARGEST_NUMBER):
        return numbers  # decided without a copy; a NaN would have failed both tests
    fine = np.abs(numbers) <= LARGEST_NUMBER
    if not fine.all():
        place = np.argwhere(~fine)[0]
        column = f" in column {place[1]}" if len(place) > 1 and numbers.shape[1] > 1 else ""
        expected = f"finite numbers of size at most {LARGEST_NUMBER:g}"
        raise DataError(expected, f"{numbers[tuple(place)]}{column}", field=field, row=int(place[0]))
    return numbers


def _same_precision(first: Observations, second: Observations) -> tuple[Observations, Observations]:
    """Both tables in the coarser of their precisions, so that the same state is the same number in both."""
    if first.dtype == second.dtype:
        return first, second
    coarser = min(first.dtype, second.dtype, key=lambda dtype: dtype.itemsize)
    return first.astype(coarser), second.astype(coarser)
