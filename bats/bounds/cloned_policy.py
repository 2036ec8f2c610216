"""Bounds on a policy that acts everywhere, by following it in the model for as long as the model is good for.

From each of many states the policy acts in the model, until its claimed error would reach the tolerance of stitches.
Where it comes to be it is followed again, as often as counts, or other ones of these states are near, and from there it
is known how it goes on. So its value is that of a chain: after k steps from s,

    V(s) >= what they earn at least + gamma^k ( V(t) - d(end, t) - reach )      for every state t near the end

where d is the metric of value and reach how far by it the stretch may truly end from where the model says. The best of
all t is taken, and the same for the upper bound. Where a stretch ends in a place that is strange to the log and to
the graph, nothing is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial import cKDTree

from bats.bounds.error_calibration import Stakes
from bats.bounds.error_estimates import Evidence, Factors
from bats.model.ensemble import Dynamics, Predictor, one_hot
from bats.policy.policy import Policy
from bats.stitching.acceptance import LIKELY

NEAREST = 16
"""states near the end of a stretch that it may go on from"""
STRETCH = 1.25
"""what claims that were refuted are multiplied by, again and again"""
ROUNDING = 1e-9
"""bounds that change by less than this share of all that is possible have settled"""


@dataclass(frozen=True, eq=False)
class Chain:
    """Stretches of a policy's actions from some states, each ending near others of them."""

    near: Int[np.ndarray, "n N"]
    """states near the end of each stretch"""
    apart: Float[np.ndarray, "n N"]
    """how much the value may differ between the end and each of them; infinite where nothing is known"""
    discount: Float[np.ndarray, "n"]
    """of what comes after; 0 where the stretch ends the episode"""
    reward: Float[np.ndarray, "n 2"]
    """the least and greatest that each may earn, discounted"""

    def bounds(
        self, floor: float, ceiling: float, *, margin: float = 1.0
    ) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
        """What the policy is worth at least and at most in each state.

        By one neighbour a state may be worth more than another allows. That refutes the claims about how values differ;
        they are stretched until nothing does any longer, and then by the margin, since not to be refuted is little.
        """
        stretch, least = 1.0, ROUNDING * (ceiling - floor)
        while self._stretched(stretch, least).is_refuted(floor, ceiling):
            stretch *= STRETCH
        return self._stretched(stretch if stretch == 1 else margin * stretch, least)._settled(floor, ceiling)

    def is_refuted(self, floor: float, ceiling: float) -> bool:
        """Whether any state is claimed to be worth more at least than at most."""
        lower, upper = self._settled(floor, ceiling)
        return bool(np.any(lower > upper + ROUNDING * (ceiling - floor)))

    def _stretched(self, stretch: float, least: float) -> Chain:
        """With claims so many times as large; those of no difference grow from the least, so that all do in time."""
        return replace(self, apart=stretch * self.apart + (stretch - 1) * least)

    def _settled(self, floor: float, ceiling: float) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
        possible = ceiling - floor
        apart = np.minimum(self.apart, possible)
        low, high = np.nan_to_num(self.reward, posinf=2 * possible + ceiling, neginf=floor - 2 * possible).T
        lower, upper = np.full((2, len(low)), [[floor], [ceiling]])
        change = math.inf
        while change > ROUNDING * possible:
            before = lower, upper
            lower = np.clip(low + self.discount * (lower[self.near] - apart).max(axis=1), floor, ceiling)
            upper = np.clip(high + self.discount * (upper[self.near] + apart).min(axis=1), floor, ceiling)
            change = max(float(np.abs(new - old).max()) for new, old in zip((lower, upper), before, strict=True))
        return lower, upper


