"""The ensemble on systems whose dynamics, noise, rewards and ends are known."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bats.model.fit
from bats.data.dataset import Dataset
from bats.errors import DataError
from bats.metric.scaled import ScaledMetric
from bats.model.ensemble import DynamicsConfig, unroll
from bats.model.fit import Model, fit_dynamics, held_out_error, load_model, named_arrays, save_model
from bats.model.training import STRETCH, TrainingState, finished, split_rows, train, untrained
from bats.planning.planner import PlannerConfig, Plans, Problems
from bats.stitching.acceptance import Learned, _Judge

SMALL = DynamicsConfig(
    members=3, elites=2, hidden=(32, 32), reward_hidden=(32,), updates=600, evaluate_every=200, held_out_rows=1000
)
MATRIX = np.array([[0.95, 0.1], [-0.1, 0.95]])
PUSH = np.array([[0.0, 0.3]])


def linear_log(rows: int, *, noise: float, seed: int = 0) -> Dataset:
    """s' = s M + a P + noise, paid 1 in the half plane s'_0 > 0.5, ended by nothing."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(rows, 2))
    actions = rng.uniform(-1, 1, (rows, 1))
    after = states @ MATRIX + actions @ PUSH + noise * rng.normal(size=(rows, 2))
    return Dataset.from_arrays(states, actions, (after[:, 0] > 0.5).astype(float), next_observations=after)


@pytest.fixture(scope="module")
def linear_model() -> Model:
    return fit_dynamics(linear_log(8000, noise=0.05), replace(SMALL, updates=2000), seed=0)


def test_the_noise_of_a_linear_gaussian_system_is_recovered(linear_model: Model) -> None:
    rng = np.random.default_rng(1)
    states = jnp.asarray(rng.normal(size=(2, 500, 2)), jnp.float32)
    actions = jnp.asarray(rng.uniform(-1, 1, (2, 500, 1)), jnp.float32)
    change, deviation = linear_model.dynamics.change(states, actions)
    truth = states @ MATRIX + actions @ PUSH - states
    assert np.asarray(deviation).mean() == pytest.approx(0.05, rel=0.1)
    assert np.abs(np.asarray(change - truth)).mean() < 0.02


def test_a_sparse_reward_is_learned_and_not_given_up(linear_model: Model) -> None:
    error = held_out_error(linear_model.held_out)
    assert error["reward_precision"] > 0.95
    assert error["reward_recall"] > 0.95


def test_the_held_out_error_is_that_of_the_noise(linear_model: Model) -> None:
    # the mean absolute value of a normal deviation of 0.05 is 0.05 * sqrt(2 / pi) = 0.0399
    assert held_out_error(linear_model.held_out)["mean_absolute"] == pytest.approx([0.0399] * 2, rel=0.15)


def test_elites_are_the_members_with_the_lowest_validation_error() -> None:
    log = linear_log(2000, noise=0.05)
    config = replace(SMALL, members=7, elites=5, updates=200)
    split = split_rows(log, config, seed=0)
    template = untrained(log, split, config, seed=0)
    state, record = list(train(log, config, seed=0))[-1]
    chosen = finished(state, template, config)
    order = np.argsort(record.validation_error)[:5]
    assert np.array_equal(chosen.networks.change.weights[0], np.asarray(state.best.change.weights[0])[order])
    # measured again by hand: the elites' own errors on the validation rows, best first
    rows = split.validation
    states = jnp.broadcast_to(jnp.asarray(log.observations[rows], jnp.float32), (5, len(rows), 2))
    actions = jnp.broadcast_to(jnp.asarray(log.actions[rows], jnp.float32), (5, len(rows), 1))
    change, _ = chosen.change(states, actions)
    truth = log.next_observations[rows] - log.observations[rows]
    error = np.abs((np.asarray(change) - truth) / np.asarray(template.changes.deviation)).mean(axis=(1, 2))
    assert error == pytest.approx(np.sort(record.validation_error)[:5], rel=1e-3)


def test_the_parts_of_a_split_share_no_row_and_come_in_stretches() -> None:
    log = linear_log(5000, noise=0.1)
    split = split_rows(log, DynamicsConfig(), seed=3)
    together = np.concatenate([split.training, split.validation, split.held_out])
    assert np.array_equal(np.sort(together), np.arange(5000))
    assert len(split.validation) == pytest.approx(500, abs=STRETCH)  # a tenth of a small log
    assert np.mean(np.diff(split.held_out) == 1) > 0.9
    with pytest.raises(DataError, match="at least 75 rows"):
        split_rows(linear_log(40, noise=0.1), DynamicsConfig(), seed=0)


def test_rows_without_a_known_next_state_teach_nothing() -> None:
    walk = np.cumsum(np.ones(400)) % 100
    ends = walk == 99
    log = Dataset.from_arrays(walk[:, None], np.zeros((400, 1)), np.arange(400.0), terminations=ends)
    split = split_rows(log, DynamicsConfig(), seed=0)
    unknown = set(np.flatnonzero(~log.next_known))
    assert unknown
    assert not unknown & set(np.concatenate([split.training, split.validation, split.held_out]).tolist())


