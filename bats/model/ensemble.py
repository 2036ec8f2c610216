"""The learned model: an ensemble of probabilistic networks that predict what an action does, trained all at once.

Every member takes a standardised state and action and predicts mean and log-variance of the standardised state delta.
Networks of their own predict the reward of (state, action, next state) and, where the log has terminations, those:

    delta           Gaussian, negative log-likelihood                       [the paper's]
    reward          depends on the rewards in the log
      two values            cross-entropy: which of them
      any values            squared error
      any values, and       squared error of the ordinary rewards on ordinary rows; a further network, `rare`, has
      rarely far larger     cross-entropy for whether a row is rare and squared error of the amount where it is; the
      or smaller ones       expected reward is the mixture of both
    termination     cross-entropy

The reward has its own network because a joint likelihood gives up on rare rewards: the variance of a reward that is
almost always 0 is small, and predicting 0 everywhere is nearly as likely as predicting it right. Rare amounts are kept
apart for the same reason: five rows of reward 100 are noise in the squared error of a small dense cost.

All members are one program: weights carry a leading member axis M.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bats.arrays import in_batches
from bats.config import ModelConfig
from bats.networks.mlp import MLP, new_mlp

# JAX would reserve three quarters of a GPU's memory at first use. A value that the user has set stays.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

MemberStates = Float[Array, "M B D"]
MemberActions = Float[Array, "M B A"]
MemberValues = Float[Array, "M B"]
Sources = Float[Array, "B D"]
ActionSequences = Float[Array, "B K A"]
Lengths = Int[Array, "B"]
"""numbers of actions; entries of a sequence beyond its length are ignored"""

UNROLL_BATCH = 1024
TRANSITION_BATCH = 4096
REWARD_HIDDEN = (64, 64)
"""units of the hidden layers of the reward, rare-reward and termination networks"""


class Networks(eqx.Module):
    """The trained parameters; every array has the member axis first."""

    delta: MLP
    linear: Float[Array, "M inputs D"] | None
    """linear map added to the mean of the delta"""
    max_log_variance: Float[Array, "M 1 D"]
    min_log_variance: Float[Array, "M 1 D"]
    reward: MLP
    termination: MLP | None
    rare: MLP | None
    """log-odds that a reward is rare, and its amount if it is"""


class Standardizer(eqx.Module):
    """Maps numbers to zero mean and unit std, as measured on the training rows."""

    mean: Float[Array, "n"]
    std: Float[Array, "n"]

    def standardize(self, values: Float[Array, "... n"]) -> Float[Array, "... n"]:
        return (values - self.mean) / self.std

    def restore(self, values: Float[Array, "... n"]) -> Float[Array, "... n"]:
        return values * self.std + self.mean


@dataclass(frozen=True)
class Kind:
    """What the networks of a log must predict."""

    state_width: int
    action_width: int
    """discrete actions enter one-hot"""
    action_count: int | None
    """number of discrete actions"""
    terminations: bool
    binary_reward: bool
    """there are two rewards, `rewards.mean` and `rewards.mean + rewards.std`"""
    rare_rewards: bool
    rare_rewards_terminate: bool
    """every rare reward of the log came with a termination"""


class Dynamics(eqx.Module):
    """A trained ensemble; M is the number of elites."""

    networks: Networks
    states: Standardizer
    actions: Standardizer
    deltas: Standardizer
    rewards: Standardizer
    rare_rewards: Standardizer
    kind: Kind = eqx.field(static=True)

    @property
    def member_count(self) -> int:
        return self.networks.delta.weights[0].shape[0]

    def per_member(self, array: Float[Array, "*rows"]) -> Float[Array, "M *rows"]:
        """The same array for every member."""
        return jnp.broadcast_to(array, (self.member_count, *array.shape))

    def delta(self, states: MemberStates, actions: MemberActions) -> tuple[MemberStates, MemberStates]:
        """Mean and std of the state delta that each member predicts."""
        mean, log_variance = mean_and_log_variance(self.networks, self._inputs(states, actions))
        return self.deltas.restore(mean), jnp.exp(log_variance / 2) * self.deltas.std

    def reward(self, states: MemberStates, actions: MemberActions, next_states: MemberStates) -> MemberValues:
        """Expected reward of each transition, by each member."""
        transition = self._inputs(states, actions, next_states)
        ordinary = self._ordinary_reward(transition)
        if self.networks.rare is None:
            return ordinary
        log_odds, amount = jnp.split(self.networks.rare(transition), 2, axis=-1)
        rare = self.rare_rewards.restore(amount)[..., 0]
        return ordinary + jax.nn.sigmoid(log_odds[..., 0]) * (rare - ordinary)

    def continuing_reward(
        self, states: MemberStates, actions: MemberActions, next_states: MemberStates
    ) -> MemberValues:
        """The same for transitions that are known not to terminate.

        Where only terminations have rare rewards, these steps have none, however close to the end they come: a few
        per cent of a goal's reward, predicted one step early, would be counted on top of the goal's full reward.
        """
        if self.kind.rare_rewards_terminate:
            return self._ordinary_reward(self._inputs(states, actions, next_states))
        return self.reward(states, actions, next_states)

    def termination(self, states: MemberStates, actions: MemberActions, next_states: MemberStates) -> MemberValues:
        """Probability that each transition terminates; 0 where the log has no terminations to learn from."""
        if self.networks.termination is None:
            return jnp.zeros(states.shape[:-1])
        return jax.nn.sigmoid(self.networks.termination(self._inputs(states, actions, next_states)))[..., 0]

    def _ordinary_reward(self, transition: Float[Array, "M B inputs"]) -> Float[Array, "M B"]:
        raw = self.networks.reward(transition)
        return self.rewards.restore(jax.nn.sigmoid(raw) if self.kind.binary_reward else raw)[..., 0]

    def _inputs(
        self, states: MemberStates, actions: MemberActions, *next_states: MemberStates
    ) -> Float[Array, "M B _"]:
        """What the networks take; the delta network takes no next states."""
        parts = (self.states.standardize(states), self.actions.standardize(actions))
        return jnp.concatenate([*parts, *map(self.states.standardize, next_states)], axis=-1)


def unroll_states(
    dynamics: Dynamics, source: Sources, actions: ActionSequences, length: Lengths
) -> Float[Array, "M B K D"]:
    """The states that action sequences lead through, each member following its own mean prediction.

    Beyond a sequence's `length` its state stays where it ended, so that sequences of different lengths are one batch
    of one compiled program.
    """
    acting = jnp.arange(actions.shape[1])[:, None] < length

    def step(states: Float[Array, "M B D"], inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        action, acts = inputs
        delta = dynamics.delta(states, dynamics.per_member(action))[0]
        states = jnp.where(acts[:, None], states + delta, states)
        return states, states

    _, visited = jax.lax.scan(step, dynamics.per_member(source), (jnp.moveaxis(actions, 1, 0), acting))
    return jnp.moveaxis(visited, 0, 2)


@eqx.filter_jit
def unroll(
    dynamics: Dynamics, source: Sources, actions: ActionSequences, length: Lengths, target: Sources | None = None
) -> tuple[Float[Array, "M B K D"], Float[Array, "M B K"]]:
    """The same states, and the reward of each step by each member; rewards beyond a length are meaningless.

    With a target, the last step is rewarded for arriving there.
    """
    visited = next_states = unroll_states(dynamics, source, actions, length)
    if target is not None:
        last = jnp.arange(actions.shape[1]) == length[:, None] - 1
        next_states = jnp.where(last[:, :, None], target[:, None], visited)
    states = jnp.concatenate([dynamics.per_member(source[:, None]), visited[:, :, :-1]], axis=2)
    transition = (states, dynamics.per_member(actions), next_states)
    rewards = dynamics.reward(*(part.reshape(len(visited), -1, part.shape[-1]) for part in transition))
    return visited, rewards.reshape(visited.shape[:3])


def unroll_batches(
    dynamics: Dynamics,
    source: Float[np.ndarray, "C D"],
    actions: Float[np.ndarray, "C K A"],
    length: Int[np.ndarray, "C"],
) -> tuple[Float[np.ndarray, "M C K D"], Float[np.ndarray, "M C K"]]:
    """The same for any number of sequences, from and to NumPy."""
    arrays = (source.astype(np.float32), actions.astype(np.float32), length.astype(np.int32))
    visited, rewards = in_batches(partial(unroll, dynamics), UNROLL_BATCH, *arrays, axis=1)
    return visited, rewards


def predict_transitions(
    dynamics: Dynamics,
    states: Float[np.ndarray, "n D"],
    actions: Float[np.ndarray, "n A"],
    next_states: Float[np.ndarray, "n D"],
) -> list[Float[np.ndarray, "M n"]]:
    """The expected reward, the same if it continues, and the probability of termination, from and to NumPy."""
    arrays = (part.astype(np.float32) for part in (states, actions, next_states))
    return in_batches(partial(_predict_transitions, dynamics), TRANSITION_BATCH, *arrays, axis=1)


@eqx.filter_jit
def _predict_transitions(dynamics: Dynamics, *transition: Float[Array, "B _"]) -> tuple[MemberValues, ...]:
    parts = [dynamics.per_member(part) for part in transition]
    return dynamics.reward(*parts), dynamics.continuing_reward(*parts), dynamics.termination(*parts)


def one_hot(
    actions: Float[np.ndarray, "*rows A"] | Int[np.ndarray, "*rows"], action_count: int | None
) -> Float[np.ndarray, "*rows A"]:
    """Discrete actions as one-hot rows; continuous ones as they are."""
    return actions if action_count is None else np.eye(action_count, dtype=np.float32)[actions]


def new_dynamics(config: ModelConfig, kind: Kind, key: Array) -> Dynamics:
    """Untrained networks, each member with weights of its own, and nothing standardised."""
    delta_key, reward_key, termination_key = jax.random.split(key, 3)
    members, state_width = config.members, kind.state_width
    inputs = state_width + kind.action_width
    hidden = (inputs + state_width, *REWARD_HIDDEN)
    networks = Networks(
        delta=new_mlp((inputs, *config.hidden, 2 * state_width), delta_key, members=members),
        linear=jnp.zeros((members, inputs, state_width)) if config.linear else None,
        # the bounds start at a std of 0.007 and of 1.3; standardised deltas have a std of 1 where nothing is known
        # with a dtype of their own: weakly typed arrays change their type in training, which compiles it three times
        max_log_variance=jnp.full((members, 1, state_width), 0.5, jnp.float32),
        min_log_variance=jnp.full((members, 1, state_width), -10.0, jnp.float32),
        reward=new_mlp((*hidden, 1), reward_key, members=members),
        termination=new_mlp((*hidden, 1), termination_key, members=members) if kind.terminations else None,
        rare=new_mlp((*hidden, 2), jax.random.fold_in(key, 3), members=members) if kind.rare_rewards else None,
    )
    states, actions, rewards = (
        Standardizer(jnp.zeros(width), jnp.ones(width)) for width in (state_width, kind.action_width, 1)
    )
    return Dynamics(networks, states, actions, states, rewards, rewards, kind)


def mean_and_log_variance(networks: Networks, inputs: Float[Array, "M B inputs"]) -> tuple[MemberStates, MemberStates]:
    """The standardised prediction. Two learned soft bounds keep the log-variance from diverging either way."""
    mean, log_variance = jnp.split(networks.delta(inputs), 2, axis=-1)
    if networks.linear is not None:
        mean = mean + inputs @ networks.linear
    log_variance = networks.max_log_variance - jax.nn.softplus(networks.max_log_variance - log_variance)
    return mean, networks.min_log_variance + jax.nn.softplus(log_variance - networks.min_log_variance)
