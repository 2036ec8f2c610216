"""The trajectories of figure 3: where they begin, and what their panels say."""

from __future__ import annotations

import numpy as np
import pytest

from bats.tasks.maze2d import find_maze
from bats.tasks.maze2d.waypoints import steps_to

pytest.importorskip("matplotlib", reason="figures need the extra `studies`")

from bats.studies.maze_figure import draw_trajectories, far_starts, record_trajectories

MAZE = find_maze("medium")


class Still:
    """Never pushes."""

    def predict(self, observation: np.ndarray, /) -> np.ndarray:
        return np.zeros((len(observation), 2), np.float32)


def test_trajectories_begin_in_the_farthest_cells() -> None:
    starts = far_starts(MAZE, 3)
    distance = steps_to(MAZE, MAZE.goal)
    found = [distance[int(row), int(column)] for row, column in np.rint(starts[:, :2])]
    assert found == sorted((distance[cell] for cell in MAZE.cells), reverse=True)[:3]


def test_a_panel_shows_every_trajectory_and_how_long_it_stays_in_the_goal() -> None:
    starts = np.array([[*MAZE.goal, 0, 0], [1, 1, 0, 0]], dtype=np.float64)
    paths = record_trajectories(Still(), MAZE, starts)
    assert [path.shape for path in paths] == [(MAZE.episode_steps + 1, 2)] * 2
    (axes, _) = draw_trajectories({"still": paths, "again": paths}, MAZE).axes
    # the one that begins in the goal stays there, the other one never comes
    assert axes.get_title() == "still: 50% of the steps in the goal"
    assert sum(len(line.get_xdata()) == MAZE.episode_steps + 1 for line in axes.lines) == 2
