"""Improving the clone of the graph's policy in the model: variations of its actions that return more are cloned.

A turn:

    roll out        the policy from starts, from states that the graph's policy visits, and from where variations lead
    fit the critic  to what these rollouts return
    vary            the actions in visited states; score each variation by its rewards and by the critic at its end
    clone           the first actions of the better ones, the policy's own where none is better, and, with less weight,
                    those of the clone of the graph's policy

After every turn the policy is rolled out from the same starts, and the best policy is kept. All this happens in the
model alone. `simulation` says what is assumed where the model cannot be trusted.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from bats.arrays import Progress, no_progress
from bats.config import ImprovementConfig
from bats.graph.rollouts import reachable
from bats.graph.solve import Solution
from bats.improvement.critic import FURTHER_UPDATES, UPDATES, Critic, critic_of_graph, fitted
from bats.improvement.regression import Rows, regress
from bats.improvement.simulation import World, roll_out, shared_out
from bats.improvement.support_cost import SupportCost
from bats.improvement.variations import better_targets, varied_ends
from bats.model.ensemble import Dynamics
from bats.networks.mlp import MLP
from bats.networks.training import Problem, Schedule
from bats.policy.model_actor import ModelActor
from bats.policy.policy import Policy
from bats.storage.json_records import to_plain
from bats.streams import Stream, generator

EVALUATED = 350
"""rollouts by which policies are compared"""
ROLLOUTS, STEPS = 350, 300
"""rollouts of a turn from starts, and their longest length; as many begin in states that the graph's policy visits, and
twice as many where variations lead"""
CRITIC_ROWS = 100_000
"""visited states that the critic is fitted to"""
PARTS, PART = 20, 250
"""states whose actions are varied in a turn, in parts that need little memory"""
MIN_MARGIN, ERROR_QUANTILE = 0.5, 0.5
"""a gain counts if it exceeds so many steps, and this quantile of the critic's errors"""
POLICY_UPDATES, LEARNING_RATE, WARM_UP = 300, 3e-4, 0.05
"""of the policy in a turn"""
PATIENCE = 3
"""turns in a row without a better policy after which there is no further one"""
TURN_PARTS = 4
"""reports of progress in a turn"""


def improve(
    policy: Policy,
    solution: Solution,
    dynamics: Dynamics,
    rewards: Float[np.ndarray, "N"],
    config: ImprovementConfig,
    *,
    step_value: float,
    seed: int,
    progress: Progress = no_progress,
) -> Policy:
    """The best policy of all turns in the model, perhaps the given one.

    `rewards` are those of the log, and `step_value` is the reward that a step of delay costs.
    """
    assert policy.support is not None  # every clone of a fit has one
    assert not policy.squashed  # targets are means of clipped Gaussians
    mdp, members, rng = solution.mdp, dynamics.member_count, generator(seed, Stream.IMPROVEMENT)
    visited = reachable(mdp, solution.policy, mdp.starts)
    support_cost = SupportCost.of(policy.support, mdp.states[visited], step_value=step_value, rng=rng)
    world = World.of(dynamics, support_cost, solution, rewards)
    # policies are compared by this critic in all turns; the one that is asked about variations changes
    first_critic = critic = critic_of_graph(
        solution,
        rng.choice(visited, CRITIC_ROWS),
        (float(world.worst), max(float(rewards.max()) / (1 - mdp.gamma), float(solution.value.max()))),
        step_value=step_value,
        seed=_seed(rng),
    )

    def from_starts(count: int) -> Float[Array, "M B D"]:
        return shared_out(mdp.states[rng.choice(mdp.starts, count, p=mdp.start_weights)], members)

    def value(actor: ModelActor, starts: Float[Array, "M B D"]) -> float:
        return float(roll_out(world, actor, first_critic, starts, STEPS).returns[0].mean())

    def report(turn: int, part: int) -> None:
        progress("improving the policy in the model", TURN_PARTS * turn + part, TURN_PARTS * config.turns)

    evaluated, clone = from_starts(EVALUATED), ModelActor.of(policy)
    best, best_value, failed = clone, value(clone, evaluated), 0
    for turn in range(config.turns):
        report(turn, 0)
        on_graph = shared_out(mdp.states[rng.choice(visited, ROLLOUTS)], members)
        first = jnp.concatenate([from_starts(ROLLOUTS), on_graph], axis=1)
        states, returns = explored(world, best, critic, first, rng)
        report(turn, 1)
        critic, margin = refitted(critic, states, returns, UPDATES if turn == 0 else FURTHER_UPDATES, rng)
        report(turn, 2)
        varied = np.split(states[rng.integers(len(states), size=PARTS * PART)], PARTS)
        parts, keys = jnp.stack([shared_out(part, members) for part in varied]), jax.random.split(_key(rng), PARTS)
        units = (jnp.asarray(number, jnp.float32) for number in (max(margin, MIN_MARGIN * step_value), step_value))
        targets = better_targets(world, best, critic, parts, keys, *units)
        targets = between(clone, parts, targets, 1 / (1 + config.anchor))
        # a turn that has not made the policy better went too far for what the critic knows: go half as far
        actor = learned(best, parts, between(best, parts, targets, 0.5**failed), seed=_seed(rng))
        report(turn, 3)
        if (new_value := value(actor, evaluated)) > best_value:
            best, best_value, failed = actor, new_value, 0
        else:
            failed += 1
        if failed == PATIENCE:
            break
    report(config.turns, 0)
    # the starts that have chosen the policy would show it in too good a light
    fresh = from_starts(EVALUATED)
    values = {"return_less_costs": value(clone, fresh), "improved_return_less_costs": value(best, fresh)}
    weights, biases = (tuple(map(np.asarray, part)) for part in (best.network.weights, best.network.biases))
    card = {**policy.card, "improvement": to_plain(config), **values}
    return replace(policy, weights=weights, biases=biases, card=card)


