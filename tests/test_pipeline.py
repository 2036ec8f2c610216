"""A fit from Python: what it returns is what lies in its folder, and nothing stays that was not asked for."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from bats.data.dataset import Dataset
from bats.errors import DataError, OutputError, SettingError
from bats.runs import pipeline
from bats.runs.pipeline import Result, fit, load_result
from tests.logs import folder_bytes
from tests.small_runs import SMALL, walks


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return fit(walks(), SMALL, seed=1, folder=tmp_path_factory.mktemp("runs") / "run")


def test_a_result_that_was_saved_is_there_again(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "deep" / "kept")
    again = load_result(tmp_path / "deep" / "kept")
    assert (again.log, again.config, again.seed, again.records) == (result.log, SMALL, 1, result.records)
    assert (again.logged_value, again.log_value, again.value) == (result.logged_value, result.log_value, result.value)
    assert np.array_equal(again.solution.value, result.solution.value)
    assert np.array_equal(again.metric.weight, result.metric.weight)
    states = walks().observations
    assert np.array_equal(again.policy.predict(states), result.policy.predict(states))
    assert folder_bytes(again.folder) == folder_bytes(result.folder)


def test_saving_overwrites_nothing_and_leaves_nothing_half_done(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(OutputError, match="exists already"):
        result.save(tmp_path / "there")

    def full(source: Path, target: Path) -> None:
        (target / "mdp").mkdir(parents=True)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pipeline.shutil, "copytree", full)
    with pytest.raises(OutputError, match="kept could not be written: No space left"):
        result.save(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_without_a_folder_everything_goes_with_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = fit(walks(), SMALL)
    assert [path for path in tmp_path.iterdir() if path.name.startswith("bats-")] == [found.folder]
    del found
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("bats-")]


def test_what_cannot_be_fitted_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(pipeline, "fit_dynamics", lambda *given, **named: pytest.fail("it was trained"))
    with pytest.raises(SettingError, match="no preset called 'fast'"):
        fit(walks(), "fast")
    with pytest.raises(SettingError, match="must not be negative"):
        fit(walks(), SMALL, seed=-1)
    bandit = Dataset.from_arrays(np.zeros((200, 1)), np.random.default_rng(0).random((200, 1)), np.ones(200))
    with pytest.raises(DataError, match="states that change"):
        fit(bandit, SMALL)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="folder of a run"):
        load_result(tmp_path)
