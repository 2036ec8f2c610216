"""The verdict on worked examples: deploy, and hold for each reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bats.bounds.sandwich import Bounds, Doubts, sandwich
from bats.bounds.verdict import verdict
from bats.errors import SettingError
from bats.graph.mdp import Stitches, add_stitches
from bats.graph.solve import policy_iteration, start_value
from tests.mdps import mdp_from_edges


def bounded(error: float) -> Bounds:
    """State 0 is paid 0.2 for ever, worth 2; a stitch joins it to state 1, worth 10: 0.9 * 10 less 0.9 * error."""
    log = mdp_from_edges(3, [(0, 0, 0.2), (1, 1, 1.0), (2, 2, 0.0)], gamma=0.9)
    stitch = Stitches.judged_by_one(
        source=np.array([0]),
        target=np.array([1]),
        length=np.array([1]),
        action=np.zeros((1, 1, 1)),
        state=np.zeros((1, 0, 1)),
        reward=np.zeros((1, 1)),
        planning_error=np.zeros(1),
    )
    return sandwich(add_stitches(log, stitch, stitch_round=1), Doubts(np.array([error])))


def test_a_policy_that_is_sure_to_earn_more_than_the_log_is_deployed() -> None:
    said = verdict(bounded(1.0), logged_value=2.0, coverage=0.95)
    assert said.deploy
    assert str(said) == "deploy"
    assert (said.lower, said.upper, said.logged_value, said.coverage) == pytest.approx((8.1, 9.9, 2.0, 0.95))
    assert said.width == pytest.approx(0.18)
    assert said.share_on_stitches == 1.0


def test_a_log_that_is_already_optimal_is_held_though_rounding_were_in_its_favour() -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.1), (1, 0, 0.3)], gamma=0.99)
    bounds = sandwich(mdp, Doubts(np.zeros(0)))
    logged = start_value(mdp, policy_iteration(mdp).value)
    for noise in (-1e-12, 0.0, 1e-12):
        said = verdict(replace(bounds, lower=bounds.lower + noise), logged_value=logged, coverage=1.0)
        assert not said.deploy
        assert said.share_on_stitches == pytest.approx(0.0)


def test_a_stitch_that_is_doubted_too_much_is_not_used_and_the_policy_is_held() -> None:
    said = verdict(bounded(9.0), logged_value=2.0, coverage=1.0)
    assert not said.deploy
    assert said.reasons == (
        "The policy's lower bound at the starts, 2, does not exceed what the log earned, 2. "
        "Even its upper bound, 2, is no more.",
    )


def test_a_policy_that_may_be_better_is_not_certain_to_be() -> None:
    said = verdict(bounded(6.0), logged_value=5.0, coverage=1.0)
    assert (said.lower, said.upper) == pytest.approx((3.6, 10.0))  # 14.4, but no more than the ceiling
    assert str(said) == (
        "hold: The policy's lower bound at the starts, 3.6, does not exceed what the log earned, 5. "
        "It may earn up to 10, but that is not certain."
    )


def test_starts_outside_the_data_hold_whatever_the_bounds() -> None:
    said = verdict(bounded(0.0), logged_value=2.0, coverage=0.896)
    assert not said.deploy
    assert str(said) == "hold: Only 89.6% of the start weight lies within the data; 90% is asked for."
    assert verdict(bounded(0.0), logged_value=2.0, coverage=0.9).deploy
    assert len(verdict(bounded(9.0), logged_value=2.0, coverage=0.0).reasons) == 2


@pytest.mark.parametrize("wrong", [-0.1, 1.1, np.nan])
def test_a_coverage_that_is_no_share_is_refused(wrong: float) -> None:
    with pytest.raises(SettingError, match="coverage"):
        verdict(bounded(0.0), logged_value=2.0, coverage=wrong)


def test_why_nothing_could_be_known_is_the_first_reason_whatever_the_bounds() -> None:
    said = verdict(bounded(0.0), logged_value=2.0, coverage=0.5, unknown=("The log is too small.",))
    assert not said.deploy
    assert said.reasons[0] == "The log is too small."
    assert len(said.reasons) == 2


def test_a_clone_rests_on_the_stitches_of_the_graph() -> None:
    graph = bounded(1.0)
    clone = replace(graph, lower=np.full_like(graph.lower, graph.floor))
    assert verdict(clone, logged_value=2.0, coverage=1.0).share_on_stitches == 0.0
    said = verdict(clone, logged_value=2.0, coverage=1.0, share_on_stitches=graph.share_on_stitches)
    assert said.share_on_stitches == 1.0
