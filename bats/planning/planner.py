"""Planning stitches: actions that lead from one state to another in a given number of steps, thousands at a time.

Two planners stand behind one call: Gauss-Newton with the cross-entropy method as fallback (ours), and the cross-entropy
method alone (the paper's). Whatever made a plan, all elites judge it: each unrolls it by itself, and a quantile of
their distances from the target decides whether it is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bats.errors import SettingError
from bats.model.ensemble import Predictor, unroll
from bats.planning.cross_entropy import CrossEntropyConfig, cross_entropy, exhaustive
from bats.planning.gauss_newton import Embed, gauss_newton

MOST_SEQUENCES = 1024
"""discrete action sequences that are tried one by one; beyond that they are sampled"""
SMALLER = 8
"""a small batch is this many times smaller than a full one"""


@dataclass(frozen=True)
class PlannerConfig:
    """How stitches are planned and judged."""

    method: Literal["gauss-newton", "cross-entropy"] = "gauss-newton"
    iterations: int = 3
    """Gauss-Newton steps"""
    more_iterations: int = 12
    """further steps where the first ones stall"""
    fallback: bool = True
    """try the cross-entropy method where Gauss-Newton stalls"""
    quantile: float = 0.8
    """share of the elites that must come at least as close as a plan's error says"""
    batch: int = 1024
    """problems planned at once by Gauss-Newton"""
    cross_entropy: CrossEntropyConfig = field(default_factory=CrossEntropyConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.quantile <= 1:
            raise SettingError(f"`quantile` must lie from 0 to 1; got {self.quantile}.")
        if self.batch < 1 or self.iterations < 0 or self.more_iterations < 0:
            raise SettingError("`batch` must be at least 1, and there must not be fewer than 0 iterations.")


@dataclass(frozen=True, eq=False)
class Problems:
    """What to plan: C pairs of states, how many actions each may take, and actions to start from."""

    source: Float[np.ndarray, "C D"]
    target: Float[np.ndarray, "C D"]
    length: Int[np.ndarray, "C"]
    actions: Float[np.ndarray, "C K A"]
    """as the networks take them; entries beyond a problem's length are not looked at"""

    def __len__(self) -> int:
        return len(self.length)

    def on_device(self) -> tuple[Float[Array, "C D"], Float[Array, "C D"], Float[Array, "C K A"], Int[Array, "C"]]:
        source, target, actions = (jnp.asarray(part, jnp.float32) for part in (self.source, self.target, self.actions))
        return source, target, actions, jnp.asarray(self.length, jnp.int32)

    def with_length(self, length: Int[np.ndarray, "C"]) -> Problems:
        """The same problems with other numbers of actions."""
        return replace(self, length=length)

    def some(self, rows: Int[np.ndarray, "n"], longest: int | None = None) -> Problems:
        """Some of the problems, without the actions beyond the longest."""
        return Problems(self.source[rows], self.target[rows], self.length[rows], self.actions[rows, :longest])


@dataclass(frozen=True, eq=False)
class Plans:
    """What was found for each problem, and what every elite thinks of it."""

    action: Float[np.ndarray, "C K A"]
    state: Float[np.ndarray, "C K D"]
    """after each action, mean over the elites"""
    reward: Float[np.ndarray, "C K M"]
    """of each action by each elite; the last one's for arriving at the target itself"""
    distance: Float[np.ndarray, "C M"]
    """from the target at the end, by each elite; infinite where a plan runs away"""

    def error(self, quantile: float) -> Float[np.ndarray, "C"]:
        """The distance that the given share of the elites stays within."""
        return error_of(self.distance, quantile)

    def accepted(self, quantile: float, tolerance: float) -> Bool[np.ndarray, "C"]:
        return self.error(quantile) < tolerance

    def replaced(self, rows: Int[np.ndarray, "n"], others: Plans) -> Plans:
        """The plans with those in `rows` replaced."""
        merged = {one.name: getattr(self, one.name).copy() for one in fields(Plans)}
        for name, values in merged.items():
            values[rows] = getattr(others, name)
        return Plans(**merged)

    def some(self, rows: Int[np.ndarray, "n"]) -> Plans:
        return Plans(*(getattr(self, one.name)[rows] for one in fields(Plans)))


def error_of(distance: Float[np.ndarray, "C M"], quantile: float) -> Float[np.ndarray, "C"]:
    """The distance that the given share of the members stays within."""
    order = np.sort(distance, axis=1)
    place = quantile * (order.shape[1] - 1)
    lower, upper = order[:, int(np.floor(place))], order[:, int(np.ceil(place))]
    share = place - np.floor(place)
    # not lower + share * (upper - lower), which is NaN where both are infinite
    return np.where(np.isfinite(upper), (1 - share) * lower + share * np.where(np.isfinite(upper), upper, 0), np.inf)


def plan(
    dynamics: Predictor,
    embed: Embed,
    problems: Problems,
    config: PlannerConfig,
    *,
    box: tuple[Float[np.ndarray, "A"], Float[np.ndarray, "A"]],
    tolerance: float,
    seed: int,
) -> Plans:
    """Plans every problem with its own number of actions, and lets all elites judge the result."""
    limits = (jnp.asarray(box[0], jnp.float32), jnp.asarray(box[1], jnp.float32))
    task = _Task(dynamics, embed, config, limits, tolerance, jax.random.key(seed))
    if dynamics.action_count is None and config.method == "gauss-newton":
        return _descended(task, problems)
    return _by_length(task, problems)


@dataclass(frozen=True, eq=False)
class _Task:
    """What is the same for all problems of one length."""

    dynamics: Predictor
    embed: Embed
    config: PlannerConfig
    box: tuple[Float[Array, "A"], Float[Array, "A"]]
    tolerance: float
    key: Array

    def descend(self, problems: Problems, iterations: int) -> tuple[Plans, Bool[np.ndarray, "C"]]:
        """Plans by Gauss-Newton, and which of them stalled: not accepted, though the last step promised it well."""
        batches = _batches(problems, self.config.batch)
        parts, promises = zip(*(self._descend(batch, iterations) for batch in batches), strict=True)
        plans, promised = _joined(list(parts), len(problems)), np.concatenate(promises)[: len(problems)]
        accepted = plans.accepted(self.config.quantile, self.tolerance)
        return plans, ~accepted & ~(promised >= self.tolerance / 2)

    def _descend(self, batch: Problems, iterations: int) -> tuple[Plans, Float[np.ndarray, "B"]]:
        source, target, start, length = batch.on_device()
        found, promised = gauss_newton(
            self.dynamics,
            self.embed,
            source,
            target,
            start,
            length,
            self.box,
            quantile=self.config.quantile,
            iterations=jnp.asarray(iterations),
        )
        return _judged(self.dynamics, self.embed, source, target, found, length), np.asarray(promised)

    def sample(self, problems: Problems) -> Plans:
        """Plans problems of one length by the cross-entropy method."""
        found = cross_entropy(
            self.dynamics,
            self.embed,
            problems.source,
            problems.target,
            problems.actions,
            self.box,
            self.config.cross_entropy,
            quantile=self.config.quantile,
            tolerance=self.tolerance,
            key=jax.random.fold_in(self.key, problems.actions.shape[1]),
        )
        planned = replace(problems, actions=found)
        judged = [
            _judged(self.dynamics, self.embed, *batch.on_device()) for batch in _batches(planned, self.config.batch)
        ]
        return _joined(judged, len(problems))

    def try_all(self, batch: Problems) -> Plans:
        """Plans problems of one length by trying every sequence of discrete actions."""
        source, target, start, length = batch.on_device()
        count = start.shape[2]
        sequences = jnp.eye(count)[np.array(list(product(range(count), repeat=start.shape[1])))]
        found = exhaustive(self.dynamics, self.embed, source, target, sequences, self.config.quantile)
        return _judged(self.dynamics, self.embed, source, target, found, length)


def _descended(task: _Task, problems: Problems) -> Plans:
    """Plans by Gauss-Newton, all lengths together; where that stalls, with more steps, and then by sampling."""
    config = task.config
    plans, stalled = task.descend(problems, config.iterations)
    rows = np.flatnonzero(stalled)
    if len(rows) and config.more_iterations:
        again, stalled = task.descend(replace(problems, actions=plans.action).some(rows), config.more_iterations)
        plans = _better_of(plans, rows, again, config.quantile)
        rows = rows[stalled]
    if not config.fallback or len(rows) == 0:
        return plans
    return _better_of(plans, rows, _by_length(task, problems.some(rows)), config.quantile)


def _by_length(task: _Task, problems: Problems) -> Plans:
    """Plans by search, which draws whole sequences, so problems of one length at a time."""
    count, longest, _ = problems.actions.shape
    members, config = task.dynamics.member_count, task.config
    plans = Plans(
        action=np.array(problems.actions, dtype=np.float32),
        state=np.zeros((count, longest, problems.source.shape[1]), dtype=np.float32),
        reward=np.zeros((count, longest, members), dtype=np.float32),
        distance=np.full((count, members), np.inf, dtype=np.float32),
    )
    for length in np.unique(problems.length).tolist():
        rows = np.flatnonzero(problems.length == length)
        alike = problems.some(rows, length)
        discrete = task.dynamics.action_count
        if discrete is not None and discrete**length <= MOST_SEQUENCES:
            batches = _batches(alike, config.cross_entropy.batch)
            found = _joined([task.try_all(batch) for batch in batches], len(alike))
        else:
            found = task.sample(alike)
        plans.action[rows, :length], plans.state[rows, :length] = found.action, found.state
        plans.reward[rows, :length], plans.distance[rows] = found.reward, found.distance
    return plans


def _batches(problems: Problems, batch: int) -> Iterator[Problems]:
    """Batches of two sizes only, since every size is compiled anew: full ones, and small ones for what is left.

    The last one is filled up with repeats.
    """
    small = max(batch // SMALLER, 1)
    first = 0
    while first < len(problems):
        size = batch if len(problems) - first > batch - small else small
        yield problems.some(np.resize(np.arange(first, min(first + size, len(problems))), size))
        first += size


def _joined(parts: list[Plans], count: int) -> Plans:
    """The plans of all batches, without the repeats at the end."""
    return Plans(*(np.concatenate([getattr(part, one.name) for part in parts])[:count] for one in fields(Plans)))


def _better_of(plans: Plans, rows: Int[np.ndarray, "n"], again: Plans, quantile: float) -> Plans:
    """The plans, with those in `rows` replaced where the second try came closer."""
    closer = np.flatnonzero(again.error(quantile) < plans.error(quantile)[rows])
    return plans.replaced(rows[closer], again.some(closer))


def _judged(
    dynamics: Predictor,
    embed: Embed,
    source: Float[Array, "B D"],
    target: Float[Array, "B D"],
    actions: Float[Array, "B K A"],
    length: Int[Array, "B"],
) -> Plans:
    state, reward, distance = _judge(dynamics, embed, source, target, actions, length)
    return Plans(np.asarray(actions), np.asarray(state), np.asarray(reward), np.asarray(distance))


@eqx.filter_jit
def _judge(
    dynamics: Predictor,
    embed: Embed,
    source: Float[Array, "B D"],
    target: Float[Array, "B D"],
    actions: Float[Array, "B K A"],
    length: Int[Array, "B"],
) -> tuple[Float[Array, "B K D"], Float[Array, "B K M"], Float[Array, "B M"]]:
    """States, rewards and end distances of plans, as every elite sees them."""
    visited, earned = unroll(dynamics, source, actions, length)
    members, rows = visited.shape[0], jnp.arange(len(source))
    start = jnp.broadcast_to(source[:, None], (members, len(source), 1, source.shape[1]))
    before_last = jnp.concatenate([start, visited], axis=2)[:, rows, length - 1]
    last = actions[rows, length - 1]
    # a stitch ends in its target, so that is what its last step is paid for
    everyone = (jnp.broadcast_to(part, (members, *part.shape)) for part in (last, target))
    earned = earned.at[:, rows, length - 1].set(dynamics.reward(before_last, *everyone))
    earned = jnp.where(jnp.arange(actions.shape[1]) < length[:, None], earned, 0.0)
    distance = jnp.linalg.norm(embed(visited[:, :, -1]) - embed(target), axis=-1)
    fine = jnp.isfinite(visited).all(axis=(2, 3)) & jnp.isfinite(earned).all(axis=2) & jnp.isfinite(distance)
    return visited.mean(axis=0), jnp.moveaxis(earned, 0, 2), jnp.where(fine, distance, jnp.inf).T
