"""Score of a policy in a maze, from the stratified starts that every policy is evaluated from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool

from bats.evaluation.episodes import Evaluation, evaluate, interval
from bats.policy.policy import Policy
from bats.tasks.maze2d import Maze, stratified_starts
from bats.tasks.maze2d.maps import GOAL_RADIUS

Figures = Iterator[tuple[str, float, str]]


def evaluate_in_maze(policy: Policy, maze: Maze, *, seed: int, per_cell: int | None = None) -> Evaluation:
    """Recorded episodes, the same number from every cell; by default the maze's own number."""
    starts = stratified_starts(maze, per_cell or maze.starts_per_cell, seed=seed)
    return evaluate(policy, maze.environment, starts=starts, record=True)


def score_figures(evaluation: Evaluation, maze: Maze) -> Figures:
    """The score with a 95% interval, and how much of the episodes is spent at the goal."""
    scores = maze.normalised_score(evaluation.returns)
    low, high = interval(scores)
    yield "score", float(scores.mean()), "score"
    yield "score_low", low, "score"
    yield "score_high", high, "score"
    yield from goal_figures(inside(evaluation, maze.goal))


def inside(evaluation: Evaluation, goal: tuple[float, float]) -> Bool[np.ndarray, "n T"]:
    """For each step of each episode whether it ends in the disc around a goal."""
    positions = np.stack([episode.observations[1:, :2] for episode in evaluation.episodes])
    return np.linalg.norm(positions - np.array(goal), axis=2) <= GOAL_RADIUS


def goal_figures(at_goal: Bool[np.ndarray, "n T"]) -> Figures:
    """Steps in the disc, the share of episodes that reach it and when, and the share of the remaining steps in it."""
    steps = at_goal.shape[1]
    arrived = at_goal.any(axis=1)
    # an episode that never arrives counts with all its steps
    first = np.where(arrived, at_goal.argmax(axis=1), steps)
    yield "return", float(at_goal.sum(axis=1).mean()), "return"
    yield "arrived", float(arrived.mean()), "share"
    yield "arrival", float(first.mean()), "steps"
    yield "goal_time", float(at_goal.sum() / max((steps - first).sum(), 1)), "share"
