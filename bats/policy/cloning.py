"""Behaviour cloning: a network learns the actions of demonstrations, in one jitted, scanned program.

    continuous actions      Gaussian, negative log-likelihood; an action at its limit counts as that or beyond
    discrete actions        categorical, cross-entropy

A logged action is often what a controller wanted plus a disturbance, cut off at the limits. Their plain mean at such a
state falls short of the limit that the controller wanted; the likelihood of a Gaussian that is cut off does not.

Demonstrations of some walks are held back. They choose the weights that are kept, and nothing else. Where there are few
demonstrations none are: each may be the only one of its kind, as in small discrete worlds.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from bats.arrays import Progress, no_progress
from bats.errors import DataError, SettingError
from bats.policy.demonstrations import Demonstrations
from bats.policy.policy import GREATEST_LOG_DEVIATION, LEAST_LOG_DEVIATION, Policy

FEWEST_TO_SPLIT = 1000
"""demonstrations below which none is held back"""
STRETCH = 25
"""rows that are held back together where there are too few walks to hold back whole ones"""
AT_LIMIT = 1e-6
"""an action within this of its limit, in halves of the range, is at it"""
LEAST_DEVIATION = 1e-6
"""a number that varies less than this is constant, and is not blown up to unit variance"""
HALF_LOG_TAU = 0.5 * math.log(math.tau)
WARM_UP = 0.02
"""share of the updates in which the learning rate rises"""


@dataclass(frozen=True)
class CloningConfig:
    """How the network is built and trained."""

    hidden: tuple[int, ...] = (256, 256, 256)
    """units of the hidden layers"""
    updates: int = 20_000
    """a quarter of them does where a few thousand states are cloned, not where there are hundreds of thousands"""
    batch_size: int = 512
    learning_rate: float = 1e-3
    """at its highest; it falls along a cosine to a hundredth"""
    cut_off: bool = True
    """an action at its limit counts as that or beyond; False: as exactly that, the plain Gaussian likelihood"""
    validation_share: float = 0.1
    """share of the walks that is held back"""
    evaluate_every: int = 1000
    """updates between two looks at what is held back"""

    def __post_init__(self) -> None:
        for name in ("updates", "batch_size", "evaluate_every"):
            if getattr(self, name) < 1:
                raise SettingError(f"`{name}` must be at least 1; got {getattr(self, name)}.")
        if not 0 < self.validation_share < 1:
            raise SettingError(f"`validation_share` must lie between 0 and 1; got {self.validation_share}.")


class Network(eqx.Module):
    """Fully connected layers with smooth activations, as `Policy` has them."""

    weights: tuple[Float[Array, "_ _"] | Float[np.ndarray, "_ _"], ...]
    biases: tuple[Float[Array, "_"] | Float[np.ndarray, "_"], ...]

    def __call__(self, inputs: Float[Array, "*B D"]) -> Float[Array, "*B outward"]:
        hidden = inputs
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = jax.nn.silu(hidden @ weight + bias)
        return hidden @ self.weights[-1] + self.biases[-1]


@dataclass(frozen=True, eq=False)
class _Lesson:
    """What a network is to learn."""

    states: Float[np.ndarray, "n D"]
    """standardised"""
    wanted: Float[np.ndarray, "n A"] | Int[np.ndarray, "n"]
    """numbers around 0 of size about 1, or discrete choices"""
    weights: Float[np.ndarray, "n"]
    held_back: Bool[np.ndarray, "n"] | None
    """None: all are trained on, and judged"""

    def parts(self) -> tuple[_Rows, _Rows]:
        """What is trained on, and what judges."""
        if self.held_back is None:
            every = self.rows(np.ones(len(self.states), dtype=bool))
            return every, every
        return self.rows(~self.held_back), self.rows(self.held_back)

    def rows(self, part: Bool[np.ndarray, "n"]) -> _Rows:
        below = np.cumsum(self.weights[part], dtype=np.float64)
        if not below[-1] > 0:  # nothing of weight was held back, or nothing else was
            below = np.arange(1.0, len(below) + 1)
        return _Rows(
            jnp.asarray(self.states[part], jnp.float32),
            jnp.asarray(self.wanted[part]),
            jnp.asarray(below / below[-1], jnp.float32),
        )


class _Rows(eqx.Module):
    """Part of a lesson, on the device."""

    states: Float[Array, "n D"]
    wanted: Float[Array, "n A"] | Int[Array, "n"]
    below: Float[Array, "n"]
    """weight of all rows up to and including each, from 0 to 1, to draw by"""


class _State(eqx.Module):
    network: Network
    memory: optax.OptState
    best: Network
    best_error: Float[Array, ""]
    update: Int[Array, ""]


def clone(
    demonstrations: Demonstrations, config: CloningConfig, *, seed: int, progress: Progress = no_progress
) -> Policy:
    """Trains a network on demonstrations and keeps the weights that do best on those held back.

    The same seed gives the same weights on the same machine.
    """
    shown = demonstrations
    if len(shown) == 0:
        raise DataError("rows to clone from", "none")
    held_back = None
    if len(shown) >= FEWEST_TO_SPLIT:
        held_back = split(shown.group, config.validation_share, seed=seed)
    mean, deviation = mean_and_deviation(shown.states if held_back is None else shown.states[~held_back])
    wanted = shown.actions if shown.action_count is not None else _within_limits(shown.actions, shown.low, shown.high)
    lesson = _Lesson((shown.states - mean) / deviation, wanted, shown.weights, held_back)
    outward = shown.action_count or 2 * len(shown.low)
    network, error = _learned(lesson, outward, config, seed=seed, progress=progress)
    return Policy(
        weights=tuple(np.asarray(weight) for weight in network.weights),
        biases=tuple(np.asarray(bias) for bias in network.biases),
        mean=mean,
        deviation=deviation,
        low=shown.low.astype(np.float32),
        high=shown.high.astype(np.float32),
        action_count=shown.action_count,
        card={"cloning": asdict(config), "seed": seed, "rows": len(shown), "validation_error": error},
    )


def split(group: Int[np.ndarray, "n"], share: float, *, seed: int) -> Bool[np.ndarray, "n"]:
    """Which rows are held back: all of some walks, so that no row's neighbour in time is trained on.

    Where too few walks bring rows of their own, stretches of consecutive rows stand in for them.
    """
    if len(np.unique(group)) * share < 1:
        group = np.arange(len(group)) // min(STRETCH, max(len(group) // 10, 1))
    names, place = np.unique(group, return_inverse=True)
    order = np.random.default_rng([seed, 5]).permutation(len(names))
    chosen = np.zeros(len(names), dtype=bool)
    chosen[order[: min(max(round(share * len(names)), 1), len(names) - 1)]] = True
    return chosen[place]


def mean_and_deviation(states: Float[np.ndarray, "n D"]) -> tuple[Float[np.ndarray, "D"], Float[np.ndarray, "D"]]:
    """What states are standardised by; 1 is the deviation of a number that is constant."""
    mean, deviation = states.mean(axis=0, dtype=np.float64), states.std(axis=0, dtype=np.float64)
    kept = np.where(deviation > LEAST_DEVIATION, deviation, 1.0)
    return mean.astype(np.float32), kept.astype(np.float32)


def _within_limits(
    actions: Float[np.ndarray, "n A"], low: Float[np.ndarray, "A"], high: Float[np.ndarray, "A"]
) -> Float[np.ndarray, "n A"]:
    """Actions as shares of the half range around the middle of their limits."""
    half = np.where(high > low, (high - low) / 2, 1.0)
    return ((actions - (low + high) / 2) / half).astype(np.float32)


def _learned(
    lesson: _Lesson, outward: int, config: CloningConfig, *, seed: int, progress: Progress
) -> tuple[Network, float]:
    """A network that has learned the lesson, as it was when it did best on what is held back, and how well that was."""
    training, validation = lesson.parts()
    network = new_network((lesson.states.shape[1], *config.hidden, outward), jax.random.key(seed))
    state = _State(network, _optimiser(config).init(network), network, jnp.float32(jnp.inf), jnp.int32(0))
    while (done := int(state.update)) < config.updates:
        count = min(config.evaluate_every, config.updates - done)
        # keys come from the seed and the place alone
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), done), count)
        state, error = _advance(state, training, validation, keys, config)
        if not math.isfinite(float(error)):
            raise DataError("demonstrations that can be cloned", "a validation error that is not finite")
        progress(f"cloning (validation error {float(state.best_error):.3g})", int(state.update), config.updates)
    return state.best, float(state.best_error)


def new_network(widths: tuple[int, ...], key: Array) -> Network:
    """An untrained network from so many numbers through hidden layers to so many."""
    keys = jax.random.split(key, len(widths) - 1)
    weights = [
        jax.random.truncated_normal(one, -2.0, 2.0, (inward, outward)) / math.sqrt(inward)
        for one, (inward, outward) in zip(keys, pairwise(widths), strict=True)
    ]
    return Network(tuple(weights), tuple(jnp.zeros(outward) for outward in widths[1:]))


def _optimiser(config: CloningConfig) -> optax.GradientTransformation:
    rate, rising = config.learning_rate, max(int(WARM_UP * config.updates), 1)
    return optax.adam(
        optax.warmup_cosine_decay_schedule(0.0, rate, rising, max(config.updates, rising + 1), rate / 100)
    )


@eqx.filter_jit
def _advance(
    state: _State, training: _Rows, validation: _Rows, keys: Array, config: CloningConfig
) -> tuple[_State, Float[Array, ""]]:
    """As many updates as there are keys, then a look at what is held back."""
    optimiser = _optimiser(config)

    def update(carried: tuple[Network, optax.OptState], key: Array) -> tuple[tuple[Network, optax.OptState], None]:
        network, memory = carried
        chosen = jnp.searchsorted(training.below, jax.random.uniform(key, (config.batch_size,)), side="right")
        states, wanted = training.states[chosen], training.wanted[chosen]
        slope = jax.grad(lambda trained: _loss(trained, states, wanted, config.cut_off).mean())(network)
        step, memory = optimiser.update(slope, memory, network)
        return (optax.apply_updates(network, step), memory), None

    (network, memory), _ = jax.lax.scan(update, (state.network, state.memory), keys)
    weight = jnp.diff(validation.below, prepend=0.0)
    error = weight @ _loss(network, validation.states, validation.wanted, config.cut_off)
    better = error < state.best_error
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), network, state.best)
    return _State(network, memory, best, jnp.minimum(error, state.best_error), state.update + len(keys)), error


def _loss(
    network: Network, states: Float[Array, "B D"], wanted: Float[Array, "B A"] | Int[Array, "B"], cut_off: bool
) -> Float[Array, "B"]:
    """The negative log-likelihood of what each row wants."""
    outputs = network(states)
    if wanted.ndim == 1:
        return optax.softmax_cross_entropy_with_integer_labels(outputs, wanted)
    mean, raw = jnp.split(outputs, 2, axis=-1)
    log_deviation = LEAST_LOG_DEVIATION + (GREATEST_LOG_DEVIATION - LEAST_LOG_DEVIATION) * jax.nn.sigmoid(raw)
    miss = (wanted - mean) * jnp.exp(-log_deviation)
    loss = 0.5 * miss**2 + log_deviation + HALF_LOG_TAU
    if cut_off:  # at a limit, the probability of that or beyond
        beyond = -jax.scipy.stats.norm.logcdf(-jnp.sign(wanted) * miss)
        loss = jnp.where(jnp.abs(wanted) >= 1 - AT_LIMIT, beyond, loss)
    return loss.sum(axis=-1)
