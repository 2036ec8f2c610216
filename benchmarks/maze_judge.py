"""What a stitched maze MDP promises, and what the simulator says to it. The environment judges; it never chooses.

Three questions, each with the policy as it is and without any feedback:

    promise     what does the graph earn in an episode, from its own weighted starts?
    replay      what do the graph's actions earn when played open loop from a start state of the graph?
    landing     where does each stitch that the policy uses end, played alone from its exact source?

The simulator is entered with exactly the numbers that the MDP's states have. A log in single precision was run in
double, so even a logged path and its replay part: after 300 steps by 6e-6 ordinary steps in the median of 99 paths of
umaze, by 5e-4 at worst. Misses of that size are rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from bats.arrays import TabularPolicy
from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED, TabularMDP
from bats.graph.rollouts import Walks, stitched_share, undiscounted_return, walk, weighted_return
from bats.metric.scaled import ScaledMetric
from bats.tasks.maze2d import Maze, stratified_starts
from bats.tasks.maze2d.physics import MazePhysics

NEVER = -1
"""step of entering the goal's disc where an episode never does"""


@dataclass(frozen=True, eq=False)
class Episodes:
    """What episodes earned, and how they fared at the goal."""

    returns: Float[np.ndarray, "n"]
    entered: Int[np.ndarray, "n"]
    """the first step, from 0, after which the ball is in the goal's disc, or NEVER"""
    remaining: Int[np.ndarray, "n"]
    """steps from that one on, itself included; 0 where it never comes"""
    inside: Int[np.ndarray, "n"]
    """how many of those leave the ball in the disc"""

    @property
    def stay(self) -> Float[np.ndarray, "n"]:
        """Share of the remaining steps spent in the disc; NaN for episodes that never enter it."""
        share = np.full(len(self.inside), np.nan)
        return np.divide(self.inside, self.remaining, out=share, where=self.remaining > 0)

    @property
    def goal_time(self) -> float:
        """The same share over the steps of all episodes together; those that never enter have none to count."""
        return _ratio(float(self.inside.sum()), float(self.remaining.sum()))


@dataclass(frozen=True, eq=False)
class Replay:
    """The same walks twice: as the graph has them, and as the simulator plays their actions."""

    start: Int[np.ndarray, "n"]
    """the state of the MDP where each begins"""
    promised: Episodes
    replayed: Episodes

    @property
    def share(self) -> float:
        """How much of the promise is kept: mean replayed return over mean promised return."""
        return _ratio(float(self.replayed.returns.mean()), float(self.promised.returns.mean()))


@dataclass(frozen=True, eq=False)
class Landing:
    """Where stitches end in the simulator, each one played alone."""

    first_edge: Int[np.ndarray, "C"]
    """the edge each stitch begins with"""
    distance: Float[np.ndarray, "C"]
    """from the state it ends in to the one it was made for"""
    tolerance: float

    @property
    def share(self) -> float:
        """Share of the stitches that end within the tolerance; NaN where there are none."""
        return _ratio(float(np.count_nonzero(self.distance <= self.tolerance)), len(self.distance))

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.distance, percent)) if len(self.distance) else math.nan


@dataclass(frozen=True, eq=False)
class Judgement:
    """All that the simulator has to say about one policy."""

    promise: float
    replay: Replay
    stitched_share: float
    landing: Landing

    def lines(self, name: str) -> list[str]:
        """The `figure` lines of a benchmark."""
        replay, landing = self.replay, self.landing
        figures = [
            ("promise", self.promise, "return"),
            ("promise_at_replayed_starts", float(replay.promised.returns.mean()), "return"),
            ("replay", float(replay.replayed.returns.mean()), "return"),
            ("replay_share", replay.share, "share"),
            ("stitched_share", self.stitched_share, "share"),
            ("landing_share", landing.share, "share"),
            ("landing_p50", landing.percentile(50), "steps"),
            ("landing_p90", landing.percentile(90), "steps"),
            ("landing_p99", landing.percentile(99), "steps"),
            ("stitches_used", len(landing.distance), "stitches"),
            ("goal_time_promised", replay.promised.goal_time, "share"),
            ("goal_time_replayed", replay.replayed.goal_time, "share"),
        ]
        return [f"figure {name}_{kind} {value:.6g} {unit}" for kind, value, unit in figures]


def judge(
    mdp: TabularMDP,
    policy: TabularPolicy,
    maze: Maze,
    metric: ScaledMetric,
    *,
    tolerance: float,
    per_cell: int,
    seed: int,
) -> Judgement:
    """Everything at once; landing and the share of stitches are those of the walks from all start states."""
    walks = walk(mdp, policy, mdp.starts, maze.episode_steps)
    return Judgement(
        promise=promise(mdp, policy, maze),
        replay=replay(mdp, policy, maze, metric, per_cell=per_cell, seed=seed),
        stitched_share=stitched_share(mdp, walks),
        landing=landing(mdp, maze, metric, walks, tolerance=tolerance),
    )


