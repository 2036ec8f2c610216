"""Bounds on the cloned policy, which acts everywhere, by rolling it out in the model while the model is reliable.

From each of many states the policy acts in the model until its estimated error would reach the tolerance of stitches.
There the rollout is restarted, or continued from a nearby state whose value is bounded as well. So the values satisfy

    V(s) >= discounted reward of the rollout - its error + gamma^k ( V(t) - d(end, t) - end error )

for every state t near the end, where d is the bisimulation metric. The best t counts, and upper bounds are analogous.
Where a rollout ends out of the log's and the graph's support, or its prediction diverges, nothing is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.spatial import cKDTree

from bats.arrays import Metric, concat, in_batches
from bats.bounds.certificate import CalibrationFactors, ModelReturn
from bats.bounds.error_calibration import MIN_FACTOR, DiscountedErrors, calibration_factors, discounted_errors
from bats.bounds.error_estimates import ErrorEstimator, disagreement
from bats.bounds.graph_policy import ROLLOUTS, relevant_steps
from bats.bounds.sandwich import ValueBounds
from bats.graph.mdp import TabularMDP
from bats.graph.rollouts import reachable
from bats.graph.solve import Solution
from bats.model.ensemble import Dynamics
from bats.planning.planner import QUANTILE
from bats.policy.model_actor import ModelActor
from bats.policy.policy import Policy
from bats.stitching.acceptance import LIKELY
from bats.streams import Stream, generator

STEPS = 20
"""maximum number of actions of one rollout"""
ANCHORS = 1000
"""states that the clone is rolled out from: the starts, and others that the graph's policy visits"""
RESTARTS = 2500
"""no further turn is made once this many rollouts have begun where others end"""
NEAREST = 16
"""states near a rollout's end that it may be continued from"""
INFLATION = 1.25
"""what inconsistent distances are multiplied by, again and again"""
ROUNDING = 1e-9
"""bounds that change by less, relative to the possible range, have converged"""
BATCH = 128
"""rollouts made together"""


@dataclass(frozen=True, eq=False)
class JointSupport:
    """The support of the log, and of the states that the graph's policy visits: its stitches may leave the log's."""

    clone: Policy
    """its support is the log's"""
    visited: cKDTree
    """embedded"""
    metric: Metric

    @classmethod
    def of(cls, clone: Policy, visited: Float[np.ndarray, "v D"], metric: Metric) -> JointSupport:
        return cls(clone, cKDTree(np.asarray(metric.embed(visited))), metric)

    def contains(self, states: Float[np.ndarray, "n D"]) -> Bool[np.ndarray, "n"]:
        distance, _ = self.visited.query(np.asarray(self.metric.embed(states)), workers=-1)
        return (self.clone.support_distance(states) <= 1) | (distance <= self.clone.support_limit)


@dataclass(frozen=True, eq=False)
class ModelRollouts:
    """Rollouts of the clone in the model, each for as long as the model is reliable."""

    start: Float[np.ndarray, "n D"]
    """first state"""
    end: Float[np.ndarray, "n D"]
    """end state, mean over the members"""
    length: Int[np.ndarray, "n"]
    end_error: Float[np.ndarray, "n"]
    """estimated, in the metric that stitches are accepted by; infinite if the prediction diverges in the first step"""
    value_error: Float[np.ndarray, "n"]
    """estimated value difference at the end"""
    discount: Float[np.ndarray, "n"]
    """of what comes after"""
    terminated: Bool[np.ndarray, "n"]
    reward: Float[np.ndarray, "n"]
    """discounted sum"""
    reward_error: Float[np.ndarray, "n"]
    """estimated, of that sum"""


