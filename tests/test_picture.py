"""The README's picture shows a walk to the goal, in its colours, in a file that is well formed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np

from bats.data.dataset import Dataset
from bats.graph.mdp import TabularMDP, from_dataset
from bats.graph.solve import policy_iteration
from bats.tasks.maze2d import find_maze
from benchmarks.picture import BLUE, ORANGE, SIDE, drawn, farthest_walk

MAZE = find_maze("umaze")
FAR = (3, 1)
"""the cell that is farthest from the goal"""


def logged() -> TabularMDP:
    """Two episodes that go to the goal, a tenth of a cell a step: from the farthest cell, and from nearer by."""
    corners = np.array([FAR, (3, 3), (1, 3), MAZE.goal])
    way = np.concatenate([np.linspace(*pair, 20, endpoint=False) for pair in pairwise(corners)]).astype(np.float32)
    lengths = (len(way) - 1, len(way) - 31)
    here, there = (np.concatenate([way[:-1], way[30:-1]]), np.concatenate([way[1:], way[31:]]))
    still = np.zeros_like(here)
    log = Dataset.from_arrays(
        np.hstack([here, still]),
        there - here,
        MAZE.at_goal(there),
        next_observations=np.hstack([there, still]),
        timeouts=np.isin(np.arange(len(here)), np.cumsum(lengths) - 1),
    )
    return from_dataset(log, gamma=0.99)


def test_the_walk_goes_from_the_farthest_cell_to_the_goal() -> None:
    mdp = logged()
    taken = farthest_walk(mdp, policy_iteration(mdp).policy, MAZE)
    np.testing.assert_allclose(mdp.states[mdp.source[taken[0]], :2], FAR)
    assert MAZE.goal_distance(mdp.states[mdp.target[taken[-1:]]])[0] < 0.2
    np.testing.assert_array_equal(mdp.target[taken[:-1]], mdp.source[taken[1:]])


def test_every_step_is_drawn_once_in_its_colour() -> None:
    mdp = logged()
    taken = farthest_walk(mdp, policy_iteration(mdp).policy, MAZE)
    rounds = mdp.stitch_round.copy()
    rounds[taken[5:9]] = 1  # as if it had been stitched
    root = ElementTree.fromstring(drawn(replace(mdp, stitch_round=rounds), taken, MAZE))
    lines = [line for line in root.iter("{http://www.w3.org/2000/svg}path") if "L" in line.attrib["d"]]
    steps = {BLUE: 0, ORANGE: 0, "#ffffff": 0}
    for line in lines:
        steps[line.attrib["stroke"]] += line.attrib["d"].count("L")
    assert steps == {BLUE: len(taken) - 4, ORANGE: 4, "#ffffff": len(taken)}
    first = lines[1].attrib["d"].split("L")[0]
    row, column = FAR
    assert first == f"M{(column + 0.7) * SIDE:g} {(row + 0.7) * SIDE:g}"  # columns to the right, rows downwards
