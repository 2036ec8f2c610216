"""Which of the compared policies a run keeps."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bats.bounds.certificate import CalibrationFactors, Certificate, ModelReturn, load_certificate
from bats.cli.fit import print_result
from bats.policy.demonstrations import best_episodes
from bats.policy.files import load_policy
from bats.report.page import write_report
from bats.runs.folder import RunFolder
from bats.runs.policy_selection import policies_to_compare, select_policy
from bats.runs.records import POLICY_NAMES
from bats.runs.result import load_result
from bats.runs.variants import certify_again
from tests.bounds.test_certificate import simple_certificate
from tests.small_runs import COMPARED, SMALL, small_log


def compared(lower: float, *, in_model: float = 0.0, disagreement: float = 0.0) -> Certificate:
    """Values lie between 0 and 10, so bounds that differ by at most 0.1 are alike."""
    return replace(simple_certificate(lower, 10.0), in_model=ModelReturn(in_model, disagreement, 0.0))


def alike(in_model: float) -> Certificate:
    """Only the value in the model differs."""
    return compared(0.0, in_model=in_model, disagreement=1.0)


@pytest.mark.parametrize(
    ("certificates", "best"),
    [
        ({"bats": compared(5.0), "log": compared(4.0), "best-tenth": compared(3.0)}, "bats"),
        ({"bats": compared(1.0, in_model=9.0), "log": compared(4.0), "best-tenth": compared(3.0)}, "log"),
        ({"bats": compared(0.0, in_model=5.0), "log": compared(0.1, in_model=5.5, disagreement=0.6)}, "bats"),
        ({"bats": compared(0.0, in_model=5.0), "log": compared(0.1, in_model=5.5, disagreement=0.4)}, "log"),
        ({"bats": compared(0.0, in_model=5.0, disagreement=9.0), "log": compared(0.0, in_model=5.5)}, "log"),
        ({"bats": compared(0.0, in_model=5.0, disagreement=9.0), "log": compared(0.0, in_model=4.0)}, "bats"),
        ({"bats": alike(5.0), "log": alike(5.9), "best-tenth": alike(6.1)}, "best-tenth"),
        ({"bats": compared(0.0), "log": compared(0.0), "best-tenth": compared(0.0)}, "bats"),
        ({"bats": compared(5.0, in_model=6.0), "improved": compared(5.01, in_model=5.0)}, "improved"),
        ({"bats": compared(5.0), "improved": compared(4.99, in_model=9.0)}, "bats"),
        ({"bats": compared(0.0), "improved": compared(0.05, in_model=9.0)}, "bats"),
        ({"bats": compared(5.0), "improved": compared(6.0), "log": compared(5.5)}, "improved"),
        ({"bats": compared(5.0), "improved": compared(6.0), "log": compared(7.0)}, "log"),
    ],
    ids=[
        *("best bound", "better bound", "not better if reduced", "better in the model", "uncertain and worse"),
        *("uncertain and better", "equally uncertain", "equal", "improved by a little", "better in the model alone"),
        *("bounds say nothing", "improved better than the log", "log better than improved"),
    ],
)
def test_the_best_bound_decides_and_where_bounds_are_alike_the_model(
    certificates: dict[str, Certificate], best: str
) -> None:
    assert select_policy(certificates) == best


def test_a_run_has_all_compared_policies_and_its_policy_and_certificate_are_those_of_the_one_it_kept(
    finished_run: Path,
) -> None:
    run, result = RunFolder(finished_run), load_result(finished_run)
    certificates = {name: load_certificate(run.certificates / name) for name in COMPARED}
    assert select_policy({name: one for name, one in certificates.items() if one}) == result.summary.policy
    kept = run.compared(result.summary.policy)
    assert run.policy.read_bytes() == kept.read_bytes()
    assert (finished_run / "certificate.json").read_bytes() == (
        run.certificates / result.summary.policy / "certificate.json"
    ).read_bytes()


def test_nothing_is_compared_without_bounds_and_one_episode_has_no_best_tenth() -> None:
    assert policies_to_compare(small_log(), SMALL) == ("bats", "log", "best-tenth")
    assert policies_to_compare(small_log(episodes=1), SMALL) == ("bats", "log")
    assert policies_to_compare(small_log(), replace(SMALL, certificate=None)) == ("bats",)


def test_the_clones_of_the_log_are_of_all_rows_and_of_the_best_tenth(finished_run: Path) -> None:
    run, log = RunFolder(finished_run), small_log()
    for name, share in {"log": 1.0, "best-tenth": 0.1}.items():
        card = load_policy(run.compared(name)).card
        assert card["share_cloned"] == share
        assert card["rows"] == np.count_nonzero(best_episodes(log, share))
    assert load_policy(run.compared("best-tenth")).card["rows"] == 40  # two of twenty episodes of 20 rows


def test_bounds_that_compare_have_factors_that_are_large_enough_for_all(finished_run: Path) -> None:
    run = RunFolder(finished_run)
    found = [one for name in COMPARED if (one := load_certificate(run.certificates / name)) is not None]
    known = [one for one in found if one.clone_factors.known]
    largest = CalibrationFactors.largest(one.clone_factors for one in known)
    for one in found:
        if (one.clone_factors.value, one.clone_factors.reward) == (largest.value, largest.reward):
            assert one.comparable_lower == one.clone.lower
        elif one.clone_factors.known:
            assert one.comparable_lower <= one.clone.lower
    # bounded alone, a policy shares its factors with nobody
    settings = SMALL.certificate
    assert settings is not None
    alone = certify_again(run, settings, policy=load_policy(run.compared("log")))
    assert alone.clone_factors.known
    assert alone.comparable_lower == alone.clone.lower


def test_fit_and_the_report_show_the_comparison(finished_run: Path, tmp_path: Path) -> None:
    result, run = load_result(finished_run), RunFolder(finished_run)
    console = Console(width=400, file=StringIO())
    print_result(result, finished_run, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    page = write_report(finished_run, tmp_path / "report.html").read_text()
    assert "Policies that were compared" in page
    assert POLICY_NAMES[result.summary.policy] in printed
    for name in COMPARED:
        one = load_certificate(run.certificates / name)
        assert one is not None
        assert f"{name} {one.clone.lower:.4g} to {one.clone.upper:.4g}" in printed
        assert f"{one.comparable_lower:.6g}" in page
        assert f"{one.in_model.value:.6g}" in page
