"""A fit from Python: what it returns, what lies in its folder, and how an unfinished folder continues."""

from __future__ import annotations

import gc
import tempfile
from dataclasses import fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import bats
from bats.arrays import no_progress
from bats.bounds.certificate import Option, load_certificate
from bats.config import CertificateConfig, ChoiceConfig, Config, ImprovementConfig, RolloutConfig
from bats.data.dataset import Dataset
from bats.errors import DataError, OutputError, SettingError
from bats.graph.relabel import value_of_a_step
from bats.metric.scaled import ScaledMetric
from bats.model.fit import Model, load_model
from bats.policy.files import load_policy
from bats.runs import pipeline
from bats.runs.folder import RunFolder
from bats.runs.pipeline import Job, fit, own_penalty, penalty_unit, solved_log
from bats.runs.policy_selection import policies_to_compare, select_policy
from bats.runs.records import Header
from bats.runs.result import Result, load_result
from bats.stitching.records import RoundRecord
from tests.cli.lying_run import lying_log
from tests.logs import folder_bytes
from tests.runs.relisted import relisted
from tests.small_runs import COMPARED, SMALL, small_log

CERTIFICATE, POLICY = ("certificate.json", "bounds.safetensors"), ("policy.safetensors", "policy.json")
CERTIFICATES = tuple(f"certificates/{name}/{file}" for name in COMPARED for file in CERTIFICATE)
CLONES = tuple(f"policies/{name}{Path(file).suffix}" for name in COMPARED for file in POLICY)
AFTER_CLONING = (*CERTIFICATES, *POLICY, *CERTIFICATE, "finished.json")
AFTER_STITCHING = (*CLONES, "rollouts.safetensors", *AFTER_CLONING)
"""files that are made after a stage"""
# with the better penalty the same number of states is cloned, so that nothing has to be compiled anew
CHOOSING = replace(SMALL, choice=ChoiceConfig(penalties=(2.0,), tolerances=(1.9,)))
OWN_FILES = ("timings.jsonl", "lock", "settings.json")
"""files that may differ between runs with equal results"""


@pytest.fixture
def without_policy(run_copy: Path) -> Path:
    """The folder of the small run as it was when stitching had just ended."""
    return remove(run_copy, AFTER_STITCHING)


@pytest.fixture
def without_certificate(run_copy: Path) -> Path:
    """The folder of the small run as it was when the policy had just been cloned."""
    return remove(run_copy, AFTER_CLONING)


@pytest.fixture
def model(finished_run: Path) -> Model:
    return load_model(RunFolder(finished_run).model)


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "fit_model", lambda *_, **__: pytest.fail("a model was trained"))


def remove(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        (folder / name).unlink()
    return relisted(folder)


def contents(folder: Path) -> dict[str, bytes | None]:
    return {name: content for name, content in folder_bytes(folder).items() if name not in OWN_FILES}


def assert_equal(one: Any, other: Any, path: str) -> None:
    """Compares anything that a result holds, array by array and bit by bit."""
    if isinstance(one, np.ndarray | jax.Array):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other), err_msg=path, strict=True)
    elif is_dataclass(one):
        for field in fields(one):
            assert_equal(getattr(one, field.name), getattr(other, field.name), f"{path}.{field.name}")
    elif isinstance(one, tuple):
        assert len(one) == len(other), path
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_equal(left, right, f"{path}[{number}]")
    else:
        assert one == other, path


def assert_same_result(one: Result, other: Result) -> None:
    for field in fields(Result):
        assert_equal(getattr(one, field.name), getattr(other, field.name), field.name)


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """What a fit returns that compares penalties and tolerances."""
    return fit(small_log(), CHOOSING, folder=tmp_path_factory.mktemp("chosen") / "run")


def test_what_fit_returns_equals_what_load_result_reads(chosen: Result) -> None:
    assert_same_result(chosen, load_result(chosen.folder))


