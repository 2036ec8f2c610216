"""The on-policy bisimulation metric, learned: an encoder whose distances say how differently two states fare.

The exact metric needs every pair of states. This one is a network, so it knows states that no graph holds, and a
planner can differentiate through it. It is fitted to

    ( |z_s - z_t| - target(s, t) )²          target = Σ_{k<n} gamma^k |r_{s+k} - r_{t+k}|  +  gamma^n d(s_n, t_n)

where s+k is where the policy stands k steps after s. Walks of a policy in the graph are deterministic, so the sum is
exact, and only what comes after the `horizon` n is the metric's own guess, by a slowly following copy of the encoder.
The longer the horizon, the less there is to guess: with n = 1 errors are handed on a hundred times at gamma 0.99.

- Where an episode ends all is over: rewards of 0 for ever. That has a place of its own, the origin of the embedding.
- With `members` a latent ensemble makes the last of the n steps. It predicts, from z and the action, Gaussians of the
  reward and of the next z, and the 2-Wasserstein distance between two of those stands for the distance of the next
  states. With n = 1 this is the paper's loss. Without members, the default, the graph's own next state is embedded.
- Falling short of a target counts `caution` times as much as exceeding it: a distance is there to bound a difference
  of values, and a scale that has to make up for a few short ones stretches all of them.

A distance that is learned proves nothing. `calibrated` stretches it until values of states that it never fitted to
differ by no more than their distance, for a stated share of pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from bats.arrays import Numbers, Progress, no_progress
from bats.errors import DataError, SettingError
from bats.metric.policy_steps import Split, Transitions
from bats.model.ensemble import Perceptron, new_perceptron
from bats.policy.cloning import Network, mean_and_deviation, new_network
from bats.policy.policy import through_layers

LEAST_LENGTH = 1e-12
"""added to squared lengths, so that equal points have a gradient"""
LEAST_LOG_DEVIATION, GREATEST_LOG_DEVIATION = -5.0, 0.25
"""of what the latent ensemble predicts"""
REPORT_EVERY = 500
"""updates between two reports, which are made in one piece"""
UNIT_PAIRS = 2048
"""pairs whose mean distance is the unit that the encoder works in"""
NEGLIGIBLE = 1e-3
"""a discount below which the rest of a walk does not count for the unit"""
EMBED_ROWS = 8192
"""states embedded at a time, so that a great many do not need memory for all hidden layers at once"""
WARM_UP = 0.03
"""share of the updates in which the learning rate rises"""


@dataclass(frozen=True)
class BisimulationConfig:
    """How the metric is built and learned. Defaults are ours; `PAPER` holds the paper's (appendix D)."""

    hidden: tuple[int, ...] = (256, 128, 64)
    """units of the encoder's hidden layers [the paper's]"""
    latent: int = 6
    """numbers in the embedding [the paper's]"""
    horizon: int = 100
    """steps of a walk that a target takes before the metric's own distance stands in"""
    members: int = 0
    """networks of the latent ensemble that makes the last of those steps; 0: the graph's own next states do"""
    member_hidden: tuple[int, ...] = (200, 200, 200, 200)
    """units of the hidden layers of each"""
    caution: float = 30.0
    """how much more falling short of a target counts than exceeding it"""
    updates: int = 5000
    batch_size: int = 128
    """states drawn for an update; all pairs of them are fitted to"""
    learning_rate: float = 2e-3
    """at its highest; it falls along a cosine to a hundredth"""
    following_rate: float = 0.005
    """share of the way to the encoder that the copy which makes the targets goes in each update; 1: no copy"""
    held_out: float = 0.2
    """share of the states that is not fitted to: half of it calibrates, half tests"""

    def __post_init__(self) -> None:
        for name, least in (("latent", 1), ("horizon", 1), ("members", 0), ("updates", 1), ("batch_size", 2)):
            if getattr(self, name) < least:
                raise SettingError(f"`{name}` must be at least {least}; got {getattr(self, name)}.")
        if not self.caution >= 1:
            raise SettingError(f"`caution` must be at least 1; got {self.caution}.")
        if not self.learning_rate > 0:
            raise SettingError(f"`learning_rate` must be positive; got {self.learning_rate}.")
        if not 0 < self.following_rate <= 1:
            raise SettingError(f"`following_rate` must be above 0 and at most 1; got {self.following_rate}.")
        if not 0 <= self.held_out < 1:
            raise SettingError(f"`held_out` must be a share from 0 to below 1; got {self.held_out}.")


