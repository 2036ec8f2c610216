"""The same graph under other settings: another penalty, tolerance, discount or reward, without new planning.

A graph knows what actions do, not what they are for. Everything here changes arrays and keeps the plans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float

from bats.arrays import EdgeActions, EdgeValues, StateValues
from bats.config import Fraction, Positive, checked
from bats.errors import SettingError
from bats.graph.mdp import PER_EDGE, TabularMDP
from bats.graph.solve import ROUNDING

RewardFunction = Callable[[Float[np.ndarray, "E D"], EdgeActions, Float[np.ndarray, "E D"]], EdgeValues]
"""rewards of (states, actions, next states), row by row"""
RARE = 0.01
"""share of the smallest rewards that count as rare"""


def value_of_a_step(log: TabularMDP, value: StateValues) -> float:
    """What one step of delay costs in reward: (1 - gamma) times the range of the log's own values.

    `log` is the MDP without stitches, `value` its solution. A few very small rewards decide what dead ends are worth,
    but must not decide this: values below what all but rare rewards would give for ever do not count. Where all values
    are equal, the range of the rewards stands in, and 1 where these are equal too.
    """
    low, high = float(value[: log.real_count].min()), float(value[: log.real_count].max())
    ordinary = float(np.quantile(log.reward, RARE, method="lower")) / (1 - log.gamma) if log.edge_count else low
    if np.any(log.discount == 0):
        ordinary = min(ordinary, 0.0)
    spread = high - (max(low, ordinary) if ordinary < high else low)
    if spread <= ROUNDING * max(abs(low), abs(high)):  # values that should be equal differ by rounding
        spread = 0.0
    return (1 - log.gamma) * (spread or float(np.ptp(log.reward)) or 1.0)


def stitch_errors(mdp: TabularMDP) -> Float[np.ndarray, "C"]:
    """The planning error of each stitch; infinite for those that were pruned."""
    return np.where(mdp.last_edge < 0, np.inf, np.append(mdp.planning_error, 0.0)[mdp.last_edge])


def with_errors(mdp: TabularMDP, error: Float[np.ndarray, "C"], *, penalty: float) -> TabularMDP:
    """The MDP with other planning errors and another penalty; the old ones leave no trace."""
    if error.shape != (mdp.stitch_count,) or not np.all(error >= 0):
        raise SettingError(f"`error` must have {mdp.stitch_count} numbers, one per stitch, and none below 0 or NaN.")
    planning_error = np.zeros_like(mdp.planning_error)
    kept = mdp.last_edge >= 0
    with np.errstate(over="ignore"):  # an error that is too large for single precision becomes infinite
        planning_error[mdp.last_edge[kept]] = error[kept]
    return replace(mdp, penalty=penalty, planning_error=planning_error)


def prune(mdp: TabularMDP, kept: Bool[np.ndarray, "C"]) -> TabularMDP:
    """The MDP without the edges of some stitches. Imagined states keep their numbers, though nothing leads there."""
    if len(kept) != mdp.stitch_count:
        raise SettingError(f"`kept` must have {mdp.stitch_count} entries, one per stitch; got {len(kept)}.")
    stays = np.append(kept, True)[mdp.stitch]  # NO_STITCH, which is -1, picks the last
    edges_before = np.concatenate([[0], np.cumsum(stays)])
    per_edge = {name: getattr(mdp, name)[stays] for name in PER_EDGE}
    return replace(mdp, first_edge=edges_before[mdp.first_edge], **per_edge)


def final_graph(mdp: TabularMDP, *, penalty: float, tolerance: float | None) -> TabularMDP:
    """The graph that is solved last [section 3.3]: only stitches within the tolerance, with the final penalty."""
    error = stitch_errors(mdp)
    kept = mdp if tolerance is None else prune(mdp, error < tolerance)
    return with_errors(kept, error, penalty=penalty)


def with_gamma(mdp: TabularMDP, gamma: float) -> TabularMDP:
    """The MDP with another discount; edges that terminate an episode still do."""
    gamma = checked("gamma", Fraction, gamma)
    return replace(mdp, gamma=gamma, discount=np.where(mdp.discount > 0, gamma, 0.0))


def with_reward(mdp: TabularMDP, reward: RewardFunction) -> TabularMDP:
    """The MDP with another reward. A stitch ends in its target, so its last edge is rewarded for arriving there."""
    rewards = np.asarray(reward(mdp.states[mdp.source], mdp.action, mdp.states[mdp.target]), dtype=np.float64)
    if rewards.shape != mdp.reward.shape or not np.isfinite(rewards).all():
        expected = f"one finite number for each of {mdp.edge_count} rows"
        raise SettingError(f"A reward function must return {expected}; got shape {rewards.shape}.")
    return replace(mdp, reward=rewards)


def goal_reward(goal: Float[np.ndarray, "n"], radius: float) -> RewardFunction:
    """Reward 1 where the first components of the next state lie within the radius of the goal, else 0."""
    radius = checked("radius", Positive, radius)
    if not np.isfinite(goal).all():
        raise SettingError(f"`goal` must be finite numbers; got {goal.tolist()}.")

    def reward(
        states: Float[np.ndarray, "E D"], actions: EdgeActions, next_states: Float[np.ndarray, "E D"]
    ) -> EdgeValues:
        if next_states.shape[1] < len(goal):
            raise SettingError(f"A state has {next_states.shape[1]} components, but the goal has {len(goal)}.")
        distance = np.linalg.norm(next_states[:, : len(goal)] - goal, axis=1)
        if not distance.min() <= radius:  # every policy would be as good as any other
            nearest = f"the nearest next state is {distance.min():.4g} away"
            raise SettingError(f"No next state is within the radius of the goal, {radius:g}; {nearest}.")
        return (distance <= radius).astype(np.float64)

    reward.__name__ = f"goal {','.join(f'{number:g}' for number in goal)} with radius {radius:g}"
    return reward
