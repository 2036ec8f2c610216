"""The on-policy bisimulation metric, learned: an encoder whose distances bound value differences under one policy.

The exact metric needs every pair of states. This one is a network, so it embeds states that no graph holds, and a
planner can differentiate through it. It is fitted to

    ( |z_s - z_t| - target(s, t) )²          target = Σ_{k<n} gamma^k |r_{s+k} - r_{t+k}|  +  gamma^n d(s_n, t_n)

where s+k is where the policy is k steps after s. Rollouts of a policy in the graph are deterministic, so the sum is
exact, and only what comes after the `horizon` n is the metric's own estimate, made by a slowly moving copy of the
encoder. A longer horizon leaves less to estimate: with n = 1 [the paper's loss] errors are handed on about a hundred
times at gamma 0.99.

- After a termination all rewards are 0. That has an embedding of its own, the origin.
- A distance that falls short of its target counts `caution` times as much as one that exceeds it: distances have to
  bound value differences, and a scale that makes up for a few short ones inflates all of them.

A learned distance proves nothing. `metric.calibration` scales it until it bounds the value differences of states that
it was not fitted to, for a stated share of pairs.
"""

from __future__ import annotations

import math
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bats.arrays import Indices, Numbers, Progress, no_progress, padded_length
from bats.config import BisimulationConfig
from bats.errors import DataError, SettingError, check_rules
from bats.metric.policy_steps import PolicySteps, StateSplit
from bats.networks.inference import forward, input_limit, mean_and_std, single_floats, single_layers
from bats.networks.mlp import MLP, new_mlp
from bats.networks.training import Problem, Schedule, new_state, rows_on_device, train
from bats.storage.schema import build
from bats.storage.tensors import read_tensors, write_tensors
from bats.streams import Stream, generator

LATENT = 6
"""numbers in an embedding [the paper's]"""
HELD_OUT = 0.2
"""share of the states that is not fitted to"""
LEARNING_RATE, WARM_UP = 2e-3, 0.03
COPY_RATE = 0.005
"""how far the copy that makes the targets moves towards the encoder in each update"""
EVALUATE_EVERY = 500
UNIT_PAIRS = 2048
"""pairs whose mean distance is the unit that the encoder works in"""
NEGLIGIBLE = 1e-3
"""discount below which the rest of a rollout does not count for that unit"""
MIN_SQUARE = 1e-12
"""added to squared lengths, so that equal points have a gradient"""
EMBED_ROWS = 8192
"""states embedded at a time, to bound the memory of the hidden layers"""
_KIND = "bats-bisimulation"


class BisimulationMetric(eqx.Module):
    """Embeds states so that Euclidean distances are in units of value."""

    network: MLP
    mean: Float[np.ndarray, "D"]
    """of the states it was first fitted to"""
    std: Float[np.ndarray, "D"]
    scale: Float[np.ndarray, ""]
    """value of one unit of the network"""
    margin: Float[np.ndarray, ""]
    """factor found by calibration; 1 before"""
    split: StateSplit = eqx.field(static=True)

    def embed(self, states: Numbers) -> Numbers:
        """The embeddings of states, with any number of leading axes; NumPy gives NumPy, JAX gives JAX."""
        if isinstance(states, np.ndarray) and isinstance(self.mean, np.ndarray):
            return self._embed_numpy(states)  # type: ignore[return-value]  # Numbers is np.ndarray here
        return self.scale * self.margin * self.network((states - self.mean) / self.std)

    def _embed_numpy(self, states: Float[np.ndarray, "*some D"]) -> Float[np.ndarray, "*some m"]:
        # in plain NumPy nothing is compiled, whatever the number of states
        table, layers = states.reshape(-1, states.shape[-1]), self.network.layers()
        embedded = np.empty((len(table), len(layers[-1][1])), dtype=np.float32)
        for first in range(0, len(table), EMBED_ROWS):
            # standardised in the precision they came in: large numbers with small differences keep their digits
            rows = (table[first : first + EMBED_ROWS] - self.mean) / self.std
            embedded[first : first + EMBED_ROWS] = forward(layers, rows.astype(np.float32))
        return (self.scale * self.margin * embedded).reshape(*states.shape[:-1], embedded.shape[1])


class _Rows(eqx.Module):
    """The policy's steps on the device. A last row stands for after termination: it earns nothing and stays."""

    states: Float[Array, "n D"]
    """standardised"""
    rewards: Float[Array, "n"]
    """in units of the network"""
    next_row: Int[Array, "n"]
    fitted: Int[Array, "k"]
    """rows that may be drawn, filled up"""
    fitted_count: Int[Array, ""]
    gamma: float = eqx.field(static=True)
    terminates: bool = eqx.field(static=True)

    @property
    def ended(self) -> int:
        return len(self.rewards) - 1

    def embed(self, network: MLP, rows: Int[Array, "B"]) -> Float[Array, "B m"]:
        return jnp.where((rows == self.ended)[:, None], 0.0, network(self.states[rows]))