PAPER = BisimulationConfig(horizon=1, members=5, caution=1.0, learning_rate=1e-3, following_rate=1.0, batch_size=256)
"""the paper's loss, with its authors' values where it is silent; all pairs of a batch and no fixed number of passes"""


class BisimulationMetric(eqx.Module):
    """Embeds states so that Euclidean distances are in units of value."""

    network: Network
    mean: Float[np.ndarray, "D"]
    """of the states it was first learned from"""
    deviation: Float[np.ndarray, "D"]
    scale: Float[np.ndarray, ""]
    """value that one unit of the network stands for"""
    margin: Float[np.ndarray, ""]
    """what calibration stretches distances by; 1 before"""
    split: Split = eqx.field(static=True)
    """the states that were not fitted to"""

    def embed(self, states: Numbers) -> Numbers:
        """The places of states, any number of leading dimensions; NumPy gives NumPy, JAX gives JAX."""
        if isinstance(states, np.ndarray) and isinstance(self.mean, np.ndarray):
            return self._embed_arrays(states)  # type: ignore[return-value]  # Numbers is np.ndarray here
        standardised = (states - self.mean) / self.deviation
        return self.scale * self.margin * self.network(standardised)

    def _embed_arrays(self, states: Float[np.ndarray, "*some D"]) -> Float[np.ndarray, "*some m"]:
        """In plain NumPy: nothing is compiled, whatever the number of states."""
        table = states.reshape(math.prod(states.shape[:-1]), states.shape[-1])
        weights, biases = (tuple(map(np.asarray, part)) for part in (self.network.weights, self.network.biases))
        found = np.empty((len(table), len(biases[-1])), dtype=np.float32)
        for first in range(0, len(table), EMBED_ROWS):
            # standardised in the precision they came in: large numbers with small differences keep their digits
            some = (table[first : first + EMBED_ROWS] - self.mean) / self.deviation
            found[first : first + EMBED_ROWS] = through_layers(weights, biases, some.astype(np.float32))
        return (self.scale * self.margin * found).reshape(*states.shape[:-1], found.shape[1])


class _Rows(eqx.Module):
    """Transitions on the device, with a last row for where all is over: it pays nothing and stays."""

    states: Float[Array, "n D"]
    """standardised"""
    actions: Float[Array, "n A"]
    rewards: Float[Array, "n"]
    """in units of the network"""
    following: Int[Array, "n"]

    @property
    def over(self) -> int:
        return len(self.rewards) - 1

    def embedded(self, network: Network, which: Int[Array, "B"]) -> Float[Array, "B m"]:
        """The places of some rows; where all is over is the origin."""
        return jnp.where((which == self.over)[:, None], 0.0, network(self.states[which]))


class _Learner(eqx.Module):
    """What is trained, and the copy that makes the targets."""

    network: Network
    latent: Perceptron | None
    copy: Network


def learn_bisimulation(
    transitions: Transitions,
    config: BisimulationConfig,
    *,
    gamma: float,
    seed: int,
    begin_from: BisimulationMetric | None = None,
    progress: Progress = no_progress,
) -> BisimulationMetric:
    """Learns the metric of the policy whose steps these are, from the states that are not held out.

    `begin_from` goes on from another metric, as policies change little at a time: its encoder, its standardisation and
    its split of the states are kept, its calibration is not. No pair of states that is fitted to has a held-out one in
    it, but walks of others may come through those. The same seed gives the same weights on the same machine.
    """
    if not np.all((transitions.discounts == gamma) | (transitions.discounts == 0)):
        raise SettingError(f"Discounts must be {gamma}, or 0 where an episode ends.")
    split = Split(seed, config.held_out) if begin_from is None else begin_from.split
    fitted = split.rows(transitions.states, "fit")
    if len(fitted) < 2:
        raise DataError("at least 2 states to fit to", f"{len(fitted)} of {len(transitions)}")
    started = begin_from or _untrained(transitions, fitted, config, split, gamma=gamma, seed=seed)
    sizes = [len(bias) for bias in started.network.biases]
    if sizes != [*config.hidden, config.latent] or transitions.states.shape[1] != len(started.mean):
        raise SettingError(f"The metric to begin from takes {len(started.mean)} numbers through layers of {sizes}.")
    rows = _on_device(transitions, started)
    latent = None
    if config.members:
        widths = (config.latent + rows.actions.shape[1], *config.member_hidden, 2 * (1 + config.latent))
        latent = new_perceptron(config.members, widths, jax.random.fold_in(jax.random.key(seed), 1))
    encoder = jax.tree.map(jnp.asarray, started.network)
    learner = _Learner(encoder, latent, encoder)
    memory = _optimiser(config).init((learner.network, learner.latent))
    done, ends = 0, bool((transitions.discounts == 0).any())
    while done < config.updates:
        count = min(REPORT_EVERY, config.updates - done)
        # keys come from the seed and the place alone
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2 + done), count)
        learner, memory, loss = _advance(learner, memory, rows, jnp.asarray(fitted), keys, config, gamma, ends)
        if not math.isfinite(float(loss)):
            raise DataError("transitions that a metric can be learned from", "a loss that is not finite")
        done += count
        progress(f"learning the metric (loss {float(loss):.3g})", done, config.updates)
    network = jax.tree.map(np.asarray, learner.network)
    return BisimulationMetric(network, started.mean, started.deviation, started.scale, _number(1.0), split)


