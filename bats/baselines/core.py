"""The one training loop of all baselines. A method is its networks and, for each group of them, a loss.

    batch of logged rows -> each group of networks descends its own loss, the others held fixed -> targets follow

Losses are pure functions of the networks, the slowly moving target networks, a batch, a random key and the settings.
An update depends on the seed and on its number alone, so training continues from a saved state as if it had never been
interrupted. Thousands of updates are one compiled program, and so are several runs: their states carry a leading axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from bats.baselines.config import Baseline

Networks = dict[str, Any]
"""networks by the name of their group"""
Loss = Callable[[Networks, Networks, "Batch", Array, Any], Float[Array, ""]]
"""of networks, target networks, batch, key and settings"""


class Batch(eqx.Module):
    """Rows of a log. Actions are scaled to -1 … 1 between their bounds, or are indices."""

    states: Float[Array, "B D"]
    actions: Float[Array, "B A"] | Int[Array, "B"]
    rewards: Float[Array, "B"]
    discounts: Float[Array, "B"]
    """gamma; 0 where the task ended"""
    next_states: Float[Array, "B D"]
    next_actions: Float[Array, "B A"] | Int[Array, "B"]
    """of the next row; at the end of an episode, of the row itself"""
    update: Int[Array, ""]
    """number of the update that the batch is for: some losses change after a while"""


class Log(eqx.Module):
    """The rows of one log or of several logs of the same kind, one table for each, so that a batch is one look-up."""

    table: Float[Array, "logs N columns"]
    count: Int[Array, "logs"]
    """rows; further ones only fill up the table"""
    state_width: int = eqx.field(static=True)
    action_width: int = eqx.field(static=True)
    discrete: bool = eqx.field(static=True)

    def draw(self, log: Int[Array, ""], key: Array, update: Int[Array, ""], config: Baseline) -> Batch:
        """Rows of one log, each as likely as any other."""
        rows = self.table[log, jax.random.randint(key, (config.batch_size,), 0, self.count[log])]
        widths = (self.state_width, self.action_width, 1, 1, self.state_width, self.action_width)
        ends = [sum(widths[: part + 1]) for part in range(len(widths) - 1)]
        states, actions, rewards, continues, next_states, next_actions = jnp.split(rows, ends, axis=1)
        if self.discrete:
            actions, next_actions = (index[:, 0].astype(jnp.int32) for index in (actions, next_actions))
        discounts = config.gamma * continues[:, 0]
        return Batch(states, actions, rewards[:, 0], discounts, next_states, next_actions, update)


@dataclass(frozen=True, eq=False)
class Group:
    """Networks that descend one loss."""

    loss: Loss
    rate: str = "learning_rate"
    """name of the setting with the learning rate"""
    decays: bool = False
    """the learning rate falls to 0 along a cosine"""
    has_target: bool = False
    """a copy of the networks follows them slowly"""
    trains: Callable[[Int[Array, ""], Any], Bool[Array, ""]] | None = None
    """in which updates it is trained, by their number; None: in all"""
    follows: Callable[[Int[Array, ""], Any], Bool[Array, ""]] | None = None
    """in which of those updates the copy follows; None: in all"""
    project: Callable[[Any], Any] | None = None
    """takes networks that a step has led out of their bounds back to these"""

    def optimizer(self, config: Baseline) -> optax.GradientTransformation:
        rate = getattr(config, self.rate)
        return optax.adam(optax.cosine_decay_schedule(rate, config.updates) if self.decays else rate)


@dataclass(frozen=True, eq=False)
class Method:
    """A method of offline reinforcement learning."""

    name: str
    config: type[Baseline]
    new_networks: Callable[[Sizes, Any, Array], Networks]
    groups: Mapping[str, Group]
    """in the order in which they are updated"""
    squashed: bool
    """the policy's answer is the tanh of its network's"""
    discrete: bool = False
    """it also takes discrete actions"""
    extend: Callable[[Networks, Batch, Any, Array, Any], Batch] | None = None
    """adds rows from a learned model to a batch; None: there is no model"""

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(name for name, group in self.groups.items() if group.has_target)


@dataclass(frozen=True)
class Sizes:
    """Widths that the networks must have."""

    states: int
    actions: int
    """dimensions, or number of discrete actions"""
    discrete: bool


class MeanLoss(eqx.Module):
    """A running mean, which does not depend on how many updates are made at a time."""

    mean: Float[Array, "*R"]
    count: Int[Array, "*R"]

    def with_another(self, loss: Float[Array, ""]) -> MeanLoss:
        return MeanLoss(self.mean + (loss - self.mean) / (self.count + 1), self.count + 1)


class TrainingState(eqx.Module):
    """All that training needs to continue; every array of several runs has a leading axis R."""

    networks: Networks
    targets: Networks
    memory: dict[str, optax.OptState]
    losses: dict[str, MeanLoss]
    """of each group since the last snapshot"""
    update: Int[Array, "*R"]


def new_state(method: Method, sizes: Sizes, config: Baseline, key: Array) -> TrainingState:
    """The state before the first update."""
    networks = method.new_networks(sizes, config, key)
    memory = {name: group.optimizer(config).init(networks[name]) for name, group in method.groups.items()}
    targets = {name: networks[name] for name in method.targets}
    none = MeanLoss(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))
    return TrainingState(networks, targets, memory, dict.fromkeys(method.groups, none), jnp.zeros((), jnp.int32))


@eqx.filter_jit
def advance(
    shared: tuple[Log, Method, Baseline],
    count: Int[Array, ""],
    states: TrainingState,
    keys: Array,
    logs: Int[Array, "R"],
    models: Any,
) -> TrainingState:
    """Makes `count` updates of every run: of its state, with its key, on its log, with its model if there is one."""
    log, method, config = shared

    def one_run(state: TrainingState, key: Array, number: Int[Array, ""], model: Any) -> TrainingState:
        def update(_: Array, state: TrainingState) -> TrainingState:
            return _update(method, config, log, number, model, key, state)

        return jax.lax.fori_loop(0, count, update, state)

    if len(logs) > 1:
        return jax.vmap(one_run)(states, keys, logs, models)
    # products of matrices are slower with an axis of length one
    (state, model), key, number = jax.tree.map(lambda leaf: leaf[0], (states, models)), keys[0], logs[0]
    return jax.tree.map(lambda leaf: leaf[None], one_run(state, key, number, model))


def _update(
    method: Method, config: Baseline, log: Log, number: Int[Array, ""], model: Any, key: Array, state: TrainingState
) -> TrainingState:
    """One update of every group that is due."""
    batch_key, model_key, *loss_keys = jax.random.split(jax.random.fold_in(key, state.update), 2 + len(method.groups))
    batch = log.draw(number, batch_key, state.update, config)
    if method.extend is not None:
        batch = method.extend(state.networks, batch, model, model_key, config)
    for (name, group), loss_key in zip(method.groups.items(), loss_keys, strict=True):
        descend = partial(_descend, name, group, batch=batch, key=loss_key, config=config)
        if group.trains is None:
            state = descend(state)
        else:
            state = jax.lax.cond(group.trains(state.update, config), descend, lambda state: state, state)
    return replace(state, update=state.update + 1)


def _descend(
    name: str, group: Group, state: TrainingState, *, batch: Batch, key: Array, config: Baseline
) -> TrainingState:
    """One step of a group against its loss; its target follows."""

    def loss_of(own: Any) -> Float[Array, ""]:
        return group.loss({**state.networks, name: own}, state.targets, batch, key, config)

    own = state.networks[name]
    loss, gradient = jax.value_and_grad(loss_of)(own)
    step, memory = group.optimizer(config).update(gradient, state.memory[name], own)
    own = optax.apply_updates(own, step)
    if group.project is not None:
        own = group.project(own)
    targets = state.targets
    if group.has_target:
        follows = True if group.follows is None else group.follows(state.update, config)
        rate = jnp.where(follows, config.target_rate, 0.0)
        targets = {**targets, name: optax.incremental_update(own, targets[name], rate)}
    return replace(
        state,
        networks={**state.networks, name: own},
        targets=targets,
        memory={**state.memory, name: memory},
        losses={**state.losses, name: state.losses[name].with_another(loss)},
    )