@dataclass(frozen=True, eq=False)
class Followed:
    """What a policy does in the model from some states, for as long as the model's word is good."""

    place: Float[np.ndarray, "n D"]
    """where each comes to be, in the mean of the members"""
    length: Int[np.ndarray, "n"]
    landing: Float[np.ndarray, "n"]
    """how far from there it may be, by the model's claim"""
    value: Float[np.ndarray, "n"]
    """how much the value may differ from there"""
    discount: Float[np.ndarray, "n"]
    """of what is there"""
    over: Bool[np.ndarray, "n"]
    """whether the episode has ended there, so that nothing comes after"""
    earned: Float[np.ndarray, "n"]
    """on the way, discounted"""
    off: Float[np.ndarray, "n"]
    """how much more or less that may be"""


def follow(
    policy: Policy, states: Float[np.ndarray, "n D"], evidence: Evidence, *, gamma: float, steps: int
) -> Followed:
    """Lets the policy act in the model from every state, each member going its own way.

    A stretch ends after so many steps, with the episode, or before the step with which its claimed error would reach
    the tolerance; one step is always made.
    """
    here = np.repeat(states[None].astype(np.float32), evidence.learned.dynamics.member_count, axis=0)
    weight, running = np.ones(len(states)), np.ones(len(states), dtype=bool)
    earned, off, added, added_value, landing, value = np.zeros((6, len(states)))
    length, over = np.zeros(len(states), dtype=np.int64), np.zeros(len(states), dtype=bool)
    for step in range(steps):
        if not running.any():
            break
        acted_in = np.asarray(evidence.learned.metric.embed(here.mean(axis=0)))
        after, paid, ends = _stepped(evidence.learned.dynamics, policy, here)
        place, fares, claimed = evidence.one_step(acted_in, np.abs(paid - paid.mean(axis=0)).max(axis=0))
        apart, apart_value = evidence.apart(after, after.mean(axis=0))
        running &= (apart + added + place < evidence.tolerance) | (step == 0)
        added, added_value = added + running * place, added_value + running * fares
        landing = np.where(running, apart + added, landing)
        value = np.where(running, np.maximum(apart_value + added_value, evidence.least), value)
        earned += running * weight * paid.mean(axis=0)
        off += running * weight * claimed
        here = np.where(running[:, None], after, here)
        length += running
        weight = np.where(running, gamma * weight, weight)
        over |= running & ends
        running &= ~ends
    return Followed(here.mean(axis=0), length, landing, value, weight, over, earned, off)


def follow_on(
    policy: Policy,
    known: Float[np.ndarray, "n D"],
    walkers: Int[np.ndarray, "w"],
    evidence: Evidence,
    *,
    gamma: float,
    steps: int,
    counting: int,
    most: int,
) -> tuple[Float[np.ndarray, "m D"], Followed]:
    """Follows the policy from known states, and some walkers on from where they came to be, for as long as counts.

    The states are the known ones and then, turn by turn, where walkers have ended a stretch, at most about so many. A
    walker whose episode is over, who is strange to the log or whom the model hardly dares to follow goes no farther.
    """
    turn = follow(policy, known, evidence, gamma=gamma, steps=steps)
    states, stretches = [known], [turn]
    at, made = walkers, turn.length[walkers]
    while True:
        goes_on = ~turn.over[at] & (turn.landing[at] < evidence.tolerance) & (made < counting)
        at, made = at[goes_on], made[goes_on]
        familiar = policy.strangeness(turn.place[at]) <= 1
        at, made = at[familiar], made[familiar]
        if len(at) == 0 or sum(map(len, states[1:])) >= most:
            break
        states.append(turn.place[at])
        turn = follow(policy, states[-1], evidence, gamma=gamma, steps=steps)
        stretches.append(turn)
        at, made = np.arange(len(at)), made + turn.length
    parts = (np.concatenate([getattr(each, part.name) for each in stretches]) for part in fields(Followed))
    return np.concatenate(states), Followed(*parts)


