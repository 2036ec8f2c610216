"""Improving the clone of the graph's policy in the model: variations of its actions that return more are cloned.

A turn:

    roll out        the policy from starts, from states that the graph's policy visits, and from where variations lead
    fit the critic  to what these rollouts return
    vary            the actions in visited states; score each variation by its rewards and by the critic at its end
    clone           the first actions of the better ones, the policy's own where none is better, and, with less weight,
                    those of the clone of the graph's policy

After every turn the policy is rolled out from the same starts, and the best policy is kept. Nothing but the model
decides; where it is not to be believed, `simulation` says what is assumed.
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
"""turns without a better policy after which there is no further one"""


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
    mdp, members, rng = solution.mdp, dynamics.member_count, generator(seed, Stream.IMPROVEMENT)
    visited = reachable(mdp, solution.policy, mdp.starts)
    assert policy.support is not None  # every clone of a fit has one
    support_cost = SupportCost.of(policy.support, mdp.states[visited], step_value=step_value, rng=rng)
    world = World.of(dynamics, support_cost, solution, rewards)
    critic = of_graph = critic_of_graph(solution, visited, seed=seed)

    def from_starts(count: int) -> Float[Array, "M B D"]:
        return shared_out(mdp.states[rng.choice(mdp.starts, count, p=mdp.start_weights)], members)

    evaluated = from_starts(EVALUATED)
    clone = actor = best = ModelActor.of(policy)
    values: list[float] = []
    for turn in range(config.turns + 1):
        progress("improving the policy in the model", turn, config.turns)
        # policies are compared by the same critic, that of the graph; the other one changes from turn to turn
        values.append(float(roll_out(world, actor, of_graph, evaluated, STEPS).returns[0].mean()))
        best = actor if values[-1] >= max(values) else best
        failed = turn - int(np.argmax(values))
        if turn == config.turns or failed >= PATIENCE:
            break
        on_graph = shared_out(mdp.states[rng.choice(visited, ROLLOUTS)], members)
        first = jnp.concatenate([from_starts(ROLLOUTS), on_graph], axis=1)
        explore_key, vary_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), turn))
        states, returns = explored(world, best, critic, first, explore_key, rng)
        rows = rng.integers(len(states), size=CRITIC_ROWS)
        critic = fitted(critic, states[rows], returns[rows], FURTHER_UPDATES if turn else UPDATES, seed=turn)
        errors = np.abs(np.asarray(critic(jnp.asarray(states[rows]))) - returns[rows])
        margin = max(MIN_MARGIN * step_value, float(np.quantile(errors, ERROR_QUANTILE)))

        varied = np.split(states[rng.integers(len(states), size=PARTS * PART)], PARTS)
        parts, keys = jnp.stack([shared_out(part, members) for part in varied]), jax.random.split(vary_key, PARTS)
        units = (jnp.asarray(number, jnp.float32) for number in (margin, step_value))
        targets = better_targets(world, best, critic, parts, keys, *units)
        targets = between(clone, parts, targets, 1 / (1 + config.anchor))
        # a turn that has not made the policy better went too far for what the critic knows: go half as far
        actor = learned(best, parts, between(best, parts, targets, 0.5**failed), seed=turn)
    progress("improving the policy in the model", config.turns, config.turns)
    weights, biases = (tuple(map(np.asarray, part)) for part in (best.network.weights, best.network.biases))
    card = {"improvement": to_plain(config), "value_in_model": values[0], "improved_value_in_model": max(values)}
    return replace(policy, weights=weights, biases=biases, card={**policy.card, **card})


def explored(
    world: World,
    actor: ModelActor,
    critic: Critic,
    first: Float[Array, "M B D"],
    key: PRNGKeyArray,
    rng: np.random.Generator,
) -> tuple[Float[np.ndarray, "n D"], Float[np.ndarray, "n"]]:
    """The states of rollouts, and what the policy returns from there.

    The critic will be asked where variations lead, so rollouts begin there too.
    """
    states, returns = roll_out(world, actor, critic, first, STEPS).rows()
    chosen = states[rng.integers(len(states), size=2 * ROLLOUTS)]
    ends = varied_ends(world, actor, shared_out(chosen, world.dynamics.member_count), key)
    further = roll_out(world, actor, critic, ends, STEPS).rows()
    return np.concatenate([states, further[0]]), np.concatenate([returns, further[1]])


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


def _squared_error(network: MLP, rows: Rows, batch: Array, _: None) -> Float[Array, ""]:
    return ((network(rows.inputs[batch]) - rows.targets[batch]) ** 2).sum(axis=-1).mean()


def _cross_entropy(network: MLP, rows: Rows, batch: Array, _: None) -> Float[Array, ""]:
    return optax.softmax_cross_entropy(network(rows.inputs[batch]), rows.targets[batch]).mean()