def promise(mdp: TabularMDP, policy: TabularPolicy, maze: Maze) -> float:
    """Mean return of an episode in the graph, from the weighted starts."""
    return weighted_return(mdp, policy, maze.episode_steps)


def replay(
    mdp: TabularMDP, policy: TabularPolicy, maze: Maze, metric: ScaledMetric, *, per_cell: int, seed: int
) -> Replay:
    """Plays the graph's actions open loop from the graph's start states nearest to `per_cell` starts of every cell.

    A walk that stops in a dead end of the graph has no further actions, so its replay stops there as well.
    """
    start = nearest_starts(mdp, stratified_starts(maze, per_cell, seed=seed), metric)
    walks = walk(mdp, policy, start, maze.episode_steps)
    in_disc = np.append(maze.at_goal(mdp.states)[mdp.target], False)  # NO_EDGE, which is -1, picks the False
    played = play(mdp, maze, start, walks)
    inside = maze.at_goal(played.reshape(-1, 4)).reshape(walks.edge.shape)  # NaN is nowhere, so not in the disc
    return Replay(
        start=start,
        promised=_episodes(undiscounted_return(mdp, walks), in_disc[walks.edge], walks),
        replayed=_episodes(inside.sum(axis=1, dtype=np.float64), inside, walks),
    )


def landing(mdp: TabularMDP, maze: Maze, metric: ScaledMetric, walks: Walks, *, tolerance: float) -> Landing:
    """Plays every distinct stitch that the walks set out on, alone and from its exact source, to its end."""
    stitches = stitches_used(mdp, walks)
    if len(stitches.edge) == 0:
        return Landing(np.empty(0, dtype=np.int64), np.empty(0), tolerance)
    each, last = np.arange(len(stitches.edge)), stitches.length - 1
    first_edge = stitches.edge[:, 0]
    reached = play(mdp, maze, mdp.source[first_edge], stitches)[each, last]
    meant = mdp.states[mdp.target[stitches.edge[each, last]]].astype(np.float64)
    return Landing(first_edge, np.linalg.norm(metric.embed(reached - meant), axis=1), tolerance)


def stitches_used(mdp: TabularMDP, walks: Walks) -> Walks:
    """The distinct stitches on the walks, in full, one row each, as walks from their real source to their real target.

    A stitch is known by its first edge, as the imagined states on its way have no other edge than its own.
    """
    if np.any(mdp.out_degree[mdp.real_count :] != 1):
        raise SettingError("Imagined states must have one edge each, or a stitch is not known by its first.")
    stitched = np.append(mdp.stitch_round != LOGGED, False)
    taken = np.unique(walks.edge[stitched[walks.edge]])
    edge = taken[mdp.source[taken] < mdp.real_count].astype(np.int64)
    steps = [edge]
    while True:
        after = np.where(edge == NO_EDGE, 0, mdp.target[edge])  # state 0 is real: nothing follows it here
        edge = np.where(after < mdp.real_count, NO_EDGE, mdp.first_edge[after])
        if np.all(edge == NO_EDGE):
            return Walks(np.stack(steps, axis=1))
        steps.append(edge)


def play(mdp: TabularMDP, maze: Maze, start: Int[np.ndarray, "n"], walks: Walks) -> Float64[np.ndarray, "n T 4"]:
    """The states that the actions of each walk lead to in the simulator, open loop; NaN after its end."""
    physics = MazePhysics(maze)
    states = np.full((*walks.edge.shape, 4), np.nan)
    for row, first in enumerate(mdp.states[start].tolist()):
        x, y, u, v = first
        state = (x, y, u, v)
        edges = walks.edge[row]
        for step, (push, pull) in enumerate(mdp.action[edges[edges != NO_EDGE]].tolist()):
            state = physics.step(state, (push, pull))
            states[row, step] = state
    return states


def nearest_starts(mdp: TabularMDP, wanted: Float[np.ndarray, "n 4"], metric: ScaledMetric) -> Int[np.ndarray, "n"]:
    """The start state of the MDP nearest to each wanted state."""
    offered = metric.embed(mdp.states[mdp.starts].astype(np.float64))
    nearest = [int(np.argmin(np.square(offered - one).sum(axis=1))) for one in metric.embed(wanted)]
    return mdp.starts[nearest]


def _episodes(returns: Float[np.ndarray, "n"], inside: Bool[np.ndarray, "n T"], walks: Walks) -> Episodes:
    ever = inside.any(axis=1)
    entered = np.where(ever, inside.argmax(axis=1), NEVER)
    return Episodes(returns, entered, np.where(ever, walks.length - entered, 0), np.count_nonzero(inside, axis=1))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