@dataclass(frozen=True, eq=False)
class Links:
    """Which of the states that a policy was followed from lie near the ends of its stretches."""

    near: Int[np.ndarray, "n N"]
    """nearest first"""
    distance: Float[np.ndarray, "n"]
    """to the nearest that is known, in the metric that stitches are judged by"""

    @classmethod
    def of(cls, stretches: Followed, states: Float[np.ndarray, "n D"], evidence: Evidence, *, known: int) -> Links:
        """The first states are those that are known; where the others lie is the model's word."""
        places, ends = (np.asarray(evidence.learned.metric.embed(each)) for each in (states, stretches.place))
        ranks = np.arange(1, min(NEAREST, len(states)) + 1)
        _, near = cKDTree(places).query(ends, k=ranks, workers=-1)
        distance, _ = cKDTree(places[:known]).query(ends, workers=-1)
        return cls(near, distance)

    def stakes(self, stretches: Followed, first: Int[np.ndarray, "w"], *, least: float) -> Stakes:
        """What rests on the claims of the stretches from some states, as long as more than a share is to come."""
        walker, plan, value, reward = [], [], [], []
        alive, here, weight = np.arange(len(first)), first, np.ones(len(first))
        while len(alive):
            walker.append(alive)
            plan.append(here)
            reward.append(weight * stretches.off[here])
            weight = weight * stretches.discount[here]
            value.append(weight * stretches.value[here])
            goes_on = ~stretches.over[here] & (weight > least)
            alive, here, weight = alive[goes_on], self.near[here[goes_on], 0], weight[goes_on]
        return Stakes.of_plans(*map(np.concatenate, (walker, plan, value, reward)), walks=len(first))


def joined(
    stretches: Followed,
    links: Links,
    policy: Policy,
    states: Float[np.ndarray, "n D"],
    evidence: Evidence,
    factors: Factors,
) -> Chain:
    """The stretches as a chain: each goes on from the states nearest to its end, if its claims times the factors hold.

    Nothing is known where the end is strange to the log and the known states, or where even one step claims too much.
    """
    spread = unsure = np.full(len(states), np.inf)
    apart = np.full(links.near.shape, np.inf)
    if math.isfinite(factors.value):
        spread = factors.reward * stretches.off
        familiar = (policy.strangeness(stretches.place) <= 1) | (links.distance <= policy.usual_distance)
        # nobody goes on from an end, so it may lie where the log shows nothing
        known = (familiar | stretches.over) & (stretches.landing < evidence.tolerance)
        value = evidence.value_metric.embed
        fares, ends = np.asarray(value(states.astype(np.float32))), np.asarray(value(stretches.place))
        beside = np.linalg.norm(fares[links.near] - ends[:, None], axis=2)
        unsure = np.where(known, factors.value * stretches.value, np.inf)
        apart[known] = beside[known] + unsure[known, None]
    # an end that is not one after all is worth as much more or less as the value may differ there
    spread = spread + np.where(stretches.over, stretches.discount * unsure, 0.0)
    reward = stretches.earned[:, None] + np.stack([-spread, spread], axis=-1)
    return Chain(links.near, apart, np.where(stretches.over, 0.0, stretches.discount), reward)


def _stepped(
    dynamics: Predictor, policy: Policy, here: Float[np.ndarray, "M n D"]
) -> tuple[Float[np.ndarray, "M n D"], Float[np.ndarray, "M n"], Bool[np.ndarray, "n"]]:
    """Where the policy's action leads by each member, what it pays, and whether they think that it ends the task."""
    actions = one_hot(policy.predict(here.reshape(-1, here.shape[2])), dynamics.action_count)
    before, acted = jnp.asarray(here), jnp.asarray(actions.reshape(*here.shape[:2], -1), jnp.float32)
    after = before + dynamics.change(before, acted)[0]
    paid = np.asarray(dynamics.reward(before, acted, after))
    if not isinstance(dynamics, Dynamics):
        return np.asarray(after), paid, np.zeros(here.shape[1], dtype=bool)
    ends = np.asarray(dynamics.termination(before, acted, after)).mean(axis=0) > LIKELY
    going_on = np.asarray(dynamics.reward_going_on(before, acted, after))  # an end's pay is not paid in part before it
    return np.asarray(after), np.where(ends, paid, going_on), ends