def test_so_it_does_where_the_log_is_too_small_to_compare_anything(
    without_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_small(*_: object, **__: object) -> None:
        raise DataError("a larger log", "this one")

    monkeypatch.setattr("bats.bounds.error_estimates.learn_bisimulation", too_small)
    result = fit(small_log(), replace(CHOOSING, certificate=None), folder=without_policy)
    assert len(result.options) == 1
    assert_same_result(result, load_result(without_policy))


@pytest.mark.slow
def test_what_fit_returns_equals_what_load_result_reads_with_a_learned_metric(tmp_path: Path, model: Model) -> None:
    config = replace(SMALL, metric="bisimulation", penalty_steps=1.0)
    result = fit(small_log(), config, folder=tmp_path / "run", model=model)
    assert result.value_metric is not None
    assert_same_result(result, load_result(tmp_path / "run"))


@pytest.mark.usefixtures("no_training")
def test_a_finished_run_is_loaded_and_nothing_is_written(run_copy: Path) -> None:
    before = folder_bytes(run_copy)
    assert_same_result(fit(small_log(), SMALL, folder=run_copy), load_result(run_copy))
    assert folder_bytes(run_copy) == before


@pytest.mark.usefixtures("no_training")
def test_a_run_that_was_stopped_between_stages_ends_as_one_that_was_not(
    finished_run: Path, without_policy: Path
) -> None:
    remove(without_policy, ("mdp/round-0003.safetensors",))  # the last round was not finished either
    records: list[RoundRecord] = []
    result = fit(small_log(), SMALL, folder=without_policy, on_round=records.append)
    assert contents(without_policy) == contents(finished_run)
    assert result.records[-1:] == tuple(records)  # the rounds before it are not made again


def test_progress_is_reported_for_every_stage(without_policy: Path) -> None:
    stages: list[str] = []
    fit(small_log(), SMALL, folder=without_policy, progress=lambda stage, done, total: stages.append(stage))
    names = {stage.split(" (")[0] for stage in stages}
    assert {"stitching", "cloning", "computing bounds"} <= names


@pytest.mark.usefixtures("no_training")
def test_settings_of_the_certificate_may_change_until_it_is_made(without_certificate: Path) -> None:
    confident = replace(SMALL, certificate=CertificateConfig(confidence=0.5))
    result = fit(small_log(), confident, folder=without_certificate)
    assert result.certificate is not None
    assert result.certificate.confidence == 0.5
    assert load_result(without_certificate).config == confident
    before = folder_bytes(without_certificate)
    with pytest.raises(OutputError, match=r"confidence is 0\.5, not 0\.95\. `bats-rl certify .*run` adds another"):
        fit(small_log(), SMALL, folder=without_certificate)
    assert folder_bytes(without_certificate) == before


@pytest.mark.usefixtures("no_training")
def test_settings_of_the_policy_may_change_until_it_is_made(finished_run: Path, without_policy: Path) -> None:
    even = replace(SMALL, rollouts=RolloutConfig(uniform_share=1.0))
    result, own = (
        fit(small_log(), even, folder=without_policy),
        load_policy(finished_run / "policies" / "bats.safetensors"),
    )
    states = small_log().observations
    assert not np.array_equal(result.policy.predict(states), own.predict(states))
    assert load_result(without_policy).config == even
    with pytest.raises(OutputError, match=r"its cloning.hidden is \[8\], not \[4\]. `bats-rl clone .*run` adds"):
        fit(small_log(), replace(even, cloning=replace(SMALL.cloning, hidden=(4,))), folder=without_policy)


@pytest.mark.parametrize("config", [SMALL, CHOOSING], ids=["one option", "several options"])
@pytest.mark.usefixtures("no_training")
def test_a_threshold_that_no_rollout_reaches_leaves_a_folder_that_continues_with_another(
    finished_run: Path, without_policy: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    # another number of demonstrations would have to be compiled, and what is cloned is not the point
    monkeypatch.setattr(pipeline, "clone", lambda *_, **__: load_policy(finished_run / "policies" / "bats.safetensors"))
    with pytest.raises(
        DataError,
        match=r"a return of at least 1e\+09.*Lower `rollouts.min_return`; the trained model and the stitches are",
    ):
        fit(small_log(), replace(config, rollouts=RolloutConfig(min_return=1e9)), folder=without_policy)
    assert not RunFolder(without_policy).is_finished
    result = fit(small_log(), replace(config, rollouts=RolloutConfig(min_return=0.0)), folder=without_policy)
    selection = RunFolder(without_policy).selection()
    assert selection.by_return
    assert selection.threshold == 0.0
    assert result.policy.card["rollouts_cloned"] == np.count_nonzero(selection.kept) > 0


@pytest.mark.usefixtures("no_training")
def test_what_options_were_ranked_with_may_not_change_once_they_are_ranked(without_policy: Path) -> None:
    with pytest.raises(DataError, match=r"Lower `rollouts\.min_return`"):
        fit(small_log(), replace(CHOOSING, rollouts=RolloutConfig(min_return=1e9)), folder=without_policy)
    for changed in (
        replace(CHOOSING, certificate=CertificateConfig(confidence=0.5)),
        replace(CHOOSING, choice=ChoiceConfig(penalties=(40.0,))),
        replace(CHOOSING, final_tolerance=0.5),
    ):
        with pytest.raises(OutputError, match="contains another run"):
            fit(small_log(), changed, folder=without_policy)


def test_the_best_option_is_taken(chosen: Result) -> None:
    assert len(chosen.options) == 4
    best = chosen.options[0]
    assert best.lower == max(option.lower for option in chosen.options)
    assert (chosen.summary.penalty_steps, chosen.summary.tolerance) == (best.penalty, best.tolerance)
    assert any(timing.stage == "choosing" for timing in chosen.timings)


def test_the_report_of_a_run_shows_every_option(chosen: Result, tmp_path: Path) -> None:
    page = bats.write_report(chosen.folder, tmp_path / "report.html").read_text()
    for option in chosen.options:
        assert f"{option.lower:.4g}" in page


@pytest.mark.usefixtures("no_training")
def test_a_checkpoint_that_cannot_be_removed_is_an_error_of_writing(without_policy: Path) -> None:
    (without_policy / "training.safetensors").mkdir()
    with pytest.raises(OutputError, match=r"training\.safetensors could not be removed: Is a directory"):
        fit(small_log(), SMALL, folder=without_policy)


@pytest.mark.usefixtures("no_training")
def test_the_runs_own_penalty_and_tolerance_are_the_first_option_and_none_is_there_twice(
    without_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Option] = []

    def rank(mdp: object, options: list[Option], *_: object, **__: object) -> tuple[Option, ...]:
        given.extend(options)
        return tuple(options)

    monkeypatch.setattr(pipeline, "rank_options", rank)
    choice = ChoiceConfig(penalties=(1.0, SMALL.penalty_steps), tolerances=(0.2,))
    fit(small_log(), replace(SMALL, choice=choice), folder=without_policy)
    expected = [Option(penalty, tolerance) for penalty, tolerance in product((SMALL.penalty_steps, 1.0), (None, 0.2))]
    assert given == expected


def test_a_penalty_in_steps_is_in_units_of_the_value_of_a_step_and_one_in_reward_is_taken_as_it_is(
    tmp_path: Path,
) -> None:
    log = small_log()
    for config, unit in ((SMALL, None), (replace(SMALL, penalty=7.0), 1.0)):
        metric, run, header = ScaledMetric.of(log, config.metric), RunFolder(tmp_path / f"{unit}"), Header.of(log, 0)
        with run.claimed(header, config):
            solution = solved_log(Job(run, header, log, config, metric, None, no_progress))
        step_value = value_of_a_step(solution.mdp, solution.value)
        assert penalty_unit(config, solution) == (step_value if unit is None else unit)
        assert own_penalty(config) == (SMALL.penalty_steps if unit is None else 7.0)


def test_where_nothing_is_to_be_chosen_there_are_no_options(finished_run: Path) -> None:
    assert load_result(finished_run).options == ()
    assert not (finished_run / "options.jsonl").exists()


@pytest.mark.usefixtures("no_training")
def test_where_a_clone_of_the_log_is_kept_the_result_the_folder_and_the_graph_clone_say_so(
    without_certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "select_policy", lambda certificates: "log")
    result, run = fit(small_log(), SMALL, folder=without_certificate), RunFolder(without_certificate)
    assert result.summary == run.summary()
    assert result.summary.policy == "log"
    states = small_log().observations
    for policy, name in ((result.policy, "log"), (load_policy(run.policy), "log"), (result.graph_clone, "bats")):
        assert np.array_equal(policy.predict(states), load_policy(run.compared(name)).predict(states))


@pytest.mark.usefixtures("no_training")
def test_a_run_without_a_certificate_has_no_files_of_one(without_certificate: Path) -> None:
    result = fit(small_log(), replace(SMALL, certificate=None), folder=without_certificate)
    assert result.config.certificate is None
    assert result.certificate is None
    assert result.verdict is None
    assert not [path for path in result.folder.rglob("*.*") if path.name.startswith(("certificate", "bounds"))]


@pytest.mark.usefixtures("no_training")
def test_a_given_range_of_rewards_widens_what_is_possible(without_certificate: Path) -> None:
    wide = replace(SMALL, certificate=CertificateConfig(reward_range=(-1.0, 2.0)))
    result = fit(small_log(), wide, folder=without_certificate)
    assert result.certificate is not None
    assert (result.certificate.floor, result.certificate.ceiling) == pytest.approx((-20.0, 40.0))


@pytest.mark.parametrize("reward_range", [(0.0, 0.5), (0.5, 1.0), (-3.0, -2.0)])
@pytest.mark.usefixtures("no_training")
def test_a_range_that_does_not_hold_all_logged_rewards_is_refused_before_any_work(
    tmp_path: Path, reward_range: tuple[float, float]
) -> None:
    narrow = replace(SMALL, certificate=CertificateConfig(reward_range=reward_range))
    with pytest.raises(SettingError, match="must include all logged rewards, 0 to 1"):
        fit(small_log(), narrow, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_training")
def test_without_a_folder_all_files_are_removed_with_the_result_and_a_given_model_is_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Model
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = fit(small_log(), replace(SMALL, certificate=None), model=model)
    assert np.array_equal(result.model.held_out.predicted_next, model.held_out.predicted_next)
    assert (result.folder / "model.safetensors").exists()
    assert [path for path in tmp_path.iterdir() if path.name.startswith("bats-")] == [result.folder]
    del result
    gc.collect()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("bats-")]


@pytest.mark.usefixtures("no_training")
def test_what_cannot_be_fitted_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Model
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SettingError, match="no preset called 'fast'"):
        fit(small_log(), "fast")
    with pytest.raises(SettingError, match="`seed` must be between 0 and"):
        fit(small_log(), SMALL, seed=-1)
    bandit = Dataset.from_arrays(np.zeros((200, 1)), np.random.default_rng(0).random((200, 1)), np.ones(200))
    with pytest.raises(DataError, match="states that change"):
        fit(bandit, SMALL)
    other = Dataset.from_arrays(np.arange(200.0)[:, None], np.zeros((200, 1)), np.ones(200))
    with pytest.raises(SettingError, match=r"the model has states of size 2 and .*, the log has states of size 1"):
        fit(other, SMALL, model=model)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_log_with_discrete_actions_and_terminations_is_fitted(tmp_path: Path) -> None:
    config = replace(SMALL, stitch=replace(SMALL.stitch, rounds=1, tolerance=1e-6))
    result = fit(lying_log(), config, folder=tmp_path / "run")
    assert result.records[-1].accepted == 0  # the graph is that of the log
    assert result.policy.action_count == 2
    assert_same_result(result, load_result(tmp_path / "run"))
    assert result.value == result.log_value


@pytest.mark.slow
def test_the_improved_policy_is_saved_and_bounded_and_its_stage_is_made_again_where_it_was_stopped(
    tmp_path: Path,
) -> None:
    config = replace(SMALL, improvement=ImprovementConfig(turns=1))
    whole, stopped = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "stopped")
    result = fit(small_log(), config, folder=whole.path)
    assert load_policy(whole.compared("improved")).card["improvement"] == {"turns": 1, "anchor": 0.1}
    certificates = {
        name: load_certificate(whole.certificates / name) for name in policies_to_compare(small_log(), config)
    }
    assert list(certificates) == ["bats", "improved", "log", "best-tenth"]
    assert result.summary.policy == select_policy({name: one for name, one in certificates.items() if one is not None})

    def stop(text: str, done: int, total: int) -> None:
        if text.startswith("improving") and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(small_log(), config, folder=stopped.path, progress=stop)
    assert whole.stages_made()[-2:] == ["improvement", "certificate"]
    assert stopped.stages_made()[-1] == "policy"
    fit(small_log(), config, folder=stopped.path)
    one, other = (folder_bytes(run.path) for run in (whole, stopped))
    assert {name: one[name] for name in one if name not in OWN_FILES} == {
        name: other[name] for name in other if name not in OWN_FILES
    }
    with pytest.raises(OutputError, match=r"improvement\.turns"):
        fit(small_log(), replace(config, improvement=ImprovementConfig(turns=2)), folder=whole.path)
