"""A baseline's run folder: snapshots, a state to continue from, and nothing of another run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bats.baselines import runs as baseline_runs
from bats.baselines.config import Baseline, BCConfig, TD3BCConfig
from bats.baselines.curve import learning_curve
from bats.baselines.folder import BaselineFolder, method_of_run
from bats.baselines.runs import Run, train_runs
from bats.data.dataset import Dataset
from bats.errors import DataError, OutputError
from bats.policy.files import load_policy
from bats.runs.folder import RunFolder
from tests.logs import folder_bytes

SMALL = BCConfig(updates=120, snapshots=4, hidden=(8,), batch_size=16, learning_rate=0.01)


def plane_log(*, rewards: float = 1.0, seed: int = 0) -> Dataset:
    """Moves in a plane; the reward is higher on the right."""
    rng = np.random.default_rng(seed)
    states = rng.uniform(-1, 1, (60, 2)).astype(np.float32)
    actions = rng.uniform(-1, 1, (60, 2)).astype(np.float32)
    last = np.arange(60) % 20 == 19
    after = states + actions / 10
    return Dataset.from_arrays(states, actions, rewards * states[:, 0], next_observations=after, timeouts=last)


def train_alone(
    path: Path, config: Baseline = SMALL, *, seed: int = 0, log: Dataset | None = None, stop: int | None = None
) -> BaselineFolder:
    """Trains one run; Ctrl-C comes with the first progress from update `stop` on."""

    def progress(stage: str, done: int, total: int) -> None:
        if stop is not None and done >= stop:
            raise KeyboardInterrupt

    folder = BaselineFolder(path)
    train_runs(config, [Run(log or plane_log(), seed, folder)], progress=progress)
    return folder


def results(folder: BaselineFolder) -> dict[str, bytes | None]:
    """All that a run leaves, except for how long it took."""
    return {name: content for name, content in folder_bytes(folder.path).items() if "timings" not in name}


def test_a_run_leaves_its_snapshots_and_the_last_of_them_is_its_policy(tmp_path: Path) -> None:
    folder = train_alone(tmp_path / "run")
    assert [snapshot.update for snapshot in folder.snapshots()] == [30, 60, 90, 120]
    last, policy = folder.load_snapshot(120), load_policy(folder.policy)
    assert all(np.array_equal(*pair) for pair in zip(last.weights, policy.weights, strict=True))
    assert policy.card["method"] == "bc"
    assert policy.card["updates"] == 120
    assert policy.support is not None
    assert policy.support_distance(plane_log().observations[0]) < 1
    assert not folder.training.exists()
    assert method_of_run(folder.path) == "bc"
    assert folder.snapshots()[-1].losses["actor"] < folder.snapshots()[0].losses["actor"]


@pytest.mark.parametrize("stop", [1, 30, 45, 100])
def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path: Path, stop: int) -> None:
    whole = train_alone(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_alone(tmp_path / "stopped", stop=stop)
    stopped = BaselineFolder(tmp_path / "stopped")
    assert stopped.training.exists()
    assert not stopped.is_finished
    assert results(train_alone(tmp_path / "stopped")) == results(whole)


def test_a_run_killed_between_two_saved_states_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_alone(tmp_path / "whole")
    save, saved = baseline_runs._save_states, 0

    def save_twice(*arguments: object) -> None:
        nonlocal saved
        saved += 1
        if saved > 2:
            raise SystemExit  # as if the process had been killed before its third state was written
        save(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(baseline_runs, "_save_states", save_twice)
        with pytest.raises(SystemExit):
            train_alone(tmp_path / "killed")
    assert len(BaselineFolder(tmp_path / "killed").snapshots()) == 3  # one more than the saved state knows
    assert results(train_alone(tmp_path / "killed")) == results(whole)


def test_a_finished_run_is_not_touched(tmp_path: Path) -> None:
    before = folder_bytes(train_alone(tmp_path / "run").path)
    assert folder_bytes(train_alone(tmp_path / "run").path) == before


def other_log(path: Path) -> None:
    train_alone(path, log=plane_log(seed=1))


def other_rewards(path: Path) -> None:
    train_alone(path, log=plane_log(rewards=2.0))


def other_seed(path: Path) -> None:
    train_alone(path, seed=1)


def other_settings(path: Path) -> None:
    train_alone(path, replace(SMALL, batch_size=8))


def other_method(path: Path) -> None:
    train_alone(path, TD3BCConfig(updates=120, snapshots=4, hidden=(8,), batch_size=16))


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (other_log, "other transitions"),
        (other_rewards, "other rewards"),
        (other_seed, "its seed is 0, not 1"),
        (other_settings, "its batch_size is 16, not 8"),
        (other_method, "it is a run of bc, not of td3-bc"),
    ],
)
def test_the_folder_of_another_run_is_refused(tmp_path: Path, call: Callable[[Path], None], found: str) -> None:
    before = folder_bytes(train_alone(tmp_path).path)
    with pytest.raises(OutputError, match=f"contains another run: .*{found}"):
        call(tmp_path)
    assert folder_bytes(tmp_path) == before


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(OutputError, match="not empty and is not the folder of a run"):
        train_alone(tmp_path)
    assert folder_bytes(tmp_path) == {"thesis.tex": b"all of it"}


def test_runs_that_are_trained_together_are_the_ones_trained_alone(tmp_path: Path) -> None:
    logs = [plane_log(), plane_log(seed=1)]
    together = [
        Run(log, seed, BaselineFolder(tmp_path / f"{number}{seed}"))
        for number, log in enumerate(logs)
        for seed in range(2)
    ]
    train_runs(SMALL, together)
    for run in together:
        alone = train_alone(tmp_path / f"alone-{run.folder.path.name}", seed=run.seed, log=run.dataset)
        weights = (load_policy(folder.policy).weights for folder in (run.folder, alone))
        for one, other in zip(*weights, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)
        assert run.folder.finished().together == 4
        assert alone.finished().together == 1


def test_runs_that_are_not_equally_far_end_together(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_alone(tmp_path / "0", stop=60)
    both = [Run(plane_log(), seed, BaselineFolder(tmp_path / f"{seed}")) for seed in range(2)]
    ends = train_runs(SMALL, both)
    assert [end.updates for end in ends] == [120, 120]
    assert results(both[0].folder) == results(train_alone(tmp_path / "whole"))


def test_a_run_that_diverges_keeps_what_it_has_and_says_so(tmp_path: Path) -> None:
    config = TD3BCConfig(updates=40, snapshots=4, hidden=(8,), critic_hidden=(8,), batch_size=16)
    huge = plane_log()
    huge = huge.with_rewards(huge.rewards * 1e25)  # the square of a critic's error overflows
    (end,) = train_runs(config, [Run(huge, 0, BaselineFolder(tmp_path / "huge"))])
    assert re.match("a loss of the critics of (nan|inf) before update", end.divergence)
    assert end.updates == 0
    with pytest.raises(DataError, match="no such file"):
        load_policy(tmp_path / "huge" / "policy.safetensors")


def test_the_learning_curve_has_every_snapshot_once(tmp_path: Path) -> None:
    # Gymnasium's pendulum has three numbers and one action
    rng = np.random.default_rng(0)
    angle, speed = rng.uniform(-3, 3, 100), rng.uniform(-8, 8, 100)
    states = np.stack([np.cos(angle), np.sin(angle), speed], axis=1)
    log = Dataset.from_arrays(states, rng.uniform(-2, 2, (100, 1)), -(angle**2))
    folder = train_alone(tmp_path, log=log)
    points = learning_curve(folder, "Pendulum-v1", episodes=2)
    assert [point.update for point in points] == [30, 60, 90, 120]
    assert all(-2000 < point.low <= point.mean_return <= point.high < 0 for point in points)
    assert {point.environment for point in points} == {"Pendulum-v1"}
    (more, *_) = learning_curve(folder, "Pendulum-v1", episodes=3)
    assert more.episodes == 3  # another number of them is another evaluation
    # all of these are known, so that not even the snapshots are needed
    shutil.rmtree(tmp_path / "snapshots")
    assert [point.episodes for point in learning_curve(folder, "Pendulum-v1")] == [3] * 4
    with pytest.raises(DataError, match="no such file"):
        learning_curve(folder, "MountainCarContinuous-v0")


def test_commands_for_runs_of_bats_refuse_a_baseline(tmp_path: Path) -> None:
    train_alone(tmp_path)
    with pytest.raises(DataError, match="expected a run of BATS, found a run of bc"):
        RunFolder(tmp_path).summary()


@pytest.mark.parametrize("name", ["policy.safetensors", "snapshots/update-00000060.safetensors", "snapshots.jsonl"])
def test_a_file_of_another_run_is_named(tmp_path: Path, name: str) -> None:
    folder, other = train_alone(tmp_path / "run"), train_alone(tmp_path / "other", seed=1)
    (folder.path / name).write_bytes((other.path / name).read_bytes())
    with pytest.raises(DataError, match=re.escape(name)):
        folder.finished()
    (folder.path / name).unlink()
    with pytest.raises(DataError, match="no such file"):
        folder.finished()


@pytest.mark.slow
def test_a_study_in_which_one_run_has_diverged_can_be_continued(tmp_path: Path) -> None:
    config = TD3BCConfig(updates=40, snapshots=4, hidden=(8,), critic_hidden=(8,), batch_size=16)
    log = plane_log()
    huge = log.with_rewards(log.rewards * 1e25)

    def runs() -> list[Run]:
        return [Run(log, 0, BaselineFolder(tmp_path / "sound")), Run(huge, 0, BaselineFolder(tmp_path / "huge"))]

    def interrupt(stage: str, done: int, total: int) -> None:
        if done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_runs(config, runs(), progress=interrupt)
    assert runs()[1].folder.finished().divergence  # known at once, and not to be continued
    sound, diverged = train_runs(config, runs())
    assert (sound.updates, sound.divergence) == (40, "")
    assert diverged.divergence
