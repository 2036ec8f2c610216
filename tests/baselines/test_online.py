"""Online soft actor-critic: it learns, its log is what was stepped, and a collection that is stopped loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from bats.arrays import Progress, no_progress
from bats.baselines import online
from bats.baselines.config import OnlineConfig, SACConfig
from bats.baselines.online import OnlineRun, train_online
from bats.cli.main import main
from bats.data.formats.load import load_dataset
from bats.errors import DataError, SettingError
from bats.evaluation.episodes import evaluate
from bats.tasks import collect
from bats.tasks.locomotion import ROBOTS
from tests.logs import assert_same

PENDULUM = "Pendulum-v1"
SMALL_SAC = SACConfig(hidden=(8,), critic_hidden=(8,), batch_size=16)
SMALL = OnlineConfig(sac=SMALL_SAC, steps=520, random_steps=150, block=60, evaluate_every=240, episodes=2)
"""episodes have 200 steps, so most blocks end within one"""


def trained(
    folder: Path, config: OnlineConfig = SMALL, *, seed: int = 3, progress: Progress = no_progress
) -> OnlineRun:
    return train_online(PENDULUM, config, seed=seed, unfinished=folder / "unfinished", progress=progress)


def content(folder: Path) -> bytes:
    """All that is known of a collection: steps, networks, optimizers, evaluations."""
    return (folder / "unfinished").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[OnlineRun, Path]:
    """A collection that was left alone, and the folder of its file."""
    folder = tmp_path_factory.mktemp("whole")
    return trained(folder), folder


def test_episodes_of_the_log_are_those_of_the_environment_but_for_the_last(
    whole: tuple[OnlineRun, Path],
) -> None:
    log = whole[0].steps.dataset(name="pendulum")
    assert len(log) == SMALL.steps
    np.testing.assert_array_equal(np.flatnonzero(log.episode_ends), [199, 399, 519])
    np.testing.assert_array_equal(log.starts, [0, 200, 400])


def test_actions_replayed_from_the_seeds_of_the_episodes_give_the_rows_exactly(
    whole: tuple[OnlineRun, Path],
) -> None:
    steps, environment = whole[0].steps, gymnasium.make(PENDULUM)
    ended = True
    for row in range(len(steps)):
        if ended:
            episode = int(steps.episode_ends[:row].sum())
            seed = int(online.generator(3, online.Stream.ONLINE_EPISODES, episode).integers(2**31))
            observation, _ = environment.reset(seed=seed)
        np.testing.assert_array_equal(np.float32(observation), steps.observations[row])
        observation, reward, terminated, truncated, _ = environment.step(steps.actions[row])
        np.testing.assert_array_equal(np.float32(observation), steps.next_observations[row])
        assert np.float32(reward) == steps.rewards[row]
        ended = terminated or truncated
        assert ended == steps.episode_ends[row]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    whole: tuple[OnlineRun, Path], tmp_path: Path
) -> None:
    trained(tmp_path)
    assert content(tmp_path) == content(whole[1])
    (tmp_path / "other").mkdir()
    trained(tmp_path / "other", seed=4)
    assert content(tmp_path / "other") != content(whole[1])


def test_fewer_steps_are_the_first_ones_of_more(whole: tuple[OnlineRun, Path]) -> None:
    fewer = train_online(PENDULUM, replace(SMALL, steps=333), seed=3).steps
    for name in ("observations", "actions", "rewards", "next_observations", "terminations", "episode_ends"):
        np.testing.assert_array_equal(getattr(fewer, name), getattr(whole[0].steps, name)[:333])


def test_random_steps_come_first_and_every_later_step_has_an_update(whole: tuple[OnlineRun, Path]) -> None:
    run = whole[0]
    assert run.policy.card["updates"] == SMALL.steps - SMALL.random_steps
    assert [tried.step for tried in run.evaluations] == [240, 480]
    actions = run.steps.actions[: SMALL.random_steps, 0] / 2
    assert np.abs(actions).max() <= 1
    assert abs(actions.mean()) < 4 / np.sqrt(3 * SMALL.random_steps)  # uniform numbers have a std of 1 / sqrt(3)
    assert actions.std() == pytest.approx(1 / np.sqrt(3), abs=0.06)


def test_an_evaluation_that_is_good_enough_ends_the_collection(whole: tuple[OnlineRun, Path]) -> None:
    first, second = (tried.mean_return for tried in whole[0].evaluations)
    until = train_online(PENDULUM, replace(SMALL, enough=first), seed=3)
    assert len(until.steps) == 240
    until = train_online(PENDULUM, replace(SMALL, enough=max(first, second) + 1), seed=3)
    assert len(until.steps) == SMALL.steps


@pytest.mark.parametrize("reports", [1, 3, 6, 9, 14])
def test_a_collection_that_is_interrupted_goes_on_as_if_it_had_not_been(
    whole: tuple[OnlineRun, Path], tmp_path: Path, reports: int
) -> None:
    seen = []

    def interrupt(stage: str, done: int, total: int) -> None:
        seen.append(done)
        if len(seen) == reports:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, progress=interrupt)
    assert content(tmp_path) != content(whole[1])
    done: list[int] = []
    trained(tmp_path, progress=lambda stage, step, total: done.append(step))
    assert content(tmp_path) == content(whole[1])
    assert done[0] <= seen[-1]
    assert done[0] > seen[-1] - 60 - 1  # no more than a block is lost
    # a finished collection is not done again
    done.clear()
    trained(tmp_path, progress=lambda stage, step, total: done.append(step))
    assert done == [SMALL.steps]


KILLED = """
import os, signal, sys
from pathlib import Path
from bats.baselines import online
from tests.baselines.test_online import trained
online.SAVE_SECONDS = 0.0
kills = int(sys.argv[2])
move = Path.replace
def killed(source, target):
    global kills
    kills -= 1
    if kills < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return move(source, target)