class _Params(eqx.Module):
    """The encoder, and the copy that makes the targets."""

    network: MLP
    copy: MLP


def learn_bisimulation(
    steps: PolicySteps,
    config: BisimulationConfig,
    *,
    seed: int,
    begin_from: BisimulationMetric | None = None,
    progress: Progress = no_progress,
) -> BisimulationMetric:
    """Learns the metric of the policy that these steps are of, from the states that are not held out.

    `begin_from` continues from another metric, because policies change little at a time: its encoder, standardisation
    and split of the states are kept, its calibration is not. No pair that is fitted contains a held-out state, but
    rollouts may pass through them. The same seed gives the same weights on the same machine.
    """
    if not np.all((steps.discounts == steps.gamma) | (steps.discounts == 0)):
        raise SettingError(f"Every discount must be {steps.gamma}, or 0 where an episode terminates.")
    split = StateSplit(seed, HELD_OUT) if begin_from is None else begin_from.split
    fitted = split.rows(steps.states, "fit")
    if len(fitted) < 2:
        raise DataError("at least 2 states to fit the metric to", f"{len(fitted)} of {len(steps)} states")
    metric = begin_from or _untrained(steps, fitted, split, config)
    sizes = [len(bias) for bias in metric.network.biases]
    if sizes != [*config.hidden, LATENT] or steps.states.shape[1] != len(metric.mean):
        needed = f"input size {steps.states.shape[1]} and layers {[*config.hidden, LATENT]}"
        found = f"input size {len(metric.mean)} and layers {sizes}"
        raise SettingError(f"`begin_from` does not fit: it has {found}, but this task and config need {needed}.")
    rows = _rows_on_device(steps, fitted, metric)

    def draw(done: int, count: int) -> Array:
        return jax.random.split(jax.random.fold_in(jax.random.key(seed), 2 + done), count)

    problem = Problem(
        loss=_loss,
        after=_move_copy,
        schedule=Schedule(LEARNING_RATE, config.updates, WARM_UP),
        config=config,
        evaluate_every=EVALUATE_EVERY,
    )
    network = jax.tree.map(jnp.asarray, metric.network)
    state = initial = new_state(_Params(network, network), problem)
    for state, loss, _ in train(problem, initial, rows, draw):
        if not math.isfinite(loss):
            raise DataError("a finite loss of the metric", "a loss that is not finite")
        progress(f"learning the metric (loss {loss:.3g})", int(state.update), config.updates)
    network = jax.tree.map(np.asarray, state.params.network)
    return BisimulationMetric(network, metric.mean, metric.std, metric.scale, _number(1.0), metric.split)


def _untrained(steps: PolicySteps, rows: Indices, split: StateSplit, config: BisimulationConfig) -> BisimulationMetric:
    """The metric before its first update, standardised by the states that are fitted to."""
    mean, std = mean_and_std(steps.states[rows])
    network = jax.tree.map(np.asarray, new_mlp((len(mean), *config.hidden, LATENT), jax.random.key(split.seed)))
    unit = _mean_distance(steps, rows, seed=split.seed)
    return BisimulationMetric(network, mean, std, _number(unit if unit > 0 else 1.0), _number(1.0), split)


def _mean_distance(steps: PolicySteps, fitted: Int[np.ndarray, "k"], *, seed: int) -> float:
    """The mean distance of random pairs, summed along their rollouts."""
    row = generator(seed, Stream.METRIC_UNIT).choice(fitted, (2, UNIT_PAIRS))
    alive, total, discount = np.ones(row.shape), 0.0, 1.0
    while discount > NEGLIGIBLE:
        reward = alive * steps.rewards[row]
        total += discount * float(np.abs(reward[0] - reward[1]).mean())
        alive *= steps.discounts[row] > 0
        row, discount = steps.next_row[row], discount * steps.gamma
    return total


def _rows_on_device(steps: PolicySteps, fitted: Int[np.ndarray, "k"], metric: BisimulationMetric) -> _Rows:
    # after a termination comes the last row, one of those that are filled up
    count, ended, terminates = len(steps), padded_length(len(steps) + 1) - 1, steps.discounts == 0
    states, rewards = np.zeros((ended + 1, len(metric.mean))), np.zeros(ended + 1)
    states[:count], rewards[:count] = (steps.states - metric.mean) / metric.std, steps.rewards / metric.scale
    next_row = np.full(ended + 1, ended)
    next_row[:count] = np.where(terminates, ended, steps.next_row)
    return _Rows(
        states=rows_on_device(states),
        rewards=rows_on_device(rewards),
        next_row=rows_on_device(next_row, np.int32),
        fitted=rows_on_device(fitted, np.int32),
        fitted_count=jax.device_put(np.int32(len(fitted))),
        gamma=steps.gamma,
        terminates=bool(terminates.any()),
    )


