"""The parts of Gauss-Newton against SciPy and finite differences, and its steps on a curved model."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from scipy.optimize import lsq_linear

from bats.config import ModelConfig
from bats.metric.scaled import ScaledMetric
from bats.model.ensemble import Dynamics, Kind, new_dynamics, unroll
from bats.planning.context import Problems, Simulator
from bats.planning.cross_entropy import end_distances
from bats.planning.gauss_newton import bounded_step, gauss_newton, step_jacobians
from bats.planning.planner import QUANTILE, end_error

WIDTH, ACTION_WIDTH = 3, 2


def curved_model(members: int) -> Dynamics:
    """An untrained network, since any smooth function will do, and members that differ from it by a few per cent."""
    kind = Kind(WIDTH, ACTION_WIDTH, None, False, False, False, False)
    model = new_dynamics(ModelConfig(members=1, elites=1, hidden=(16,)), kind, jax.random.key(3))
    rng = np.random.default_rng(0)

    def spread(leaf: Array) -> Array:
        factor = 1 + 0.03 * rng.normal(size=(members, *leaf.shape[1:]))
        return jnp.asarray(np.asarray(leaf) * factor, jnp.float32)

    return eqx.tree_at(lambda whole: whole.networks, model, jax.tree.map(spread, model.networks))


def test_bounded_steps_equal_scipys_bounded_least_squares() -> None:
    rng = np.random.default_rng(1)
    count, entries = 200, 12
    jacobian, error = rng.normal(size=(count, 4, entries)), rng.normal(size=(count, 4)) * rng.uniform(1, 12, (count, 1))
    start = rng.uniform(-1, 1, (count, entries))
    lower, upper = (jnp.asarray(bound - start, jnp.float32) for bound in (-1, 1))
    inputs = (jnp.asarray(jacobian, jnp.float32), jnp.asarray(error, jnp.float32), lower, upper)
    step = np.asarray(jax.jit(bounded_step)(*inputs, jnp.full(count, 1e-6)))
    remaining = np.linalg.norm(error + np.einsum("bmn,bn->bm", jacobian, step), axis=1)
    best = np.array(
        [
            np.sqrt(2 * lsq_linear(jacobian[i], -error[i], (-1.000001 - start[i], 1.000001 - start[i])).cost)
            for i in range(count)
        ]
    )
    assert np.quantile(remaining / (best + 0.1), 0.99) < 1.01
    assert np.mean(best > 0.1) > 0.2  # the bounds are in the way of many
    assert np.all(step >= np.asarray(lower))
    assert np.all(step <= np.asarray(upper))


def test_step_jacobians_equal_finite_differences() -> None:
    model = curved_model(1)
    rng = np.random.default_rng(0)
    state, action = (rng.normal(size=(4, width)).astype(np.float32) for width in (WIDTH, ACTION_WIDTH))
    by_state, by_action = jax.jit(lambda *inputs: step_jacobians(model, *inputs))(state, action)

    @jax.jit
    def next_state(state: Array, action: Array) -> Array:
        return state + model.delta(state[None], action[None])[0][0]

    small = 1e-2
    for number in range(WIDTH):
        shift = small * np.eye(WIDTH, dtype=np.float32)[number]
        slope = (next_state(state + shift, action) - next_state(state - shift, action)) / (2 * small)
        assert np.asarray(by_state[:, :, number]) == pytest.approx(np.asarray(slope), abs=2e-3)
    for number in range(ACTION_WIDTH):
        shift = small * np.eye(ACTION_WIDTH, dtype=np.float32)[number]
        slope = (next_state(state, action + shift) - next_state(state, action - shift)) / (2 * small)
        assert np.asarray(by_action[:, :, number]) == pytest.approx(np.asarray(slope), abs=2e-3)


def test_it_never_does_worse_than_its_start_and_reaches_what_a_curved_model_can() -> None:
    """Targets are ends of action sequences, so that a solution exists; the start is some way off."""
    model, rng, length = curved_model(5), np.random.default_rng(0), 2
    source = rng.normal(size=(64, WIDTH)).astype(np.float32)
    solution = rng.uniform(-0.6, 0.6, (64, length, ACTION_WIDTH)).astype(np.float32)
    visited, _ = unroll(model, *map(jnp.asarray, (source, solution, np.full(64, length))))
    target = np.asarray(visited)[:, :, -1].mean(axis=0)
    start = np.clip(solution + rng.normal(scale=0.3, size=solution.shape), -1, 1).astype(np.float32)
    problems = Problems(source, target, np.full(64, length), start).on_device()
    simulator = Simulator(
        model, ScaledMetric(np.ones(WIDTH, np.float32)), jnp.full(ACTION_WIDTH, -1.0), jnp.full(ACTION_WIDTH, 1.0)
    )
    planned = gauss_newton(simulator, problems, quantile=QUANTILE)
    sequences = jnp.stack([jnp.asarray(start), jnp.asarray(solution), planned], axis=1)
    distance = np.asarray(jax.jit(lambda drawn: end_distances(simulator, problems, drawn))(sequences))
    before, possible, after = (end_error(distance[:, plan]) for plan in range(3))
    assert np.all(after <= before + 1e-6)
    # what remains is the members' disagreement, which no plan can remove
    assert np.median(after) <= 1.1 * np.median(possible)
    assert np.median(after) < 0.5 * np.median(before)