def _untrained(
    transitions: Transitions,
    fitted: Int[np.ndarray, "k"],
    config: BisimulationConfig,
    split: Split,
    *,
    gamma: float,
    seed: int,
) -> BisimulationMetric:
    """The metric before its first update, with scales of the states that are fitted to."""
    mean, deviation = mean_and_deviation(transitions.states[fitted])
    network = new_network((len(mean), *config.hidden, config.latent), jax.random.key(seed))
    unit = _mean_distance(transitions, fitted, gamma=gamma, seed=seed)
    return BisimulationMetric(
        jax.tree.map(np.asarray, network), mean, deviation, _number(unit if unit > 0 else 1.0), _number(1.0), split
    )


def _mean_distance(transitions: Transitions, fitted: Int[np.ndarray, "k"], *, gamma: float, seed: int) -> float:
    """Of pairs drawn at random, as their walks tell it."""
    here = np.random.default_rng([seed, 7]).choice(fitted, (2, UNIT_PAIRS))
    goes_on, total, weight = np.ones(here.shape), 0.0, 1.0
    while weight > NEGLIGIBLE:
        paid = goes_on * transitions.rewards[here]
        total += weight * float(np.abs(paid[0] - paid[1]).mean())
        goes_on *= transitions.discounts[here] > 0
        here, weight = transitions.following[here], weight * gamma
    return total


def _on_device(transitions: Transitions, metric: BisimulationMetric) -> _Rows:
    """Standardised rows, those whose episode ends leading to where all is over."""
    over = len(transitions)
    standardised = (transitions.states - metric.mean) / metric.deviation
    following = np.where(transitions.discounts == 0, over, transitions.following)

    def extended(numbers: np.ndarray) -> np.ndarray:
        return np.concatenate([numbers, np.zeros_like(numbers[:1])])

    return _Rows(
        states=jnp.asarray(extended(standardised), jnp.float32),
        actions=jnp.asarray(extended(transitions.actions), jnp.float32),
        rewards=jnp.asarray(extended(transitions.rewards / metric.scale), jnp.float32),
        following=jnp.asarray(np.append(following, over), jnp.int32),
    )


def _optimiser(config: BisimulationConfig) -> optax.GradientTransformation:
    rate, rising = config.learning_rate, max(int(WARM_UP * config.updates), 1)
    return optax.adam(
        optax.warmup_cosine_decay_schedule(0.0, rate, rising, max(config.updates, rising + 1), rate / 100)
    )


@eqx.filter_jit
def _advance(
    learner: _Learner,
    memory: optax.OptState,
    rows: _Rows,
    fitted: Int[Array, "k"],
    keys: Array,
    config: BisimulationConfig,
    gamma: float,
    ends: bool,
) -> tuple[_Learner, optax.OptState, Float[Array, ""]]:
    """As many updates as there are keys, and the mean loss of the encoder."""
    optimiser = _optimiser(config)

    def update(carried: tuple[_Learner, optax.OptState], key: Array) -> tuple[Any, Float[Array, ""]]:
        learner, memory = carried
        which = fitted[jax.random.randint(key, (config.batch_size,), 0, len(fitted))]
        if ends:  # so that the origin is where all is over
            which = jnp.append(which, rows.over)
        targets = jax.lax.stop_gradient(pair_targets(learner, rows, which, config.horizon, gamma))

        def loss(trained: tuple[Network, Perceptron | None]) -> tuple[Float[Array, ""], Float[Array, ""]]:
            network, latent = trained
            fit = _encoder_loss(rows.embedded(network, which), targets, which, config.caution)
            return fit + (0.0 if latent is None else _latent_loss(latent, learner.copy, rows, which)), fit

        trained = (learner.network, learner.latent)
        slope, fit = jax.grad(loss, has_aux=True)(trained)
        step, memory = optimiser.update(slope, memory, trained)
        network, latent = optax.apply_updates(trained, step)
        rate = config.following_rate
        copy = jax.tree.map(lambda old, new: (1 - rate) * old + rate * new, learner.copy, network)
        return (_Learner(network, latent, copy), memory), fit

    (learner, memory), fits = jax.lax.scan(update, (learner, memory), keys)
    return learner, memory, fits.mean()


