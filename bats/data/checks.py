"""`validate`: what a log contains and where it departs from what the method assumes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bats.config import READ_LOG, checked
from bats.data.dataset import Dataset
from bats.data.distinct import StateIndex, merge_states, number_rows, row_bits
from bats.data.episodes import Note, plural
from bats.data.formats.fields import shortened


@dataclass(frozen=True)
class Column:
    """The range of one component of the observations or actions."""

    name: str
    min: float
    mean: float
    max: float

    @property
    def constant(self) -> bool:
        return self.min == self.max


@dataclass(frozen=True)
class Validation:
    """The description of a log: facts for a table, the range of each component, and every problem and decision."""

    facts: dict[str, str]
    columns: tuple[Column, ...]
    notes: tuple[Note, ...]

    @property
    def problems(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.kind == "problem")


def validate(dataset: Dataset) -> Validation:
    """Describes a log that could be read; a log that could not has already raised `DataError`."""
    dataset = checked("dataset", Dataset, dataset, READ_LOG)
    states, source, target = merge_states(dataset.observations, dataset.next_observations)
    columns = _columns(dataset)
    notes = [*dataset.notes, *_determinism_notes(dataset, source, target)]
    lengths = np.diff(np.flatnonzero(dataset.episode_ends), prepend=-1)
    single = int(np.count_nonzero(lengths == 1))
    text = f"{single:,} of {plural(dataset.episode_count, 'episode')} had only a single row."
    if 2 * single > dataset.episode_count:
        order = "Are the rows in order? Each single-row episode adds a start state."
        notes.append(Note("problem", f"{text} {order}"))
    elif single:
        notes.append(Note("fact", text))
    if constant := [column.name for column in columns if column.constant]:
        notes.append(Note("fact", f"Components that are constant in the whole log: {shortened(constant)}."))
    if dataset.action_count is not None:
        choices, counts = np.unique(dataset.actions, return_counts=True)
        if once := [str(choice) for choice in choices[counts == 1]]:
            text = f"Actions that occur in only one row, so little is known about them: {shortened(once)}."
            notes.append(Note("fact", text))
    notes += reward_notes(dataset)
    return Validation(_facts(dataset, lengths, len(states), source), columns, tuple(notes))


def reward_notes(dataset: Dataset) -> list[Note]:
    """What equal rewards in all rows mean."""
    if float(np.ptp(dataset.rewards)) > 0:
        return []
    same = f"Every reward is {dataset.rewards[0]:g}"
    if dataset.terminations.any():
        return [Note("fact", f"{same}, so only the length of an episode matters.")]
    return [Note("problem", f"{same} and no episode terminates, so no behaviour is better than another.")]


def _facts(dataset: Dataset, lengths: np.ndarray, state_count: int, source: StateIndex) -> dict[str, str]:
    rewards, ends = dataset.rewards, int(np.count_nonzero(dataset.terminations))
    if dataset.action_count is None:
        actions = f"{plural(dataset.actions.shape[1], 'component')} ({dataset.actions.dtype})"
    else:
        actions = f"discrete: {dataset.action_count} actions, {len(np.unique(dataset.actions))} of them used"
    with_action, starts = len(np.unique(source)), len(np.unique(source[dataset.starts]))
    return {
        "rows": f"{len(dataset):,}",
        "episodes": f"{dataset.episode_count:,}, each of {lengths.min():,} to {lengths.max():,} rows "
        f"(median {np.median(lengths):,.0f})",
        "terminations": f"{ends:,}; {plural(dataset.episode_count - ends, 'truncated episode')}",
        "observations": f"{plural(dataset.observations.shape[1], 'component')} ({dataset.observations.dtype})",
        "actions": actions,
        "rewards": f"{rewards.min():g} to {rewards.max():g}, mean {rewards.mean(dtype=np.float64):g}, "
        f"{np.count_nonzero(rewards) / len(rewards):.1%} not zero",
        "distinct states": f"{state_count:,}; {state_count - with_action:,} of them have no logged action",
        "start states": f"{starts:,} distinct, in {plural(len(dataset.starts), 'row')}",
    }


def _columns(dataset: Dataset) -> tuple[Column, ...]:
    tables = [("observation", dataset.observations, dataset.observation_names)]
    if dataset.action_count is None:
        tables.append(("action", dataset.actions, dataset.action_names))
    columns = []
    for kind, table, names in tables:
        ranges = zip(table.min(axis=0), table.mean(axis=0, dtype=np.float64), table.max(axis=0), strict=True)
        for index, numbers in enumerate(ranges):
            columns.append(Column(f"{kind} {index if names is None else names[index]}", *map(float, numbers)))
    return tuple(columns)


def _determinism_notes(dataset: Dataset, source: StateIndex, target: StateIndex) -> list[Note]:
    """Duplicate rows, and whether the same action in the same state ever had another outcome."""
    # three levels of equality, each refining the one before: same try, same outcome, same reward
    pair, _ = number_rows(np.column_stack([source, row_bits(dataset.actions)]))
    ends = dataset.terminations.astype(np.int32)
    outcome, outcome_row = number_rows(np.column_stack([pair, target, ends]))
    _, distinct_row = number_rows(np.column_stack([outcome, row_bits(dataset.rewards)]))

    notes = []
    if duplicates := len(dataset) - len(distinct_row):
        notes.append(Note("fact", f"Exact duplicates of another row: {plural(duplicates, 'row')}."))
    repeated = int(np.count_nonzero(np.bincount(pair) > 1))
    if not repeated:
        text = "No state-action pair occurs twice, so the log cannot show whether the world is deterministic."
        return [*notes, Note("fact", text)]
    varying = int(np.count_nonzero(np.bincount(pair[outcome_row]) > 1))
    text = f"{plural(repeated, 'state-action pair')} occurred more than once;"
    if varying:
        text = f"{text} {varying:,} of them ({varying / repeated:.1%}) had different outcomes. BATS assumes a "
        notes.append(Note("problem", f"{text}deterministic world; otherwise the values are too high."))
    else:
        notes.append(Note("fact", f"{text} each had the same outcome every time."))
    if inconsistent := int(np.count_nonzero(np.bincount(outcome[distinct_row]) > 1)):
        text = f"{plural(inconsistent, 'transition')} occurred several times with different rewards; the mean is used."
        notes.append(Note("problem", text))
    return notes
