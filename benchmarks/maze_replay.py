"""What a stitched graph of a maze promises, and what its actions do in the simulator, without any feedback.

    promise     mean return of an episode in the graph, from its own weighted starts
    replay      returns of the graph's actions, played open loop from start states of the graph
    end error   distance between the target of a stitch and where its actions end, played alone from its exact source

The simulator is put into exactly the states of the graph. Logs are in single precision but were run in double, so even
a logged trajectory and its replay differ: after 300 steps by 6e-6 ordinary steps in the median of 99 trajectories of
umaze, by 5e-4 at most. Errors of that size are rounding. The simulator only measures; nothing is chosen by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from bats.arrays import TabularPolicy
from bats.errors import SettingError
from bats.evaluation.comparison import nearest_starts
from bats.evaluation.episodes import replay
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED, TabularMDP
from bats.graph.rollouts import Rollouts, roll_out, stitched_share, undiscounted_return
from bats.metric.scaled import ScaledMetric
from bats.tasks.maze2d import Maze, stratified_starts

NEVER = -1
"""step of entering the goal's disc in episodes that never do"""


@dataclass(frozen=True, eq=False)
class GoalTimes:
    """Returns of episodes, and how long they stay at the goal."""

    returns: Float[np.ndarray, "n"]
    entered: Int[np.ndarray, "n"]
    """the first step, from 0, that ends in the goal's disc, or NEVER"""
    remaining: Int[np.ndarray, "n"]
    """steps from that one on, including it; 0 if there is none"""
    inside: Int[np.ndarray, "n"]
    """the number of these steps that end in the disc"""

    @classmethod
    def of(
        cls, returns: Float[np.ndarray, "n"], inside: Bool[np.ndarray, "n T"], lengths: Int[np.ndarray, "n"]
    ) -> GoalTimes:
        ever = inside.any(axis=1)
        entered = np.where(ever, inside.argmax(axis=1), NEVER)
        return cls(returns, entered, np.where(ever, lengths - entered, 0), np.count_nonzero(inside, axis=1))

    @property
    def stay(self) -> Float[np.ndarray, "n"]:
        """Share of the remaining steps spent in the disc; NaN for episodes that never enter it."""
        share = np.full(len(self.inside), np.nan)
        return np.divide(self.inside, self.remaining, out=share, where=self.remaining > 0)

    @property
    def goal_time(self) -> float:
        """The same share over the remaining steps of all episodes together."""
        return _ratio(float(self.inside.sum()), float(self.remaining.sum()))


@dataclass(frozen=True, eq=False)
class Replay:
    """The same rollouts twice: as the graph has them, and as the simulator plays their actions."""

    start: Int[np.ndarray, "n"]
    """the state of the graph in which each starts"""
    promised: GoalTimes
    replayed: GoalTimes

    @property
    def share(self) -> float:
        """Mean replayed return over mean promised return."""
        return _ratio(float(self.replayed.returns.mean()), float(self.promised.returns.mean()))


@dataclass(frozen=True, eq=False)
class EndErrors:
    """How far from their targets stitches end in the simulator."""

    first_edge: Int[np.ndarray, "C"]
    """the first edge of each stitch"""
    distance: Float[np.ndarray, "C"]
    tolerance: float

    @property
    def share_within(self) -> float:
        """Share of the stitches that end within the tolerance; NaN if there are none."""
        return _ratio(float(np.count_nonzero(self.distance <= self.tolerance)), len(self.distance))

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.distance, percent)) if len(self.distance) else math.nan


@dataclass(frozen=True, eq=False)
class MazeComparison:
    """All measurements of one policy of a graph."""

    promise: float
    replay: Replay
    stitched_share: float
    end_errors: EndErrors

    def figures(self) -> list[tuple[str, float, str]]:
        """Names, values and units."""
        replay, errors = self.replay, self.end_errors
        return [
            ("promise", self.promise, "return"),
            ("promise_at_replayed_starts", float(replay.promised.returns.mean()), "return"),
            ("replay", float(replay.replayed.returns.mean()), "return"),
            ("replay_share", replay.share, "share"),
            ("stitched_share", self.stitched_share, "share"),
            ("end_error_within_tolerance", errors.share_within, "share"),
            ("end_error_p50", errors.percentile(50), "steps"),
            ("end_error_p90", errors.percentile(90), "steps"),
            ("end_error_p99", errors.percentile(99), "steps"),
            ("stitches_used", len(errors.distance), "stitches"),
            ("goal_time_promised", replay.promised.goal_time, "share"),
            ("goal_time_replayed", replay.replayed.goal_time, "share"),
        ]


