"""The fitted ensemble on systems whose dynamics, noise, rewards and terminations are known, and the model on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from bats.config import ModelConfig
from bats.data.dataset import Dataset
from bats.errors import DataError, SettingError
from bats.model import fit
from bats.model.ensemble import Dynamics, one_hot, unroll, unroll_batches
from bats.model.fit import Model, check_model, fit_model, fit_rewards, load_model, save_model
from bats.model.held_out import error_summary
from bats.model.training import split_rows, training_problem, untrained
from bats.networks.files import tree_arrays
from bats.networks.training import Problem, TrainingState, new_state, train
from tests.compilations import compilations
from tests.crafted import entries_of, rewrite
from tests.model_logs import MATRIX, PUSH, linear_log, wide_log

SMALL = ModelConfig(members=3, elites=2, hidden=(32, 32), batch_size=128, updates=900, evaluate_every=300)
QUICK = ModelConfig(members=5, elites=3, hidden=(8,), batch_size=16, updates=40, evaluate_every=10, passes=0.0)


@pytest.fixture(scope="module")
def linear_model() -> Model:
    return fit_model(linear_log(6000, noise=0.05), SMALL, seed=0)


def quick_log(seed: int = 0) -> Dataset:
    return linear_log(300, noise=0.05, seed=seed)


def quick_model(seed: int = 0) -> Model:
    return fit_model(quick_log(), QUICK, seed=seed)


@eqx.filter_jit  # one program each, instead of one for every operation
def delta(dynamics: Dynamics, states: Array, actions: Array) -> tuple[Array, Array]:
    return dynamics.delta(states, actions)


@eqx.filter_jit
def reward_and_termination(
    dynamics: Dynamics, states: Array, actions: Array, next_states: Array
) -> tuple[Array, Array]:
    transition = (states, actions, next_states)
    return dynamics.reward(*transition), dynamics.termination(*transition)


def test_the_noise_of_a_linear_gaussian_system_is_recovered(linear_model: Model) -> None:
    rng = np.random.default_rng(1)
    states, actions = rng.normal(size=(2, 500, 2)), rng.uniform(-1, 1, (2, 500, 1))
    states, actions = (jnp.asarray(part, jnp.float32) for part in (states, actions))
    predicted, std = delta(linear_model.dynamics, states, actions)
    truth = np.asarray(states) @ (MATRIX - np.eye(2)) + np.asarray(actions) @ PUSH
    assert np.asarray(std).mean() == pytest.approx(0.05, rel=0.1)
    assert np.abs(np.asarray(predicted) - truth).mean() < 0.02


def test_a_reward_of_two_values_is_learned_where_it_is_rare_too(linear_model: Model) -> None:
    assert linear_model.dynamics.kind.binary_reward
    summary = error_summary(linear_model.held_out)
    assert summary["reward_precision"] > 0.95
    assert summary["reward_recall"] > 0.95


def test_the_error_on_held_out_rows_is_that_of_the_noise(linear_model: Model) -> None:
    # the mean absolute value of a normal number with std 0.05 is 0.05 * sqrt(2 / pi) = 0.0399
    assert error_summary(linear_model.held_out)["mean_absolute"] == pytest.approx([0.0399] * 2, rel=0.15)


def test_other_rewards_are_learned_without_touching_the_dynamics(linear_model: Model) -> None:
    log = linear_log(6000, noise=0.05)
    other = fit_rewards(linear_model, log.with_rewards(2 * log.next_observations[:, 1]), seed=0)
    assert not other.dynamics.kind.binary_reward
    assert not other.dynamics.kind.rare_rewards
    assert error_summary(other.held_out)["reward_mean_absolute"] < 0.15  # the noise alone makes 0.08; their std is 2
    rng = np.random.default_rng(1)
    states, actions = (jnp.asarray(rng.normal(size=(2, 500, width)), jnp.float32) for width in (2, 1))
    for ours, theirs in zip(*(delta(one.dynamics, states, actions) for one in (linear_model, other)), strict=True):
        assert np.array_equal(ours, theirs)


def test_a_log_without_terminations_has_a_model_that_never_terminates(linear_model: Model) -> None:
    states, actions = jnp.ones((2, 5, 2)), jnp.zeros((2, 5, 1))
    assert not linear_model.dynamics.kind.terminations
    assert np.all(np.asarray(linear_model.dynamics.termination(states, actions, states)) == 0)


@pytest.mark.slow
def test_the_elites_are_the_members_with_the_lowest_validation_error() -> None:
    log, model = quick_log(), quick_model()
    split = split_rows(log, seed=0)
    template, rows = untrained(log, split, QUICK, seed=0)
    problem, draw = training_problem(template, split, QUICK, seed=0)
    *_, (state, _, _) = train(problem, new_state(template.networks, problem, members=QUICK.members), rows, draw)
    order = np.argsort(state.best_error)[: QUICK.elites]
    assert len(set(np.asarray(state.best_error).tolist())) == QUICK.members
    best = tree_arrays(state.best)
    for name, array in tree_arrays(model.dynamics.networks).items():
        assert np.array_equal(array, best[name][order])
    # the elites' own errors on the validation rows, measured by hand
    states, actions = (
        jnp.asarray(np.tile(part[split.validation], (QUICK.elites, 1, 1)), jnp.float32)
        for part in (log.observations, log.actions)
    )
    predicted, _ = delta(model.dynamics, states, actions)
    truth = (log.next_observations - log.observations)[split.validation]
    error = np.abs((np.asarray(predicted) - truth) / np.asarray(template.deltas.std)).mean(axis=(1, 2))
    assert error == pytest.approx(np.asarray(state.best_error)[order], rel=1e-3)


def test_unrolling_repeats_single_steps_and_stops_at_each_length() -> None:
    dynamics = quick_model().dynamics
    rng = np.random.default_rng(0)
    source, actions = (rng.normal(size=size).astype(np.float32) for size in ((4, 2), (4, 3, 1)))
    length = np.array([3, 3, 2, 1])
    visited, reward = unroll(dynamics, *map(jnp.asarray, (source, actions, length)))
    state = np.tile(source, (QUICK.elites, 1, 1))
    for step in range(3):
        action = np.tile(actions[:, step], (QUICK.elites, 1, 1))
        after = state + np.asarray(delta(dynamics, jnp.asarray(state), jnp.asarray(action))[0])
        transition = map(jnp.asarray, (state, action, after))
        rewards, _ = reward_and_termination(dynamics, *transition)
        acting = step < length
        assert np.asarray(reward)[:, acting, step] == pytest.approx(np.asarray(rewards)[:, acting], abs=1e-5)
        state = np.where(acting[:, None], after, state)
        assert np.asarray(visited)[:, :, step] == pytest.approx(state, abs=1e-5)


def test_the_same_seed_gives_the_same_bytes_and_a_loaded_model_predicts_the_same(tmp_path: Path) -> None:
    for name, seed in (("a", 4), ("b", 4), ("c", 5)):
        save_model(quick_model(seed), tmp_path / f"{name}.safetensors")
    same, other = ((tmp_path / f"{name}.safetensors").read_bytes() for name in ("b", "c"))
    assert (tmp_path / "a.safetensors").read_bytes() == same
    assert (tmp_path / "a.safetensors").read_bytes() != other
    model, loaded = quick_model(4), load_model(tmp_path / "a.safetensors")
    inputs = np.ones((5, 2)), np.zeros((5, 3, 1)), np.full(5, 3)
    predictions = [unroll_batches(one.dynamics, *inputs) for one in (model, loaded)]
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(*predictions, strict=True))
    assert (loaded.config, loaded.updates) == (QUICK, 40)
    assert np.array_equal(loaded.held_out.predicted_next, model.held_out.predicted_next)
    assert '"held_out_error"' in (tmp_path / "a.json").read_text()


@pytest.mark.parametrize("largest", [1.7e18, 1e30])  # nanoseconds since 1970, and the largest number in a log
def test_a_model_of_a_log_with_large_numbers_can_be_loaded(largest: float, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    states, after = largest * rng.choice([-1.0, 1.0], (2, 300, 2))  # predictions are off by about as much
    log = Dataset.from_arrays(states, rng.normal(size=(300, 1)), largest * np.ones(300), next_observations=after)
    model = fit_model(log, QUICK, seed=0)
    save_model(model, tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors")
    assert np.array_equal(loaded.held_out.predicted_next, model.held_out.predicted_next)


def test_a_damaged_model_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(quick_model(), path)
    damaged = bytearray(path.read_bytes())
    damaged[-5] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="matches its checksum"):
        load_model(path)


def crafted_models(arrays: dict[str, np.ndarray], facts: dict[str, dict[str, object]]) -> Iterator[tuple[object, str]]:
    """Changes to a saved model, and what its reader must say of each."""
    rows, state_std = arrays["held_out.observations"], "dynamics.states.std"
    for name, fact in (("config", facts["config"]), ("kind", facts["kind"])):
        yield {name: None}, f"'{name}': expected an object, found None"
        yield {name: fact | {"other": 1}}, "found 'other'"
    yield {"updates": "40"}, "'updates': expected an integer, found '40'"
    yield {"updates": 10**9}, "1 to 40 updates"
    yield {"config": facts["config"] | {"hidden": [10**5, 10**5]}}, r"weights of shape \(3, 3, 100000\) in layer 0"
    yield {"config": facts["config"] | {"elites": 5}}, r"weights of shape \(5, 3, 8\) in layer 0"
    yield {"config": facts["config"] | {"learning_rate": 10**400}}, "'config.learning_rate': expected a number"
    yield {"kind": facts["kind"] | {"state_width": 10**9}}, "held-out rows of the sizes that the networks take"
    yield {"kind": facts["kind"] | {"state_width": -2}}, "held-out rows of the sizes that the networks take"
    yield {"kind": facts["kind"] | {"action_count": 7}}, "held-out rows of the sizes that the networks take"
    yield {"kind": facts["kind"] | {"terminations": True}}, "an array .networks.termination.weights"
    yield {"held_out.rewards": np.zeros(3)}, r"'rewards': expected floats of shape \(H\)"
    yield {"held_out.observations": np.full_like(rows, np.nan)}, "'observations': expected finite numbers"
    yield {"held_out.predicted_next": np.full(rows.shape, 1e31)}, r"held-out rows of numbers up to 1e\+30"
    none = {name: array[:0] for name, array in arrays.items() if name.startswith("held_out.")}
    yield none, "held-out rows of the sizes that the networks take, found none"
    yield {state_std: 0 * arrays[state_std]}, "positive numbers in the array .states.std"
    yield {state_std: arrays[state_std].astype(int)}, "float32 of shape .*, found int64"
    yield {state_std: arrays[state_std][None]}, r"found float32 of shape \(1, 2\)"
    yield (
        {"dynamics.networks.linear": np.full_like(arrays["dynamics.networks.linear"], np.nan)},
        "finite numbers in the",
    )
    yield {"dynamics.networks.linear": np.full(arrays["dynamics.networks.linear"].shape, 1e300)}, "finite numbers in"
    yield {"dynamics.networks.linear": None}, "an array .networks.linear, .*found no such array"


def test_a_crafted_model_is_refused(tmp_path: Path) -> None:
    """Its checksum is right, as in a file that was made to do harm."""
    path = tmp_path / "model.safetensors"
    save_model(quick_model(), path)
    sound = path.read_bytes()
    _, arrays, facts = entries_of(path)
    for change, message in crafted_models(arrays, facts):
        rewrite(path, change)
        with pytest.raises(DataError, match=message):
            load_model(path)
        path.write_bytes(sound)
    load_model(path)


def test_interrupted_training_continues_where_it_was(tmp_path: Path) -> None:
    """Stopped and started again, it ends as if nothing had happened."""
    log, undisturbed = quick_log(), quick_model(1)
    checkpoint = tmp_path / "training.safetensors"

    def stop_half_way(stage: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_model(log, QUICK, seed=1, checkpoint=checkpoint, progress=stop_half_way)
    assert checkpoint.exists()
    with pytest.raises(DataError, match="a checkpoint of training with seed 2"):
        fit_model(log, QUICK, seed=2, checkpoint=checkpoint)
    sound = checkpoint.read_bytes()
    for change in ({".update": np.int32(-5)}, {".update": np.int32(41)}, {".stale": np.int32(-1)}):
        rewrite(checkpoint, {name: np.asarray(number) for name, number in change.items()})
        with pytest.raises(DataError, match="a number of updates within the settings"):
            fit_model(log, QUICK, seed=1, checkpoint=checkpoint)
        checkpoint.write_bytes(sound)
    done: list[int] = []
    resumed = fit_model(
        log, QUICK, seed=1, checkpoint=checkpoint, progress=lambda stage, update, total: done.append(update)
    )
    assert done == [40]
    first, second = tree_arrays(undisturbed.dynamics), tree_arrays(resumed.dynamics)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_a_second_fit_of_equal_shapes_compiles_nothing() -> None:
    quick_model()
    with compilations() as names:
        fit_model(quick_log(seed=7), QUICK, seed=3)
    assert names == []


@pytest.mark.slow
def test_training_stops_when_nothing_improves() -> None:
    """Nothing can be learned from pure noise, so the first evaluations are the best."""
    rng = np.random.default_rng(0)
    noise = Dataset.from_arrays(
        rng.normal(size=(600, 2)),
        rng.normal(size=(600, 1)),
        rng.normal(size=600),
        next_observations=rng.normal(size=(600, 2)),
    )
    config = replace(SMALL, updates=100_000, evaluate_every=100, patience=3, schedule="constant")
    assert fit_model(noise, config, seed=0).updates < 10_000


@pytest.mark.parametrize(
    ("passes", "updates"),
    [(2.0, 40), (2.8, 56), (0.0, 40)],  # two passes over 300 rows in batches of 16 are 38 updates; 2.8 are 52
)
def test_long_logs_are_trained_on_for_more_updates_with_the_same_patience(
    passes: float, updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[Problem] = []

    def no_training(problem: Problem, state: TrainingState, data: object, draw: object) -> Iterator[object]:
        problems.append(problem)
        return iter(())

    monkeypatch.setattr(fit, "train", no_training)
    model = fit_model(quick_log(), replace(QUICK, passes=passes, patience=7), seed=0)
    assert model.config.updates == updates
    assert [(one.schedule.updates, one.patience, one.evaluate_every) for one in problems] == [(updates, 7, 10)]


@pytest.mark.slow
def test_discrete_actions_enter_one_hot_and_terminations_are_learned() -> None:
    """A counter that action 1 raises and action 0 keeps; reaching 5 terminates."""
    rng = np.random.default_rng(0)
    state, action = rng.integers(0, 5, size=800), rng.integers(0, 2, size=800)
    after = state + action
    log = Dataset.from_arrays(
        state[:, None], action, -np.ones(800) * action, next_observations=after[:, None], terminations=after == 5
    )
    model = fit_model(log, replace(SMALL, members=2, hidden=(32,), updates=300, evaluate_every=150), seed=0)
    assert model.dynamics.kind.action_count == 2
    states = np.tile([[2.0], [2.0], [4.0]], (2, 1, 1)).astype(np.float32)
    actions = np.tile(one_hot(np.array([0, 1, 1]), 2), (2, 1, 1))
    assert actions[0].tolist() == [[1, 0], [0, 1], [0, 1]]
    predicted = np.asarray(delta(model.dynamics, jnp.asarray(states), jnp.asarray(actions))[0])
    assert predicted[:, :, 0] == pytest.approx(np.tile([0.0, 1.0, 1.0], (2, 1)), abs=0.1)
    transition = map(jnp.asarray, (states, actions, states + predicted))
    _, terminates = reward_and_termination(model.dynamics, *transition)
    assert np.asarray(terminates).max(axis=0)[:2] == pytest.approx([0, 0], abs=0.1)
    assert np.asarray(terminates).min(axis=0)[2] > 0.9


def test_a_model_of_another_log_is_refused() -> None:
    model = quick_model()
    check_model(model, quick_log())
    with pytest.raises(SettingError, match=r"states of size 2 and continuous actions of size 1.*states of size 6"):
        check_model(model, wide_log(100, lambda after, action: action))


def test_importing_the_modules_with_networks_starts_no_device() -> None:
    """With a platform that does not exist, whatever touches a device fails."""
    program = (
        "import jax, bats.planning.planner, bats.model.fit, bats.metric.bisimulation, bats.policy.cloning\n"
        "try: jax.devices()\n"
        "except RuntimeError: print('no device')"
    )
    nowhere = os.environ | {"JAX_PLATFORMS": "nowhere"}
    finished = subprocess.run([sys.executable, "-c", program], check=True, env=nowhere, capture_output=True, text=True)
    assert finished.stdout.strip() == "no device"
