"""Improving a policy in worlds with a known optimum."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from bats.config import ImprovementConfig
from bats.data.dataset import Dataset
from bats.graph.mdp import from_dataset
from bats.graph.solve import Solution, policy_iteration
from bats.improvement import improve as improvement
from bats.improvement.critic import critic_of_graph, fitted
from bats.improvement.improve import PATIENCE, between, improve
from bats.improvement.regression import Rows, regress
from bats.networks.mlp import new_mlp
from bats.networks.training import Problem, Schedule
from bats.policy.model_actor import ModelActor
from bats.policy.policy import Policy
from bats.policy.support import Support
from tests.bounds.conveyor import GAMMA, conveyor, moving, positions, staying
from tests.improvement.test_variations import Indifferent
from tests.improvement.worlds import constant_critic
from tests.known_worlds import Ring

STATES = 10


def solved_line() -> tuple[Solution, np.ndarray]:
    """The line's log of points that stay where they are."""
    states = positions()
    log = Dataset.from_arrays(states, np.zeros((len(states), 1)), states[:, 0], next_observations=states)
    return policy_iteration(from_dataset(log, gamma=GAMMA)), log.rewards


@pytest.fixture
def few_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in {"EVALUATED": 60, "ROLLOUTS": 60, "STEPS": 30, "CRITIC_ROWS": 5000, "PARTS": 4}.items():
        monkeypatch.setattr(improvement, name, number)


@pytest.mark.slow
@pytest.mark.usefixtures("few_rollouts")
def test_a_policy_that_stays_learns_to_go_where_the_reward_is() -> None:
    solution, rewards = solved_line()
    clone = staying(positions())
    config = ImprovementConfig(turns=4, anchor=0.0)
    better = improve(clone, solution, conveyor(), rewards, config, step_value=0.1, seed=0)
    assert better.card["improved_return_less_costs"] > better.card["return_less_costs"] + 1.0  # type: ignore[operator]
    state = np.array([[0.1]])
    for _ in range(100):
        state = state + better.predict(state)
    assert 0.8 < state[0, 0] < 2.0
    again = improve(clone, solution, conveyor(), rewards, config, step_value=0.1, seed=0)
    np.testing.assert_array_equal(again.weights[0], better.weights[0])


@pytest.mark.slow
@pytest.mark.usefixtures("few_rollouts")
def test_where_nothing_can_be_gained_the_policy_stays_as_it_is() -> None:
    solution, rewards = solved_line()
    # with such small actions, no variation comes near the end of the box or of the support
    clone = replace(moving(positions(), step=0.5), low=np.array([-0.001]), high=np.array([0.001]))
    world = Indifferent(conveyor().networks)
    same = improve(clone, solution, world, rewards, ImprovementConfig(turns=1), step_value=0.1, seed=0)
    np.testing.assert_array_equal(same.weights[0], clone.weights[0])
    np.testing.assert_array_equal(same.biases[0], clone.biases[0])


@pytest.mark.slow
@pytest.mark.usefixtures("few_rollouts")
def test_a_worse_policy_is_dropped_and_the_next_turn_goes_half_as_far(monkeypatch: pytest.MonkeyPatch) -> None:
    solution, rewards = solved_line()
    clone, moves = staying(positions()), []

    def worse(actor: ModelActor, states: Array, targets: Array, *, seed: int) -> ModelActor:
        moves.append(float(jnp.abs(targets - actor.outputs(states)).mean()))
        return replace(actor, network=replace(actor.network, biases=(jnp.array([-1.0, 0.0]),)))

    monkeypatch.setattr(improvement, "learned", worse)
    kept = improve(clone, solution, conveyor(), rewards, ImprovementConfig(turns=9), step_value=0.1, seed=0)
    np.testing.assert_array_equal(kept.biases[0], clone.biases[0])
    assert kept.card["improved_return_less_costs"] == kept.card["return_less_costs"]
    assert len(moves) == PATIENCE
    assert moves[0] > 1.5 * moves[1] > 1.5 * 1.5 * moves[2]


def ring_log() -> tuple[Dataset, np.ndarray]:
    """Every action in every state of the ring."""
    angle = 0.2 * np.pi * np.arange(STATES)
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    state, action = np.repeat(np.arange(STATES), 2), np.tile([0, 1], STATES)
    after = (state + np.where(action == 1, 1, -1)) % STATES
    reward = (after == 4).astype(float)
    return Dataset.from_arrays(points[state], action, reward, next_observations=points[after]), points


