"""The learned model: an ensemble of probabilistic networks that predict what an action does, trained all at once.

Every member sees a state and an action, standardised, and predicts mean and log-variance of the standardised change of
state. A network of its own predicts the reward of (state, action, next state), and where the log has terminations
another one those:

    change          Gaussian, negative log-likelihood                       [the paper's]
    reward          by what the log pays
      two amounts           cross-entropy: which of them
      anything              squared error
      anything, and rarely  squared error of the ordinary amount on ordinary rows; a further network, the jump, has
      far more or less      cross-entropy for whether a row is exceptional and squared error of the amount where it is;
                            expected is the mixture of both amounts
    termination     cross-entropy

The reward is kept apart because a joint likelihood gives up on rare rewards: the variance of a reward that is almost
always 0 is small, and predicting 0 everywhere is nearly as likely as predicting it right. Exceptional amounts are kept
apart for the same reason: five rows that pay 100 are nothing but noise in the squared error of a small dense cost.

All members are one program: weights carry a leading member axis M, and each member draws its own batches.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bats.arrays import Actions
from bats.errors import SettingError

# JAX would take three quarters of a GPU's memory at first use; nothing is taken at import. Whoever set this keeps it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@dataclass(frozen=True)
class DynamicsConfig:
    """How the ensemble is built and trained. Defaults are ours; `paper` holds the paper's (appendix D.1)."""

    members: int = 7
    """networks trained"""
    elites: int = 5
    """networks kept, the best on the validation rows"""
    hidden: tuple[int, ...] = (200, 200, 200, 200)
    """units of the hidden layers"""
    linear_part: bool = True
    """add a linear map of the inputs to the predicted mean, so that the layers only learn what is not linear"""
    reward_hidden: tuple[int, ...] = (64, 64)
    """units of the hidden layers of the networks of reward, jump and termination"""
    batch_size: int = 256
    """rows a member sees in one update"""
    updates: int = 11_000
    """most updates for a short log"""
    passes: float = 2.8
    """a longer log gets as many updates as this many passes over its rows take"""
    learning_rate: float = 2e-3
    """at its highest, after a short warm-up"""
    schedule: Literal["cosine", "constant"] = "cosine"
    """cosine: falls to a hundredth over `updates`"""
    variance_weight: float = 0.5
    """power of its own predicted variance that a row's likelihood is weighted with: at 0, the paper's plain likelihood,
    rows that are hard to predict (contacts) are soon given up; at 1 they count as in squared error"""
    weight_decay: float = 0.0
    """squared weights added to the loss, times this"""
    evaluate_every: int | None = 500
    """updates between two looks at the validation rows; None: as many as one pass over the log takes"""
    patience: int = 20
    """looks without any member improving before training stops"""
    validation_measure: Literal["absolute", "squared"] = "absolute"
    """what the validation rows are judged by; squares see little but the rare rows that nothing predicts well"""
    validation_rows: int = 1000
    """rows that choose the elites and the stopping point"""
    held_out_rows: int = 20_000
    """rows that choose nothing: they tell the error and calibrate stitches"""

    def __post_init__(self) -> None:
        for name in ("members", "elites", "batch_size", "updates", "evaluate_every", "patience", "validation_rows"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise SettingError(f"`{name}` must be at least 1; got {getattr(self, name)}.")
        if self.elites > self.members:
            raise SettingError(f"`elites` must not exceed the {self.members} `members`; got {self.elites}.")

    def for_rows(self, rows: int) -> DynamicsConfig:
        """The settings for a log of so many rows."""
        return replace(self, updates=max(self.updates, round(self.passes * rows / self.batch_size)))


PAPER = DynamicsConfig(
    linear_part=False,
    learning_rate=1e-3,
    variance_weight=0.0,
    updates=10_000_000,
    passes=0.0,
    schedule="constant",
    weight_decay=5e-5,
    evaluate_every=None,
    patience=25,
    validation_measure="squared",
)
"""the paper's training (appendix D.1), with its authors' values where it is silent: it ends by early stopping alone"""


class Perceptron(eqx.Module):
    """M fully connected networks side by side, with smooth activations: planning differentiates through them."""

    weights: tuple[Float[Array, "M _ _"], ...]
    biases: tuple[Float[Array, "M 1 _"], ...]

    def __call__(self, inputs: Float[Array, "M B inward"]) -> Float[Array, "M B outward"]:
        hidden = inputs
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = jax.nn.silu(hidden @ weight + bias)
        return hidden @ self.weights[-1] + self.biases[-1]


class Networks(eqx.Module):
    """What is trained; every array has the member axis first."""

    change: Perceptron
    linear: Float[Array, "M inward D"] | None
    """added to the mean of the change"""
    greatest_log_variance: Float[Array, "M 1 D"]
    least_log_variance: Float[Array, "M 1 D"]
    reward: Perceptron
    termination: Perceptron | None
    jump: Perceptron | None
    """log-odds that a reward is exceptional, and the amount if it is"""


class Scale(eqx.Module):
    """Standardises numbers: to zero mean and unit deviation, as the training rows have it."""

    mean: Float[Array, "n"]
    deviation: Float[Array, "n"]

    def shrink(self, values: Float[Array, "... n"]) -> Float[Array, "... n"]:
        return (values - self.mean) / self.deviation

    def restore(self, values: Float[Array, "... n"]) -> Float[Array, "... n"]:
        return values * self.deviation + self.mean


def blank_scale(width: int) -> Scale:
    """A scale that changes nothing."""
    return Scale(jnp.zeros(width), jnp.ones(width))


@runtime_checkable
class Predictor(Protocol):
    """What planning needs of a model: M members side by side, each going its own way."""

    @property
    def networks(self) -> Any:
        """Every array has the member axis first."""

    @property
    def member_count(self) -> int: ...

    @property
    def action_count(self) -> int | None: ...

    def change(
        self, states: Float[Array, "M B D"], actions: Float[Array, "M B A"]
    ) -> tuple[Float[Array, "M B D"], Float[Array, "M B D"]]: ...

    def reward(
        self, states: Float[Array, "M B D"], actions: Float[Array, "M B A"], after: Float[Array, "M B D"]
    ) -> Float[Array, "M B"]: ...


class Dynamics(eqx.Module):
    """An ensemble that has been trained. M is the number of elites."""

    networks: Networks
    states: Scale
    actions: Scale
    changes: Scale
    rewards: Scale
    binary_reward: bool = eqx.field(static=True)
    """the log pays `rewards.mean` or `rewards.mean + rewards.deviation`, nothing else"""
    action_count: int | None = eqx.field(static=True)
    """number of discrete actions, which enter one-hot"""
    jumps: Scale | None = None
    """of the exceptional rewards, where the log has any"""
    jumps_end: bool = eqx.field(static=True, default=False)
    """every exceptional reward of the log came with the end of its episode"""

    @property
    def member_count(self) -> int:
        return self.networks.change.weights[0].shape[0]

    def change(
        self, states: Float[Array, "M B D"], actions: Float[Array, "M B A"]
    ) -> tuple[Float[Array, "M B D"], Float[Array, "M B D"]]:
        """Mean and deviation of the change that each member expects in its own states."""
        inputs = jnp.concatenate([self.states.shrink(states), self.actions.shrink(actions)], axis=-1)
        mean, log_variance = mean_and_log_variance(self.networks, inputs)
        return self.changes.restore(mean), jnp.exp(log_variance / 2) * self.changes.deviation

    def reward(
        self, states: Float[Array, "M B D"], actions: Float[Array, "M B A"], after: Float[Array, "M B D"]
    ) -> Float[Array, "M B"]:
        """Expected reward of each transition, by each member."""
        transition = self._transition(states, actions, after)
        ordinary = self._ordinary(transition)
        if self.networks.jump is None or self.jumps is None:
            return ordinary
        log_odds, amount = jnp.split(self.networks.jump(transition), 2, axis=-1)
        exceptional = self.jumps.restore(amount)[..., 0]
        return ordinary + jax.nn.sigmoid(log_odds[..., 0]) * (exceptional - ordinary)

    def reward_going_on(
        self, states: Float[Array, "M B D"], actions: Float[Array, "M B A"], after: Float[Array, "M B D"]
    ) -> Float[Array, "M B"]:
        """The same of transitions that are known not to end the task.

        Where only an end is paid exceptionally, these are not, however near the end they come: a few per cent of a
        goal's reward, expected a step too early, would be a gift, as the goal is paid in full afterwards.
        """
        if self.jumps_end:
            return self._ordinary(self._transition(states, actions, after))
        return self.reward(states, actions, after)

    def termination(
        self, states: Float[Array, "M B D"], actions: Float[Array, "M B A"], after: Float[Array, "M B D"]
    ) -> Float[Array, "M B"]:
        """Probability that each transition ends the task; 0 where the log has no terminations to learn from."""
        if self.networks.termination is None:
            return jnp.zeros(states.shape[:-1])
        return jax.nn.sigmoid(self.networks.termination(self._transition(states, actions, after)))[..., 0]

    def encode_actions(self, actions: Actions) -> Float[Array, "B A"]:
        """Actions as the networks take them: numbers as they are, discrete ones one-hot."""
        return jnp.asarray(one_hot(actions, self.action_count), dtype=jnp.float32)

    def _ordinary(self, transition: Float[Array, "M B inward"]) -> Float[Array, "M B"]:
        raw = self.networks.reward(transition)
        return self.rewards.restore(jax.nn.sigmoid(raw) if self.binary_reward else raw)[..., 0]

    def _transition(
        self, states: Float[Array, "M B D"], actions: Float[Array, "M B A"], after: Float[Array, "M B D"]
    ) -> Float[Array, "M B inward"]:
        parts = [self.states.shrink(states), self.actions.shrink(actions), self.states.shrink(after)]
        return jnp.concatenate(parts, axis=-1)


def states_along(
    dynamics: Predictor,
    source: Float[Array, "B D"],
    actions: Float[Array, "B K A"],
    length: Int[Array, "B"] | None = None,
) -> Float[Array, "M B K D"]:
    """The states that action sequences lead through, each member going its own way by its mean.

    Where a sequence is only `length` actions long, the states stay where it ends: sequences of different lengths are
    then one batch of one compiled program.
    """
    members = dynamics.member_count
    steps = jnp.arange(actions.shape[1])
    acting = jnp.ones((len(steps), len(source)), dtype=bool) if length is None else steps[:, None] < length

    def step(here: Float[Array, "M B D"], now: tuple[Array, Array]) -> tuple[Array, Array]:
        action, goes_on = now
        change = dynamics.change(here, jnp.broadcast_to(action, (members, *action.shape)))[0]
        there = jnp.where(goes_on[:, None], here + change, here)
        return there, there

    start = jnp.broadcast_to(source, (members, *source.shape))
    _, visited = jax.lax.scan(step, start, (jnp.moveaxis(actions, 1, 0), acting))
    return jnp.moveaxis(visited, 0, 2)


def unroll(
    dynamics: Predictor,
    source: Float[Array, "B D"],
    actions: Float[Array, "B K A"],
    length: Int[Array, "B"] | None = None,
) -> tuple[Float[Array, "M B K D"], Float[Array, "M B K"]]:
    """The same states, and what each member expects to earn on the way; beyond a length rewards mean nothing."""
    visited = states_along(dynamics, source, actions, length)
    members, count, longest, width = visited.shape
    start = jnp.broadcast_to(source[:, None], (members, count, 1, width))
    before = jnp.concatenate([start, visited[:, :, :-1]], axis=2)
    acted = jnp.broadcast_to(actions, (members, *actions.shape))
    rows = (part.reshape(members, count * longest, -1) for part in (before, acted, visited))
    return visited, dynamics.reward(*rows).reshape(members, count, longest)


def one_hot(
    actions: Float[np.ndarray, "*rows A"] | Int[np.ndarray, "*rows"], action_count: int | None
) -> Float[np.ndarray, "*rows A"]:
    """Discrete actions as one-hot rows; others as they are."""
    if action_count is None:
        return actions
    return np.eye(action_count, dtype=np.float32)[actions]


def new_networks(
    config: DynamicsConfig, *, state_width: int, action_width: int, ends: bool, key: Array, jumps: bool = False
) -> Networks:
    """Untrained networks, each member with weights of its own; those of termination and jump only where asked for."""
    change, reward, termination = jax.random.split(key, 3)
    jump = jax.random.fold_in(key, 3)
    both, transition = state_width + action_width, 2 * state_width + action_width
    member = config.members
    return Networks(
        change=new_perceptron(member, (both, *config.hidden, 2 * state_width), change),
        linear=jnp.zeros((member, both, state_width)) if config.linear_part else None,
        greatest_log_variance=jnp.full((member, 1, state_width), 0.5),
        least_log_variance=jnp.full((member, 1, state_width), -10.0),
        reward=new_perceptron(member, (transition, *config.reward_hidden, 1), reward),
        termination=new_perceptron(member, (transition, *config.reward_hidden, 1), termination) if ends else None,
        jump=new_perceptron(member, (transition, *config.reward_hidden, 2), jump) if jumps else None,
    )


def new_perceptron(members: int, sizes: tuple[int, ...], key: Array) -> Perceptron:
    """Untrained networks with layers of these sizes, each member with weights of its own."""
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = list(pairwise(sizes))
    weights = [
        jax.random.truncated_normal(one, -2.0, 2.0, (members, inward, outward)) / math.sqrt(inward)
        for one, (inward, outward) in zip(keys, shapes, strict=True)
    ]
    return Perceptron(tuple(weights), tuple(jnp.zeros((members, 1, outward)) for _, outward in shapes))


def mean_and_log_variance(
    networks: Networks, inputs: Float[Array, "M B inward"]
) -> tuple[Float[Array, "M B D"], Float[Array, "M B D"]]:
    """The log-variance is bent softly between two learned bounds, so that it can run away in neither direction."""
    mean, log_variance = jnp.split(networks.change(inputs), 2, axis=-1)
    if networks.linear is not None:
        mean = mean + inputs @ networks.linear
    greatest, least = networks.greatest_log_variance, networks.least_log_variance
    log_variance = greatest - jax.nn.softplus(greatest - log_variance)
    return mean, least + jax.nn.softplus(log_variance - least)
