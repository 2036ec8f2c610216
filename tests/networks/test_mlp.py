"""The network in JAX and in NumPy: both compute the same, and members are independent."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bats.errors import DataError
from bats.networks.files import fill_tree, tree_arrays
from bats.networks.inference import forward, mean_and_std, sigmoid
from bats.networks.mlp import MLP, filled_up, new_mlp
from tests.compilations import compilations

SIZES = (3, 8, 5, 2)


def test_numpy_and_jax_compute_the_same() -> None:
    network = new_mlp(SIZES, jax.random.key(0))
    inputs = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    assert forward(network.layers(), inputs) == pytest.approx(np.asarray(network(jnp.asarray(inputs))), abs=1e-5)


def test_a_network_of_two_layers_worked_by_hand() -> None:
    layers = ((np.array([[2.0], [1.0]]), np.array([-1.0])), (np.array([[3.0]]), np.array([0.5])))
    # 2 * 1 + 1 * 2 - 1 = 3, times sigmoid(3), times 3, plus 0.5
    expected = 3 * 3 / (1 + np.exp(-3)) + 0.5
    assert forward(layers, np.array([[1.0, 2.0]])) == pytest.approx(np.array([[expected]]))


def test_each_member_computes_what_it_would_alone() -> None:
    members = 4
    ensemble = new_mlp(SIZES, jax.random.key(1), members=members)
    inputs = jax.random.normal(jax.random.key(2), (members, 6, 3))
    together = ensemble(inputs)
    assert together.shape == (members, 6, 2)
    for member in range(members):
        alone = MLP(
            tuple(weight[member] for weight in ensemble.weights), tuple(bias[member, 0] for bias in ensemble.biases)
        )
        assert np.asarray(alone(inputs[member])) == pytest.approx(np.asarray(together[member]), abs=1e-5)
    assert not np.allclose(ensemble.weights[0][0], ensemble.weights[0][1])


@pytest.mark.parametrize("members", [None, 2])
def test_a_network_that_is_filled_up_computes_the_same(members: int | None) -> None:
    network = new_mlp((3, 7, 5, 2), jax.random.key(0), members=members)
    network = replace(network, biases=tuple(bias + 1 for bias in network.biases))
    filled = filled_up(network, 4)
    assert [weight.shape[-2:] for weight in filled.weights] == [(3, 8), (8, 8), (8, 2)]
    inputs = jax.random.normal(jax.random.key(1), (6, 3))
    assert np.asarray(filled(inputs)) == pytest.approx(np.asarray(network(inputs)), abs=1e-6)


def test_weights_begin_so_that_outputs_have_the_size_of_the_inputs() -> None:
    network = new_mlp((400, 400), jax.random.key(3))
    outputs = network(jax.random.normal(jax.random.key(4), (200, 400)))
    assert float(outputs.std()) == pytest.approx(0.88, abs=0.05)  # std of a normal truncated at 2
    assert np.all(np.asarray(network.biases[0]) == 0)


def test_networks_of_all_shapes_draw_their_weights_with_one_program() -> None:
    """A number depends on its position in the draw alone, so that one long draw has the numbers of every shape."""
    new_mlp(SIZES, jax.random.key(0))
    with compilations() as names:
        network = new_mlp((7, 3), jax.random.key(1), members=5)
    assert "jit(_truncated_normal)" not in names
    drawn = jax.random.truncated_normal(jax.random.split(jax.random.key(1), 1)[0], -2.0, 2.0, (5, 7, 3))
    assert np.array_equal(network.weights[0], drawn / math.sqrt(7))


def test_the_sigmoid_never_overflows() -> None:
    values = np.array([-1e30, -100.0, 0.0, 100.0, 1e30], dtype=np.float32)
    assert sigmoid(values).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_constant_numbers_keep_their_scale() -> None:
    rows = np.array([[1e6, 0.0, 7.0], [1e6, 2.0, 7.0 + 1e-8]])
    mean, std = mean_and_std(rows)
    assert mean.tolist() == [1e6, 1.0, 7.0]
    assert std.tolist() == [1.0, 1.0, 1.0]
    assert mean_and_std(np.array([[0.0], [4.0]]))[1].tolist() == [2.0]


def test_a_tree_is_filled_with_its_named_arrays_and_nothing_else() -> None:
    network, other = (new_mlp(SIZES, jax.random.key(seed)) for seed in (5, 6))
    arrays = tree_arrays(network)
    assert len(arrays) == 6
    filled = fill_tree(other, arrays, file="a file")
    assert all(np.array_equal(first, second) for first, second in zip(filled.weights, network.weights, strict=True))
    name = next(iter(arrays))
    with pytest.raises(DataError, match=r"a file.*found no such array"):
        fill_tree(other, {key: array for key, array in arrays.items() if key != name}, file="a file")
    for wrong, message in (
        (np.zeros(1), r"found float64 of shape \(1,\)"),
        (np.zeros(arrays[name].shape, dtype=int), "found int64 of shape"),
        (np.full(arrays[name].shape, np.nan), "finite numbers in the array"),
        (np.full(arrays[name].shape, 1e300), "finite numbers in the array"),  # not in single precision
    ):
        with pytest.raises(DataError, match=message):
            fill_tree(other, arrays | {name: wrong}, file="a file")