def compare_in_maze(
    mdp: TabularMDP,
    policy: TabularPolicy,
    maze: Maze,
    metric: ScaledMetric,
    *,
    tolerance: float,
    per_cell: int,
    seed: int,
) -> MazeComparison:
    """All measurements; end errors and the share of stitches are those of the rollouts from all start states."""
    rollouts = roll_out(mdp, policy, mdp.starts, maze.episode_steps)
    return MazeComparison(
        promise=float(mdp.start_weights @ undiscounted_return(mdp, rollouts)),
        replay=replay_starts(mdp, policy, maze, metric, per_cell=per_cell, seed=seed),
        stitched_share=stitched_share(mdp, rollouts),
        end_errors=end_errors(mdp, maze, metric, rollouts, tolerance=tolerance),
    )


def replay_starts(
    mdp: TabularMDP, policy: TabularPolicy, maze: Maze, metric: ScaledMetric, *, per_cell: int, seed: int
) -> Replay:
    """Plays the graph's actions open loop from the graph's start states nearest to `per_cell` starts of every cell.

    A rollout that stops in a dead end of the graph has no further actions, so its replay stops there too.
    """
    start = nearest_starts(mdp, stratified_starts(maze, per_cell, seed=seed), metric)
    rollouts = roll_out(mdp, policy, start, maze.episode_steps)
    promised = np.append(maze.at_goal(mdp.states)[mdp.target], False)[rollouts.edge]  # NO_EDGE is -1: the False
    played = replay(mdp, rollouts, start, maze.environment, record=True)
    replayed = np.zeros_like(promised)
    for row, episode in enumerate(played.episodes):
        replayed[row, : len(episode)] = maze.at_goal(episode.observations[1:])
    return Replay(
        start=start,
        promised=GoalTimes.of(undiscounted_return(mdp, rollouts), promised, rollouts.length),
        replayed=GoalTimes.of(played.returns, replayed, played.lengths),
    )


def end_errors(mdp: TabularMDP, maze: Maze, metric: ScaledMetric, rollouts: Rollouts, *, tolerance: float) -> EndErrors:
    """Plays every stitch that the rollouts enter, each once, alone and from its exact source."""
    stitches = stitches_used(mdp, rollouts)
    first_edge = stitches.edge[:, 0]
    if len(first_edge) == 0:
        return EndErrors(first_edge, np.empty(0), tolerance)
    played = replay(mdp, stitches, mdp.source[first_edge], maze.environment, record=True)
    ends = np.stack([episode.observations[-1] for episode in played.episodes])
    last_edge = stitches.edge[np.arange(len(first_edge)), stitches.length - 1]
    error = metric.embed(ends - mdp.states[mdp.target[last_edge]].astype(np.float64))
    return EndErrors(first_edge, np.linalg.norm(error, axis=1), tolerance)


def stitches_used(mdp: TabularMDP, rollouts: Rollouts) -> Rollouts:
    """The distinct stitches of the rollouts, one row each, in full: from their real source to their real target.

    A stitch is identified by its first edge, because the imagined states along it have no other edge than its own.
    """
    if np.any(mdp.out_degree[mdp.real_count :] != 1):
        raise SettingError("Imagined states must have one edge each, or a stitch is not known by its first.")
    stitched = np.append(mdp.stitch_round != LOGGED, False)
    edges = np.unique(rollouts.edge[stitched[rollouts.edge]])
    edge = edges[mdp.source[edges] < mdp.real_count].astype(np.int64)
    steps = [edge]
    while True:
        state = np.where(edge == NO_EDGE, 0, mdp.target[edge])  # state 0 is real, so a finished stitch stays finished
        edge = np.where(state < mdp.real_count, NO_EDGE, mdp.first_edge[state])
        if np.all(edge == NO_EDGE):
            return Rollouts(np.stack(steps, axis=1))
        steps.append(edge)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
