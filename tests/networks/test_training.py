"""The training loop on problems whose course is known: Adam moves by its rate where the gradient is constant."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Array

from bats.arrays import padded_length
from bats.networks.files import fill_tree, tree_arrays
from bats.networks.training import Problem, Schedule, TrainingState, new_state, rows_on_device, train

RATE = 0.1
CONSTANT = Schedule(RATE, updates=10, warm_up=0.0, constant=True)


def downhill(params: Array, data: Array, batch: Array, config: object) -> Array:
    """A loss with gradient -1 everywhere, so that every update adds the learning rate."""
    return -params.sum()


def distance_to_data(params: Array, data: Array, config: object) -> Array:
    """One error per member."""
    return jnp.abs(params - data)


def no_batches(done: int, count: int) -> Array:
    return jnp.zeros(count)


def run(problem: Problem, params: Array, data: Any = None, draw: Any = no_batches) -> list[TrainingState]:
    members = len(params) if problem.error is distance_to_data else None
    return [state for state, _, _ in train(problem, new_state(params, problem, members=members), data, draw)]


def test_each_member_keeps_its_own_best_weights() -> None:
    """All members walk from 0 to 1 in ten steps, and pass their targets at different times."""
    targets = jnp.array([0.3, 0.7, 2.0])
    problem = Problem(downhill, CONSTANT, None, error=distance_to_data, evaluate_every=1)
    state = run(problem, jnp.zeros(3), targets)[-1]
    assert np.asarray(state.params) == pytest.approx([1.0, 1.0, 1.0], abs=1e-3)
    assert np.asarray(state.best) == pytest.approx([0.3, 0.7, 1.0], abs=1e-3)
    assert np.asarray(state.best_error) == pytest.approx([0.0, 0.0, 1.0], abs=1e-3)


def test_parameters_with_more_axes_are_kept_by_member_too() -> None:
    def error(params: Array, data: Array, config: object) -> Array:
        return jnp.abs(params[:, 0, 0] - data)

    problem = Problem(downhill, CONSTANT, None, error=error, evaluate_every=1)
    initial = new_state(jnp.zeros((2, 3, 4)), problem, members=2)
    *_, (state, _, _) = train(problem, initial, jnp.array([0.2, 0.9]), no_batches)
    expected = np.broadcast_to(np.array([0.2, 0.9])[:, None, None], (2, 3, 4))
    assert np.asarray(state.best) == pytest.approx(expected, abs=1e-3)


def test_without_an_error_the_last_weights_are_kept() -> None:
    state = run(Problem(downhill, CONSTANT, None, evaluate_every=5), jnp.zeros(2))[-1]
    assert np.array_equal(state.best, state.params)
    assert np.asarray(state.best) == pytest.approx([1.0, 1.0], abs=1e-3)


def test_training_stops_after_the_evaluations_without_improvement_that_patience_allows() -> None:
    # the targets are passed at the third update: from the fourth on nothing improves
    problem = Problem(downhill, replace(CONSTANT, updates=1000), None, error=distance_to_data, evaluate_every=1)
    targets = jnp.array([0.3, 0.2])
    stopped = run(replace(problem, patience=4), jnp.zeros(2), targets)
    assert int(stopped[-1].update) == 3 + 4
    assert int(stopped[-1].stale) == 4
    assert np.asarray(stopped[-1].best) == pytest.approx([0.3, 0.2], abs=1e-3)
    # one member that still improves is enough to continue
    patient = run(replace(problem, patience=4), jnp.zeros(2), jnp.array([0.3, 2.0]))
    assert int(patient[-1].update) == 20 + 4


def test_all_updates_are_made_and_evaluations_are_where_they_should_be() -> None:
    problem = Problem(downhill, CONSTANT, None, evaluate_every=4)
    assert [int(state.update) for state in run(problem, jnp.zeros(1))] == [4, 8, 10]


def noisy_loss(params: Array, data: Array, batch: Array, config: float) -> Array:
    return jnp.sum((params - batch) ** 2) * config


def noise(done: int, count: int) -> Array:
    return jnp.asarray(np.random.default_rng(done).normal(size=(count, 3)), jnp.float32)


def test_training_that_is_resumed_ends_as_if_it_had_never_stopped() -> None:
    schedule = Schedule(0.05, updates=12, warm_up=0.25)
    problem = Problem(noisy_loss, schedule, 0.5, error=distance_to_data, evaluate_every=3)
    initial, targets = new_state(jnp.ones(3), problem, members=3), jnp.array([0.9, 0.95, 0.0])
    whole = [state for state, _, _ in train(problem, initial, targets, noise)]
    for count, saved in enumerate(whole[:-1], 1):
        # through named arrays and back, as a checkpoint on disk would be
        restored = fill_tree(initial, tree_arrays(saved), file="checkpoint")
        rest = [state for state, _, _ in train(problem, restored, targets, noise)]
        assert len(rest) == len(whole) - count
        first, second = tree_arrays(rest[-1]), tree_arrays(whole[-1])
        assert all(np.array_equal(first[name], second[name]) for name in second)
    assert list(train(problem, whole[-1], targets, noise)) == []


def test_the_loss_is_the_mean_over_the_updates_and_errors_are_those_of_the_new_weights() -> None:
    problem = Problem(downhill, CONSTANT, None, error=distance_to_data, evaluate_every=5)
    steps = list(train(problem, new_state(jnp.zeros(1), problem, members=1), jnp.zeros(1), no_batches))
    # losses are those before each update: 0, -0.1, … -0.4
    assert [loss for _, loss, _ in steps] == pytest.approx([-0.2, -0.7], abs=1e-4)
    assert [error.tolist() for _, _, error in steps] == [pytest.approx([0.5], abs=1e-4), pytest.approx([1.0], abs=1e-4)]


@dataclass(frozen=True)
class CopyRate:
    rate: float


def move_copy(params: tuple[Array, Array], config: CopyRate) -> tuple[Array, Array]:
    network, copy = params
    return network, copy + config.rate * (network - copy)


def test_a_moving_copy_follows_after_every_update() -> None:
    def loss(params: tuple[Array, Array], data: Array, batch: Array, config: CopyRate) -> Array:
        return -params[0].sum()

    problem = Problem(loss, replace(CONSTANT, updates=3), CopyRate(0.5), after=move_copy, evaluate_every=3)
    *_, (state, _, _) = train(problem, new_state((jnp.zeros(1), jnp.zeros(1)), problem), None, no_batches)
    # the network is at 0.1, 0.2, 0.3; the copy at 0.05, 0.125, 0.2125
    assert np.asarray(state.params[1]) == pytest.approx([0.2125], abs=1e-4)


def test_the_rate_warms_up_and_decays_to_a_hundredth() -> None:
    updates = 100
    problem = Problem(downhill, Schedule(RATE, updates, warm_up=0.1), None, evaluate_every=1)
    places = np.array([0.0, *(float(state.params[0]) for state in run(problem, jnp.zeros(1)))])
    rates = np.diff(places)
    assert rates[0] == 0
    assert rates[5] == pytest.approx(RATE / 2, rel=1e-2)
    assert rates.max() == pytest.approx(rates[10], rel=1e-3)
    assert rates[10] == pytest.approx(RATE, rel=1e-2)
    assert rates[-1] == pytest.approx(RATE / 100, rel=0.2)
    assert np.all(np.diff(rates[10:]) < 1e-5)


class TwoParts(eqx.Module):
    slow: Array
    fast: Array


def test_parameters_in_fast_fields_learn_faster() -> None:
    def loss(params: TwoParts, data: Array, batch: Array, config: object) -> Array:
        return -params.slow.sum() - params.fast.sum()

    problem = Problem(loss, replace(CONSTANT, fast=("fast",), fast_rate=5.0), None, evaluate_every=10)
    initial = new_state(TwoParts(jnp.zeros(1), jnp.zeros(1)), problem)
    *_, (state, _, _) = train(problem, initial, None, no_batches)
    assert np.asarray(state.params.slow) == pytest.approx([1.0], abs=1e-3)
    assert np.asarray(state.params.fast) == pytest.approx([5.0], abs=5e-3)


def test_equal_problems_of_equal_shapes_are_traced_once() -> None:
    """Python code in a loss runs only while it is traced, so that it can count the traces."""
    traces: list[tuple[int, ...]] = []

    def counted(params: Array, data: Array, batch: Array, config: float) -> Array:
        traces.append(params.shape)
        return noisy_loss(params, data, batch, config)

    def fit(width: int, config: float, seed: int) -> None:
        problem = Problem(counted, Schedule(0.1, updates=9, warm_up=0.5), config, evaluate_every=3)
        draw = lambda done, count: jax.random.normal(jax.random.key(seed), (count, width))  # noqa: E731
        # parameters made of Python numbers are weakly typed at first
        list(train(problem, new_state(jnp.full(width, 0.5), problem), None, draw))

    for seed in range(3):
        fit(3, 0.5, seed)
    assert len(traces) == 1
    fit(4, 0.5, 0)  # another shape
    assert len(traces) == 2
    fit(3, 0.25, 0)  # another setting
    assert len(traces) == 3


@given(st.integers(1, 10**12))
def test_a_padded_length_is_at_most_a_quarter_longer_and_one_of_four_per_power_of_two(count: int) -> None:
    padded = padded_length(count)
    assert count <= padded <= 1.25 * count or count < 4
    assert padded_length(padded) == padded
    octave = 2 ** (padded.bit_length() - 1)
    assert (4 * padded) % octave == 0


def test_rows_on_the_device_are_filled_up_and_keep_their_values() -> None:
    rows = np.arange(18.0).reshape(9, 2)
    on_device = np.asarray(rows_on_device(rows, fill=-1.0))
    assert on_device.dtype == np.float32
    assert on_device.tolist() == [*rows.tolist(), [-1, -1]]