def pair_targets(
    learner: _Learner, rows: _Rows, which: Int[Array, "B"], horizon: int, gamma: float
) -> Float[Array, "B B"]:
    """How far apart all pairs of some rows should be: what their walks are paid, then the learner's own guess."""

    def step(carried: tuple[Array, Array], weight: Array) -> tuple[tuple[Array, Array], None]:
        here, apart = carried
        return (rows.following[here], apart + weight * _gaps(rows.rewards[here])), None

    walked = horizon if learner.latent is None else horizon - 1
    start = (which, jnp.zeros((len(which), len(which))))
    (reached, apart), _ = jax.lax.scan(step, start, gamma ** jnp.arange(walked))
    places = rows.embedded(learner.copy, reached)
    if learner.latent is None:
        return apart + gamma**horizon * _lengths(places[:, None] - places)
    mean, deviation = _predicted(learner.latent, places, rows.actions[reached])
    known = (reached == rows.over)[:, None]  # that nothing follows need not be learned
    mean, deviation = jnp.where(known, 0.0, mean), jnp.where(known, 0.0, deviation)
    after = jnp.concatenate([mean[..., 1:], deviation[..., 1:]], axis=-1)
    wasserstein = _lengths(after[:, :, None] - after[:, None])
    paid = jax.vmap(_gaps)(mean[..., 0])
    return apart + gamma ** (horizon - 1) * (paid + gamma * wasserstein).mean(axis=0)


def _encoder_loss(
    places: Float[Array, "B m"], targets: Float[Array, "B B"], which: Int[Array, "B"], caution: float
) -> Float[Array, ""]:
    """Mean squared error over all pairs of different rows."""
    short = _lengths(places[:, None] - places) - targets
    weight = jnp.where(short < 0, caution, 1.0) * (which[:, None] != which)
    return (weight * short**2).sum() / jnp.maximum((which[:, None] != which).sum(), 1)


def _latent_loss(latent: Perceptron, copy: Network, rows: _Rows, which: Int[Array, "B"]) -> Float[Array, ""]:
    """The negative log-likelihood of reward and next place, summed over the members."""
    mean, deviation = _predicted(latent, rows.embedded(copy, which), rows.actions[which])
    after = rows.embedded(copy, rows.following[which])
    truth = jax.lax.stop_gradient(jnp.concatenate([rows.rewards[which][:, None], after], axis=1))
    return (0.5 * ((truth - mean) / deviation) ** 2 + jnp.log(deviation)).mean(axis=(1, 2)).sum()


def _predicted(
    latent: Perceptron, places: Float[Array, "B m"], actions: Float[Array, "B A"]
) -> tuple[Float[Array, "M B out"], Float[Array, "M B out"]]:
    """Mean and deviation of reward and next place by each member; what changes little is what is learned."""
    members = latent.weights[0].shape[0]
    places = jax.lax.stop_gradient(places)
    inputs = jnp.concatenate([places, actions], axis=1)
    mean, raw = jnp.split(latent(jnp.broadcast_to(inputs, (members, *inputs.shape))), 2, axis=-1)
    span = GREATEST_LOG_DEVIATION - LEAST_LOG_DEVIATION
    return mean.at[..., 1:].add(places), jnp.exp(LEAST_LOG_DEVIATION + span * jax.nn.sigmoid(raw))


def _gaps(numbers: Float[Array, "B"]) -> Float[Array, "B B"]:
    return jnp.abs(numbers[:, None] - numbers)


def _lengths(differences: Float[Array, "*some m"]) -> Float[Array, "*some"]:
    return jnp.sqrt((differences**2).sum(axis=-1) + LEAST_LENGTH)


def _number(value: float) -> Float[np.ndarray, ""]:
    return np.asarray(value, dtype=np.float32)
