"""The same graph under other settings: another penalty, tolerance, discount or reward, without planning anything anew.

A graph knows what actions do, not what they are for. Everything here changes arrays and leaves the plans as they are,
so that a whole grid of settings is solved in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from jaxtyping import Bool, Float

from bats.arrays import EdgeActions, EdgeValues, TabularPolicy
from bats.errors import SettingError
from bats.graph.mdp import NO_STITCH, TabularMDP
from bats.graph.solve import policy_iteration, start_value

RewardFunction = Callable[[Float[np.ndarray, "E D"], EdgeActions, Float[np.ndarray, "E D"]], EdgeValues]
"""rewards of (states, actions, next states), row by row"""
Judge = Callable[[TabularMDP, TabularPolicy], float]
"""what a policy of a graph is worth by one yardstick"""


def prune(mdp: TabularMDP, kept: Bool[np.ndarray, "C"]) -> TabularMDP:
    """The MDP without the edges of some stitches. Imagined states keep their numbers, though nothing leads there."""
    if len(kept) != mdp.stitch_count:
        raise SettingError(f"There are {mdp.stitch_count} stitches to keep or drop; got {len(kept)} answers.")
    stays = np.append(kept, True)[mdp.stitch]  # NO_STITCH, which is -1, picks the last
    before = np.concatenate([[0], np.cumsum(stays)])
    return replace(
        mdp,
        first_edge=before[mdp.first_edge],
        target=mdp.target[stays],
        action=mdp.action[stays],
        reward=mdp.reward[stays],
        discount=mdp.discount[stays],
        stitch_round=mdp.stitch_round[stays],
        stitch=mdp.stitch[stays],
        planning_error=mdp.planning_error[stays],
    )


def stitch_errors(mdp: TabularMDP) -> Float[np.ndarray, "C"]:
    """What each stitch is charged for now; infinite for those that were pruned."""
    error = np.full(mdp.stitch_count, np.inf)
    last = last_edges(mdp)
    error[mdp.stitch[last]] = mdp.planning_error[last]
    return error


def last_edges(mdp: TabularMDP) -> Bool[np.ndarray, "E"]:
    """The edges that end a stitch: targets are real, and the states between are not."""
    return (mdp.stitch != NO_STITCH) & (mdp.target < mdp.real_count)


def charge(mdp: TabularMDP, error: Float[np.ndarray, "C"], *, penalty: float) -> TabularMDP:
    """The MDP with another error for each stitch and another price for errors. Charging twice charges once."""
    charged = np.where(last_edges(mdp), np.append(error, 0.0)[mdp.stitch], 0.0)
    return replace(mdp, penalty=penalty, planning_error=charged.astype(mdp.planning_error.dtype))


def discounted(mdp: TabularMDP, gamma: float) -> TabularMDP:
    """The MDP with another discount; edges that end an episode still do."""
    if not 0 < gamma < 1:
        raise SettingError(f"`gamma` must lie strictly between 0 and 1; got {gamma}.")
    return replace(mdp, gamma=gamma, discount=np.where(mdp.discount > 0, gamma, 0.0))


def rewarded(mdp: TabularMDP, reward: RewardFunction) -> TabularMDP:
    """The MDP with another reward. A stitch ends in its target, so that is what its last edge is paid for."""
    paid = np.asarray(reward(mdp.states[mdp.source], mdp.action, mdp.states[mdp.target]), dtype=np.float64)
    if paid.shape != mdp.reward.shape or not np.isfinite(paid).all():
        raise SettingError(f"A reward must be one finite number for each of {mdp.edge_count} rows; got {paid.shape}.")
    return replace(mdp, reward=paid)


def goal_reward(goal: Float[np.ndarray, "n"], radius: float) -> RewardFunction:
    """Pays 1 where the first numbers of the next state lie within the radius of the goal."""
    if not (np.isfinite(goal).all() and radius > 0):
        raise SettingError(f"A goal must be finite numbers and its radius positive; got {goal.tolist()} and {radius}.")

    def reward(
        states: Float[np.ndarray, "E D"], actions: EdgeActions, next_states: Float[np.ndarray, "E D"]
    ) -> EdgeValues:
        if next_states.shape[1] < len(goal):
            raise SettingError(f"A goal has at most {next_states.shape[1]} numbers here; got {len(goal)}.")
        return (np.linalg.norm(next_states[:, : len(goal)] - goal, axis=1) <= radius).astype(np.float64)

    return reward


@dataclass(frozen=True)
class GridPoint:
    """One setting of a grid, solved and judged."""

    penalty: float
    tolerance: float
    kept: int
    """stitches within the tolerance"""
    own_value: float
    """mean value of the starts by its own penalty: not to be compared, since no penalty always wins"""
    judged_value: float
    """mean value of the starts by the yardstick, the same for all"""


def sweep(
    mdp: TabularMDP,
    error: Float[np.ndarray, "C"],
    *,
    penalties: Sequence[float],
    tolerances: Sequence[float],
    judge: Judge,
    dead_end_value: float = 0.0,
) -> Iterator[GridPoint]:
    """Solves a grid of penalties and tolerances, and judges each policy by one yardstick.

    `error` is what the grid's penalties and tolerances look at, as the ensemble sees it. Nothing is played.
    """
    for penalty, tolerance in product(penalties, tolerances):
        kept = error < tolerance
        pruned = charge(prune(mdp, kept), error, penalty=penalty)
        solution = policy_iteration(pruned, dead_end_value=dead_end_value)
        own = start_value(pruned, solution.value)
        yield GridPoint(penalty, tolerance, int(kept.sum()), own, judge(pruned, solution.policy))
