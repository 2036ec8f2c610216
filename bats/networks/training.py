"""The one training loop: Adam on scanned batches, evaluation in between, the best weights kept.

A caller states its problem as three pure functions and the rest is the same for the dynamics ensemble, the cloned
policy and the bisimulation metric:

    loss(params, data, batch, config)      scalar to descend
    error(params, data, config)            what the weights are kept by: a scalar, or one number per member
    after(params, config)                  what follows each update, such as a slowly moving copy

The functions and `config` must be hashable and the same objects in every call, so that each problem compiles once. The
rows that are trained on come from `rows_on_device`, so that logs of similar size share one program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from numpy.typing import DTypeLike

from bats.arrays import padded_length


@dataclass(frozen=True)
class Schedule:
    """Adam with a warm-up and a cosine decay to a hundredth of the peak rate."""

    learning_rate: float
    updates: int
    warm_up: float
    """share of the updates in which the rate rises"""
    constant: bool = False
    """no warm-up and no decay"""
    fast: tuple[str, ...] = ()
    """fields of the parameters that learn at `fast_rate` times the rate"""
    fast_rate: float = 1.0

    def optimizer(self) -> optax.GradientTransformation:
        rate: Any = self.learning_rate
        if not self.constant:
            rising = max(int(self.warm_up * self.updates), 1)
            rate = optax.warmup_cosine_decay_schedule(0.0, rate, rising, max(self.updates, rising + 1), rate / 100)
        if not self.fast:
            return optax.adam(rate)
        return optax.chain(optax.adam(rate), optax.masked(optax.scale(self.fast_rate), self._learns_fast))

    def _learns_fast(self, params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: path[0].name in self.fast, params)


@dataclass(frozen=True)
class Problem:
    """What is trained. Hashable, so that equal problems share one compiled program."""

    loss: Callable[[Any, Any, Any, Any], Float[Array, ""]]
    schedule: Schedule
    config: Hashable
    error: Callable[[Any, Any, Any], Float[Array, "*M"]] | None = None
    """None: the last weights are kept"""
    after: Callable[[Any, Any], Any] | None = None
    evaluate_every: int = 1000
    patience: int | None = None
    """evaluations without improvement before training stops; None: it never stops early"""


class TrainingState(eqx.Module):
    """All that training needs to continue."""

    params: Any
    optimizer: optax.OptState
    best: Any
    """weights at the lowest error, of each member by itself where there are members"""
    best_error: Float[Array, "*M"]
    update: Int[Array, ""]
    stale: Int[Array, ""]
    """evaluations since an error last improved"""


def rows_on_device(rows: np.ndarray, dtype: DTypeLike = np.float32, *, fill: float = 0.0) -> Array:
    """Rows to train on, filled up to a `padded_length`. What is filled up must not be drawn, nor count as an error."""
    padded = np.full((padded_length(len(rows)), *rows.shape[1:]), fill, dtype)
    padded[: len(rows)] = rows
    return jax.device_put(padded)  # other ways would compile a program for every shape


@eqx.filter_jit  # otherwise every shape of a parameter is a program of its own
def new_state(params: Any, problem: Problem, *, members: int | None = None) -> TrainingState:
    """The state before the first update."""
    # an array made of Python numbers is weakly typed; an update would change its type, and all would be compiled again
    params = jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), params)
    best_error = jnp.full(() if members is None else members, jnp.inf, jnp.float32)
    optimizer = problem.schedule.optimizer().init(params)
    zero = jnp.zeros((), jnp.int32)
    return TrainingState(params, optimizer, params, best_error, zero, zero)


def train(
    problem: Problem, state: TrainingState, data: Any, draw: Callable[[int, int], Any]
) -> Iterator[tuple[TrainingState, float, Float[np.ndarray, "*M"]]]:
    """Trains and yields (state, mean loss, errors) after every evaluation; the caller may stop, or save the state.

    `draw(done, count)` gives the batches of the next `count` updates, with a leading axis of that length. It must
    depend on the seed and on `done` alone, so that training continues from a saved state as if never interrupted.
    """
    updates, patience = problem.schedule.updates, problem.patience
    while (done := int(state.update)) < updates and (patience is None or int(state.stale) < patience):
        count = min(problem.evaluate_every, updates - done)
        state, loss = _advance(problem, state, data, draw(done, count))
        state, error = _evaluate(problem, state, data)
        yield state, float(loss), np.asarray(error)


@eqx.filter_jit
def _advance(problem: Problem, state: TrainingState, data: Any, batches: Any) -> tuple[TrainingState, Float[Array, ""]]:
    """One update per batch, and the mean loss."""
    optimizer = problem.schedule.optimizer()

    def update(carried: tuple[Any, optax.OptState], batch: Any) -> tuple[tuple[Any, optax.OptState], Float[Array, ""]]:
        params, memory = carried
        loss, gradient = jax.value_and_grad(problem.loss)(params, data, batch, problem.config)
        step, memory = optimizer.update(gradient, memory, params)
        params = optax.apply_updates(params, step)
        return (params if problem.after is None else problem.after(params, problem.config), memory), loss

    (params, memory), losses = jax.lax.scan(update, (state.params, state.optimizer), batches)
    count = state.update + len(losses)
    return eqx.tree_at(lambda s: (s.params, s.optimizer, s.update), state, (params, memory, count)), losses.mean()


@eqx.filter_jit
def _evaluate(problem: Problem, state: TrainingState, data: Any) -> tuple[TrainingState, Float[Array, "*M"]]:
    """Measures the error and keeps the weights of whatever improved."""
    if problem.error is None:
        return eqx.tree_at(lambda s: s.best, state, state.params), state.best_error
    error = problem.error(state.params, data, problem.config)
    better = error < state.best_error

    def choose(new: Array, old: Array) -> Array:
        # `better` has the member axis or none; the parameters may have more axes behind it
        return jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    best = jax.tree.map(choose, state.params, state.best)
    stale = jnp.where(better.any(), 0, state.stale + 1)
    fields = (best, jnp.minimum(error, state.best_error), stale)
    return eqx.tree_at(lambda s: (s.best, s.best_error, s.stale), state, fields), error
