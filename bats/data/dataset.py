"""`Dataset`: a log of transitions as flat arrays, checked once when it is made and trusted from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from bats.arrays import Actions, Observations, RowFlags, RowNumbers
from bats.config import checked
from bats.data.episodes import EndFlags, Note, TimeoutRule, split_episodes
from bats.errors import DataError, printable

MAX_NUMBER = 1e30
"""a larger number in a log is a filler or a fault, and its square overflows in single precision"""
MAX_ACTIONS = 10_000
"""discrete actions; the model has an input for each of them"""
FEW_ACTIONS, SPARSENESS = 1000, 10
"""a log's indices may go this far, or this many times further than it has different actions"""
MAX_NAME = 100
"""letters kept of the name of a component"""

Names = tuple[str, ...]
"""of the components of a state or an action, for example"""
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
    observation_names: Names | None = None
    """a name for each component of an observation, if the source has names"""
    action_names: Names | None = None
    """a name for each component of an action; a discrete action has one"""

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
        name, discrete = checked("name", str, name), checked("discrete", bool | None, discrete)
        action_count = checked("action_count", int | None, action_count)
        with naming(name):
            # values and lengths first: the search for episodes relies on them
            state_names = _names("observation_names", observation_names)
            choice_names = _names("action_names", action_names)
            states, next_states = _states(observations, next_observations, state_names)
            choices, choice_count, choice_notes = _actions(actions, discrete, action_count, choice_names)
            reward = _as_float(_finite("rewards", _column("rewards", rewards)))
            ended = np.zeros(len(states), dtype=bool) if terminations is None else _flags("terminations", terminations)
            timed_out = None if timeouts is None else _flags("timeouts", timeouts)
            last = None if episode_ends is None else _flags("episode_ends", episode_ends)
            _check_lengths(len(states), actions=choices, rewards=reward, terminations=ended)
            _check_lengths(len(states), timeouts=timed_out, episode_ends=last)
            _check_count("observation_names", state_names, states.shape[1])
            _check_count("action_names", choice_names, 1 if choices.ndim == 1 else choices.shape[1])
            episodes = split_episodes(states, next_states, EndFlags(ended, timed_out, last), timeout_rule)
            usable = int(np.count_nonzero(episodes.keep))
            require(usable >= 2, "at least 2 rows with a known next state", f"{usable}", field="observations")
        rows = slice(None) if usable == len(states) else episodes.keep  # a slice saves a copy of the whole log
        ends, known = episodes.ends[rows], episodes.next_known[rows]
        arrays = (states[rows], choices[rows], reward[rows], episodes.next_observations[rows], ended[rows], ends, known)
        starts = np.flatnonzero(np.concatenate([[True], ends[:-1]]))
        weights = np.full(len(starts), 1 / len(starts))
        # all in the order of the fields
        all_notes = notes + choice_notes + episodes.notes
        return cls(*arrays, starts, weights, choice_count, name, all_notes, state_names, choice_names)

    def __len__(self) -> int:
        return len(self.rewards)

    def __repr__(self) -> str:
        discrete = self.action_count is not None
        actions = f"{self.action_count} discrete actions" if discrete else f"actions of size {self.actions.shape[1]}"
        size = f"{len(self):,} rows, observations of size {self.observations.shape[1]}, {actions}"
        return f"Dataset({self.name}: {size}, {self.episode_count:,} episodes, {len(self.starts):,} starts)"

    @property
    def episode_count(self) -> int:
        return int(np.count_nonzero(self.episode_ends))

    @property
    def episode_numbers(self) -> Int[np.ndarray, "N"]:
        """The episode of each row; the first one is 0."""
        return np.cumsum(np.concatenate([[0], self.episode_ends[:-1]]))

    @property
    def episode_returns(self) -> Float[np.ndarray, "E"]:
        """The sum of the rewards of each episode."""
        return np.bincount(self.episode_numbers, self.rewards)

    def with_rewards(self, rewards: ArrayLike) -> Dataset:
        """The same log with other rewards, one for each row."""
        with naming(self.name):
            reward = _as_float(_finite("rewards", _column("rewards", rewards)))
            _check_lengths(len(self), rewards=reward)
        return replace(self, rewards=reward)

    def with_starts(self, starts: ArrayLike | StartRule, weights: ArrayLike | None = None) -> Dataset:
        """The same log with other start states: row numbers, or a rule on observations; equal weights by default."""
        with naming(self.name):
            chosen = np.flatnonzero(starts(self.observations)) if callable(starts) else starts
            rows = row_numbers("starts", chosen, len(self))
            require(rows.size > 0, "at least one start state", "none", field="starts")
            given = np.ones(len(rows)) if weights is None else _column("start_weights", weights)
            shares = _finite("start_weights", given).astype(np.float64)
            usable = shares.shape == rows.shape and shares.min() >= 0 and shares.sum() > 0
            require(usable, f"{len(rows)} non-negative weights with a positive sum", f"{shares}", field="start_weights")
        # weights that already sum to 1 keep every bit, so that a log written and read again is the same log
        total = shares.sum()
        weights = shares if abs(total - 1) <= 1e-12 else shares / total
        return replace(self, starts=rows, start_weights=weights)


