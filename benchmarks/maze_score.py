"""Score of a policy in a maze, from the stratified starts that every policy is evaluated from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float

from bats.evaluation.episodes import Evaluation, evaluate, interval
from bats.policy.policy import Policy
from bats.tasks.maze2d import Maze, stratified_starts
from bats.tasks.maze2d.maps import GOAL_RADIUS


def evaluate_in_maze(policy: Policy, maze: Maze, *, seed: int) -> Evaluation:
    """Recorded episodes, the same number from every cell."""
    starts = stratified_starts(maze, maze.starts_per_cell, seed=seed)
    return evaluate(policy, maze.environment, starts=starts, record=True)


def inside(evaluation: Evaluation, goal: tuple[float, float]) -> Bool[np.ndarray, "n T"]:
    """For each step of each episode whether it ends in the disc around a goal."""
    positions = np.stack([episode.observations[1:, :2] for episode in evaluation.episodes])
    return np.linalg.norm(positions - np.array(goal), axis=2) <= GOAL_RADIUS


def score_lines(evaluation: Evaluation, maze: Maze, name: str) -> Iterator[str]:
    """The `figure` lines of a policy: its score with an interval, and where episodes lose."""
    scores = maze.normalised_score(evaluation.returns)
    low, high = interval(scores)
    yield f"figure {name}_score {float(scores.mean()):.6g} score"
    yield f"figure {name}_score_low {low:.6g} score"
    yield f"figure {name}_score_high {high:.6g} score"
    yield from goal_lines(inside(evaluation, maze.goal), name)


def goal_lines(at_goal: Bool[np.ndarray, "n T"], name: str) -> Iterator[str]:
    """Steps in the disc, the share of episodes that reach it and when, and the share of the remaining steps in it."""
    steps = at_goal.shape[1]
    arrived = at_goal.any(axis=1)
    first: Float[np.ndarray, "n"] = np.where(arrived, at_goal.argmax(axis=1), steps)
    figures = [
        ("return", float(at_goal.sum(axis=1).mean()), "return"),
        ("arrived", float(arrived.mean()), "share"),
        ("arrival", float(first.mean()), "steps"),
        ("goal_time", float(at_goal.sum() / max((steps - first).sum(), 1)), "share"),
    ]
    for kind, value, unit in figures:
        yield f"figure {name}_{kind} {value:.6g} {unit}"
