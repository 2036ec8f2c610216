"""The on-policy bisimulation metric of a small MDP, exactly, as the oracle of the learned one.

Every state has one edge under the policy, with reward r, discount g and successor ':

    d(s, t) = |r_s - r_t| + min(g_s, g_t) d(s', t') + |g_s - g_t| size(u')          u: the one with the greater discount
    size(s) = |r_s| + g_s size(s')                                                  the distance from where all is over

- Where both go on as usual, both discounts are gamma and this is |r_s - r_t| + gamma d(s', t'), the paper's metric.
- An edge of discount 0 leads to where all is over: nothing is paid there any more, and states lie `size` away from it.
  Discounts between 0 and gamma lead there in part; the formula is then the Wasserstein distance of the two outcomes.
- A state without an edge earns the interest of its value for ever, (1 - gamma) times it, and a terminal state nothing.

**No two values differ by more than the states do.** |V(s) - V(t)| <= |r_s - r_t| + min(g_s, g_t) |V(s') - V(t')|
+ |g_s - g_t| |V(u')| and |V(u')| <= size(u'). So the greatest |V - V| - d is at most gamma times itself: at most 0.

Each pair of states has one successor pair, so the metric is the value of a policy on the graph of pairs, and the exact
evaluator of policies gives it without any iteration. It takes about 100 bytes for each pair: a thousand states are
nothing, ten thousand take 5 GB.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from bats.arrays import StateValues, TabularPolicy
from bats.graph.kernels import follow_edges
from bats.graph.mdp import TabularMDP
from bats.metric.policy_steps import PolicySteps


def bisimulation_distances(
    mdp: TabularMDP, policy: TabularPolicy, *, dead_end_value: float | StateValues = 0.0
) -> Float[np.ndarray, "S S"]:
    """The distance of every two states under the policy, exact up to rounding.

    It is a pseudo-metric: symmetric, with the triangle inequality, and 0 exactly between states with the same rewards
    ahead. Rewards are those that `policy_value` sees, penalties included, and so is `dead_end_value`.
    """
    steps = PolicySteps.of(mdp, policy, dead_end_value=dead_end_value)
    target, reward, discount = steps.next_row, steps.rewards, steps.discounts
    count = mdp.state_count
    size = _followed(target, np.abs(reward), discount)
    first, second = (half.astype(np.int32) for half in np.triu_indices(count, 1))
    after_first, after_second = target[first], target[second]
    more = discount[first] >= discount[second]
    apart = np.abs(reward[first] - reward[second])
    apart += np.abs(discount[first] - discount[second]) * size[np.where(more, after_first, after_second)]
    meet = after_first == after_second
    together = np.where(meet, 0.0, np.minimum(discount[first], discount[second]))
    after = np.where(meet, 0, _pair_number(after_first, after_second, count))
    distances = np.zeros((count, count))
    distances[first, second] = distances[second, first] = _followed(after, apart, together)
    return distances


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