@dataclass(frozen=True, eq=False)
class CloneRollouts:
    """Rollouts of a clone in the model from the starts and from other states, and what bounds follow from them."""

    mdp: TabularMDP
    anchors: Int[np.ndarray, "a"]
    """states of the graph that the first rollouts begin in"""
    rollouts: ModelRollouts
    near: Int[np.ndarray, "n N"]
    """rollouts that begin near each rollout's end"""
    chained: Int[np.ndarray, "w"]
    """rollouts that chains of rollouts begin with, drawn by the weights of their starts"""
    support: JointSupport
    estimator: ErrorEstimator

    @classmethod
    def of(cls, solution: Solution, clone: Policy, estimator: ErrorEstimator) -> CloneRollouts:
        mdp, rng = solution.mdp, generator(estimator.seed, Stream.CLONE_ROLLOUTS)
        visited = reachable(mdp, solution.policy, mdp.starts)
        support = JointSupport.of(clone, mdp.states[visited], estimator.context.metric)
        others, room = np.setdiff1d(visited, mdp.starts), max(ANCHORS - len(mdp.starts), 0)
        others = others if len(others) <= room else rng.choice(others, room, replace=False)
        anchors = np.concatenate([mdp.starts, others])
        # one batch of rollouts from the starts is restarted where they end, again and again, until little value is left
        restarted = np.sort(rng.choice(len(mdp.starts), min(BATCH, len(mdp.starts)), replace=False))
        rollouts = roll_out_and_restart(support, mdp.states[anchors], restarted, estimator, gamma=mdp.gamma)
        near = nearest_starts(rollouts, estimator.context.metric)
        chained = rng.choice(len(mdp.starts), ROLLOUTS, p=mdp.start_weights)
        return cls(mdp, anchors, rollouts, near, chained, support, estimator)

    def factors(self) -> CalibrationFactors:
        """The calibration factors for the errors that add up along the chained rollouts."""
        errors = chain_errors(self.rollouts, self.near, self.chained, relevant_steps(self.mdp.gamma))
        return calibration_factors(self.estimator, self.rollouts.length, errors)

    def bounds(self, factors: CalibrationFactors, *, floor: float, ceiling: float) -> ValueBounds:
        """Bounds on the clone where it was rolled out from; elsewhere they are floor and ceiling."""
        mdp, anchors = self.mdp, self.anchors
        chain = Chain.of(self.rollouts, self.near, self.support, self.estimator, factors)
        lower, upper = np.full(mdp.state_count, floor), np.full(mdp.state_count, ceiling)
        bounds = chain.bounds(floor, ceiling, margin=MIN_FACTOR)
        lower[anchors], upper[anchors] = (bound[: len(anchors)] for bound in bounds)
        return ValueBounds(lower, upper, floor, ceiling, mdp.starts, mdp.start_weights)


@dataclass(frozen=True, eq=False)
class Chain:
    """Rollouts from some states, each continued from others of these states."""

    near: Int[np.ndarray, "n N"]
    """states near each rollout's end"""
    distance: Float[np.ndarray, "n N"]
    """largest value difference between the end and each of them; infinite where nothing is known"""
    discount: Float[np.ndarray, "n"]
    """of what comes after; 0 where the rollout terminated"""
    reward: Float[np.ndarray, "n 2"]
    """smallest and largest discounted reward of each"""

    @classmethod
    def of(
        cls,
        rollouts: ModelRollouts,
        near: Int[np.ndarray, "n N"],
        support: JointSupport,
        estimator: ErrorEstimator,
        factors: CalibrationFactors,
    ) -> Chain:
        """The rollouts as a chain, if their error estimates times the factors hold."""
        reward_error = value_error = np.full(len(near), np.inf)
        distance = np.full(near.shape, np.inf)
        if factors.known:
            reward_error = np.where(np.isinf(rollouts.end_error), np.inf, factors.reward * rollouts.reward_error)
            # nothing continues from a termination, so it may lie where the log shows nothing
            known = support.contains(rollouts.end) | rollouts.terminated
            known &= rollouts.end_error < estimator.tolerance
            embed = estimator.value_metric.embed
            points, ends = np.asarray(embed(rollouts.start.astype(np.float32))), np.asarray(embed(rollouts.end))
            to_neighbours = np.linalg.norm(points[near] - ends[:, None], axis=2)
            value_error = np.where(known, factors.value * rollouts.value_error, np.inf)
            distance[known] = to_neighbours[known] + value_error[known, None]
        # a termination that is none after all may be worth as much more or less as values differ there
        spread = reward_error + np.where(rollouts.terminated, rollouts.discount * value_error, 0.0)
        reward = rollouts.reward[:, None] + np.stack([-spread, spread], axis=-1)
        return cls(near, distance, np.where(rollouts.terminated, 0.0, rollouts.discount), reward)

    def bounds(
        self, floor: float, ceiling: float, *, margin: float = 1.0
    ) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
        """The lower and upper bound of each state.

        One neighbour may imply a larger value than another allows, which refutes the distances. They are inflated until
        the bounds are consistent, and then once more by `margin`: consistency alone is weak evidence.
        """
        factor = 1.0
        lower, upper = self._fixed_point(floor, ceiling, factor)
        while np.any(lower > upper + ROUNDING * (ceiling - floor)):
            factor *= INFLATION
            lower, upper = self._fixed_point(floor, ceiling, factor)
        return (lower, upper) if factor == 1 else self._fixed_point(floor, ceiling, margin * factor)

    def _fixed_point(
        self, floor: float, ceiling: float, factor: float
    ) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
        """The bounds with all distances inflated by a factor."""
        possible = ceiling - floor
        # distances of 0 grow from the smallest one that counts, so that all become consistent in the end
        distance = np.minimum(factor * self.distance + (factor - 1) * (ROUNDING * possible), possible)
        low, high = np.nan_to_num(self.reward, posinf=2 * possible + ceiling, neginf=floor - 2 * possible).T
        lower, upper = np.full(len(low), floor), np.full(len(low), ceiling)
        change = math.inf
        while change > ROUNDING * possible:
            before = lower, upper
            lower = np.clip(low + self.discount * (lower[self.near] - distance).max(axis=1), floor, ceiling)
            upper = np.clip(high + self.discount * (upper[self.near] + distance).min(axis=1), floor, ceiling)
            change = max(float(np.abs(new - old).max()) for new, old in zip((lower, upper), before, strict=True))
        return lower, upper


