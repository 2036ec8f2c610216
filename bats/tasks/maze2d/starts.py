"""Start states of a maze log: logged states that look like the start of an episode.

The log of one continuous run has a single first row, so starts are searched for: rows that differ from a cell's start
point at rest by at most 0.1 in each of the four numbers. Some cells are crossed at speed and seldom stopped in, so this
width grows cell by cell until there are enough rows. Every cell has the same total weight, however many rows it has,
because episodes start in all cells with equal probability.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bats.data.dataset import Dataset
from bats.data.episodes import Note
from bats.errors import BatsError
from bats.tasks.maze2d.maps import Cell, Maze, find_maze

MIN_WIDTH = 0.1
MAX_WIDTH = 0.5
"""half the side of a cell: beyond it a state belongs to a neighbouring cell, and is far from rest"""
ENOUGH = 50
"""rows per cell"""


@dataclass(frozen=True)
class CellStarts:
    """The start states of one cell."""

    cell: Cell
    count: int
    width: float
    """the largest accepted difference in any of the four numbers"""


@dataclass(frozen=True)
class StartReport:
    """The start states of every cell of a maze."""

    cells: tuple[CellStarts, ...]

    @property
    def short(self) -> tuple[CellStarts, ...]:
        """Cells with fewer than 50 starts even at the maximum width."""
        return tuple(starts for starts in self.cells if starts.count < ENOUGH)

    def note(self) -> Note:
        """The report in a sentence or two, to be kept with the log."""
        total = sum(starts.count for starts in self.cells)
        if total == 0:
            return Note("problem", f"No state is within {MAX_WIDTH:g} of a start point; the starts were not changed.")
        widths = [starts.width for starts in self.cells]
        widened = sum(width > MIN_WIDTH for width in widths)
        text = f"{total:,} start states in {len(self.cells)} cells; all cells have equal total weight. In {widened} "
        text += f"cells the search radius was increased beyond {MIN_WIDTH:g} (largest: {max(widths):.2f})."
        if not self.short:
            return Note("decision", text)
        counts = ", ".join(f"{starts.cell}: {starts.count}" for starts in self.short)
        few = f"{len(self.short)} cells have fewer than {ENOUGH} start states within {MAX_WIDTH:g}: {counts}."
        return Note("problem", f"{text} {few}")


def label_starts(dataset: Dataset, maze: Maze | str) -> tuple[Dataset, StartReport]:
    """The log with its start states labelled, and how many each cell has.

    A cell's starts are all states within 0.1 of its start point, or the nearest 50 within 0.5 if those are fewer.
    A log without any such state keeps the starts it had, and the report says so.
    """
    if dataset.observations.shape[1] != 4:
        size = dataset.observations.shape[1]
        raise BatsError(f"States of a maze log have 4 components; those of '{dataset.name}' have {size}.")
    cell_of_row = np.rint(dataset.observations[:, :2])
    offset = np.abs(dataset.observations[:, :2] - cell_of_row).max(axis=1)
    distance = np.maximum(offset, np.abs(dataset.observations[:, 2:]).max(axis=1))
    # sorted once for all cells, so that the nearest rows of a cell are its first
    near = np.flatnonzero(distance <= MAX_WIDTH)
    near = near[np.argsort(distance[near], kind="stable")]
    near_cell = cell_of_row[near]

    starts, weights, cells = [], [], []
    for cell in find_maze(maze).cells:
        rows = near[(near_cell[:, 0] == cell[0]) & (near_cell[:, 1] == cell[1])]
        close = int(np.searchsorted(distance[rows], MIN_WIDTH, side="right"))
        rows = rows[: max(close, ENOUGH)]
        width = MIN_WIDTH if close >= ENOUGH else MAX_WIDTH
        if close < ENOUGH == len(rows):  # widened as far as the 50th row
            width = float(distance[rows[-1]])
        cells.append(CellStarts(cell, len(rows), width))
        starts.append(np.sort(rows))
        # cells have the same total weight; `with_starts` makes the sum 1
        weights.append(np.full(len(rows), 1 / max(len(rows), 1)))
    report = StartReport(tuple(cells))
    if any(len(rows) for rows in starts):
        dataset = dataset.with_starts(np.concatenate(starts), np.concatenate(weights))
    return replace(dataset, notes=(*dataset.notes, report.note())), report
