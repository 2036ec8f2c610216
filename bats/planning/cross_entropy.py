"""The cross-entropy method for planning [CEM]: draw many action sequences, keep the best, draw around those.

Samples are judged as the paper does: by a quantile over the ensemble of the distance between the state that each member
predicts at the end and the target. A sample that leads to NaN counts as infinitely far away.

Discrete actions are searched exhaustively while there are few sequences, and beyond that by the same method over
categories: each step has a probability per action, drawn towards those of the best samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bats.model.ensemble import Predictor
from bats.planning.gauss_newton import Embed

LEAST_SHARE = 1e-3
"""probability that every discrete action keeps, so that none is ruled out for good"""


@dataclass(frozen=True)
class CrossEntropyConfig:
    """The paper's planner; values are those of its authors' code."""

    samples: int = 256
    """action sequences drawn in each iteration"""
    kept: int = 64
    """best samples that the next iteration is drawn around"""
    iterations: int = 6
    smoothing: float = 0.25
    """share of the old mean and variance that is carried over"""
    deviation: float = 0.25
    """of the first draw, as a share of the action's range"""
    batch: int = 8
    """problems searched at once: each needs memory for all its samples"""
    leave_at_success: bool = False
    """stop at the first iteration whose best sample passes, as the authors' code does"""


class _Search(eqx.Module):
    """Where the search of B problems stands."""

    mean: Float[Array | np.ndarray, "B K A"]
    """of the next draw; for discrete actions the probability of each"""
    variance: Float[Array | np.ndarray, "B K A"]
    best: Float[Array | np.ndarray, "B K A"]
    best_miss: Float[Array | np.ndarray, "B"]


def cross_entropy(
    dynamics: Predictor,
    embed: Embed,
    source: Float[np.ndarray, "C D"],
    target: Float[np.ndarray, "C D"],
    actions: Float[np.ndarray, "C K A"],
    box: tuple[Float[Array, "A"], Float[Array, "A"]],
    config: CrossEntropyConfig,
    *,
    quantile: float,
    tolerance: float,
    key: Array,
) -> Float[np.ndarray, "C K A"]:
    """The best action sequence found for each problem, starting around the given ones.

    Iteration by iteration over all problems, a batch at a time; those that have passed may be left out of the next.
    """
    low, high = (np.asarray(edge) for edge in box)
    start = np.clip(actions, low, high)
    search = _Search(
        mean=start.copy(),
        variance=np.broadcast_to((config.deviation * (high - low)) ** 2, start.shape).astype(np.float32),
        best=start.copy(),
        best_miss=np.full(len(start), np.inf, dtype=np.float32),
    )
    waiting = np.arange(len(start))
    for iteration, one in enumerate(jax.random.split(key, config.iterations)):
        for number, first in enumerate(range(0, len(waiting), config.batch)):
            rows = waiting[first : first + config.batch]
            whole = np.resize(rows, config.batch)  # one size, so that it is compiled once
            some = jax.tree.map(lambda held, whole=whole: jnp.asarray(held[whole], jnp.float32), search)
            ends = jnp.asarray(source[whole], jnp.float32), jnp.asarray(target[whole], jnp.float32)
            found = _iterate(dynamics, embed, *ends, some, box, config, quantile, jax.random.fold_in(one, number))
            for held, new in zip(jax.tree.leaves(search), jax.tree.leaves(found), strict=True):
                held[rows] = np.asarray(new)[: len(rows)]
        if config.leave_at_success and iteration < config.iterations - 1:
            waiting = waiting[search.best_miss[waiting] >= tolerance]
    return np.asarray(search.best)


@eqx.filter_jit
def _iterate(
    dynamics: Predictor,
    embed: Embed,
    source: Float[Array, "B D"],
    target: Float[Array, "B D"],
    search: _Search,
    box: tuple[Float[Array, "A"], Float[Array, "A"]],
    config: CrossEntropyConfig,
    quantile: float,
    key: Array,
) -> _Search:
    """One draw for every problem, and where to draw next."""
    drawn = _draw(dynamics, search, box, config, key)
    miss = jnp.quantile(end_distances(dynamics, embed, source, target, drawn), quantile, axis=-1)
    miss = jnp.where(jnp.isfinite(miss), miss, jnp.inf)
    order = jnp.argsort(miss, axis=1)[:, : config.kept]
    kept = jnp.take_along_axis(drawn, order[:, :, None, None], axis=1)
    carried = config.smoothing
    best_miss = jnp.take_along_axis(miss, order[:, :1], axis=1)[:, 0]
    better = best_miss < search.best_miss
    return _Search(
        mean=carried * search.mean + (1 - carried) * kept.mean(axis=1),
        variance=carried * search.variance + (1 - carried) * kept.var(axis=1, ddof=1),
        best=jnp.where(better[:, None, None], kept[:, 0], search.best),
        best_miss=jnp.minimum(best_miss, search.best_miss),
    )


def _draw(
    dynamics: Predictor,
    search: _Search,
    box: tuple[Float[Array, "A"], Float[Array, "A"]],
    config: CrossEntropyConfig,
    key: Array,
) -> Float[Array, "B P K A"]:
    count, length, width = search.mean.shape
    if dynamics.action_count is not None:
        share = jnp.log(jnp.maximum(search.mean, LEAST_SHARE))
        index = jax.random.categorical(key, share[:, None], shape=(count, config.samples, length))
        return jax.nn.one_hot(index, width)
    noise = jax.random.truncated_normal(key, -2.0, 2.0, (count, config.samples, length, width))
    return jnp.clip(search.mean[:, None] + jnp.sqrt(search.variance)[:, None] * noise, *box)


def end_distances(
    dynamics: Predictor,
    embed: Embed,
    source: Float[Array, "B D"],
    target: Float[Array, "B D"],
    sequences: Float[Array, "B P K A"],
) -> Float[Array, "B P M"]:
    """How far from the target each member ends with each sequence."""
    count, samples, length, width = sequences.shape
    members = dynamics.member_count
    here = jnp.broadcast_to(source[:, None], (members, count, samples, source.shape[1]))
    here = here.reshape(members, count * samples, -1)
    for step in range(length):
        action = sequences[:, :, step].reshape(count * samples, width)
        here = here + dynamics.change(here, jnp.broadcast_to(action, (members, *action.shape)))[0]
    ends = here.reshape(members, count, samples, -1)
    distance = jnp.linalg.norm(embed(ends) - embed(target)[:, None], axis=-1)
    return jnp.moveaxis(distance, 0, -1)


@eqx.filter_jit
def exhaustive(
    dynamics: Predictor,
    embed: Embed,
    source: Float[Array, "B D"],
    target: Float[Array, "B D"],
    sequences: Float[Array, "P K A"],
    quantile: float,
) -> Float[Array, "B K A"]:
    """The best of the given sequences for each problem."""
    everyone = jnp.broadcast_to(sequences, (len(source), *sequences.shape))
    miss = jnp.quantile(end_distances(dynamics, embed, source, target, everyone), quantile, axis=-1)
    return sequences[jnp.argmin(jnp.where(jnp.isfinite(miss), miss, jnp.inf), axis=1)]
