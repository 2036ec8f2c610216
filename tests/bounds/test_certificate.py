"""The certificate: its verdict, its files, and what it says where a log is too small for any bounds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bats.bounds.certificate import (
    MIN_COVERAGE,
    CalibrationFactors,
    Certificate,
    ModelReturn,
    StartBounds,
    load_certificate,
    reasons_to_hold,
    save_certificate,
)
from bats.bounds.graph_policy import unknown_errors
from bats.bounds.sandwich import ErrorBounds, GraphBounds, StartValue, sandwich
from bats.data.formats.fields import ColumnMap
from bats.data.formats.load import load_dataset
from bats.errors import DataError, SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import Stitches, add_stitches
from bats.graph.solve import first_edges, logged_value, policy_iteration, policy_value, start_value
from bats.metric.policy_steps import PolicySteps
from bats.runs.pipeline import fit
from bats.runs.result import Result, load_result, solve_again
from tests.crafted import rewrite
from tests.mdps import mdp_from_edges
from tests.runs.relisted import relisted
from tests.small_runs import SMALL, small_log

FACTORS = CalibrationFactors(2.0, 1.5, 7)


@pytest.fixture(scope="module")
def result(finished_run: Path) -> Result:
    return load_result(finished_run)


def bounded(error: float) -> GraphBounds:
    """State 0 has reward 0.2 for ever, value 2; a stitch with this error leads to state 1, value 10."""
    log = mdp_from_edges(3, [(0, 0, 0.2), (1, 1, 1.0), (2, 2, 0.0)], gamma=0.9)
    stitch = Stitches(
        source=np.array([0]),
        target=np.array([1]),
        length=np.array([1]),
        action=np.zeros((1, 1, 1)),
        state=np.zeros((1, 0, 1)),
        reward=np.zeros((1, 1)),
        planning_error=np.zeros(1),
    )
    mdp = add_stitches(log, stitch, stitch_round=1)
    by_stitch = np.where(mdp.out_degree > 0, mdp.first_edge[1:] - 1, NO_EDGE)
    return sandwich(mdp, ErrorBounds(np.array([error])), by_stitch)


def simple_certificate(lower: float, upper: float, *, starts: int = 3, reasons: tuple[str, ...] = ()) -> Certificate:
    """A certificate of a clone with these bounds at every start."""
    value = StartValue(lower, upper, (upper - lower) / 10)
    low, high = np.full(starts, lower), np.full(starts, upper)
    return Certificate(
        reasons=reasons,
        clone=value,
        graph=value,
        logged_value=2.0,
        coverage=0.5,
        share_on_stitches=1.0,
        floor=0.0,
        ceiling=10.0,
        confidence=0.9,
        graph_factors=CalibrationFactors(2.0, math.inf, 5),
        clone_factors=FACTORS,
        in_model=ModelReturn(lower, 0.5, 0.25),
        comparable_lower=lower,
        policy="a checksum",
        at_starts=StartBounds(np.arange(starts), np.full(starts, 1 / starts), low, high, low, high),
    )


def test_a_policy_whose_lower_bound_exceeds_the_value_of_the_log_is_deployed() -> None:
    bounds = bounded(1.0)
    assert reasons_to_hold(bounds, logged_value=2.0, coverage=0.95) == ()
    assert (bounds.start.lower, bounds.start.upper) == pytest.approx((8.1, 9.9))
    assert bounds.start.width == pytest.approx(0.18)
    assert bounds.share_on_stitches == 1.0


def test_a_log_that_is_already_optimal_is_held_even_if_rounding_were_in_its_favour() -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.1), (1, 0, 0.3)], gamma=0.99)
    bounds = sandwich(mdp, ErrorBounds(np.zeros(0)), first_edges(mdp))
    logged = start_value(mdp, policy_iteration(mdp).value)
    assert bounds.share_on_stitches == pytest.approx(0.0)
    for noise in (-1e-12, 0.0, 1e-12):
        assert reasons_to_hold(replace(bounds, lower=bounds.lower + noise), logged_value=logged, coverage=1.0)


def test_a_policy_whose_upper_bound_does_not_exceed_the_value_of_the_log_is_held() -> None:
    mdp = mdp_from_edges(1, [(0, 0, 0.2)], gamma=0.9)
    bounds = sandwich(mdp, ErrorBounds(np.zeros(0)), first_edges(mdp))
    assert reasons_to_hold(bounds, logged_value=2.0, coverage=1.0) == (
        "The policy's lower bound at the starts, 2, does not exceed the value of the log, 2.",
        "The policy's upper bound, 2, does not exceed the value of the log either.",
    )


def test_a_policy_that_may_be_better_is_held_if_that_is_not_certified() -> None:
    bounds = bounded(6.0)
    assert (bounds.start.lower, bounds.start.upper) == pytest.approx((3.6, 10.0))  # 14.4 without the ceiling
    assert reasons_to_hold(bounds, logged_value=5.0, coverage=1.0) == (
        "The policy's lower bound at the starts, 3.6, does not exceed the value of the log, 5.",
        "The policy's value may be as high as 10, but this is not certified.",
    )


def test_starts_outside_the_logs_support_hold_whatever_the_bounds() -> None:
    reason = "Only 89.6% of the start weight lies within the log's support; at least 90% is required."
    assert reasons_to_hold(bounded(0.0), logged_value=2.0, coverage=0.896) == (reason,)
    assert not reasons_to_hold(bounded(0.0), logged_value=2.0, coverage=MIN_COVERAGE)
    assert len(reasons_to_hold(bounded(9.0), logged_value=2.0, coverage=0.0)) == 3


def test_the_verdict_is_deploy_or_hold_with_all_reasons() -> None:
    deployed, held = simple_certificate(3.0, 4.0), simple_certificate(3.0, 4.0, reasons=("One.", "Another."))
    assert deployed.deploy
    assert (
        deployed.verdict
        == "deploy: at 90% confidence, the cloned policy's value is higher than the value of the logged behaviour"
    )
    assert not held.deploy
    assert held.verdict == "hold: One. Another."


@pytest.mark.parametrize("coverage", [-0.1, 1.1, np.nan])
def test_a_coverage_that_is_not_a_share_is_refused(coverage: float) -> None:
    with pytest.raises(SettingError, match="coverage"):
        reasons_to_hold(bounded(0.0), logged_value=2.0, coverage=coverage)


def test_the_facts_are_the_numbers_of_the_certificate_in_words() -> None:
    facts = simple_certificate(3.0, 4.0).facts()
    assert facts["lower bound"] == "3"
    assert facts["upper bound"] == "4"
    assert facts["value of the log"].startswith("2 ")
    assert facts["due to stitches"].startswith("100.0% ")
    assert facts["starts within support"] == "50.0% of the start weight"
    assert facts["width of the bounds"] == "10.0% of the range of possible values, 0 to 10"
    assert facts["confidence"] == "90%"


def test_a_clone_is_certified_to_be_better_only_if_its_lower_bound_exceeds_the_others_upper_bound() -> None:
    old = simple_certificate(1.0, 3.0)
    assert simple_certificate(3.5, 9.0).gain_over(old) == pytest.approx(0.5)
    assert simple_certificate(3.5, 9.0).is_better_than(old)
    assert not simple_certificate(3.0, 9.0).is_better_than(old)
    assert not simple_certificate(3.0 + 1e-12, 9.0).is_better_than(old)  # rounding
    assert not old.is_better_than(simple_certificate(2.0, 2.5))
    assert simple_certificate(3.5, 9.0, starts=4).gain_over(old) is None
    assert not simple_certificate(3.5, 9.0, starts=4).is_better_than(old)


def test_factors_are_known_where_both_are_finite() -> None:
    assert FACTORS.known
    assert not CalibrationFactors(2.0, math.inf, 7).known


def test_a_certificate_is_loaded_as_it_was_saved_infinities_included(tmp_path: Path) -> None:
    certificate = simple_certificate(3.0, 4.0, reasons=("One.", "Another <b>one</b>."))
    assert load_certificate(tmp_path) is None
    save_certificate(certificate, tmp_path)
    loaded = load_certificate(tmp_path)
    assert loaded is not None
    for name, value in vars(certificate).items():
        if name != "at_starts":
            assert getattr(loaded, name) == value, name
    for name, array in vars(certificate.at_starts).items():
        assert np.array_equal(getattr(loaded.at_starts, name), array)


def test_a_damaged_certificate_is_reported_with_its_file(run_copy: Path) -> None:
    card = json.loads((run_copy / "certificate.json").read_text())
    (run_copy / "certificate.json").write_text(json.dumps(card | {"floor": "low"}))
    relisted(run_copy)
    with pytest.raises(DataError, match=r"certificate\.json: field 'floor': expected a number"):
        load_result(run_copy)
    save_certificate(simple_certificate(0.0, 1.0), run_copy)
    (run_copy / "bounds.safetensors").unlink()
    with pytest.raises(DataError, match=r"bounds\.safetensors: .*no such file"):
        load_result(run_copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clone_lower": np.array([np.nan, 1.0, 1.0])}, "'clone_lower': expected finite numbers"),
        ({"clone_lower": np.array([1e308, 1.0, 1.0])}, r"bounds must not exceed 1e\+300"),
        ({"clone_lower": np.ones(2)}, r"'clone_lower': expected floats of shape \(W\), found .* where W = 3"),
        ({"weights": -np.ones(3)}, "weights must not be negative"),
        ({"weights": np.ones(3)}, "weights must not be negative and must sum to 1"),
        ({"starts": np.array([0, -1, 2])}, "state indices must not be negative"),
        ({"starts": np.zeros(3)}, "'starts': expected integers"),
        (dict.fromkeys(("graph_lower", "graph_upper", "clone_lower", "clone_upper", "weights"), np.zeros(0)), "W = 3"),
    ],
)
def test_crafted_bounds_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    save_certificate(simple_certificate(1.0, 2.0), tmp_path)
    rewrite(tmp_path / "bounds.safetensors", change)
    with pytest.raises(DataError, match=message):
        load_certificate(tmp_path)


def test_bounds_without_a_start_are_refused() -> None:
    none = np.zeros(0)
    with pytest.raises(SettingError, match="at least one start"):
        StartBounds(none.astype(int), none, none, none, none, none)


def test_the_bounds_of_a_run_are_in_order_and_within_what_rewards_allow(result: Result) -> None:
    certificate = result.certificate
    assert certificate is not None
    at = certificate.at_starts
    assert np.array_equal(at.starts, result.mdp.starts)
    assert (certificate.floor, certificate.ceiling) == pytest.approx((0.0, 1 / (1 - 0.95)))  # rewards are 0 and 1
    for lower, upper, value in (
        (at.graph_lower, at.graph_upper, certificate.graph),
        (at.clone_lower, at.clone_upper, certificate.clone),
    ):
        assert np.all(lower <= upper)
        assert np.all(lower >= certificate.floor - 1e-9)
        assert np.all(upper <= certificate.ceiling + 1e-9)
        assert (value.lower, value.upper) == pytest.approx((at.weights @ lower, at.weights @ upper))
        assert value.width == pytest.approx((value.upper - value.lower) / (certificate.ceiling - certificate.floor))


def test_the_verdict_of_a_run_follows_the_rule(result: Result) -> None:
    certificate = result.certificate
    assert certificate is not None
    assert result.verdict == certificate.verdict
    assert certificate.logged_value == pytest.approx(
        logged_value(small_log(), gamma=0.95, dead_end_value=certificate.floor), abs=1e-12
    )
    supported = result.policy.support_distance(result.mdp.states[result.mdp.starts]) <= 1
    assert certificate.coverage == pytest.approx(result.mdp.start_weights @ supported)
    exceeds = certificate.clone.lower > certificate.logged_value
    assert certificate.deploy == (exceeds and certificate.coverage >= MIN_COVERAGE)
    assert bool(certificate.reasons) != certificate.deploy


@pytest.mark.slow
def test_a_log_of_two_hundred_rows_is_held_with_reasons(tmp_path: Path) -> None:
    log = small_log(episodes=10, steps=20)
    rows = [
        f"{number // 20},{x},{y},{u},{v},{reward}"
        for number, ((x, y), (u, v), reward) in enumerate(zip(log.observations, log.actions, log.rewards, strict=True))
    ]
    (tmp_path / "log.csv").write_text("\n".join(("run,x,y,u,v,r", *rows)) + "\n")
    columns = ColumnMap.parse("observations=x,y actions=u,v rewards=r episode=run")
    dataset = load_dataset(str(tmp_path / "log.csv"), columns=columns)
    assert len(dataset) == 190  # the next state of an episode's last row is not in the table
    certificate = fit(dataset, SMALL).certificate
    assert certificate is not None
    assert not certificate.deploy
    assert all(reason.endswith(".") for reason in certificate.reasons)


def test_where_no_metric_can_be_learned_the_bounds_are_what_rewards_allow_and_the_first_reason_says_why(
    run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (
        run_copy / "finished.json",
        *run_copy.rglob("certificate.json"),
        *run_copy.rglob("bounds.safetensors"),
    ):
        path.unlink()
    relisted(run_copy)

    def too_few(*_: object, **__: object) -> None:
        raise DataError("more than 4 states to calibrate with", "3 of 30")

    monkeypatch.setattr("bats.bounds.error_estimates.learn_bisimulation", too_few)
    certificate = fit(small_log(), SMALL, folder=run_copy).certificate
    assert certificate is not None
    assert np.all(certificate.at_starts.clone_lower == certificate.floor)
    assert np.all(certificate.at_starts.clone_upper == certificate.ceiling)
    assert certificate.clone.width == pytest.approx(1.0)
    assert not certificate.deploy
    assert certificate.reasons[0] == (
        "Bounds cannot be computed: expected more than 4 states to calibrate with, found 3 of 30."
    )
    assert len(certificate.reasons) == 3


def test_without_trust_in_any_stitch_the_graph_has_the_value_that_the_log_alone_shows(finished_run: Path) -> None:
    solution = solve_again(finished_run)
    graph = sandwich(solution.mdp, ErrorBounds(*unknown_errors(solution.mdp)), solution.policy)
    assert graph.start.lower == pytest.approx(graph.start_weights @ graph.without_stitches[graph.starts])


@pytest.mark.parametrize("dead_end_value", [0.0, -3.0])
def test_the_values_that_the_metric_is_calibrated_with_are_those_of_the_policy(
    finished_run: Path, dead_end_value: float
) -> None:
    solution = solve_again(finished_run)
    mdp, policy = replace(solution.mdp, penalty=0.0), solution.policy
    steps = PolicySteps.of(mdp, policy, dead_end_value=dead_end_value)
    expected = policy_value(mdp, policy, dead_end_value=dead_end_value)
    np.testing.assert_allclose(steps.values(), expected, atol=1e-9)