def roll_out_and_restart(
    support: JointSupport,
    anchors: Float[np.ndarray, "n D"],
    restarted: Int[np.ndarray, "w"],
    estimator: ErrorEstimator,
    *,
    gamma: float,
) -> ModelRollouts:
    """Rolls the clone out from the anchors, and again from where some of these rollouts end.

    The rollouts are those from the anchors and then, turn by turn, those that were restarted.
    A rollout that terminated, left the support, or is not reliable for even one step is not restarted.
    """
    turn = roll_out_clone(support.clone, anchors, estimator, gamma=gamma)
    turns, restarts = [turn], 0
    row, steps = restarted, turn.length[restarted]
    while True:
        continues = ~turn.terminated[row] & (turn.end_error[row] < estimator.tolerance)
        continues &= steps < relevant_steps(gamma)
        row, steps = row[continues], steps[continues]
        supported = support.contains(turn.end[row])
        row, steps = row[supported], steps[supported]
        if len(row) == 0 or restarts >= RESTARTS:
            return concat(turns)
        turn = roll_out_clone(support.clone, turn.end[row], estimator, gamma=gamma)
        turns.append(turn)
        restarts += len(row)
        row, steps = np.arange(len(row)), steps + turn.length


def roll_out_clone(
    clone: Policy, states: Float[np.ndarray, "n D"], estimator: ErrorEstimator, *, gamma: float, steps: int = STEPS
) -> ModelRollouts:
    """Rolls the clone out in the model from every state, each member from its own states.

    A rollout ends after `steps` steps, with a termination, or before the step with which its estimated end error would
    reach the tolerance; one step is always made.
    """
    dynamics, metric = estimator.context.dynamics, estimator.context.metric
    roll = partial(simulate, dynamics, ModelActor.of(clone), metric, steps)
    # of each step, by rollout
    visited, end_errors, rewards, disagreements, ends = in_batches(roll, BATCH, states.astype(np.float32), axis=1)
    # nothing is known after a prediction that diverges: its error is infinite, and the start state is a placeholder
    finite = np.isfinite(visited).all(axis=(2, 3)) & np.isfinite([end_errors, rewards, disagreements]).all(axis=0)
    visited = np.where(finite[..., None, None], visited, states[:, None].astype(np.float32))
    end_errors, ends = np.where(finite, end_errors, np.inf), ends & finite
    rewards, disagreements = (np.where(finite, numbers, 0.0) for numbers in (rewards, disagreements))

    # the rollout has made all its steps; now find how many of them are reliable
    before = np.concatenate([states[None].astype(np.float32), visited.mean(axis=2)[:-1]])
    local = estimator.local.near(np.asarray(metric.embed(before)).reshape(before.shape[0] * before.shape[1], -1))
    local = local.reshape(steps, len(states), 3)
    end_error = end_errors + np.cumsum(local[..., 0], axis=0)
    reliable = (end_error < estimator.tolerance) | (np.arange(steps) == 0)[:, None]
    running = np.logical_and.accumulate(reliable, axis=0)
    running[1:] &= ~np.logical_or.accumulate(ends, axis=0)[:-1]
    length = running.sum(axis=0)

    last, row = length - 1, np.arange(len(states))
    members = np.moveaxis(visited[last, row], 1, 0)
    end = members.mean(axis=0)
    value_error = disagreement(members, end, estimator.value_metric) + np.cumsum(local[..., 1], axis=0)[last, row]
    weight = running * gamma ** np.arange(steps)[:, None]
    reward_errors = np.maximum(disagreements + local[..., 2], estimator.resolution)
    return ModelRollouts(
        start=states,
        end=end,
        length=length,
        end_error=end_error[last, row],
        value_error=np.maximum(value_error, estimator.resolution),
        discount=gamma**length,
        terminated=ends[last, row],
        reward=(weight * rewards).sum(axis=0),
        reward_error=(weight * reward_errors).sum(axis=0),
    )


