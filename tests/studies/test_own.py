"""What is known of policies without an environment: by hand where it can be, and by one call of the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bats.baselines.config import BCConfig, TD3BCConfig
from bats.cli.main import main
from bats.data.dataset import Dataset
from bats.data.formats.hdf5 import write_hdf5
from bats.studies.own import action_error, compare_own, split_log, write_known
from tests.cli.printed import error_text
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
        assert 0 <= one.in_model.leaves_support <= 1
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
