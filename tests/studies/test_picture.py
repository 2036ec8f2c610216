"""The README's picture shows a rollout to the goal, every step of it in its colour."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from bats.data.dataset import Dataset
from bats.graph.mdp import TabularMDP, from_dataset
from bats.graph.solve import policy_iteration
from bats.tasks.maze2d import find_maze

pytest.importorskip("matplotlib", reason="pictures need the extra `studies`")

from benchmarks.picture import BLUE, ORANGE, draw_rollout, farthest_rollout

MAZE = find_maze("umaze")
FAR = (3, 1)
"""the cell that is farthest from the goal"""


@pytest.fixture(scope="module")
def mdp() -> TabularMDP:
    """Two episodes that go to the goal in twenty steps per corridor: from the farthest cell, and from nearer by."""
    corners = np.array([FAR, (3, 3), (1, 3), MAZE.goal])
    way = np.concatenate([np.linspace(*pair, 20, endpoint=False) for pair in pairwise(corners)]).astype(np.float32)
    lengths = (len(way) - 1, len(way) - 31)
    position, after = (np.concatenate([way[:-1], way[30:-1]]), np.concatenate([way[1:], way[31:]]))
    velocity = np.zeros_like(position)
    log = Dataset.from_arrays(
        np.hstack([position, velocity]),
        after - position,
        MAZE.at_goal(after),
        next_observations=np.hstack([after, velocity]),
        timeouts=np.isin(np.arange(len(position)), np.cumsum(lengths) - 1),
    )
    return from_dataset(log, gamma=0.99)


def test_the_rollout_leads_from_the_farthest_cell_to_the_goal(mdp: TabularMDP) -> None:
    edges = farthest_rollout(mdp, policy_iteration(mdp).policy, MAZE)
    np.testing.assert_allclose(mdp.states[mdp.source[edges[0]], :2], FAR)
    assert MAZE.goal_distance(mdp.states[mdp.target[edges[-1:]]])[0] < 0.2
    np.testing.assert_array_equal(mdp.target[edges[:-1]], mdp.source[edges[1:]])


def test_every_step_is_drawn_once_in_its_colour(mdp: TabularMDP) -> None:
    edges = farthest_rollout(mdp, policy_iteration(mdp).policy, MAZE)
    rounds = mdp.stitch_round.copy()
    rounds[edges[5:9]] = 1  # as if it had been stitched
    (axes,) = draw_rollout(replace(mdp, stitch_round=rounds), edges, MAZE).axes
    steps = {BLUE: 0, ORANGE: 0, "white": 0}
    lines = [line for line in axes.lines if line.get_color() in steps and len(line.get_xdata()) > 1]
    for line in lines:
        steps[line.get_color()] += len(line.get_xdata()) - 1
    assert steps == {BLUE: len(edges) - 4, ORANGE: 4, "white": len(edges)}
    row, column = FAR
    np.testing.assert_allclose(lines[0].get_xydata()[0], (column, row))  # columns to the right, rows downwards
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
