"""The cross-entropy method for planning [CEM]: draw many action sequences, keep the best, draw around those.

Samples are ranked as the paper does: by a quantile over the ensemble of the distance between the state that each member
predicts at the end and the target. A sample that leads to NaN counts as infinitely far away.

Discrete actions are searched exhaustively while there are few sequences. Beyond that the same method draws categories:
each step has a probability per action, moved towards the frequencies among the best samples.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bats.arrays import Progress, no_progress, take
from bats.planning.context import Problems, Simulator

# the values of the paper's authors
SAMPLES, KEPT, ITERATIONS = 256, 64, 6
SMOOTHING = 0.25
"""share of the old mean and variance that is carried over"""
STD = 0.25
"""of the first draw, as a share of the action's range"""
MIN_PROBABILITY = 1e-3
"""probability that every discrete action keeps, so that none is ruled out for good"""
BATCH = 8
"""problems searched at once: each needs memory for all its samples"""


class _Search(eqx.Module):
    """The current draw and the best sample of B problems."""

    mean: Float[Array | np.ndarray, "B K A"]
    """of the next draw; for discrete actions the probability of each"""
    variance: Float[Array | np.ndarray, "B K A"]
    best: Float[Array | np.ndarray, "B K A"]
    best_error: Float[Array | np.ndarray, "B"]


def cross_entropy(
    simulator: Simulator,
    problems: Problems,
    *,
    quantile: float,
    tolerance: float,
    key: Array,
    progress: Progress = no_progress,
) -> Float[np.ndarray, "C K A"]:
    """The best action sequence found for each problem, starting around the given ones.

    A problem whose best sample is within the tolerance is left out of the next iterations [as the authors do].
    """
    low, high = np.asarray(simulator.low), np.asarray(simulator.high)
    start = np.clip(problems.actions, low, high)
    search = _Search(
        mean=start.copy(),
        variance=np.broadcast_to((STD * (high - low)) ** 2, start.shape).astype(np.float32),
        best=start.copy(),
        best_error=np.full(len(start), np.inf, dtype=np.float32),
    )
    waiting = np.arange(len(start))
    for iteration, iteration_key in enumerate(jax.random.split(key, ITERATIONS)):
        for number, first in enumerate(range(0, len(waiting), BATCH)):
            progress(f"planning (iteration {iteration + 1} of {ITERATIONS})", first, len(waiting))
            rows = waiting[first : first + BATCH]
            full = np.resize(rows, BATCH)  # one batch size, so that it is compiled once
            part = jax.tree.map(lambda array, full=full: jnp.asarray(array[full], jnp.float32), search)
            batch_key = jax.random.fold_in(iteration_key, number)
            result = _iterate(simulator, take(problems, full).on_device(), part, quantile, batch_key)
            for array, new in zip(jax.tree.leaves(search), jax.tree.leaves(result), strict=True):
                array[rows] = np.asarray(new)[: len(rows)]
        if iteration < ITERATIONS - 1:
            waiting = waiting[search.best_error[waiting] >= tolerance]
    return np.asarray(search.best)


@eqx.filter_jit
def _iterate(simulator: Simulator, problems: Problems, search: _Search, quantile: float, key: Array) -> _Search:
    """One draw for every problem, and where to draw next."""
    drawn = _draw(simulator, search, key)
    error = jnp.quantile(end_distances(simulator, problems, drawn), quantile, axis=-1)
    error = jnp.where(jnp.isfinite(error), error, jnp.inf)
    order = jnp.argsort(error, axis=1)[:, :KEPT]
    kept = jnp.take_along_axis(drawn, order[:, :, None, None], axis=1)
    best_error = jnp.take_along_axis(error, order[:, :1], axis=1)[:, 0]
    better = best_error < search.best_error
    return _Search(
        mean=SMOOTHING * search.mean + (1 - SMOOTHING) * kept.mean(axis=1),
        variance=SMOOTHING * search.variance + (1 - SMOOTHING) * kept.var(axis=1, ddof=1),
        best=jnp.where(better[:, None, None], kept[:, 0], search.best),
        best_error=jnp.minimum(best_error, search.best_error),
    )


def _draw(simulator: Simulator, search: _Search, key: Array) -> Float[Array, "B P K A"]:
    count, length, width = search.mean.shape
    if simulator.dynamics.kind.action_count is not None:
        log_probability = jnp.log(jnp.maximum(search.mean, MIN_PROBABILITY))
        index = jax.random.categorical(key, log_probability[:, None], shape=(count, SAMPLES, length))
        return jax.nn.one_hot(index, width)
    noise = jax.random.truncated_normal(key, -2.0, 2.0, (count, SAMPLES, length, width))
    return jnp.clip(search.mean[:, None] + jnp.sqrt(search.variance)[:, None] * noise, simulator.low, simulator.high)


def end_distances(simulator: Simulator, problems: Problems, plans: Float[Array, "B P K A"]) -> Float[Array, "B P M"]:
    """How far from the target each member ends with each sequence of actions."""
    dynamics, (count, samples) = simulator.dynamics, plans.shape[:2]
    states = dynamics.per_member(jnp.repeat(problems.source, samples, axis=0))
    for actions in jnp.moveaxis(plans.reshape(count * samples, *plans.shape[2:]), 1, 0):
        states = states + dynamics.delta(states, dynamics.per_member(actions))[0]
    return _distances(simulator, problems, states)


def _distances(simulator: Simulator, problems: Problems, ends: Float[Array, "M BP D"]) -> Float[Array, "B P M"]:
    embed = simulator.metric.embed
    ends = ends.reshape(len(ends), len(problems), -1, ends.shape[-1])
    return jnp.moveaxis(jnp.linalg.norm(embed(ends) - embed(problems.target)[:, None], axis=-1), 0, -1)


@eqx.filter_jit
def exhaustive_search(simulator: Simulator, length: int, quantile: float, problems: Problems) -> Float[Array, "B K A"]:
    """The best of all sequences of `length` discrete actions; sequences share the steps that they begin with."""
    dynamics, count = simulator.dynamics, len(simulator.low)
    states = dynamics.per_member(problems.source)
    for _ in range(length):
        # every action in every state: the last action changes fastest
        actions = jnp.tile(jnp.eye(count), (states.shape[1], 1))
        states = jnp.repeat(states, count, axis=1)
        states = states + dynamics.delta(states, dynamics.per_member(actions))[0]
    error = jnp.quantile(_distances(simulator, problems, states), quantile, axis=-1)
    best = jnp.argmin(jnp.where(jnp.isfinite(error), error, jnp.inf), axis=1)
    return jax.nn.one_hot(best[:, None] // count ** jnp.arange(length - 1, -1, -1) % count, count)
