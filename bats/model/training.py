"""Training the ensemble: one jitted, scanned program for all members, with early stopping and an honest held-out error.

Rows are split in stretches of consecutive rows, so that a held-out row has no neighbour in time among the training rows
but at the ends of its stretch, and predictions over several steps can be tested on held-out rows too.

    training rows        fit the weights
    validation rows      stop, keep each member's best weights, choose the elites
    held-out rows        choose nothing: they tell the error, and their residuals calibrate stitches later

Classifiers draw their batches differently; `labels` says how and why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from bats.data.dataset import Dataset
from bats.errors import DataError
from bats.model.ensemble import (
    Dynamics,
    DynamicsConfig,
    Networks,
    Perceptron,
    Scale,
    mean_and_log_variance,
    new_networks,
    one_hot,
)
from bats.model.rare_labels import Label, edge_rows, paid_apart, two_amounts, weights_back, with_edges

STRETCH = 25
"""consecutive rows that go to the same part of a split"""
LARGEST_SHARE = 0.1
"""most of a log's rows that validation or holding out may take: small logs need theirs for training"""
LEAST_DEVIATION = 1e-6
"""a number that varies less than this is constant, and is not blown up to unit variance"""
WARM_UP = 0.05
"""share of the updates in which the learning rate rises"""
CLASSIFIER_RATE = 5.0
"""times the learning rate of the networks that regress"""


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of a log, by what they are used for. Rows whose next state is unknown are in none."""

    training: Int[np.ndarray, "T"]
    validation: Int[np.ndarray, "V"]
    held_out: Int[np.ndarray, "H"]


@dataclass(frozen=True)
class TrainingRecord:
    """How far training has come at one look at the validation rows."""

    update: int
    updates: int
    loss: float
    """mean training loss of a member since the last look"""
    validation_error: tuple[float, ...]
    """each member's, absolute or squared as configured, in units of the change's deviation"""


class TrainingState(eqx.Module):
    """Everything training needs to go on."""

    networks: Networks
    optimiser: optax.OptState
    best: Networks
    """each member's weights at its own best look"""
    best_error: Float[Array, "M"]
    update: Int[Array, ""]
    stale: Int[Array, ""]
    """looks since a member last improved"""


class _Rows(eqx.Module):
    """The log as the networks take it: standardised, in single precision, on the device."""

    inputs: Float[Array, "N inward"]
    after: Float[Array, "N D"]
    change: Float[Array, "N D"]
    reward: Float[Array, "N"]
    """standardised, exceptional ones by their own scale"""
    paid: Label | None
    """the larger of two amounts, or an exceptional one; None where all are ordinary"""
    ends: Label | None
    edge_weight: Float[Array, "N"]
    """what a row counts in a classifier's batch, being drawn more or less often than by right"""