def require(
    condition: object, expected: str, found: str, *, field: str | None = None, row: int | None = None, hint: str = ""
) -> None:
    """Raises a `DataError` unless the condition holds."""
    if not condition:
        raise DataError(expected, found, field=field, row=row, hint=hint)


@contextmanager
def naming(log: Path | str) -> Iterator[None]:
    """Adds the name of a log or file to a `DataError` that has none."""
    try:
        yield
    except DataError as error:
        if error.file is not None:
            raise
        raise error.within(str(log)) from error.__cause__


def row_numbers(field: str, values: ArrayLike, count: int) -> Int[np.ndarray, "rows"]:
    """Row numbers of a log of `count` rows, checked; there may be none."""
    rows = _numbers(field, values)
    valid = rows.ndim == 1 and (rows.size == 0 or (rows.dtype.kind in "iu" and 0 <= rows.min() <= rows.max() < count))
    require(valid, f"row numbers from 0 to {count - 1}", f"{rows.dtype} of shape {rows.shape}", field=field)
    return rows.astype(np.int64)


def _check_lengths(rows: int, **fields: np.ndarray | None) -> None:
    for field, values in fields.items():
        count = rows if values is None else len(values)
        require(count == rows, f"{rows} rows, as in observations", f"{count}", field=field)


def _states(
    observations: ArrayLike, next_observations: ArrayLike | None, names: Names | None
) -> tuple[Observations, Observations | None]:
    """Observations and next observations, checked, with the same width and precision."""
    states = _table("observations", observations, names)
    require(len(states) >= 2, "at least 2 rows", f"{len(states)}", field="observations")
    if next_observations is None:
        return states, None
    next_states = _table("next_observations", next_observations, names)
    _check_lengths(len(states), next_observations=next_states)
    width, found = states.shape[1], next_states.shape[1]
    require(found == width, f"{width} numbers per row, as in observations", f"{found}", field="next_observations")
    # the coarser precision for both: otherwise the same state would be two different numbers
    coarser = min(states.dtype, next_states.dtype, key=lambda dtype: dtype.itemsize)
    return states.astype(coarser, copy=False), next_states.astype(coarser, copy=False)


