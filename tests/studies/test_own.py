"""What is known of policies without an environment: by hand where it can be, and by one call of the command."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from bats.baselines.config import BCConfig, TD3BCConfig
from bats.bounds.graph_policy import relevant_steps
from bats.cli.main import main
from bats.data.dataset import Dataset
from bats.data.formats.hdf5 import write_hdf5
from bats.metric.scaled import ScaledMetric
from bats.policy.policy import Policy
from bats.policy.support import Support
from bats.studies.own import action_error, compare_own, simulated, split_log, write_known
from tests.cli.printed import error_text
from tests.known_worlds import LinearWorld
from tests.logs import folder_bytes
from tests.policy.policies import some_policy
from tests.small_runs import SMALL, small_log


def test_whole_episodes_are_held_out() -> None:
    log = small_log(episodes=20, steps=20)
    training, held_out = split_log(log, seed=0)
    assert (training.episode_count, held_out.episode_count) == (18, 2)
    rows = {tuple(row) for row in log.observations}
    both = [{tuple(row) for row in part.observations} for part in (training, held_out)]
    assert both[0] | both[1] == rows
    assert not both[0] & both[1]
    assert len(training.starts) == 18


def test_of_a_log_of_one_episode_segments_are_held_out() -> None:
    log = small_log(episodes=1, steps=500)
    training, held_out = split_log(log, seed=0)
    assert (len(training), len(held_out)) == (450, 50)
    assert training.episode_count == 18  # segments of 25 rows
    gaps = np.any(training.next_observations[:-1] != training.observations[1:], axis=1)
    assert np.all(training.episode_ends[:-1][gaps])


def test_the_action_error_is_in_halves_of_the_range() -> None:
    policy = some_policy()
    states = np.random.default_rng(0).normal(size=(50, len(policy.mean))).astype(np.float32)
    half = (policy.high - policy.low) / 2
    chosen = policy.predict(states)
    moved = Dataset.from_arrays(states, chosen + 0.25 * half, np.zeros(50))
    assert action_error(policy, moved) == pytest.approx(0.25, abs=1e-5)


def constant_policy(action: float, support: Support) -> Policy:
    """One number in, and the same action in every state."""
    return Policy(
        weights=(np.zeros((1, 2), np.float32),),
        biases=(np.array([action, 0.0], np.float32),),
        mean=np.zeros(1, np.float32),
        std=np.ones(1, np.float32),
        low=-np.ones(1, np.float32),
        high=np.ones(1, np.float32),
        support=support,
    )


def test_rollouts_in_a_known_world_have_the_value_that_arithmetic_gives() -> None:
    # x' = x + a + shift with shifts of -0.01 and 0.01; the reward is x'
    nothing, identity = jnp.zeros((2, 1, 1)), jnp.ones((2, 1, 1))
    world = LinearWorld((nothing, identity, jnp.array([-0.01, 0.01])[:, None, None]), state_width=1, action_width=1)
    states = np.linspace(0, 1, 101)[:, None]
    support = Support.of(states, np.ones(1, np.float32), np.random.default_rng(0))
    metric, starts, gamma = ScaledMetric(np.ones(1)), np.array([[0.2], [0.4]]), 0.9
    weight, steps = gamma ** np.arange(relevant_steps(gamma)), np.arange(1, relevant_steps(gamma) + 1)
    # standing still: x stays 0.3 on average, and a member is 0.01 per step away from the mean
    value, disagreement, leaves = simulated(constant_policy(0.0, support), starts, world, metric, gamma=gamma)
    assert value == pytest.approx(0.3 * weight.sum(), rel=1e-4)
    assert disagreement == pytest.approx(0.01 * (weight * steps).sum(), rel=1e-4)
    assert leaves == 0
    # to the right by 0.1 a step: x is 0.3 + 0.1 k after k steps, and both leave the log after six to eight of them
    value, _, leaves = simulated(constant_policy(0.1, support), starts, world, metric, gamma=gamma)
    assert value == pytest.approx((weight * (0.3 + 0.1 * steps)).sum(), rel=1e-4)
    assert leaves == 1


@pytest.mark.slow
def test_bats_and_a_baseline_are_measured_by_the_same_model_and_nothing_is_done_twice(tmp_path: Path) -> None:
    small = BCConfig(updates=100, snapshots=2, hidden=(8,), batch_size=16)
    diverging = TD3BCConfig(updates=20, snapshots=2, hidden=(8,), critic_hidden=(8,), batch_size=16, gamma=0.9)
    log = small_log()
    known, diverged = compare_own(log, tmp_path, {"bc": small, "td3-bc": diverging}, config=SMALL)
    assert [one.method for one in known] == ["bats", "bc", "td3-bc"]
    assert diverged == {}
    floor, ceiling = 0.0, 1 / (1 - SMALL.gamma)  # of rewards of 0 and 1
    for one in known:
        assert one.lower is not None
        assert one.upper is not None
        assert floor <= one.lower <= one.upper <= ceiling + 1e-9
        assert 0 <= one.leaves_support <= 1
    # a clone of the log's random actions is nearer to them than the graph's policy
    assert known[1].action_error < known[0].action_error
    before = folder_bytes(tmp_path)
    assert compare_own(log, tmp_path, {"bc": small, "td3-bc": diverging}, config=SMALL) == (known, diverged)
    assert folder_bytes(tmp_path) == before
    markdown, _ = write_known(tmp_path, log.name, known, {"cql": "a loss of nan"}, gamma=SMALL.gamma)
    assert "cql diverged: a loss of nan." in markdown.read_text()


def test_arguments_that_do_not_belong_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_hdf5(small_log(), tmp_path / "log.hdf5")
    assert main(["benchmark", "own"]) == 2
    assert "The study own needs a log" in error_text(capsys)
    assert main(["benchmark", "own", "log.hdf5", "--methods", "dqn"]) == 2
    assert "There is no method called 'dqn'" in error_text(capsys)
    assert main(["benchmark", "maze2d", "log.hdf5"]) == 2
    assert "only for the study own" in error_text(capsys)
