"""A run for another reward takes the model and the graph of a finished one, and learns only the rewards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bats.arrays import concat
from bats.config import Config
from bats.data.dataset import Dataset
from bats.errors import DataError, SettingError
from bats.graph.mdp import LOGGED, REUSED, TabularMDP
from bats.graph.relabel import goal_reward, stitch_errors
from bats.runs.folder import RunFolder
from bats.runs.pipeline import fit
from bats.runs.records import Header
from bats.runs.result import load_result
from bats.runs.reuse import history_with_reused
from bats.storage.tensors import read_struct
from tests.logs import folder_bytes
from tests.runs.relisted import relisted
from tests.small_runs import SMALL, small_log

LOWER_LEFT = goal_reward(np.zeros(2), 0.4)


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dynamics must not be trained again."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model was trained")

    monkeypatch.setattr("bats.runs.pipeline.fit_model", refuse)


def lower_left_log() -> Dataset:
    log = small_log()
    return log.with_rewards(LOWER_LEFT(log.observations, log.actions, log.next_observations))


def test_with_the_same_rewards_the_model_is_taken_as_it_is_and_stitching_continues(
    finished_run: Path, tmp_path: Path
) -> None:
    before = folder_bytes(finished_run)
    result = fit(small_log(), replace(SMALL, certificate=None), reuse=finished_run, folder=tmp_path / "again")
    first = load_result(finished_run)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == before["model.safetensors"]
    assert result.mdp.stitch_count > first.mdp.stitch_count
    assert result.value >= first.value - 1e-9  # it has every stitch that the first has
    assert RunFolder(tmp_path / "again").header().reused == str(finished_run.resolve())
    assert folder_bytes(finished_run) == before


@pytest.mark.slow
def test_for_another_reward_only_the_rewards_are_learned(finished_run: Path, tmp_path: Path) -> None:
    log = lower_left_log()
    result = fit(log, SMALL, reuse=finished_run, folder=tmp_path / "corner")
    first = load_result(finished_run)
    old, new = first.model.dynamics.networks, result.model.dynamics.networks
    assert all(np.array_equal(*pair) for pair in zip(old.delta.weights, new.delta.weights, strict=True))
    assert not np.array_equal(old.reward.weights[0], new.reward.weights[0])
    assert np.array_equal(result.model.held_out.predicted_next, first.model.held_out.predicted_next)
    assert set(result.model.held_out.rewards) == {0.0, 1.0}
    logged = result.mdp.stitch_round == LOGGED
    states, next_states = result.mdp.states[result.mdp.source], result.mdp.states[result.mdp.target]
    assert np.array_equal(result.mdp.reward[logged], LOWER_LEFT(states, result.mdp.action, next_states)[logged])
    assert result.certificate is not None
    again = fit(log, SMALL, reuse=finished_run, folder=tmp_path / "corner")  # finished, so it is only read
    assert again.value == result.value


def reused_stitches(folder: Path) -> tuple[int, int]:
    """How many stitches a run began with, and how many of them were kept."""
    base, _ = read_struct(TabularMDP, folder / "mdp" / "base.safetensors", "bats-mdp")
    return base.stitch_count, base.kept_stitches


def test_stitches_beyond_a_smaller_tolerance_are_left_out(finished_run: Path, tmp_path: Path) -> None:
    errors = stitch_errors(load_result(finished_run).mdp)
    tolerance = float(np.median(errors))
    strict = replace(SMALL, certificate=None, stitch=replace(SMALL.stitch, tolerance=tolerance))
    fit(small_log(), strict, reuse=finished_run, folder=tmp_path / "strict")
    assert reused_stitches(tmp_path / "strict") == (len(errors), np.count_nonzero(errors < tolerance))


def test_reused_stitches_are_of_no_round_and_their_pairs_are_not_stitched_again(
    finished_run: Path, tmp_path: Path
) -> None:
    few = replace(SMALL, certificate=None, stitch=replace(SMALL.stitch, rounds=1))
    result = fit(small_log(), few, reuse=finished_run, folder=tmp_path / "few")
    base, _ = read_struct(TabularMDP, tmp_path / "few" / "mdp" / "base.safetensors", "bats-mdp")
    assert set(base.stitch_round) == {LOGGED, REUSED}  # round 3 of the first run is no recovery round of this one
    assert set(result.mdp.stitch_round) == {LOGGED, REUSED, 1, 2}
    old = concat(RunFolder(finished_run).attempts())
    history, pair = history_with_reused(base, []), old.source.astype(np.int64) * base.real_count + old.target
    assert history.pair.tolist() == np.unique(pair[old.accepted]).tolist()
    assert not history.is_open(pair, old.length)[old.accepted].any()
    assert history.is_open(pair, old.length)[~np.isin(pair, pair[old.accepted])].all()  # what failed may be tried again


@pytest.mark.slow
def test_a_run_that_reused_another_hands_on_the_stitches_of_both(finished_run: Path, tmp_path: Path) -> None:
    plain = replace(SMALL, certificate=None)
    second = fit(small_log(), plain, reuse=finished_run, folder=tmp_path / "second")
    fit(small_log(), plain, reuse=second.folder, folder=tmp_path / "third")
    assert reused_stitches(second.folder)[0] == load_result(finished_run).mdp.stitch_count
    assert reused_stitches(tmp_path / "third") == (second.mdp.stitch_count, second.mdp.kept_stitches)
    corner = fit(lower_left_log(), plain, reuse=second.folder, folder=tmp_path / "corner")
    assert reused_stitches(corner.folder) == (second.mdp.stitch_count, second.mdp.kept_stitches)


@pytest.mark.parametrize(
    "other", [replace(SMALL, metric="raw"), replace(SMALL, stitch=replace(SMALL.stitch, local_error=False))]
)
def test_where_errors_are_measured_in_another_way_the_graph_is_not_taken(
    finished_run: Path, tmp_path: Path, other: Config
) -> None:
    fit(small_log(), replace(other, certificate=None), reuse=finished_run, folder=tmp_path / "other")
    assert reused_stitches(tmp_path / "other") == (0, 0)


def test_the_same_run_by_another_spelling_of_its_path_is_the_same(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = finished_run.name
    monkeypatch.chdir(finished_run.parent)
    for spelling in (name, f"./{name}/mdp/..", finished_run):
        assert Header.of(small_log(), 0, spelling).reused == str(finished_run.resolve())


def test_what_cannot_be_reused_is_refused_before_any_work(finished_run: Path, run_copy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "refused"
    with pytest.raises(SettingError, match="it was started with other transitions"):
        fit(small_log(seed=1), SMALL, reuse=finished_run, folder=folder)
    with pytest.raises(SettingError, match="its seed is 0, not 1"):
        fit(small_log(), SMALL, seed=1, reuse=finished_run, folder=folder)
    wide = replace(SMALL, model=replace(SMALL.model, hidden=(9,)))
    with pytest.raises(SettingError, match=r"its model\.hidden is \[8\], not \[9\]"):
        fit(small_log(), wide, reuse=finished_run, folder=folder)
    (run_copy / "finished.json").unlink()
    relisted(run_copy)
    with pytest.raises(DataError, match="expected a finished run"):
        fit(small_log(), SMALL, reuse=run_copy, folder=folder)
    assert not folder.exists()