def _actions(
    values: ArrayLike, discrete: bool | None, count: int | None, names: Names | None
) -> tuple[Actions, int | None, tuple[Note, ...]]:
    """Continuous actions as a table; or the indices of discrete ones, their number, and a note if many do not occur."""
    table = _numbers("actions", values)
    single = table.ndim == 1 or (table.ndim == 2 and table.shape[1] == 1)
    if discrete is None:
        discrete = count is not None or (single and table.dtype.kind in "iu")
    if not discrete:
        return _table("actions", table, names), None, ()
    hint = "Encode each combination of discrete actions as one integer."
    require(single, "one discrete action per row", f"shape {table.shape}", field="actions", hint=hint)
    expected = f"a number of discrete actions from 1 to {MAX_ACTIONS:,}"
    require(count is None or 0 < count <= MAX_ACTIONS, expected, f"{count}", field="action_count")
    chosen = _finite("actions", table.reshape(-1))
    # a file may say how many actions there are; otherwise the indices must not leave out too many
    distinct = len(np.unique(chosen)) if count is None else count
    limit = min(max(FEW_ACTIONS, SPARSENESS * distinct), MAX_ACTIONS) if count is None else count
    _refuse((chosen != np.round(chosen)) | (chosen < 0), "a non-negative integer", chosen, "actions")
    hint = f"The log has only {distinct:,} different actions. Number them 0, 1, 2, …, or read them as continuous "
    hint = f"{hint}(--actions continuous, in Python discrete=False)." if count is None else ""
    _refuse(chosen >= limit, f"an action index below {limit:,}", chosen, "actions", hint)
    indices = chosen.astype(np.int32)
    if count is not None:
        return indices, count, ()
    count = int(indices.max(initial=-1)) + 1
    if count <= SPARSENESS * distinct:
        return indices, count, ()
    text = f"Only {distinct:,} of the action indices from 0 to {count - 1:,} occur; the largest is in row "
    text += f"{int(indices.argmax())}. Is it a mistake? Every index up to it is treated as an action."
    return indices, count, (Note("problem", text),)


def _names(field: str, names: Sequence[str] | None) -> Names | None:
    if names is None:
        return None
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise DataError("a name for each component", printable(f"{names!r}", MAX_NAME), field=field)
    # names come from files and are shown on terminals and pages
    return tuple(printable(name, MAX_NAME) for name in names)


def _check_count(field: str, names: Names | None, count: int) -> None:
    found = printable(f"{names!r}", MAX_NAME)
    require(names is None or len(names) == count, f"{count} names, one for each component", found, field=field)


def _table(field: str, values: ArrayLike, names: Names | None) -> Observations:
    table = _numbers(field, values)
    table = table[:, None] if table.ndim == 1 else table
    is_table = table.ndim == 2 and table.shape[1] > 0
    require(is_table, "a two-dimensional array (rows, components)", f"shape {table.shape}", field=field)
    return _as_float(_finite(field, table, names))


def _column(field: str, values: ArrayLike, entry: str = "number") -> np.ndarray:
    column = _numbers(field, values)
    column = column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column
    require(column.ndim == 1, f"one {entry} per row", f"shape {column.shape}", field=field)
    return column


def _flags(field: str, values: ArrayLike) -> RowFlags:
    flags = _column(field, values, "flag")
    _refuse((flags != 0) & (flags != 1), "true or false (1 or 0)", flags, field)
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
    require(numbers.ndim > 0, "an array with one entry per row", "a single number", field=field)
    return numbers


def _as_float(numbers: np.ndarray) -> np.ndarray:
    """Floats keep their precision, at least single; integers become doubles, which hold them exactly."""
    precise = np.float64 if numbers.dtype.kind != "f" else np.promote_types(numbers.dtype, np.float32)
    return np.ascontiguousarray(numbers, dtype=precise)


def _finite(field: str, numbers: np.ndarray, names: Names | None = None) -> np.ndarray:
    """The numbers themselves, checked before they are converted: to convert a NaN may raise a warning."""
    if numbers.size and numbers.dtype.kind == "f":  # integers are always within the limit
        # in the type of the numbers, where it must not overflow; a NaN fails every comparison
        limit = numbers.dtype.type(min(MAX_NUMBER, float(np.finfo(numbers.dtype).max)))
        # two reductions decide the usual case without a copy
        if not (numbers.min() >= -limit and numbers.max() <= limit):
            wrong = ~(np.abs(numbers) <= limit)
            _refuse(wrong, f"finite numbers between -{MAX_NUMBER:g} and {MAX_NUMBER:g}", numbers, field, names=names)
    return numbers


def _refuse(
    wrong: np.ndarray, expected: str, numbers: np.ndarray, field: str, hint: str = "", names: Names | None = None
) -> None:
    """Raises a `DataError` about the first of the numbers that is wrong, if there is one."""
    if wrong.any():
        row, *columns = np.argwhere(wrong)[0].tolist()
        place = ""
        if columns and numbers.shape[1] > 1:
            (column,) = columns
            place = f" in column {column}" if names is None or column >= len(names) else f" in '{names[column]}'"
        raise DataError(expected, f"{numbers[row, *columns]}{place}", field=field, row=row, hint=hint)
