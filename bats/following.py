"""Bounds on a policy that acts everywhere, by following it in the model for as long as the model is good for.

From each of many states that the log or the graph knows, the policy acts for a few steps in the model. Where it comes
to be is near another one of the states, and from there it is known how it goes on. So its value is that of a chain,

    V(s) = what the stretch earns + gamma^k ( V(nearest state) ± landing )

where landing is how far the value may differ: the distance of the two places by the value metric, and how far from
there the stretch may truly end. The model is never asked for more than k steps at a time. Where a stretch ends in a
place that is strange to the log, nothing is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial import cKDTree

from bats.attempts import LIKELY
from bats.dynamics import Dynamics, Predictor, one_hot
from bats.evidence import RESOLUTION, Evidence, Factors
from bats.policy import Policy

ROUNDING = 1e-9
"""bounds that change by less than this share of all that is possible have settled"""


@dataclass(frozen=True, eq=False)
class Chain:
    """Stretches of a policy's actions from some states, each ending near another of them."""

    target: Int[np.ndarray, "n"]
    """the state nearest to where each stretch ends"""
    discount: Float[np.ndarray, "n"]
    """of what comes after; 0 where the stretch ends the episode"""
    reward: Float[np.ndarray, "n 2"]
    """the least and greatest that each may earn, discounted"""
    landing: Float[np.ndarray, "n"]
    """how much the value may differ between where it ends and the target; infinite where nothing is known"""

    def bounds(self, floor: float, ceiling: float) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
        """What the policy is worth at least and at most in each state."""
        apart = ceiling - floor
        cost = self.discount * np.minimum(self.landing, apart)
        low, high = np.nan_to_num(self.reward, posinf=2 * apart + ceiling, neginf=floor - 2 * apart).T
        lower, upper = np.full((2, len(cost)), [[floor], [ceiling]])
        change = math.inf
        while change > ROUNDING * apart:
            before = lower, upper
            lower = np.clip(low - cost + self.discount * lower[self.target], floor, ceiling)
            upper = np.clip(high + cost + self.discount * upper[self.target], floor, ceiling)
            change = max(float(np.abs(new - old).max()) for new, old in zip((lower, upper), before, strict=True))
        return lower, upper


def follow(
    policy: Policy,
    states: Float[np.ndarray, "n D"],
    evidence: Evidence,
    factors: Factors,
    *,
    gamma: float,
    steps: int,
) -> Chain:
    """Lets the policy act in the model from every state, each member going its own way."""
    dynamics, embed = evidence.learned.dynamics, evidence.learned.metric.embed
    here = np.repeat(states[None].astype(np.float32), dynamics.member_count, axis=0)
    weight, earned, off = np.ones(len(states)), np.zeros(len(states)), np.zeros(len(states))
    acted_in = np.zeros((len(states), steps, np.asarray(embed(states[:1])).shape[1]))
    length = np.zeros(len(states), dtype=np.int64)
    for step in range(steps):
        acted_in[:, step] = embed(here.mean(axis=0))
        after, paid, ends = _stepped(dynamics, policy, here)
        earned += weight * paid.mean(axis=0)
        off += weight * evidence.claimed_reward(np.abs(paid - paid.mean(axis=0)).max(axis=0), acted_in[:, step])
        running = weight > 0
        length += running
        here = np.where(running[:, None], after, here)
        weight = np.where(ends, 0.0, gamma * weight)
    place = here.mean(axis=0)
    spread = factors.reward * off if math.isfinite(factors.reward) else np.full(len(off), np.inf)
    target = cKDTree(np.asarray(embed(states))).query(np.asarray(embed(place)), workers=-1)[1]
    landing = np.full(len(states), np.inf)
    known = policy.strangeness(place) <= 1
    if math.isfinite(factors.landing):
        claimed = evidence.claimed_landing(here, acted_in, length)
        around = evidence.around(place, factors.landing * np.maximum(claimed, RESOLUTION))
        beside = evidence.value_metric.embed(place) - evidence.value_metric.embed(states[target].astype(np.float32))
        landing[known] = (np.linalg.norm(np.asarray(beside), axis=1) + evidence.spread(around))[known]
    return Chain(target, weight, np.stack([earned - spread, earned + spread], axis=-1), landing)


def _stepped(
    dynamics: Predictor, policy: Policy, here: Float[np.ndarray, "M n D"]
) -> tuple[Float[np.ndarray, "M n D"], Float[np.ndarray, "M n"], Bool[np.ndarray, "n"]]:
    """Where the policy's action leads by each member, what it pays, and whether they think that it ends the task."""
    actions = one_hot(policy.predict(here.reshape(-1, here.shape[2])), dynamics.action_count)
    before, acted = jnp.asarray(here), jnp.asarray(actions.reshape(*here.shape[:2], -1), jnp.float32)
    after = before + dynamics.change(before, acted)[0]
    paid = np.asarray(dynamics.reward(before, acted, after))
    ends = np.zeros(here.shape[1], dtype=bool)
    if isinstance(dynamics, Dynamics):
        ends = np.asarray(dynamics.termination(before, acted, after)).mean(axis=0) > LIKELY
    return np.asarray(after), paid, ends