def explored(
    world: World,
    actor: ModelActor,
    critic: Critic,
    first: Float[Array, "M B D"],
    rng: np.random.Generator,
) -> tuple[Float[np.ndarray, "n D"], Float[np.ndarray, "n"]]:
    """The states of rollouts, and what the policy returns from there.

    The critic will be asked where variations lead, so rollouts begin there too.
    """
    states, returns = roll_out(world, actor, critic, first, STEPS).rows()
    chosen = states[rng.integers(len(states), size=2 * ROLLOUTS)]
    ends = varied_ends(world, actor, shared_out(chosen, world.dynamics.member_count), _key(rng))
    further = roll_out(world, actor, critic, ends, STEPS).rows()
    return np.concatenate([states, further[0]]), np.concatenate([returns, further[1]])


def refitted(
    critic: Critic,
    states: Float[np.ndarray, "n D"],
    returns: Float[np.ndarray, "n"],
    updates: int,
    rng: np.random.Generator,
) -> tuple[Critic, float]:
    """The critic of the policy with these returns, and a quantile of its errors on other rows of them."""
    rows, others = rng.integers(len(states), size=(2, CRITIC_ROWS))
    critic = fitted(critic, states[rows], returns[rows], updates, seed=_seed(rng))
    errors = np.abs(np.asarray(critic(jnp.asarray(states[others]))) - returns[others])
    return critic, float(np.quantile(errors, ERROR_QUANTILE))


def between(
    actor: ModelActor, states: Float[Array, "C M B D"], targets: Float[Array, "C M B outputs"], share: float
) -> Float[Array, "C M B outputs"]:
    """Targets between what a policy does and others, so much of the way."""
    own = actor.outputs(states)
    own = own if actor.action_count is None else jax.nn.softmax(own)
    return own + share * (targets - own)


def learned(
    actor: ModelActor, states: Float[Array, "C M B D"], targets: Float[Array, "C M B outputs"], *, seed: int
) -> ModelActor:
    """The policy after some updates towards the targets."""
    loss = _squared_error if actor.action_count is None else _cross_entropy
    problem = Problem(loss, Schedule(LEARNING_RATE, POLICY_UPDATES, WARM_UP), None, evaluate_every=POLICY_UPDATES)
    inputs, outputs = (
        np.asarray(part).reshape(-1, part.shape[-1]) for part in ((states - actor.mean) / actor.std, targets)
    )
    return replace(actor, network=regress(problem, actor.network, inputs, outputs, seed=seed))


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def _key(rng: np.random.Generator) -> PRNGKeyArray:
    return jax.random.key(_seed(rng))


def _squared_error(network: MLP, rows: Rows, batch: Array, _: None) -> Float[Array, ""]:
    return ((network(rows.inputs[batch]) - rows.targets[batch]) ** 2).sum(axis=-1).mean()


def _cross_entropy(network: MLP, rows: Rows, batch: Array, _: None) -> Float[Array, ""]:
    return optax.softmax_cross_entropy(network(rows.inputs[batch]), rows.targets[batch]).mean()
