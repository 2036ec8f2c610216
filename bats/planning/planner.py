"""Planning stitches: actions that lead from one state to another in a given number of steps, thousands at a time.

Continuous actions are planned with Gauss-Newton (ours) or the cross-entropy method (the paper's), discrete ones by
exhaustive search while there are few sequences. Whatever made a plan, every elite unrolls it by itself, and a quantile
of their distances from the target is its error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bats.arrays import Progress, no_progress, take
from bats.config import Planner
from bats.model.ensemble import unroll
from bats.planning.context import PlanningContext, Problems, Simulator
from bats.planning.cross_entropy import cross_entropy, exhaustive_search
from bats.planning.gauss_newton import gauss_newton

QUANTILE = 0.8
"""share of the elites that must end at least as close to the target as a plan's error says [the paper's]"""
MAX_SEQUENCES = 1024
"""discrete action sequences that are searched exhaustively; beyond that they are sampled"""
BATCH = 1024
"""problems planned at once"""
SMALL_BATCH = 128
"""for what is left: every batch size is compiled by itself, so there are two"""
SEARCH_ROWS = 8192
"""sequences searched exhaustively at once"""


@dataclass(frozen=True, eq=False)
class Plans:
    """The plan of each problem, as the elites see it."""

    action: Float[np.ndarray, "C K A"]
    state: Float[np.ndarray, "C K D"]
    """after each action, mean over the elites"""
    reward: Float[np.ndarray, "C K M"]
    """of each action by each elite; the last one's for arriving at the target itself"""
    distance: Float[np.ndarray, "C M"]
    """from the target at the end, by each elite; infinite where a prediction diverges"""


def end_error(distance: Float[np.ndarray, "C M"], quantile: float = QUANTILE) -> Float[np.ndarray, "C"]:
    """The distance that the given share of the elites stays within."""
    ordered = np.sort(distance, axis=1)
    position = quantile * (ordered.shape[1] - 1)
    lower, upper = ordered[:, int(np.floor(position))], ordered[:, int(np.ceil(position))]
    share = position - np.floor(position)
    # not lower + share * (upper - lower), which is NaN where both are infinite
    return np.where(np.isfinite(upper), (1 - share) * lower + share * np.where(np.isfinite(upper), upper, 0), np.inf)


def plan(context: PlanningContext, problems: Problems, method: Planner, *, tolerance: float, seed: int) -> Plans:
    """Plans every problem with its own number of actions.

    `tolerance` lets the cross-entropy method stop at the first plan that is good enough, as the paper does.
    """
    simulator, count = context.simulator, context.dynamics.kind.action_count
    if count is None and method == "gauss-newton":
        actions = _in_batches(partial(gauss_newton, simulator, quantile=QUANTILE), problems, progress=context.progress)
    else:
        actions = np.zeros(problems.actions.shape, dtype=np.float32)
        # search draws whole sequences, so problems of one length are planned together
        for length in np.unique(problems.length).tolist():
            rows = np.flatnonzero(problems.length == length)
            alike = replace(take(problems, rows), actions=problems.actions[rows, :length])
            if count is not None and count**length <= MAX_SEQUENCES:
                search = partial(exhaustive_search, simulator, length, QUANTILE)
                batch = SEARCH_ROWS // count**length
                actions[rows, :length] = _in_batches(search, alike, batch, progress=context.progress)
            else:
                key = jax.random.fold_in(jax.random.key(seed), length)
                limits = {"quantile": QUANTILE, "tolerance": tolerance}
                actions[rows, :length] = cross_entropy(simulator, alike, **limits, key=key, progress=context.progress)
    return Plans(actions, *_in_batches(partial(_unroll_plans, simulator), replace(problems, actions=actions)))


def _in_batches(
    compute: Callable[[Problems], Any], problems: Problems, batch: int = BATCH, *, progress: Progress = no_progress
) -> Any:
    """The arrays that a compiled function gives for all problems. Repeats fill up the last batch and are dropped."""
    small = max(batch * SMALL_BATCH // BATCH, 1)
    parts, first = [], 0
    while first < len(problems):
        progress("planning", first, len(problems))
        size = batch if len(problems) - first > batch - small else small
        rows = np.resize(np.arange(first, min(first + size, len(problems))), size)
        parts.append(compute(take(problems, rows).on_device()))
        first += size
    progress("planning", len(problems), len(problems))
    return jax.tree.map(lambda *arrays: np.concatenate(arrays)[: len(problems)], *parts)


@eqx.filter_jit
def _unroll_plans(
    simulator: Simulator, plans: Problems
) -> tuple[Float[Array, "B K D"], Float[Array, "B K M"], Float[Array, "B M"]]:
    """States, rewards and end distances of plans, as every elite predicts them."""
    dynamics, embed = simulator.dynamics, simulator.metric.embed
    source, target, actions, length = plans.source, plans.target, plans.actions, plans.length
    visited, reward = unroll(dynamics, source, actions, length, target)  # a stitch ends in its target
    reward = jnp.where(jnp.arange(actions.shape[1]) < length[:, None], reward, 0.0)
    distance = jnp.linalg.norm(embed(visited[:, :, -1]) - embed(target), axis=-1)
    finite = jnp.isfinite(visited).all(axis=(2, 3)) & jnp.isfinite(reward).all(axis=2) & jnp.isfinite(distance)
    return visited.mean(axis=0), jnp.moveaxis(reward, 0, 2), jnp.where(finite, distance, jnp.inf).T
