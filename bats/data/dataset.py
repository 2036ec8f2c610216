"""`Dataset`: a log of transitions as flat arrays, checked once when it is made and trusted from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from bats.arrays import Actions, Observations, RowFlags, RowNumbers
from bats.data.episodes import Note, TimeoutRule, split_episodes
from bats.errors import DataError

MAX_NUMBER = 1e30
"""a larger number in a log is a filler or a fault, and its square overflows in single precision"""
MAX_NAME = 100
"""letters kept of the name of a number"""

StartRule = Callable[[Observations], Bool[np.ndarray, "N"]]
"""true for each logged state in which an episode may begin"""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A log: one row per transition, in the order of time. Make one with `Dataset.from_arrays` or `load_dataset`."""

    observations: Observations
    actions: Actions
    rewards: RowNumbers
    next_observations: Observations
    terminations: RowFlags
    """the task itself ended in this row, and no reward can follow"""
    episode_ends: RowFlags
    """last row of an episode, for whatever reason"""
    next_known: RowFlags
    """false where the next state was never logged (only ever at terminations)"""
    starts: Int[np.ndarray, "W"]
    """rows whose observation is a start state"""
    start_weights: Float[np.ndarray, "W"]
    """share of episodes that begin in each start state; they sum to 1"""
    action_count: int | None
    """number of discrete actions; None for continuous actions"""
    name: str = "arrays"
    notes: tuple[Note, ...] = ()
    observation_names: tuple[str, ...] | None = None
    """a name for each number of an observation, if the source has names"""
    action_names: tuple[str, ...] | None = None
    """a name for each number of an action; a discrete action has one"""

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

        `timeouts` are doubted as `timeout_rule` says; `episode_ends` flags rows that end an episode for certain.
        `discrete` says whether an action is an index; None: integer actions of rank 1 are.
        Raises `DataError`, naming field and row, for anything that cannot be used.
        """
        with naming(name):
            # values and lengths first: the search for episodes relies on them
            states, next_states = _states(observations, next_observations)
            choices, choice_count = _actions(actions, discrete, action_count)
            reward = _finite("rewards", _as_float(_column("rewards", rewards)))
            ended = np.zeros(len(states), dtype=bool) if terminations is None else _flags("terminations", terminations)
            timed_out = None if timeouts is None else _flags("timeouts", timeouts)
            last = None if episode_ends is None else _flags("episode_ends", episode_ends)
            required = {"actions": choices, "rewards": reward, "terminations": ended}
            _check_lengths(len(states), required | {"timeouts": timed_out, "episode_ends": last})
            state_names = _names("observation_names", observation_names, states.shape[1])
            choice_names = _names("action_names", action_names, 1 if choices.ndim == 1 else choices.shape[1])
            episodes = split_episodes(states, next_states, ended, timed_out, rule=timeout_rule, ends=last)
            usable = int(np.count_nonzero(episodes.keep))
            require(usable >= 2, "at least 2 rows with a known next state", f"{usable}", field="observations")
        rows = slice(None) if usable == len(states) else episodes.keep  # a slice saves a copy of the whole log
        ends = episodes.ends[rows]
        first_rows = np.flatnonzero(np.concatenate([[True], ends[:-1]]))
        return cls(
            observations=states[rows],
            actions=choices[rows],
            rewards=reward[rows],
            next_observations=episodes.next_observations[rows],
            terminations=ended[rows],
            episode_ends=ends,
            next_known=episodes.next_known[rows],
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
        """The same log with other start states: row numbers, or a rule on observations; equal weights by default."""
        with naming(self.name):
            chosen = np.flatnonzero(starts(self.observations)) if callable(starts) else starts
            rows = row_numbers("starts", chosen, len(self))
            require(rows.size > 0, "at least one start state", "none", field="starts")
            shares = np.ones(len(rows)) if weights is None else np.asarray(weights, dtype=np.float64)
            usable = shares.shape == rows.shape and np.isfinite(shares).all() and shares.min() >= 0 and shares.sum() > 0
            expected = f"{len(rows)} weights, none negative, some positive"
            require(usable, expected, f"{shares}", field="start_weights")
        # weights that already sum to 1 keep every bit, so that a log written and read again is the same log
        total = shares.sum()
        if abs(total - 1) > 1e-12:
            shares = shares / total
        return replace(self, starts=rows, start_weights=shares)


def require(condition: object, expected: str, found: str, *, field: str, hint: str = "") -> None:
    """Raises a `DataError` unless the condition holds."""
    if not condition:
        raise DataError(expected, found, field=field, hint=hint)


@contextmanager
def naming(log: Path | str) -> Iterator[None]:
    """Adds the name of a log or file to a `DataError` that has none."""
    try:
        yield
    except DataError as error:
        if error.file is not None:
            raise
        raise error.within(str(log)) from error.__cause__


def printable(text: str, limit: int) -> str:
    """Text from a file, safe to print on a terminal: control characters become `?`, and it is cut at `limit`."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[:limit])
    return shown + ("…" if len(text) > limit else "")


def row_numbers(field: str, values: ArrayLike, count: int) -> Int[np.ndarray, "rows"]:
    """Row numbers of a log of `count` rows, checked; there may be none."""
    rows = np.asarray(values)
    if rows.ndim != 1 or (rows.size and (rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= count)):
        raise DataError(f"row numbers from 0 to {count - 1}", f"{rows.dtype} of shape {rows.shape}", field=field)
    return rows.astype(np.int64)


