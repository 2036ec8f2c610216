"""The certificate of a run: its files, what they promise, and what is said where a log is too small for any."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bats.bounds.certificate import (
    CertificateCard,
    Certified,
    StartBounds,
    Trust,
    Worth,
    load_certified,
    save_certified,
)
from bats.bounds.certify import nothing_known
from bats.bounds.verdict import LEAST_COVERAGE, Verdict
from bats.data.formats.load import ColumnMap, load_dataset
from bats.errors import DataError, SettingError
from bats.graph.solve import logged_value, policy_value
from bats.metric.policy_steps import Transitions
from bats.runs import pipeline
from bats.runs.pipeline import Result, fit, load_result
from tests.small_runs import SMALL, walks


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return fit(walks(), SMALL, folder=tmp_path_factory.mktemp("runs") / "run")


def certificate_of(lower: float, upper: float, *, starts: int = 3) -> Certified:
    """One whose clone is worth so much in every start."""
    said = Verdict(lower, upper, (upper - lower) / 10, 2.0, 0.5, 1.0, ())
    worth = Worth(lower, upper, (upper - lower) / 10)
    card = CertificateCard(said, worth, worth, 0.0, 10.0, 0.9, Trust(2.0, np.inf, 5), Trust(2.0, 1.5, 7))
    low, high = np.full(starts, lower), np.full(starts, upper)
    return Certified(card, StartBounds(np.arange(starts), np.full(starts, 1 / starts), low, high, low, high))


def test_what_was_saved_is_there_again_even_what_json_has_no_sign_for(tmp_path: Path) -> None:
    said = certificate_of(3.0, 4.0)
    said = replace(
        said, card=replace(said.card, verdict=replace(said.verdict, reasons=("One.", "Another <b>one</b>.")))
    )
    assert load_certified(tmp_path) is None
    save_certified(said, tmp_path)
    again = load_certified(tmp_path)
    assert again is not None
    assert again.card == said.card
    for name, array in vars(said.at_starts).items():
        assert np.array_equal(getattr(again.at_starts, name), array)


def test_damage_is_told_with_its_file(result: Result, tmp_path: Path) -> None:
    shutil.copytree(result.folder, tmp_path / "run")
    card = json.loads((tmp_path / "run" / "certificate.json").read_text())
    (tmp_path / "run" / "certificate.json").write_text(json.dumps(card | {"floor": "low"}))
    with pytest.raises(DataError, match=r"certificate\.json: field 'floor': expected a number"):
        load_result(tmp_path / "run")
    save_certified(certificate_of(0.0, 1.0), tmp_path / "run")
    (tmp_path / "run" / "bounds.safetensors").unlink()
    with pytest.raises(DataError, match=r"bounds\.safetensors: .*no such file"):
        load_result(tmp_path / "run")


def test_bounds_are_in_order_and_within_what_rewards_allow(result: Result) -> None:
    found = result.certificate
    assert found is not None
    card, at = found.card, found.at_starts
    assert np.array_equal(at.starts, result.mdp.starts)
    assert (card.floor, card.ceiling) == pytest.approx((0.0, 1 / (1 - 0.95)))  # rewards of 0 and 1
    for lower, upper, worth in (
        (at.graph_lower, at.graph_upper, card.graph),
        (at.clone_lower, at.clone_upper, card.clone),
    ):
        assert np.all(lower <= upper)
        assert np.all(lower >= card.floor - 1e-9)
        assert np.all(upper <= card.ceiling + 1e-9)
        assert (worth.lower, worth.upper) == pytest.approx((at.weights @ lower, at.weights @ upper))
        assert worth.width == pytest.approx((worth.upper - worth.lower) / (card.ceiling - card.floor))


def test_the_verdict_is_that_of_the_clone_and_keeps_to_the_rule(result: Result) -> None:
    said, found = result.verdict, result.certificate
    assert said is not None
    assert found is not None
    assert said is found.verdict
    assert (said.lower, said.upper, said.width) == (
        found.card.clone.lower,
        found.card.clone.upper,
        found.card.clone.width,
    )
    floor = found.card.floor
    assert said.logged_value == logged_value(walks(), gamma=0.95, dead_end_value=floor)
    starts = result.mdp.states[result.mdp.starts]
    assert said.coverage == pytest.approx(result.mdp.start_weights @ (result.policy.strangeness(starts) <= 1))
    assert said.deploy == (said.lower > said.logged_value and said.coverage >= LEAST_COVERAGE)
    assert bool(said.reasons) != said.deploy


def test_a_run_without_a_certificate_has_no_files_of_one(tmp_path: Path, result: Result) -> None:
    bare = fit(walks(), replace(SMALL, certificate=None), folder=tmp_path / "bare", model=result.model)
    assert bare.config.certificate is None
    assert bare.certificate is None
    assert bare.verdict is None
    assert not [path for path in bare.folder.iterdir() if path.name.startswith(("certificate", "bounds"))]


def test_a_log_of_two_hundred_rows_is_held_with_a_reason(tmp_path: Path) -> None:
    log = walks(episodes=10, steps=20)
    rows = [
        f"{number // 20},{x},{y},{u},{v},{reward}"
        for number, ((x, y), (u, v), reward) in enumerate(zip(log.observations, log.actions, log.rewards, strict=True))
    ]
    (tmp_path / "log.csv").write_text("\n".join(("run,x,y,u,v,r", *rows)) + "\n")
    read = load_dataset(
        str(tmp_path / "log.csv"), columns=ColumnMap.parse("observations=x,y actions=u,v rewards=r episode=run")
    )
    assert len(read) == 190  # where the last action of an episode led is not told
    small = replace(SMALL, dynamics=replace(SMALL.dynamics, validation_rows=20, held_out_rows=20))
    said = fit(read, small).verdict
    assert said is not None
    assert not said.deploy
    assert all(reason.endswith(".") for reason in said.reasons)


def test_where_no_metric_can_be_learned_nothing_is_known_and_that_is_the_first_reason(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(result.folder, tmp_path / "run")
    for name in ("finished.json", "certificate.json", "bounds.safetensors"):
        (tmp_path / "run" / name).unlink()

    def too_few(*given: object, **named: object) -> None:
        raise DataError("more than 4 states in the part that is to calibrate", "3 of 30")

    monkeypatch.setattr("bats.bounds.certify.learn_bisimulation", too_few)
    found = fit(walks(), SMALL, folder=tmp_path / "run").certificate
    assert found is not None
    assert np.all(found.at_starts.clone_lower == found.card.floor)
    assert np.all(found.at_starts.clone_upper == found.card.ceiling)
    assert found.card.clone.width == pytest.approx(1.0)
    assert not found.verdict.deploy
    assert found.verdict.reasons[0] == (
        "It takes more than 4 states in the part that is to calibrate to bound the policy's value; found: 3 of 30."
    )
    assert len(found.verdict.reasons) == 2


def test_knowing_nothing_the_graph_is_worth_what_the_log_alone_shows(result: Result) -> None:
    assert SMALL.certificate is not None
    graph, clone = nothing_known(replace(result.mdp, penalty=0.0), result.solution.policy, SMALL.certificate)
    assert graph.start_lower == pytest.approx(graph.start_weights @ graph.without_stitches[graph.starts])
    assert np.all(clone.lower == graph.floor)
    assert np.all(clone.upper == graph.ceiling)


def test_a_reward_range_widens_what_may_be_and_one_that_the_log_leaves_is_refused_before_any_work(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SMALL.certificate is not None
    wide = replace(SMALL, certificate=replace(SMALL.certificate, reward_range=(-1.0, 2.0)))
    found = fit(walks(), wide, folder=tmp_path / "wide", model=result.model)
    assert found.config == wide
    assert found.certificate is not None
    assert (found.certificate.card.floor, found.certificate.card.ceiling) == pytest.approx((-20.0, 40.0))
    monkeypatch.setattr(pipeline, "fit_dynamics", lambda *given, **named: pytest.fail("it was trained"))
    for wrong in ((0.0, 0.5), (0.5, 1.0), (0.0, np.inf)):
        narrow = replace(SMALL, certificate=replace(SMALL.certificate, reward_range=wrong))
        with pytest.raises(SettingError, match="must hold all logged rewards, 0 to 1"):
            fit(walks(), narrow, folder=tmp_path / "narrow")
    assert not (tmp_path / "narrow").exists()


def test_a_run_is_sure_to_be_better_only_if_its_least_exceeds_the_others_most() -> None:
    old = certificate_of(1.0, 3.0)
    assert certificate_of(3.5, 9.0).gain_over(old) == pytest.approx(0.5)
    assert certificate_of(3.5, 9.0).certainly_above(old)
    assert not certificate_of(3.0, 9.0).certainly_above(old)
    assert not certificate_of(3.0 + 1e-12, 9.0).certainly_above(old)  # rounding
    assert not old.certainly_above(certificate_of(2.0, 2.5))
    assert certificate_of(3.5, 9.0, starts=4).gain_over(old) is None
    assert not certificate_of(3.5, 9.0, starts=4).certainly_above(old)


def test_values_along_transitions_are_those_of_the_policy(result: Result) -> None:
    mdp, policy = replace(result.mdp, penalty=0.0), result.solution.policy
    for worth in (0.0, -3.0):
        steps = Transitions.of(mdp, policy, dead_end_value=worth)
        np.testing.assert_allclose(steps.values(), policy_value(mdp, policy, dead_end_value=worth), atol=1e-9)
