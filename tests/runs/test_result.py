"""A finished run solved again under other settings, worked out by hand, and results saved and loaded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bats.errors import DataError, OutputError, SettingError
from bats.graph.relabel import value_of_a_step
from bats.graph.solve import policy_iteration
from bats.runs.folder import RunFolder
from bats.runs.result import Changes, Result, load_result, solve_again
from tests.conftest import CopyRun
from tests.logs import folder_bytes
from tests.mdps import mdp_from_edges
from tests.runs.hand_made import CHAIN, CONFIG, HEADER, PENALTY, PENALTY_STEPS, hand_made_run
from tests.small_runs import SMALL, small_log


def value(run: RunFolder, changes: Changes) -> float:
    return solve_again(run, changes).start_value


def test_a_step_costs_a_share_of_the_range_of_the_logs_values() -> None:
    assert PENALTY_STEPS * value_of_a_step(CHAIN, policy_iteration(CHAIN).value) == pytest.approx(PENALTY)


@pytest.mark.parametrize(("rewards", "spread"), [((2.0, 2.0), 1.0), ((3.0, 7.0), 4.0)])
def test_where_all_values_are_equal_the_range_of_the_rewards_or_1_stands_in(
    rewards: tuple[float, float], spread: float
) -> None:
    flat = mdp_from_edges(1, [(0, 0, reward) for reward in rewards])
    assert value_of_a_step(flat, policy_iteration(flat).value) == pytest.approx(0.1 * spread)


def test_a_run_is_solved_again_under_other_settings(tmp_path: Path) -> None:
    run = hand_made_run(tmp_path / "run", [0.5], [0.2, 1.0])
    assert value(run, Changes()) == pytest.approx(9 - 0.9 * PENALTY * 0.2)
    assert value(run, Changes(penalty=0.0)) == pytest.approx(9)
    assert value(run, Changes(penalty=1.0)) == pytest.approx(9 - 0.9 * 0.2)
    assert value(run, Changes(penalty_steps=0.0)) == pytest.approx(9)
    assert value(run, Changes(penalty_steps=2 * PENALTY_STEPS)) == pytest.approx(9 - 0.9 * 2 * PENALTY * 0.2)
    assert value(run, Changes(penalty=1e6)) == pytest.approx(8.1)  # no stitch is worth its penalty
    assert value(run, Changes(tolerance=0.1)) == pytest.approx(8.1)
    counts = [solve_again(run, Changes(tolerance=tolerance)).mdp.kept_stitches for tolerance in (0.1, 0.3, 0.7, 2.0)]
    assert counts == [0, 1, 2, 3]
    # with discount 0.5 the values are 0.5, 1 and 2, so half a step costs 0.5 * 0.5 * 1.5
    assert value(run, Changes(gamma=0.5)) == pytest.approx(1 - 0.5 * 0.375 * 0.2)
    # the penalty in reward does not follow the discount
    assert value(run, Changes(gamma=0.5, penalty=1.0)) == pytest.approx(1 - 0.5 * 0.2)


def test_another_reward_replaces_that_of_every_edge_and_the_penalty_in_steps_follows_it(tmp_path: Path) -> None:
    run = hand_made_run(tmp_path / "run", [0.2])
    tenfold = Changes(reward=lambda states, actions, next_states: 10.0 * (states[:, 0] == 2))
    assert value(run, tenfold) == pytest.approx(10 * value(run, Changes()))
    assert solve_again(run, tenfold).mdp.penalty == pytest.approx(10 * PENALTY)


def test_dead_ends_have_the_given_value(tmp_path: Path) -> None:
    short = mdp_from_edges(2, [(0, 1, 1.0)])
    run = hand_made_run(tmp_path / "run", mdp=short, dead_end_value=2.0)
    assert value(run, Changes()) == pytest.approx(1 + 0.9 * 2)
    assert value(run, Changes(dead_end_value=-1.0)) == pytest.approx(1 - 0.9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"penalty": 1.0, "penalty_steps": 1.0}, "in reward or in steps, not both"),
        ({"penalty": -1.0}, "`penalty` must be between 0 and .*; got -1"),
        ({"penalty_steps": np.inf}, "`penalty_steps` must be between 0 and"),
        ({"tolerance": 0.0}, "`tolerance` must be positive; got 0"),
        ({"gamma": 1.0}, "`gamma` must be strictly between 0 and 1"),
        ({"reward": lambda states, actions, next_states: np.ones(1)}, "one finite number for each of 4 rows"),
    ],
)
def test_changes_that_make_no_sense_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    run = hand_made_run(tmp_path / "run", [0.2])
    with pytest.raises(SettingError, match=message):
        solve_again(run, Changes(**changes))


def test_only_a_finished_run_can_be_solved_again_or_loaded(tmp_path: Path) -> None:
    for read in (lambda path: solve_again(RunFolder(path)), load_result):
        with pytest.raises(DataError, match=r"expected the folder of a run, found no file run\.json in it"):
            read(tmp_path)
    run = RunFolder(tmp_path / "run")
    with run.claimed(HEADER, CONFIG):
        pass
    for read in (lambda path: solve_again(RunFolder(path)), load_result):
        with pytest.raises(DataError, match=r"expected a finished run, found an unfinished run.*to continue it"):
            read(run.path)


@pytest.fixture(scope="module")
def result(finished_run: Path) -> Result:
    return load_result(finished_run)


def test_a_saved_result_is_loaded_as_it_was(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "deep" / "kept")
    again = load_result(tmp_path / "deep" / "kept")
    assert (again.log, again.config, again.seed, again.records) == (result.log, SMALL, 0, result.records)
    assert (again.logged_value, again.log_value, again.value) == (result.logged_value, result.log_value, result.value)
    assert np.array_equal(again.solution.value, result.solution.value)
    assert np.array_equal(again.metric.weight, result.metric.weight)
    states = small_log().observations
    assert np.array_equal(again.policy.predict(states), result.policy.predict(states))
    assert folder_bytes(again.folder) == folder_bytes(result.folder)


def test_saving_overwrites_nothing_and_leaves_nothing_half_written(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "existing").mkdir()
    with pytest.raises(OutputError, match="exists already"):
        result.save(tmp_path / "existing")

    def disk_full(source: Path, target: Path) -> None:
        (target / "mdp").mkdir(parents=True)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", disk_full)
    with pytest.raises(OutputError, match="kept could not be written: No space left"):
        result.save(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["existing"]


def test_a_result_is_not_saved_into_its_own_folder(copy_run: CopyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    result = load_result(copy_run("run"))
    before = folder_bytes(result.folder)
    monkeypatch.chdir(result.folder)
    for target in (result.folder / "copy", result.folder / "deep" / "copy", "copy", "../run/mdp/copy"):
        with pytest.raises(OutputError, match="copy lies within the folder to be copied; choose another"):
            result.save(target)
    assert folder_bytes(result.folder) == before


@pytest.mark.usefixtures("without_shape_checks")
def test_the_folder_to_save_to_must_be_a_path(result: Result) -> None:
    with pytest.raises(SettingError, match="`folder` must be a path; got 3"):
        result.save(3)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="`folder` must be a path without zero bytes"):
        result.save("a\0b")


def test_a_result_whose_folder_is_gone_is_a_failure_to_read_not_to_write(copy_run: CopyRun, tmp_path: Path) -> None:
    folder = copy_run("gone")
    result = load_result(folder)
    shutil.rmtree(folder)
    with pytest.raises(DataError, match="gone: expected the folder of a run, found no such folder"):
        result.save(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