@pytest.mark.slow
@pytest.mark.usefixtures("few_rollouts")
def test_a_policy_that_goes_round_the_ring_learns_to_turn_back(monkeypatch: pytest.MonkeyPatch) -> None:
    log, points = ring_log()
    solution = policy_iteration(from_dataset(log, gamma=GAMMA))
    support = Support(points.astype(np.float32), np.ones(2, np.float32), 0.1)
    round_and_round = Policy(
        weights=(np.zeros((2, 2), np.float32),),
        biases=(np.array([0.0, 0.5], np.float32),),
        mean=np.zeros(2),
        std=np.ones(2),
        low=np.empty(0),
        high=np.empty(0),
        action_count=2,
        support=support,
    )
    monkeypatch.setattr(improvement, "POLICY_UPDATES", 2000)
    world, config = Ring(jnp.zeros((2, 1, 1))), ImprovementConfig(turns=5, anchor=0.0)
    better = improve(round_and_round, solution, world, log.rewards, config, step_value=0.1, seed=0)
    # from 4 there is a way on and back whichever way it goes; from elsewhere one way is shorter, but from 9
    shorter = {0: 1, 1: 1, 2: 1, 3: 1, 5: 0, 6: 0, 7: 0, 8: 0}
    assert {state: int(better.predict(points[state])) for state in shorter} == shorter


@pytest.mark.parametrize("action_count", [None, 2])
def test_targets_lie_between_what_a_policy_does_and_others(action_count: int | None) -> None:
    clone = ModelActor.of(staying(positions())) if action_count is None else None
    if clone is None:
        logits = Policy(
            (np.zeros((1, 2), np.float32),),
            (np.log([0.25, 0.75]).astype(np.float32),),
            np.zeros(1),
            np.ones(1),
            np.empty(0),
            np.empty(0),
            action_count,
        )
        clone = ModelActor.of(logits)
    own = np.array([0.0, 0.0]) if action_count is None else np.array([0.25, 0.75])
    targets = np.broadcast_to([1.0, 0.0], (2, 3, 4, 2))
    between_both = between(clone, jnp.zeros((2, 3, 4, 1)), jnp.asarray(targets), 0.25)
    expected = np.broadcast_to(0.25 * targets[0, 0, 0] + 0.75 * own, targets.shape)
    np.testing.assert_allclose(between_both, expected, rtol=1e-6)


def test_the_critic_learns_a_line() -> None:
    states = positions(1000)
    critic = replace(constant_critic(0.0), network=new_mlp((1, 32, 1), jax.random.key(0)), value_std=jnp.asarray(10.0))
    learned = fitted(critic, states, 20 * states[:, 0] - 3, 1000, seed=0)
    errors = learned(jnp.asarray(states, jnp.float32)) - (20 * states[:, 0] - 3)
    assert np.abs(errors).mean() < 0.5  # of 20


@pytest.mark.slow
def test_the_critic_of_a_graph_knows_the_values_of_the_visited_states() -> None:
    solution, _ = solved_line()
    visited = np.arange(0, 200, 2)
    critic = critic_of_graph(solution, visited, (0.0, 10.0), step_value=0.1, seed=0)
    found = critic(jnp.asarray(solution.mdp.states[visited], jnp.float32))
    np.testing.assert_allclose(found, solution.value[visited], atol=0.3)  # values of 0 to 10


def _error(network: object, rows: Rows, batch: object, _: None) -> object:
    return ((network(rows.inputs[batch]) - rows.targets[batch]) ** 2).mean()  # type: ignore[operator,index]


def test_regression_fits_a_linear_network_to_a_linear_map() -> None:
    rng = np.random.default_rng(0)
    inputs, matrix = rng.normal(size=(500, 3)), np.array([[1.0, 0.0], [0.5, -1.0], [0.0, 2.0]])
    start = new_mlp((3, 2), jax.random.key(1))
    problem = Problem(_error, Schedule(0.05, 500, 0.02), None, evaluate_every=500)  # type: ignore[arg-type]
    network = regress(problem, start, inputs, inputs @ matrix, seed=0)
    np.testing.assert_allclose(network.weights[0], matrix, atol=1e-2)