def _loss(params: _Params, rows: _Rows, key: Array, config: BisimulationConfig) -> Float[Array, ""]:
    """Mean squared error of the distances of all pairs of a batch, short ones weighted by the caution."""
    batch = rows.fitted[jax.random.randint(key, (config.batch_size,), 0, rows.fitted_count)]
    if rows.terminates:  # so that the origin stays the place of after termination
        batch = jnp.append(batch, rows.ended)
    target = jax.lax.stop_gradient(pair_targets(params.copy, rows, batch, config.horizon))
    embedded = rows.embed(params.network, batch)
    error = _pair_distances(embedded) - target
    different = batch[:, None] != batch
    weight = jnp.where(error < 0, config.caution, 1.0) * different
    return (weight * error**2).sum() / jnp.maximum(different.sum(), 1)


def pair_targets(copy: MLP, rows: _Rows, batch: Int[Array, "B"], horizon: int) -> Float[Array, "B B"]:
    """The distance that all pairs should have: their rollouts' reward differences, then the copy's distance."""

    def step(carried: tuple[Array, Array], discount: Array) -> tuple[tuple[Array, Array], None]:
        row, distance = carried
        reward = rows.rewards[row]
        return (rows.next_row[row], distance + discount * jnp.abs(reward[:, None] - reward)), None

    start = (batch, jnp.zeros((len(batch), len(batch))))
    # ten steps at a time spare a CPU a fifth of an update: the distances are read and written a tenth as often
    (reached, distance), _ = jax.lax.scan(step, start, rows.gamma ** jnp.arange(horizon), unroll=10)
    embedded = rows.embed(copy, reached)
    return distance + rows.gamma**horizon * _pair_distances(embedded)


def _move_copy(params: _Params, config: BisimulationConfig) -> _Params:
    move = jax.tree.map(lambda old, new: (1 - COPY_RATE) * old + COPY_RATE * new, params.copy, params.network)
    return _Params(params.network, move)


def _pair_distances(embedded: Float[Array, "B m"]) -> Float[Array, "B B"]:
    # one component at a time: on a CPU this takes half as long as one array of all differences
    squares = ((component[:, None] - component) ** 2 for component in embedded.T)
    return jnp.sqrt(sum(squares, MIN_SQUARE))


def _number(value: float) -> Float[np.ndarray, ""]:
    return np.asarray(value, dtype=np.float32)


def save_metric(metric: BisimulationMetric, path: Path | str) -> None:
    """Writes the metric with its split of the states, so that it can be refreshed and calibrated again."""
    arrays = {name: getattr(metric, name) for name in ("mean", "std", "scale", "margin")}
    for layer, (weight, bias) in enumerate(metric.network.layers()):
        arrays |= {f"weight.{layer}": weight, f"bias.{layer}": bias}
    facts = {"layers": len(metric.network.weights), "seed": metric.split.seed, "held_out": metric.split.held_out}
    write_tensors(Path(path), _KIND, arrays, facts)


def load_metric(path: Path | str) -> BisimulationMetric:
    """The metric that was saved; `DataError` if the file is another, damaged or missing."""
    arrays, facts = read_tensors(Path(path), _KIND)
    try:
        mean, std = (single_floats(name, arrays[name], 1) for name in ("mean", "std"))
        scale, margin = (single_floats(name, arrays[name], 0) for name in ("scale", "margin"))
        weights, biases = (
            tuple(arrays[f"{kind}.{layer}"] for layer in range(facts["layers"])) for kind in ("weight", "bias")
        )
        layers = single_layers(weights, biases, inputs=len(mean))
        check_rules(
            {
                "`std` must have a positive number for each of `mean`": len(std) == len(mean) and np.all(std > 0),
                "`scale` and `margin` must be positive": scale > 0 and margin > 0,
            }
        )
        input_limit(layers, scale=float(scale) * float(margin))  # refuses weights that are too large
        weights, biases = zip(*layers, strict=True)
        network = MLP(weights, biases)
        return BisimulationMetric(network, mean, std, scale, margin, build(StateSplit, facts, file=str(path)))
    except KeyError as error:  # a checksum can be right all the same
        raise DataError("a complete metric", f"no entry {error}", file=str(path)) from error
    except (TypeError, SettingError) as error:
        raise DataError("a valid metric", str(error).rstrip("."), file=str(path)) from error