def test_the_same_seed_gives_the_same_bytes_and_a_loaded_model_predicts_the_same(tmp_path: Path) -> None:
    log = linear_log(2000, noise=0.05)
    for name in ("a", "b"):
        save_model(fit_dynamics(log, SMALL, seed=4), tmp_path / f"{name}.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    save_model(fit_dynamics(log, SMALL, seed=5), tmp_path / "c.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() != (tmp_path / "c.safetensors").read_bytes()
    model, loaded = fit_dynamics(log, SMALL, seed=4), load_model(tmp_path / "a.safetensors")
    states, actions = jnp.ones((5, 2)), jnp.zeros((5, 3, 1))
    for mine, theirs in zip(
        unroll(model.dynamics, states, actions), unroll(loaded.dynamics, states, actions), strict=True
    ):
        assert np.array_equal(mine, theirs)
    assert loaded.config == SMALL
    assert np.array_equal(loaded.held_out.residual, model.held_out.residual)
    assert '"held_out_error"' in (tmp_path / "a.json").read_text()


def test_a_damaged_model_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(fit_dynamics(linear_log(500, noise=0.1), replace(SMALL, updates=1), seed=0), path)
    whole = bytearray(path.read_bytes())
    whole[-5] ^= 1
    path.write_bytes(whole)
    with pytest.raises(DataError, match="match their checksum"):
        load_model(path)


def test_training_goes_on_from_where_it_stood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after its first checkpoint and started again, it ends as if nothing had happened."""
    log = linear_log(2000, noise=0.05)
    undisturbed = fit_dynamics(log, SMALL, seed=1)
    monkeypatch.setattr(bats.model.fit, "CHECKPOINT_SECONDS", 0.0)
    checkpoint = tmp_path / "training.safetensors"

    def stop_half_way(stage: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_dynamics(log, SMALL, seed=1, checkpoint=checkpoint, progress=stop_half_way)
    assert checkpoint.exists()
    with pytest.raises(DataError, match="training with seed 2"):
        fit_dynamics(log, SMALL, seed=2, checkpoint=checkpoint)
    seen: list[int] = []
    resumed = fit_dynamics(
        log, SMALL, seed=1, checkpoint=checkpoint, progress=lambda stage, done, total: seen.append(done)
    )
    assert seen == [400, 600]
    first, second = named_arrays(undisturbed.dynamics), named_arrays(resumed.dynamics)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_training_stops_when_nothing_improves() -> None:
    """Nothing can be learned from pure noise, so the first looks are the best."""
    rng = np.random.default_rng(0)
    noise = Dataset.from_arrays(
        rng.normal(size=(600, 2)),
        rng.normal(size=(600, 1)),
        rng.normal(size=600),
        next_observations=rng.normal(size=(600, 2)),
    )
    config = replace(SMALL, updates=100_000, evaluate_every=100, patience=3, schedule="constant")
    states: list[TrainingState] = [state for state, _ in train(noise, config, seed=0)]
    assert int(states[-1].stale) == 3
    assert int(states[-1].update) < 10_000


def test_discrete_actions_enter_one_hot_and_ends_are_learned() -> None:
    """A counter that action 1 raises and action 0 keeps; reaching 5 ends it."""
    rng = np.random.default_rng(0)
    here, action = rng.integers(0, 5, size=4000), rng.integers(0, 2, size=4000)
    there = here + action
    log = Dataset.from_arrays(
        here[:, None], action, -np.ones(4000) * action, next_observations=there[:, None], terminations=there == 5
    )
    model = fit_dynamics(log, replace(SMALL, updates=1500), seed=0)
    assert model.dynamics.action_count == 2
    states = jnp.broadcast_to(jnp.array([[2.0], [2.0], [4.0]]), (2, 3, 1))
    actions = jnp.broadcast_to(model.dynamics.encode_actions(np.array([0, 1, 1], dtype=np.int32)), (2, 3, 2))
    change, _ = model.dynamics.change(states, actions)
    assert np.asarray(change)[:, :, 0] == pytest.approx(np.tile([0.0, 1.0, 1.0], (2, 1)), abs=0.1)
    ended = np.asarray(model.dynamics.termination(states, actions, states + change)).mean(axis=0)
    assert ended[0] < 0.1
    assert ended[2] > 0.9


def wide_log(rows: int, reward: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Dataset:
    """Six numbers that drift by the action, of which only the first one matters to what is paid or ends."""
    rng = np.random.default_rng(0)
    states, actions = rng.normal(size=(rows, 6)), rng.uniform(-1, 1, (rows, 1))
    after = 0.9 * states + 0.3 * actions
    ended = after[:, 0] > 2.1
    return Dataset.from_arrays(
        states, actions, reward(after, actions[:, 0]), next_observations=after, terminations=ended
    )


def test_rare_large_rewards_are_learned_beside_a_small_dense_cost_and_so_are_rare_ends() -> None:
    """-0.1 a² for every action and 100 more beyond 2.1, where one row in a hundred ends."""
    log = wide_log(20_000, lambda after, action: 100.0 * (after[:, 0] > 2.1) - 0.1 * action**2)
    assert 0.005 < log.terminations.mean() < 0.015
    rows = fit_dynamics(log, replace(SMALL, updates=1500), seed=0).held_out
    error, jump = np.abs(rows.predicted_reward - rows.rewards), rows.rewards > 50
    clear = np.abs(rows.next_observations[:, 0] - 2.1) > 0.05
    # after few updates of a small network: a fifth of the jump where there is one, half a hundredth of it elsewhere
    assert error[jump & clear].mean() < 20
    assert error[~jump & clear].mean() < 0.5
    told, ended = rows.predicted_termination > 0.5, rows.terminations
    assert told[clear & ended].mean() > 0.9
    assert told[clear & ~ended].mean() < 0.001
    # weighting the draws back keeps the probabilities those of the log
    assert rows.predicted_termination.mean() == pytest.approx(rows.terminations.mean(), rel=0.15)


def test_long_logs_are_trained_on_for_longer() -> None:
    config = DynamicsConfig(updates=1000, batch_size=100, passes=2.0)
    assert config.for_rows(50_000).updates == 1000  # as many as two passes
    assert config.for_rows(200_000).updates == 4000
    assert config.for_rows(1000).updates == 1000


def test_a_dense_reward_has_no_jumps_and_is_learned() -> None:
    log = wide_log(8000, lambda after, action: after[:, 0] + action**2)
    model = fit_dynamics(log, replace(SMALL, updates=1500), seed=0)
    assert model.dynamics.networks.jump is None
    assert model.dynamics.jumps is None
    assert held_out_error(model.held_out)["reward_mean_absolute"] < 0.03  # its deviation is about 1


def test_a_model_with_jumps_is_saved_and_loaded(tmp_path: Path) -> None:
    log = wide_log(2000, lambda after, action: 100.0 * (after[:, 0] > 2.1) - 0.1 * action**2)
    model = fit_dynamics(log, replace(SMALL, updates=2), seed=0)
    save_model(model, tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors").dynamics
    states, actions = jnp.ones((2, 5, 6)), jnp.zeros((2, 5, 1))
    assert loaded.jumps is not None
    assert loaded.jumps_end
    assert np.array_equal(loaded.reward(states, actions, states), model.dynamics.reward(states, actions, states))


def test_what_only_an_end_pays_is_not_expected_of_steps_that_go_on() -> None:
    """Costs lie between -0.1 and 0; 100 is paid where the task ends, or, in the second log, elsewhere."""
    states, actions = jnp.ones((SMALL.elites, 5, 6)), jnp.zeros((SMALL.elites, 5, 1))
    ends = wide_log(2000, lambda after, action: 100.0 * (after[:, 0] > 2.1) - 0.1 * action**2)
    model = fit_dynamics(ends, replace(SMALL, updates=2), seed=0).dynamics
    assert model.jumps_end
    assert float(jnp.abs(model.reward_going_on(states, actions, states)).max()) < 1
    assert float(model.reward(states, actions, states).max()) > 10  # a jump that has learned nothing yet is half likely
    elsewhere = wide_log(2000, lambda after, action: 100.0 * (after[:, 1] > 2.1) - 0.1 * action**2)
    other = fit_dynamics(elsewhere, replace(SMALL, updates=2), seed=0).dynamics
    assert other.jumps is not None
    assert not other.jumps_end
    assert np.array_equal(other.reward_going_on(states, actions, states), other.reward(states, actions, states))


def test_steps_of_a_plan_are_paid_for_an_end_only_where_they_end() -> None:
    log = wide_log(2000, lambda after, action: 100.0 * (after[:, 0] > 2.1) - 0.1 * action**2)
    model = fit_dynamics(log, replace(SMALL, updates=2), seed=0).dynamics
    rng = np.random.default_rng(0)
    problems = Problems(
        source=rng.normal(size=(2, 6)).astype(np.float32),
        target=rng.normal(size=(2, 6)).astype(np.float32),
        length=np.array([3, 3]),
        actions=np.zeros((2, 3, 1), dtype=np.float32),
    )
    paid = np.full((2, 3, model.member_count), 50.0, dtype=np.float32)
    plans = Plans(problems.actions, rng.normal(size=(2, 3, 6)).astype(np.float32), paid, np.zeros((2, 2)))
    box = np.array([-1.0]), np.array([1.0])
    judge = _Judge(Learned(model, ScaledMetric(np.ones(6)), box, None), PlannerConfig(), 1.0, np.array([True, False]))
    reward = judge.paid_as_they_end(problems, plans, problems.length).reward
    assert np.all(reward[0, 2] == 50)  # the one step that ends the task
    reward[0, 2] = 0
    assert np.abs(reward).max() < 1


def test_importing_the_neural_modules_touches_no_device() -> None:
    program = "import bats.planning.planner, bats.model.fit; from jax._src import xla_bridge; assert not xla_bridge._backends"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert jax.default_backend() in ("cpu", "gpu")