Path.replace = killed
trained(Path(sys.argv[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills")
@pytest.mark.slow
def test_a_collection_that_is_killed_goes_on_as_if_it_had_not_been(
    whole: tuple[OnlineRun, Path], tmp_path: Path
) -> None:
    """Killed just before the fourth time that it is saved."""
    process = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "3"], capture_output=True, text=True)
    assert process.returncode == -9, process.stderr
    assert content(tmp_path) != content(whole[1])
    trained(tmp_path)
    assert content(tmp_path) == content(whole[1])


def test_a_file_of_another_collection_is_refused(whole: tuple[OnlineRun, Path], tmp_path: Path) -> None:
    (tmp_path / "unfinished").write_bytes(content(whole[1]))
    with pytest.raises(DataError, match=r"seed.*Remove the file"):
        trained(tmp_path, seed=4)
    with pytest.raises(DataError, match=r"settings"):
        trained(tmp_path, replace(SMALL, block=61))
    (tmp_path / "unfinished").write_bytes(b"nothing")
    with pytest.raises(DataError, match="safetensors"):
        trained(tmp_path)
    assert content(tmp_path) == b"nothing"


def test_states_that_the_environment_does_not_give_again_are_noticed(
    whole: tuple[OnlineRun, Path], tmp_path: Path
) -> None:
    path = tmp_path / "unfinished"
    path.write_bytes(content(whole[1]))
    arrays, facts = online.read_tensors(path, "bats-online")
    arrays["steps.next_observations"][450] += 1
    facts = {name: fact for name, fact in facts.items() if name not in ("format", "version", "checksum")}
    online.write_tensors(path, "bats-online", arrays, facts, overwrite=True)
    with pytest.raises(DataError, match="another version of the environment"):
        trained(tmp_path)


@pytest.mark.parametrize(("environment", "message"), [("CartPole-v1", "rows of"), ("No-v0", "cannot make")])
def test_other_environments_are_refused(environment: str, message: str) -> None:
    with pytest.raises((SettingError, online.BatsError), match=message):
        train_online(environment, SMALL, seed=0)


@pytest.mark.slow
def test_a_mixed_log_says_how_it_was_made_and_can_be_continued(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco", reason="robots need the extra `mujoco`")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hopper-mixed-5.unfinished").write_bytes(b"")
    arguments = ["data", "collect", "hopper-mixed", "--rows", "400", "--seed", "5", "--quiet"]
    assert main(arguments) == 2  # no file of ours is overwritten or removed
    assert "hopper-mixed-5.unfinished" in capsys.readouterr().err
    (tmp_path / "hopper-mixed-5.unfinished").unlink()
    assert main(arguments) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hopper-mixed-5.hdf5"]
    log = load_dataset("hopper-mixed-5.hdf5")
    assert_same(log, replace(collect("hopper-mixed", 400, 5), name=log.name))
    facts = [note.text for note in log.notes if note.kind == "fact"]
    assert any("soft actor-critic while it learned in Hopper-v5" in text and "seed 5" in text for text in facts)
    assert any("ends after 400 steps, before a score of 33.3" in text for text in facts)
    assert any("mean return of" in text and "100 other episodes" in text for text in facts)
    np.testing.assert_array_equal(log.starts, np.flatnonzero(np.concatenate([[True], log.episode_ends[:-1]])))


def test_a_third_of_the_expert_is_a_score_of_33() -> None:
    for robot in ROBOTS:
        assert float(robot.normalised_score(robot.mixed_return)) == pytest.approx(33.3)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="sends signals")
def test_the_command_keeps_what_it_has_when_it_is_interrupted(tmp_path: Path) -> None:
    pytest.importorskip("mujoco", reason="robots need the extra `mujoco`")
    command = [sys.executable, "-m", "bats.cli.main", "data", "collect", "hopper-mixed"]
    root = Path(online.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("collecting")
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait() == 130
    assert "kept in hopper-mixed-0.unfinished; call the same command again to continue" in said
    assert [path.name for path in tmp_path.iterdir()] == ["hopper-mixed-0.unfinished"]


@pytest.mark.slow
def test_it_solves_the_pendulum() -> None:
    config = OnlineConfig(
        sac=SACConfig(hidden=(64, 64), critic_hidden=(64, 64), learning_rate=1e-3, critic_learning_rate=1e-3),
        steps=8_000,
        random_steps=1_000,
        block=200,
    )
    policy = train_online(PENDULUM, config, seed=0).policy
    assert evaluate(policy, PENDULUM, episodes=50, seed=9).mean_return > -200
