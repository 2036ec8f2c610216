"""Start states of a maze log: logged states that look like the beginning of an episode.

A log of one continuous run has a single first row, so starts are looked for: rows within 0.1 of a cell's start
point, at rest, in all four numbers. Some cells are crossed at speed and seldom stopped in, so the width grows per
cell until enough are found. Cells weigh the same whatever their number of rows, as episodes begin in each equally
often.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bats.data.dataset import Dataset
from bats.data.episodes import Note
from bats.errors import BatsError
from bats.tasks.maze2d.maps import Cell, Maze, find_maze

FIRST_WIDTH = 0.1
WIDEST = 0.5
"""half the side of a cell: beyond it a state belongs to a neighbouring cell, and is far from rest"""
ENOUGH = 50


@dataclass(frozen=True)
class CellStarts:
    """What was found for one cell."""

    cell: Cell
    count: int
    width: float
    """the largest distance in any of the four numbers that was let in"""


@dataclass(frozen=True)
class StartReport:
    """What was found for every cell of the maze."""

    cells: tuple[CellStarts, ...]
    enough: int

    @property
    def short(self) -> tuple[CellStarts, ...]:
        """Cells with fewer starts than asked for, whatever the width."""
        return tuple(found for found in self.cells if found.count < self.enough)

    @property
    def widened(self) -> tuple[CellStarts, ...]:
        return tuple(found for found in self.cells if found.width > FIRST_WIDTH)

    def note(self) -> Note:
        """The report in a sentence or two, as kept with the log."""
        total = sum(found.count for found in self.cells)
        if total == 0:
            return Note("problem", f"No state is within {WIDEST:g} of a start point; starts were left as they are.")
        widest = max(found.width for found in self.cells)
        text = f"{total:,} start states in {len(self.cells)} cells, weighing the same; {len(self.widened)} cells"
        text += f" were widened beyond {FIRST_WIDTH:g}, to {widest:.2f} at most."
        if not self.short:
            return Note("decision", text)
        few = ", ".join(f"{found.cell}: {found.count}" for found in self.short)
        return Note("problem", f"{text} Fewer than {self.enough} within {WIDEST:g} in {len(self.short)} cells: {few}.")


def label_starts(dataset: Dataset, maze: Maze | str, *, enough: int = ENOUGH) -> tuple[Dataset, StartReport]:
    """The log with its start states labelled, and what was found per cell.

    Every state within 0.1 of a start point counts; where fewer than `enough` are, the nearest `enough` within 0.5.
    Without a single such state the starts stay what they were, and the report says so.
    """
    if dataset.observations.shape[1] != 4:
        raise BatsError(f"A maze log has 4 numbers a state; '{dataset.name}' has {dataset.observations.shape[1]}.")
    nearest = np.rint(dataset.observations[:, :2])
    offset = np.abs(dataset.observations[:, :2] - nearest).max(axis=1)
    distance = np.maximum(offset, np.abs(dataset.observations[:, 2:]).max(axis=1))
    close = np.flatnonzero(distance <= WIDEST)
    close = close[np.argsort(distance[close], kind="stable")]
    place = nearest[close].astype(np.int64)

    rows, weights, found = [], [], []
    for cell in find_maze(maze).cells:
        here = close[(place[:, 0] == cell[0]) & (place[:, 1] == cell[1])]
        count = int(np.searchsorted(distance[here], FIRST_WIDTH, side="right"))
        if count < enough:
            here = here[:enough]
            width = float(distance[here[-1]]) if len(here) == enough else WIDEST
            found.append(CellStarts(cell, len(here), width))
        else:
            here = here[:count]
            found.append(CellStarts(cell, count, FIRST_WIDTH))
        rows.append(np.sort(here))
        weights.append(np.full(len(here), 1 / max(len(here), 1)))
    report = StartReport(tuple(found), enough)
    starts, shares = np.concatenate(rows), np.concatenate(weights)
    labelled = dataset.with_starts(starts, shares) if len(starts) else dataset
    return replace(labelled, notes=(*dataset.notes, report.note())), report
