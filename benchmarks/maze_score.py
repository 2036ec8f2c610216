"""What a policy earns in a maze, from the stratified starts that everybody is judged on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float

from bats.evaluation.episodes import STARTS_PER_CELL, Evaluation, evaluate, interval
from bats.policy.policy import Policy
from bats.tasks.maze2d import Maze, stratified_starts
from bats.tasks.maze2d.maps import GOAL_RADIUS

OTHERS_PER_CELL = 4
"""starts in each cell of the mazes that nobody has agreed on"""


def played(policy: Policy, maze: Maze, *, seed: int) -> Evaluation:
    """Episodes as they went; the environment judges and chooses nothing."""
    starts = stratified_starts(maze, STARTS_PER_CELL.get(maze.name, OTHERS_PER_CELL), seed=seed)
    return evaluate(policy, maze.environment, starts=starts, record=True)


def inside(judged: Evaluation, goal: tuple[float, float]) -> Bool[np.ndarray, "n T"]:
    """For each step of each episode whether it ends in the disc around a goal."""
    places = np.stack([episode.observations[1:, :2] for episode in judged.episodes])
    return np.linalg.norm(places - np.array(goal), axis=2) <= GOAL_RADIUS


def score_lines(judged: Evaluation, maze: Maze, name: str) -> Iterator[str]:
    """The `figure` lines of a policy: its score with an interval, and where episodes lose."""
    low, high = interval(maze.normalised_score(judged.returns))
    yield f"figure {name}_score {float(maze.normalised_score(judged.returns).mean()):.6g} score"
    yield f"figure {name}_score_low {low:.6g} score"
    yield f"figure {name}_score_high {high:.6g} score"
    yield from goal_lines(inside(judged, maze.goal), name)


def goal_lines(at_goal: Bool[np.ndarray, "n T"], name: str) -> Iterator[str]:
    """Steps in the disc, how many episodes ever come there and when, and how much of the rest they stay."""
    steps = at_goal.shape[1]
    came = at_goal.any(axis=1)
    first: Float[np.ndarray, "n"] = np.where(came, at_goal.argmax(axis=1), steps)
    figures = [
        ("return", float(at_goal.sum(axis=1).mean()), "return"),
        ("arrived", float(came.mean()), "share"),
        ("arrival", float(first.mean()), "steps"),
        ("goal_time", float(at_goal.sum() / max((steps - first).sum(), 1)), "share"),
    ]
    for kind, value, unit in figures:
        yield f"figure {name}_{kind} {value:.6g} {unit}"
