"""Variations of a policy's actions, and what the policy should do where some of them return more.

    continuous actions      smooth noise is added to the policy's actions: each noise once, and once subtracted
    discrete actions        each action is held for a few steps, and then the policy goes on

All variations of one start have the same member of the ensemble, so that a gain is due to the actions. Only their first
actions are learned: later ones are taken in states to which the variation itself has led.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from bats.improvement.critic import Critic
from bats.improvement.simulation import World
from bats.policy.cloning import AT_BOUND
from bats.policy.model_actor import ModelActor

LOOKAHEAD = 16
"""steps of a varied rollout; the critic says what comes after"""
PAIRS = 4
"""pairs of variations of a start with the same noise"""
NOISE = (0.05, 0.5)
"""smallest and largest std of the noise, in halves of the range of actions"""
CORRELATION = 0.8
"""of the noise of one step with that of the next: a smooth change of actions shows its effect sooner"""
TRIED, HOLD = 16, 8
"""most discrete actions that are tried in a state, and most steps for which one is held"""
TEMPERATURE, MAX_EXCESS = 1.0, 20.0
"""in steps: a gain that exceeds the margin weighs exp(excess / temperature) - 1, and no more than the largest excess"""


@eqx.filter_jit
def better_targets(
    world: World,
    actor: ModelActor,
    critic: Critic,
    starts: Float[Array, "C M B D"],
    keys: Key[Array, "C"],
    margin: Float[Array, ""],
    step_value: Float[Array, ""],
) -> Float[Array, "C M B outputs"]:
    """What the policy should do in each start, part by part: what it does, where no variation gains more than a margin.

    Of continuous actions, mean and std as the network gives them; of discrete ones, probabilities.
    """
    better = _better_means if actor.action_count is None else _better_probabilities

    def part(inputs: tuple[Array, Array]) -> Array:
        return better(world, actor, critic, *inputs, margin, step_value)

    return jax.lax.map(part, (starts, keys))


@eqx.filter_jit
def varied_ends(
    world: World, actor: ModelActor, starts: Float[Array, "M B D"], key: PRNGKeyArray
) -> Float[Array, "M B D"]:
    """Where one variation of each start leads to: where the critic will be asked."""
    members, count, _ = starts.shape
    if actor.action_count is None:
        noise = smooth_noise(key, (LOOKAHEAD, members, count, len(actor.low)))
        return scores(world, actor, None, starts, noise)[2]
    action_key, hold_key = jax.random.split(key)
    action = jax.random.randint(action_key, (members, count), 0, actor.action_count)
    hold = jax.random.randint(hold_key, (members, count), 1, HOLD + 1)
    held = jax.nn.one_hot(action, actor.action_count), hold
    return scores(world, actor, None, starts, jnp.zeros((LOOKAHEAD, members, count, 1)), held)[2]


def _better_means(
    world: World,
    actor: ModelActor,
    critic: Critic,
    starts: Float[Array, "M B D"],
    key: PRNGKeyArray,
    margin: Float[Array, ""],
    step_value: Float[Array, ""],
) -> Float[Array, "M B outputs"]:
    members, count, _ = starts.shape
    width, variations = len(actor.low), 2 * PAIRS + 1
    noise = smooth_noise(key, (LOOKAHEAD, members, PAIRS * count, width))
    none = jnp.zeros((LOOKAHEAD, members, count, width))
    tiled = jnp.tile(starts, (1, variations, 1))
    score, action, _ = scores(world, actor, critic, tiled, jnp.concatenate([none, noise, -noise], axis=2))
    weight = importance(score.reshape(members, variations, count), margin, step_value)

    mean, raw_std = jnp.split(actor.outputs(starts), 2, axis=-1)
    taken = (action - actor.centre) / jnp.where(actor.half > 0, actor.half, 1.0)
    taken = taken.reshape(members, variations, count, width)
    # where the policy wants an action at its bound or beyond, and the variation takes it, nothing is to be learned
    own = jnp.broadcast_to(mean[:, None], taken.shape)
    same = (jnp.abs(taken) >= 1 - AT_BOUND) & (jnp.sign(taken) * own >= 1)
    wanted = jnp.where(same, own, taken).at[:, 0].set(mean)
    return jnp.concatenate([(weight[..., None] * wanted).sum(axis=1), raw_std], axis=-1)


def _better_probabilities(
    world: World,
    actor: ModelActor,
    critic: Critic,
    starts: Float[Array, "M B D"],
    key: PRNGKeyArray,
    margin: Float[Array, ""],
    step_value: Float[Array, ""],
) -> Float[Array, "M B actions"]:
    members, count, _ = starts.shape
    assert actor.action_count is not None
    tried_key, hold_key = jax.random.split(key)
    tried = jax.random.permutation(tried_key, actor.action_count)[:TRIED]
    variations = len(tried) + 1
    # the policy as it is, held for no step, and then the tried actions
    action = jnp.tile(jnp.repeat(jnp.concatenate([tried[:1], tried]), count), (members, 1))
    hold = jnp.tile(jax.random.randint(hold_key, (members, count), 1, HOLD + 1), (1, variations))
    held = jax.nn.one_hot(action, actor.action_count), hold.at[:, :count].set(0)
    tiled = jnp.tile(starts, (1, variations, 1))
    unvaried = jnp.zeros((LOOKAHEAD, members, tiled.shape[1], 1))
    score, _, _ = scores(world, actor, critic, tiled, unvaried, held)
    weight = importance(score.reshape(members, variations, count), margin, step_value)
    own = jax.nn.softmax(actor.outputs(starts))
    better = jnp.zeros_like(own).at[..., tried].set(jnp.moveaxis(weight[:, 1:], 1, 2))
    return weight[:, 0, :, None] * own + better


def importance(
    score: Float[Array, "M V B"], margin: Float[Array, ""], step_value: Float[Array, ""]
) -> Float[Array, "M V B"]:
    """The weights of the variations of each start, the first of which is the policy itself; they sum to 1."""
    excess = jnp.clip((score - score[:, :1] - margin) / step_value, 0.0, MAX_EXCESS)
    weight = jnp.expm1(excess / TEMPERATURE).at[:, 0].set(1.0)
    return weight / weight.sum(axis=1, keepdims=True)


def smooth_noise(key: PRNGKeyArray, shape: tuple[int, int, int, int]) -> Float[Array, "H M B A"]:
    """Noise of which neighbouring steps are correlated; its std differs from rollout to rollout."""
    std_key, noise_key = jax.random.split(key)
    low, high = (jnp.log(end) for end in NOISE)
    std = jnp.exp(jax.random.uniform(std_key, (*shape[1:3], 1), minval=low, maxval=high))
    drawn = jax.random.normal(noise_key, shape)

    def correlate(before: Array, fresh: Array) -> tuple[Array, Array]:
        now = CORRELATION * before + jnp.sqrt(1 - CORRELATION**2) * fresh
        return now, now

    _, later = jax.lax.scan(correlate, drawn[0], drawn[1:])
    return std * jnp.concatenate([drawn[:1], later])


def scores(
    world: World,
    actor: ModelActor,
    critic: Critic | None,
    starts: Float[Array, "M B D"],
    noise: Float[Array, "H M B _"],
    held: tuple[Float[Array, "M B A"], Int[Array, "M B"]] | None = None,
) -> tuple[Float[Array, "M B"], Float[Array, "M B A"], Float[Array, "M B D"]]:
    """Discounted returns of varied rollouts with what the critic adds, their first actions and their last states.

    Noise is added to every action; of `held`, an action is taken in the first so many steps instead of the policy's.
    """

    def step(carried: tuple[Array, Array, Array], now: tuple[Array, Array]) -> tuple[tuple[Array, Array, Array], Array]:
        states, weight, value = carried
        number, change = now
        action = actor.act(states, change)
        if held is not None:
            action = jnp.where((number < held[1])[..., None], held[0], action)
        after, reward, goes_on = world.step(number + 1, states, action)
        value = value + weight * reward
        weight = world.gamma * jnp.where(goes_on, weight, 0.0)
        return (jnp.where((weight > 0)[..., None], after, states), weight, value), action

    shape = starts.shape[:2]
    first = (starts, jnp.ones(shape), jnp.zeros(shape))
    (last, weight, value), actions = jax.lax.scan(step, first, (jnp.arange(len(noise)), noise))
    return value if critic is None else value + weight * critic(last), actions[0], last
