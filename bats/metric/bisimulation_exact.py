"""The on-policy bisimulation metric of a small MDP, exactly: how differently two states fare under one policy.

Every state has one edge under the policy, with reward r, discount g and successor ':

    d(s, t) = |r_s - r_t| + min(g_s, g_t) d(s', t') + |g_s - g_t| size(u')          u: the one with the greater discount
    size(s) = |r_s| + g_s size(s')                                                  the distance from where all is over

- Where both go on as usual, both discounts are gamma and this is |r_s - r_t| + gamma d(s', t'), the paper's metric.
- An edge of discount 0 leads to where all is over: nothing is paid there any more, and states lie `size` away from it.
  Discounts between 0 and gamma lead there in part; the formula is then the Wasserstein distance of the two outcomes.
- A state without an edge pays the interest of its worth for ever, (1 - gamma) times it, and a terminal state nothing.

**No two values differ by more than the states do.** |V(s) - V(t)| <= |r_s - r_t| + min(g_s, g_t) |V(s') - V(t')|
+ |g_s - g_t| |V(u')| and |V(u')| <= size(u'). So the greatest |V - V| - d is at most gamma times itself: at most 0.

Each pair of states has one successor pair, so the metric is the value of a policy on the graph of pairs, and the exact
evaluator of policies gives it without any iteration. It takes about 100 bytes for each pair: a thousand states are
nothing, ten thousand take 5 GB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from bats.arrays import StateValues, TabularPolicy
from bats.graph.kernels import NO_EDGE, follow_edges
from bats.graph.mdp import TabularMDP
from bats.graph.solve import boundary_values, checked_policy


def bisimulation_distances(
    mdp: TabularMDP, policy: TabularPolicy, *, dead_end_value: float | StateValues = 0.0
) -> Float[np.ndarray, "S S"]:
    """The distance of every two states under the policy, exact up to rounding.

    It is a pseudo-metric: symmetric, with the triangle inequality, and 0 exactly between states with the same rewards
    ahead. Rewards are those that `policy_value` sees, penalties included, and so is `dead_end_value`.
    """
    step = one_step(mdp, checked_policy(mdp, policy), dead_end_value)
    count = mdp.state_count
    size = _followed(step.target, np.abs(step.reward), step.discount)
    first, second = (half.astype(np.int32) for half in np.triu_indices(count, 1))
    after_first, after_second = step.target[first], step.target[second]
    more = step.discount[first] >= step.discount[second]
    apart = np.abs(step.reward[first] - step.reward[second])
    apart += np.abs(step.discount[first] - step.discount[second]) * size[np.where(more, after_first, after_second)]
    meet = after_first == after_second
    together = np.where(meet, 0.0, np.minimum(step.discount[first], step.discount[second]))
    after = np.where(meet, 0, _pair_number(after_first, after_second, count))
    distances = np.zeros((count, count))
    distances[first, second] = distances[second, first] = _followed(after, apart, together)
    return distances


@dataclass(frozen=True, eq=False)
class Step:
    """What one step of the policy does in every state."""

    target: Int[np.ndarray, "S"]
    reward: StateValues
    discount: StateValues


def one_step(mdp: TabularMDP, policy: TabularPolicy, dead_end_value: float | StateValues) -> Step:
    """States without an edge stay where they are and are paid the interest of what they are worth."""
    acting = policy != NO_EDGE
    edge = policy[acting]
    target = np.arange(mdp.state_count)
    reward = (1 - mdp.gamma) * boundary_values(mdp, dead_end_value)
    discount = np.full(mdp.state_count, mdp.gamma)
    target[acting], reward[acting], discount[acting] = mdp.target[edge], mdp.charged_reward[edge], mdp.discount[edge]
    return Step(target, reward, discount)


def _followed(
    target: Int[np.ndarray, "n"], reward: Float[np.ndarray, "n"], discount: Float[np.ndarray, "n"]
) -> Float[np.ndarray, "n"]:
    """The value of every node where each has one edge, numbered as the node itself."""
    count = len(target)
    value, factor, end = np.empty(count), np.empty(count), np.empty(count, dtype=np.int32)
    follow_edges(np.arange(count), target, reward, discount, value, factor, end)
    return value


def _pair_number(one: Int[np.ndarray, "P"], other: Int[np.ndarray, "P"], count: int) -> Int[np.ndarray, "P"]:
    """The place of each pair of two different states among all pairs, in the order of `np.triu_indices`."""
    low, high = np.minimum(one, other).astype(np.int64), np.maximum(one, other)
    return low * (2 * count - low - 1) // 2 + high - low - 1