def _check_lengths(rows: int, fields: Mapping[str, np.ndarray | None]) -> None:
    for field, values in fields.items():
        if values is not None and len(values) != rows:
            raise DataError(f"{rows} rows, as in observations", f"{len(values)}", field=field)


def _states(observations: ArrayLike, next_observations: ArrayLike | None) -> tuple[Observations, Observations | None]:
    """Observations and next observations, checked, with the same width and precision."""
    states = _table("observations", observations)
    require(len(states) >= 2, "at least 2 rows", f"{len(states)}", field="observations")
    if next_observations is None:
        return states, None
    next_states = _table("next_observations", next_observations)
    _check_lengths(len(states), {"next_observations": next_states})
    width, next_width = states.shape[1], next_states.shape[1]
    expected = f"{width} numbers a row, as in observations"
    require(width == next_width, expected, f"{next_width}", field="next_observations")
    # the coarser precision for both: otherwise the same state would be two different numbers
    coarser = min(states.dtype, next_states.dtype, key=lambda dtype: dtype.itemsize)
    return states.astype(coarser, copy=False), next_states.astype(coarser, copy=False)


def _actions(values: ArrayLike, discrete: bool | None, count: int | None) -> tuple[Actions, int | None]:
    """Continuous actions as a table, or the indices of discrete ones and their number."""
    table = _numbers("actions", values)
    single = table.ndim == 1 or (table.ndim == 2 and table.shape[1] == 1)
    if discrete is None:
        discrete = count is not None or (single and table.dtype.kind in "iu")
    if not discrete:
        return _table("actions", table), None
    hint = "Number the combinations of several discrete actions to make them one."
    require(single, "one discrete action a row", f"shape {table.shape}", field="actions", hint=hint)
    expected = "at least one discrete action, and fewer than 2^31"
    require(count is None or 0 < count < 2**31, expected, f"{count}", field="action_count")
    chosen = _finite("actions", table.reshape(-1))
    # indices are stored as 32-bit integers
    limit = 2**31 if count is None else count
    wrong = np.flatnonzero((chosen != np.round(chosen)) | (chosen < 0) | (chosen >= limit))
    if wrong.size:
        expected = "a whole number from 0" + ("" if count is None else f" to {count - 1}")
        raise DataError(expected, f"{chosen[wrong[0]]}", field="actions", row=int(wrong[0]))
    indices = chosen.astype(np.int32)
    return indices, int(indices.max(initial=-1)) + 1 if count is None else count


def _names(field: str, names: Sequence[str] | None, count: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise DataError(f"{count} names, one for each number", printable(f"{names!r}", MAX_NAME), field=field)
    # names come from files and are shown on terminals and pages
    return tuple(printable(name, MAX_NAME) for name in names)


def _table(field: str, values: ArrayLike) -> Observations:
    table = _numbers(field, values)
    if table.ndim == 1:
        table = table[:, None]
    is_table = table.ndim == 2 and table.shape[1] > 0
    require(is_table, "a table of rank 2, rows by numbers", f"shape {table.shape}", field=field)
    return _finite(field, _as_float(table))


def _column(field: str, values: ArrayLike, entry: str = "number") -> np.ndarray:
    column = _numbers(field, values)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    require(column.ndim == 1, f"one {entry} a row", f"shape {column.shape}", field=field)
    return column


def _flags(field: str, values: ArrayLike) -> RowFlags:
    flags = _column(field, values, "flag")
    wrong = np.flatnonzero((flags != 0) & (flags != 1)) if flags.dtype != bool else np.empty(0)
    if wrong.size:
        raise DataError("true or false (1 or 0)", f"{flags[wrong[0]]}", field=field, row=int(wrong[0]))
    return flags.astype(bool)


def _numbers(field: str, values: ArrayLike) -> np.ndarray:
    """The values as an array of plain numbers; an array of objects is refused and never unpacked."""
    try:
        numbers = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DataError("rows of equal length", str(error), field=field) from None
    # long doubles are refused: they differ between machines, and neither Numba nor JAX has them
    are_numbers = numbers.dtype.kind in "biuf" and numbers.dtype.itemsize <= 8
    require(are_numbers, "numbers", f"an array of type {numbers.dtype}", field=field)
    require(numbers.ndim > 0, "an array with one entry a row", "a single number", field=field)
    return numbers


def _as_float(numbers: np.ndarray) -> np.ndarray:
    """Floats keep their precision, at least single; integers become doubles, which hold them exactly."""
    precise = np.float64 if numbers.dtype.kind != "f" else np.promote_types(numbers.dtype, np.float32)
    return np.ascontiguousarray(numbers, dtype=precise)


def _finite(field: str, numbers: np.ndarray) -> np.ndarray:
    # two reductions decide the usual case without a copy; a NaN fails both comparisons
    if numbers.size == 0 or (numbers.min() >= -MAX_NUMBER and numbers.max() <= MAX_NUMBER):
        return numbers
    index = np.argwhere(~(np.abs(numbers) <= MAX_NUMBER))[0]
    column = f" in column {index[1]}" if len(index) > 1 and numbers.shape[1] > 1 else ""
    expected = f"finite numbers of size at most {MAX_NUMBER:g}"
    raise DataError(expected, f"{numbers[tuple(index)]}{column}", field=field, row=int(index[0]))