def model_return(
    policy: Policy,
    starts: Float[np.ndarray, "n D"],
    dynamics: Dynamics,
    metric: Metric,
    *,
    gamma: float,
    reward_range: tuple[float, float],
) -> ModelReturn:
    """What rollouts in the model from some states come to, however unreliable the model is on the way."""
    steps = relevant_steps(gamma)
    roll = partial(simulate, dynamics, ModelActor.of(policy), metric, steps)
    visited, _, rewards, disagreements, ends = in_batches(roll, BATCH, starts.astype(np.float32), axis=1)
    finite = np.isfinite(visited).all(axis=(2, 3)) & np.isfinite([rewards, disagreements]).all(axis=0)
    running = np.concatenate([np.ones((1, len(starts)), bool), ~np.logical_or.accumulate(ends, axis=0)[:-1]])
    weight = running * gamma ** np.arange(steps)[:, None]
    states = np.where(finite[..., None, None], visited, 0.0).mean(axis=2)
    far = policy.support_distance(states.reshape(-1, states.shape[2])) > 1
    outside = running & (~finite | far.reshape(finite.shape))
    # far from the log, networks may predict any reward; after a prediction that diverges, the worst is assumed
    low, high = reward_range
    rewards = np.clip(np.where(finite, rewards, low), low, high)
    disagreements = np.minimum(np.where(finite, disagreements, high - low), high - low)
    value, disagreement = (float((weight * part).sum(axis=0).mean()) for part in (rewards, disagreements))
    return ModelReturn(value, disagreement, float(outside.any(axis=0).mean()))


@eqx.filter_jit
def simulate(
    dynamics: Dynamics, actor: ModelActor, metric: Metric, steps: int, start: Float[Array | np.ndarray, "B D"]
) -> tuple[Array, ...]:
    """Of each step: the members' states after it, their end error, the mean reward, the members' largest disagreement
    about it, and whether it terminates."""

    def step(states: Float[Array, "M B D"], _: None) -> tuple[Array, tuple[Array, ...]]:
        actions = actor.act(states)
        after = states + dynamics.delta(states, actions)[0]
        # by the mean of the members, although one elite is enough to refuse a stitch: a stitch that might end an
        # episode can be left out, but here the likeliest course is followed, and a wrong termination widens the bounds
        ends = dynamics.termination(states, actions, after).mean(axis=0) > LIKELY
        # a termination's reward is not earned in part before it
        continuing = dynamics.continuing_reward(states, actions, after)
        reward = jnp.where(ends, dynamics.reward(states, actions, after), continuing)
        mean = reward.mean(axis=0)
        distance = jnp.linalg.norm(metric.embed(after) - metric.embed(after.mean(axis=0)), axis=-1)
        error = jnp.quantile(distance, QUANTILE, axis=0)
        return after, (jnp.moveaxis(after, 0, 1), error, mean, jnp.abs(reward - mean).max(axis=0), ends)

    members = jnp.broadcast_to(start, (dynamics.member_count, *start.shape))
    return jax.lax.scan(step, members, None, length=steps)[1]


def nearest_starts(rollouts: ModelRollouts, metric: Metric) -> Int[np.ndarray, "n N"]:
    """The rollouts that start nearest to each end."""
    points, queries = np.asarray(metric.embed(rollouts.start)), np.asarray(metric.embed(rollouts.end))
    return cKDTree(points).query(queries, k=np.arange(1, min(NEAREST, len(points)) + 1), workers=-1)[1]


def chain_errors(
    rollouts: ModelRollouts, near: Int[np.ndarray, "n N"], first: Int[np.ndarray, "w"], max_steps: int
) -> DiscountedErrors:
    """The errors that add up along chained rollouts from some states, for as many steps as are relevant."""
    plans = []
    alive, state, weight, steps = np.arange(len(first)), first, np.ones(len(first)), np.zeros(len(first), np.int64)
    while len(alive):
        reward = weight * rollouts.reward_error[state]
        weight, steps = weight * rollouts.discount[state], steps + rollouts.length[state]
        plans.append((alive, state, weight * rollouts.value_error[state], reward))
        continues = ~rollouts.terminated[state] & (steps < max_steps)
        alive, state, weight, steps = alive[continues], near[state[continues], 0], weight[continues], steps[continues]
    return discounted_errors(*map(np.concatenate, zip(*plans, strict=True)), rollouts=len(first))
