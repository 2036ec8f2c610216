"""Which of the compared policies a run keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bats.bounds.certificate import Certificate, ModelReturn, load_certificate
from bats.policy.demonstrations import best_episodes
from bats.policy.files import load_policy
from bats.runs.candidates import best_candidate, candidate_names
from bats.runs.folder import RunFolder
from bats.runs.records import CANDIDATES
from bats.runs.result import load_result
from tests.bounds.test_certificate import simple_certificate
from tests.small_runs import SMALL, small_log


def candidate(lower: float, *, in_model: float = 0.0, disagreement: float = 0.0) -> Certificate:
    """Values lie between 0 and 10, so bounds that differ by at most 0.1 are alike."""
    return replace(simple_certificate(lower, 10.0), in_model=ModelReturn(in_model, disagreement, 0.0))


@pytest.mark.parametrize(
    ("certificates", "best"),
    [
        ({"bats": candidate(5.0), "log": candidate(4.0), "best-tenth": candidate(3.0)}, "bats"),
        ({"bats": candidate(1.0, in_model=9.0), "log": candidate(4.0), "best-tenth": candidate(3.0)}, "log"),
        ({"bats": candidate(0.0, in_model=5.0), "log": candidate(0.1, in_model=5.5, disagreement=0.6)}, "bats"),
        ({"bats": candidate(0.0, in_model=5.0), "log": candidate(0.1, in_model=5.5, disagreement=0.4)}, "log"),
        ({"bats": candidate(0.0, in_model=5.0, disagreement=1.0), "log": candidate(0.0, in_model=5.5)}, "bats"),
        ({"bats": candidate(0.0), "log": candidate(0.0), "best-tenth": candidate(0.0)}, "bats"),
    ],
    ids=["best bound", "better bound", "within disagreement", "clearly better", "own disagreement", "equal"],
)
def test_the_best_bound_decides_and_where_bounds_are_alike_the_model(
    certificates: dict[str, Certificate], best: str
) -> None:
    assert best_candidate(certificates) == best


def test_a_run_has_all_candidates_and_its_policy_and_certificate_are_those_of_the_one_it_kept(
    finished_run: Path,
) -> None:
    run, result = RunFolder(finished_run), load_result(finished_run)
    certificates = {name: load_certificate(run.certificates / name) for name in CANDIDATES}
    assert best_candidate({name: one for name, one in certificates.items() if one}) == result.summary.policy
    kept = run.candidate(result.summary.policy)
    assert run.policy.read_bytes() == kept.read_bytes()
    assert (finished_run / "certificate.json").read_bytes() == (
        run.certificates / result.summary.policy / "certificate.json"
    ).read_bytes()


def test_nothing_is_compared_without_bounds_and_one_episode_has_no_best_tenth() -> None:
    assert candidate_names(small_log(), SMALL) == ("bats", "log", "best-tenth")
    assert candidate_names(small_log(episodes=1), SMALL) == ("bats", "log")
    assert candidate_names(small_log(), replace(SMALL, certificate=None)) == ("bats",)


def test_the_clones_of_the_log_are_of_all_rows_and_of_the_best_tenth(finished_run: Path) -> None:
    run, log = RunFolder(finished_run), small_log()
    for name, share in {"log": 1.0, "best-tenth": 0.1}.items():
        card = load_policy(run.candidate(name)).card
        assert card["share_cloned"] == share
        assert card["rows"] == np.count_nonzero(best_episodes(log, share))
    assert load_policy(run.candidate("best-tenth")).card["rows"] == 40  # two of twenty episodes of 20 rows