def split_rows(dataset: Dataset, config: DynamicsConfig, *, seed: int) -> Split:
    """Draws the parts, as stretches of rows."""
    rows = np.flatnonzero(dataset.next_known)
    stretches = np.array_split(rows, max(len(rows) // STRETCH, 1))
    order = np.random.default_rng([seed, 1]).permutation(len(stretches))

    def share(wanted: int) -> int:
        return max(math.ceil(min(wanted, LARGEST_SHARE * len(rows)) / STRETCH), 1)

    validating, holding = share(config.validation_rows), share(config.held_out_rows)
    if len(stretches) <= validating + holding:
        expected = f"at least {3 * STRETCH} rows with a known next state to train a model on"
        raise DataError(expected, f"{len(rows)}", file=dataset.name, field="observations")
    parts = np.split(order, [validating, validating + holding])
    validation, held_out, training = (np.sort(np.concatenate([stretches[i] for i in part])) for part in parts)
    return Split(training, validation, held_out)


def train(
    dataset: Dataset, config: DynamicsConfig, *, seed: int, state: TrainingState | None = None
) -> Iterator[tuple[TrainingState, TrainingRecord]]:
    """Trains an ensemble, yielding after every look at the validation rows. The caller may stop, or save and go on.

    The same seed gives the same weights on the same machine; going on from a saved `state` gives what an undisturbed
    run would have.
    """
    split = split_rows(dataset, config, seed=seed)
    template = untrained(dataset, split, config, seed=seed)
    edges = edge_rows(dataset, split.training)
    rows = _prepare(dataset, template, split, edges)
    optimiser = optimiser_of(config)
    if state is None:
        state = new_state(template.networks, optimiser)
    validation = jnp.asarray(split.validation)
    one_pass = max(len(split.training) // config.batch_size, 1)
    while int(state.update) < config.updates and int(state.stale) < config.patience:
        done = int(state.update)
        count = min(config.evaluate_every or one_pass, config.updates - done)
        # drawn anew from the seed and the place, so that nothing but the weights has to be saved
        rng, shape = np.random.default_rng([seed, 2, done]), (count, config.members, config.batch_size)
        chosen = split.training[rng.integers(0, len(split.training), shape)]
        near = with_edges(chosen, edges, rng)
        batches = jnp.asarray(chosen, jnp.int32), jnp.asarray(near, jnp.int32)
        state, loss = _advance(state, rows, batches, config, template.binary_reward)
        state, error = _look(state, rows, validation, config.validation_measure == "squared")
        record = TrainingRecord(int(state.update), config.updates, float(loss), tuple(map(float, error)))
        if not all(math.isfinite(one) for one in record.validation_error):
            raise DataError("a log that a model can be trained on", "a training error that is not finite")
        yield state, record


def untrained(dataset: Dataset, split: Split, config: DynamicsConfig, *, seed: int) -> Dynamics:
    """The model before its first update, with the scales of the training rows."""
    rows = split.training
    actions = one_hot(dataset.actions[rows], dataset.action_count)
    change = dataset.next_observations[rows] - dataset.observations[rows]
    rewards, apart = dataset.rewards[rows], paid_apart(dataset, split.training)[rows]
    binary = two_amounts(dataset.rewards)
    jumps = _scale(rewards[apart][:, None]) if apart.any() and not binary else None
    amounts = jnp.asarray([dataset.rewards.min(), np.ptp(dataset.rewards)], jnp.float32)
    ordinary = Scale(amounts[:1], amounts[1:]) if binary else _scale(rewards[~apart][:, None])
    networks = new_networks(
        config,
        state_width=change.shape[1],
        action_width=actions.shape[1],
        ends=bool(dataset.terminations[rows].any()),
        key=jax.random.key(seed),
        jumps=jumps is not None,
    )
    states = _scale(dataset.observations[rows])
    model = Dynamics(
        networks,
        states=states,
        actions=_scale(actions),
        changes=_scale(change),
        rewards=ordinary,
        binary_reward=binary,
        action_count=dataset.action_count,
        jumps=jumps,
        jumps_end=jumps is not None and bool(dataset.terminations[rows][apart].all()),
    )
    if networks.linear is None:
        return model
    fitted = _least_squares(model, dataset.observations[rows], actions, change)
    everyone = jnp.broadcast_to(fitted, networks.linear.shape)
    return eqx.tree_at(lambda whole: whole.networks.linear, model, everyone)


def finished(state: TrainingState, template: Dynamics, config: DynamicsConfig) -> Dynamics:
    """The model of the elites: the members with the lowest validation error, best first, at their best weights."""
    elites = jnp.argsort(state.best_error)[: config.elites]
    networks = jax.tree.map(lambda stacked: stacked[elites], state.best)
    return eqx.tree_at(lambda model: model.networks, template, networks)


def new_state(networks: Networks, optimiser: optax.GradientTransformation) -> TrainingState:
    members = networks.change.weights[0].shape[0]
    return TrainingState(
        networks=networks,
        optimiser=optimiser.init(networks),
        best=networks,
        best_error=jnp.full(members, jnp.inf),
        update=jnp.array(0),
        stale=jnp.array(0),
    )


def _least_squares(
    model: Dynamics, states: np.ndarray, actions: np.ndarray, change: np.ndarray
) -> Float[Array, "inward D"]:
    """The linear map that explains most of the standardised change, so that a linear world is known from the start."""
    scaled = (
        (model.states, states),
        (model.actions, actions),
        (model.changes, change),
    )
    parts = [np.asarray(scale.shrink(jnp.asarray(values, jnp.float32)), np.float64) for scale, values in scaled]
    inputs, target = np.concatenate(parts[:2], axis=1), parts[2]
    square = inputs.T @ inputs + LEAST_DEVIATION * len(inputs) * np.eye(inputs.shape[1])
    return jnp.asarray(np.linalg.solve(square, inputs.T @ target), jnp.float32)


def _scale(values: np.ndarray) -> Scale:
    mean = values.mean(axis=0, dtype=np.float64)
    deviation = values.std(axis=0, dtype=np.float64)
    kept = np.where(deviation > LEAST_DEVIATION, deviation, 1.0)
    return Scale(jnp.asarray(mean, jnp.float32), jnp.asarray(kept, jnp.float32))


def _prepare(dataset: Dataset, model: Dynamics, split: Split, edges: Int[np.ndarray, "E"]) -> _Rows:
    """Standardises in single precision; changes are taken before that, so that small steps keep their digits."""
    actions = jnp.asarray(one_hot(dataset.actions, dataset.action_count), jnp.float32)
    states = jnp.asarray(dataset.observations, jnp.float32)
    change = jnp.asarray(dataset.next_observations - dataset.observations, jnp.float32)
    rewards = jnp.asarray(dataset.rewards, jnp.float32)[:, None]
    reward, apart = model.rewards.shrink(rewards)[:, 0], paid_apart(dataset, split.training)
    if model.jumps is not None:
        reward = jnp.where(apart, model.jumps.shrink(rewards)[:, 0], reward)
    classified = model.binary_reward or model.jumps is not None
    return _Rows(
        inputs=jnp.concatenate([model.states.shrink(states), model.actions.shrink(actions)], axis=1),
        after=model.states.shrink(jnp.asarray(dataset.next_observations, jnp.float32)),
        change=model.changes.shrink(change),
        reward=reward,
        paid=Label.of(apart, split.training) if classified else None,
        ends=Label.of(dataset.terminations, split.training) if model.networks.termination is not None else None,
        edge_weight=jnp.asarray(weights_back(len(dataset), edges, len(split.training)), jnp.float32),
    )


def optimiser_of(config: DynamicsConfig) -> optax.GradientTransformation:
    rate = config.learning_rate
    if config.schedule == "constant":
        return optax.adam(rate)
    rising = max(int(WARM_UP * config.updates), 1)
    falling_until = max(config.updates, rising + 1)
    return optax.adam(optax.warmup_cosine_decay_schedule(0.0, rate, rising, falling_until, rate / 100))


@eqx.filter_jit
def _advance(
    state: TrainingState,
    rows: _Rows,
    batches: tuple[Int[Array, "T M B"], Int[Array, "T M B"]],
    config: DynamicsConfig,
    binary_reward: bool,
) -> tuple[TrainingState, Float[Array, ""]]:
    """Makes T updates, with the rows chosen for each member in each: for regression and for classification."""
    optimiser = optimiser_of(config)

    def classifiers(networks: Networks) -> list[Perceptron]:
        parts = (networks.reward if binary_reward else None, networks.jump, networks.termination)
        return [part for part in parts if part is not None]

    def update(
        carried: tuple[Networks, optax.OptState], batch: tuple[Int[Array, "M B"], Int[Array, "M B"]]
    ) -> tuple[tuple[Networks, optax.OptState], Float[Array, ""]]:
        networks, memory = carried
        loss, slope = jax.value_and_grad(_loss)(networks, rows, *batch, config, binary_reward)
        step, memory = optimiser.update(slope, memory, networks)
        if faster := classifiers(step):
            step = eqx.tree_at(classifiers, step, jax.tree.map(lambda each: CLASSIFIER_RATE * each, faster))
        return (optax.apply_updates(networks, step), memory), loss / len(batch[0])

    (networks, memory), losses = jax.lax.scan(update, (state.networks, state.optimiser), batches)
    update_count = state.update + len(batches[0])
    state = eqx.tree_at(lambda s: (s.networks, s.optimiser, s.update), state, (networks, memory, update_count))
    return state, losses.mean()


def _loss(
    networks: Networks,
    rows: _Rows,
    batch: Int[Array, "M B"],
    near: Int[Array, "M B"],
    config: DynamicsConfig,
    binary_reward: bool,
) -> Float[Array, ""]:
    """Sum of the members' losses; no weight belongs to two of them, so each gets its own gradient."""
    inputs = rows.inputs[batch]
    mean, log_variance = mean_and_log_variance(networks, inputs)
    squared = (mean - rows.change[batch]) ** 2
    weight = jax.lax.stop_gradient(jnp.exp(config.variance_weight * log_variance))
    loss = (weight * (squared * jnp.exp(-log_variance) + log_variance)).mean(axis=(1, 2)).sum()
    loss += 0.01 * (networks.greatest_log_variance - networks.least_log_variance).mean(axis=(1, 2)).sum()

    if not binary_reward:
        paid = networks.reward(jnp.concatenate([inputs, rows.after[batch]], axis=-1))[..., 0]
        ordinary = 1.0 if rows.paid is None else 1.0 - rows.paid.true[batch]
        loss += (ordinary * (paid - rows.reward[batch]) ** 2).mean(axis=1).sum()
    loss += _classifier_loss(networks, rows, near)
    if config.weight_decay:
        loss += config.weight_decay * sum(jnp.sum(weight**2) for weight in _weights(networks))
    return loss


def _classifier_loss(networks: Networks, rows: _Rows, near: Int[Array, "M B"]) -> Float[Array, ""]:
    """The part of the loss that comes from telling rows apart, and from the amounts of exceptional ones."""
    transition = jnp.concatenate([rows.inputs[near], rows.after[near]], axis=-1)
    weight = rows.edge_weight[near]
    loss = jnp.zeros(())
    if networks.termination is not None and rows.ends is not None:
        loss += rows.ends.loss(networks.termination, networks.termination(transition)[..., 0], near, weight)
    if rows.paid is None:
        return loss
    if networks.jump is None:
        return loss + rows.paid.loss(networks.reward, networks.reward(transition)[..., 0], near, weight)
    log_odds, amount = (part[..., 0] for part in jnp.split(networks.jump(transition), 2, axis=-1))
    squared = weight * rows.paid.true[near] * (amount - rows.reward[near]) ** 2
    return loss + rows.paid.loss(networks.jump, log_odds, near, weight) + (squared.mean(axis=1) / rows.paid.share).sum()


def _weights(networks: Networks) -> list[Float[Array, "M _ _"]]:
    perceptrons = [
        part for part in (networks.change, networks.reward, networks.termination, networks.jump) if part is not None
    ]
    return [weight for part in perceptrons if isinstance(part, Perceptron) for weight in part.weights]


@eqx.filter_jit
def _look(
    state: TrainingState, rows: _Rows, validation: Int[Array, "V"], squared: bool
) -> tuple[TrainingState, Float[Array, "M"]]:
    """Measures every member on the validation rows and keeps the weights of those that are better than ever."""
    members = state.best_error.shape[0]
    inputs = jnp.broadcast_to(rows.inputs[validation], (members, *rows.inputs[validation].shape))
    mean, _ = mean_and_log_variance(state.networks, inputs)
    miss = mean - rows.change[validation]
    error = (miss**2 if squared else jnp.abs(miss)).mean(axis=(1, 2))
    better = error < state.best_error

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    best = jax.tree.map(choose, state.networks, state.best)
    stale = jnp.where(better.any(), 0, state.stale + 1)
    best_error = jnp.minimum(error, state.best_error)
    return TrainingState(state.networks, state.optimiser, best, best_error, state.update, stale), error
