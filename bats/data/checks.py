"""What is in a log, and how far it is from what the method assumes: `bats-rl validate` in library form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from bats.data.dataset import Dataset
from bats.data.distinct import merge_states, number_rows, row_bits
from bats.data.episodes import Note, counted


@dataclass(frozen=True)
class Column:
    """The range of one number of the observations or actions."""

    name: str
    least: float
    mean: float
    greatest: float

    @property
    def constant(self) -> bool:
        return self.least == self.greatest


@dataclass(frozen=True)
class Validation:
    """A log described: facts to show in a table, ranges per number, and every problem and decision."""

    facts: dict[str, str]
    columns: tuple[Column, ...]
    notes: tuple[Note, ...]

    @property
    def problems(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.kind == "problem")


def validate(dataset: Dataset) -> Validation:
    """Describes a log that could be read; what could not be read has raised `DataError` before."""
    states, source, target = merge_states(dataset.observations, dataset.next_observations)
    columns = _columns(dataset)
    facts = _facts(dataset, len(states), source)
    notes = [*dataset.notes, *_repetition(dataset, source, target), *_short_episodes(dataset)]
    constant = [column.name for column in columns if column.constant]
    if constant:
        notes.append(Note("fact", f"Constant throughout the log: {', '.join(constant)}."))
    if float(np.ptp(dataset.rewards)) == 0:
        same = f"Every reward is {dataset.rewards[0]:g}"
        if dataset.terminations.any():
            notes.append(Note("fact", f"{same}: only the length of an episode counts."))
        else:
            notes.append(Note("problem", f"{same} and nothing terminates: no behaviour is better than another."))
    return Validation(facts, columns, tuple(notes))


def _facts(dataset: Dataset, states: int, source: Int[np.ndarray, "N"]) -> dict[str, str]:
    lengths = episode_lengths(dataset)
    rewards = dataset.rewards
    ends = int(np.count_nonzero(dataset.terminations))
    if dataset.action_count is None:
        actions = f"{counted(dataset.actions.shape[1], 'number')} ({dataset.actions.dtype})"
    else:
        used = len(np.unique(dataset.actions))
        actions = f"discrete: {dataset.action_count} actions, {used} of them used"
    leaving, starts = len(np.unique(source)), len(np.unique(source[dataset.starts]))
    return {
        "rows": f"{len(dataset):,}",
        "episodes": f"{dataset.episode_count:,} of {lengths.min():,} to {lengths.max():,} rows "
        f"(median {np.median(lengths):,.0f})",
        "terminations": f"{ends:,}, and {counted(dataset.episode_count - ends, 'episode')} cut off",
        "observations": f"{counted(dataset.observations.shape[1], 'number')} ({dataset.observations.dtype})",
        "actions": actions,
        "rewards": f"{rewards.min():g} to {rewards.max():g}, mean {rewards.mean(dtype=np.float64):g}, "
        f"{np.count_nonzero(rewards) / len(rewards):.1%} not zero",
        "distinct states": f"{states:,}, of which {states - leaving:,} have no logged action",
        "start states": f"{starts:,} distinct, in {counted(len(dataset.starts), 'row')}",
    }


def episode_lengths(dataset: Dataset) -> Int[np.ndarray, "episodes"]:
    """Rows of each episode."""
    ends = np.flatnonzero(dataset.episode_ends)
    return np.diff(ends, prepend=-1)


def _columns(dataset: Dataset) -> tuple[Column, ...]:
    tables = {"observation": (dataset.observations, dataset.observation_names)}
    if dataset.action_count is None:
        tables["action"] = (dataset.actions, dataset.action_names)
    return tuple(
        Column(
            f"{kind} {number if names is None else names[number]}",
            float(values.min()),
            float(values.mean(dtype=np.float64)),
            float(values.max()),
        )
        for kind, (table, names) in tables.items()
        for number, values in enumerate(table.T)
    )


def _short_episodes(dataset: Dataset) -> list[Note]:
    single = int(np.count_nonzero(episode_lengths(dataset) == 1))
    share = single / dataset.episode_count
    if not single:
        return []
    text = f"{single:,} of {counted(dataset.episode_count, 'episode')} with a single row."
    if share > 0.5:
        return [Note("problem", f"{text} If the rows are out of order, every one of them counts as a start state.")]
    return [Note("fact", text)]


def _repetition(dataset: Dataset, source: Int[np.ndarray, "N"], target: Int[np.ndarray, "N"]) -> list[Note]:
    """Duplicate rows, and whether the same action in the same state ever had another outcome."""
    pair, pair_row = number_rows(np.column_stack([source, row_bits(dataset.actions)]))
    ends = dataset.terminations.astype(np.int32)
    outcome, outcome_row = number_rows(np.column_stack([pair, target, ends]))
    _, distinct_row = number_rows(np.column_stack([outcome, row_bits(dataset.rewards)]))

    rows, pairs = len(dataset), len(pair_row)
    notes = []
    if rows > len(distinct_row):
        notes.append(Note("fact", f"{counted(rows - len(distinct_row), 'row')} the same as another row in everything."))
    times = np.bincount(pair, minlength=pairs)
    repeated = int(np.count_nonzero(times > 1))
    if not repeated:
        unknown = "No state and action occur twice, so whether the world is deterministic cannot be read off the log."
        return [*notes, Note("fact", unknown)]
    elsewhere = int(np.count_nonzero(np.bincount(pair[outcome_row], minlength=pairs) > 1))
    paid = int(np.count_nonzero(np.bincount(outcome[distinct_row], minlength=len(outcome_row)) > 1))
    tried = f"Of {counted(repeated, 'state-action pair')} tried more than once,"
    if elsewhere:
        text = f"{tried} {elsewhere:,} ({elsewhere / repeated:.1%}) led to different states or ends. BATS assumes a "
        notes.append(Note("problem", text + "deterministic world: where that fails, values come out too high."))
    else:
        notes.append(Note("fact", f"{tried} every one led to the same state each time."))
    if paid:
        notes.append(
            Note("problem", f"{counted(paid, 'transition')} paid differently at different times; the mean counts.")
        )
    return notes
