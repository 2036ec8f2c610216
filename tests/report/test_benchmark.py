"""The comparison of methods: the arithmetic of its tables, and two figures that cannot be confused."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from bats.bounds.certificate import load_certificate
from bats.report.benchmark import (
    LAST,
    PICKED,
    Published,
    RunScore,
    as_csv,
    as_markdown,
    benchmark_page,
    mean_and_error,
    score_table,
)
from bats.report.html import render
from bats.report.logs import LogScore, log_tables, share_of_the_way


def score(method: str, seed: int, last: float, picked: float | None) -> RunScore:
    curve = () if picked is None else ((10, picked, picked - 1, picked + 1), (20, last, last - 1, last + 1))
    return RunScore(
        method=method,
        task="maze",
        seed=seed,
        updates=20,
        last=last,
        low=last - 1,
        high=last + 1,
        picked=picked,
        picked_update=None if picked is None else 10,
        episodes=5,
        seconds=3.0,
        together=1 if picked is None else 2,
        divergence="",
        curve=curve,
    )


SCORES = [score("iql", 0, 10.0, 50.0), score("iql", 1, 20.0, 70.0), score("bats", 0, 40.0, None)]
PUBLISHED = [Published("iql", "maze", 12.0, "(somebody)"), Published("cql", "maze", 9.0, "(nobody here)")]


def test_the_mean_and_its_standard_error() -> None:
    # (1, 2, 6): mean 3, variance ((-2)^2 + (-1)^2 + 3^2) / 2 = 7, standard error sqrt(7 / 3)
    assert mean_and_error([1.0, 2.0, 6.0]) == pytest.approx((3, (7 / 3) ** 0.5))
    assert mean_and_error([4.0]) == (4, 0)


def test_a_table_has_the_mean_and_every_seed_and_what_was_published() -> None:
    heading, rows = score_table(SCORES, PUBLISHED, lambda one: one.last)
    assert heading == ["method", "maze", "maze, published"]
    assert rows == [["iql", "15.0 ± 5.0 (10.0, 20.0)", "12.0 (somebody)"], ["bats", "40.0 ± 0.0 (40.0)", ""]]
    heading, _ = score_table([*SCORES, replace(SCORES[0], task="cart")], PUBLISHED, lambda one: one.last)
    assert heading == ["method", "maze", "maze, published", "cart"]  # nothing was published for the cart
    heading, rows = score_table(SCORES, (), lambda one: one.picked)
    assert heading == ["method", "maze"]
    assert rows == [["iql", "60.0 ± 10.0 (50.0, 70.0)"], ["bats", ""]]


def test_the_two_figures_stand_in_tables_of_their_own() -> None:
    result, picked, _ = as_markdown(SCORES, PUBLISHED).split("### ")[1:]
    assert result.startswith(LAST.capitalize())
    assert "60.0" not in result
    assert picked.startswith(PICKED.capitalize())
    assert "not a result" in picked
    assert "15.0" not in picked
    page = render(benchmark_page("all of them", SCORES, PUBLISHED))
    assert page.index(f"Result: the {LAST}") < page.index("15.0 ± 5.0") < page.index(f"Not a result: the {PICKED}")
    assert page.index(f"Not a result: the {PICKED}") < page.index("60.0 ± 10.0")
    assert ">bats<" in page  # the best in the maze, by its last policy


def test_a_run_that_diverged_before_it_had_a_policy_is_shown() -> None:
    failed = replace(SCORES[1], last=None, low=None, high=None, picked=None, divergence="a loss of nan", curve=())
    scores = [SCORES[0], failed]
    assert score_table(scores, (), lambda one: one.last)[1] == [["iql", "10.0 ± 0.0 (10.0, none)"]]
    assert "| iql | 20 | 3 s for 2 runs | 1 of 2 |" in as_markdown(scores, ())
    assert "a loss of nan" in as_csv(scores)
    assert "(10.0, none)" in render(benchmark_page("some of them", scores, ()))
    assert "every run has diverged" in render(benchmark_page("none of them", [failed], ()))


def test_a_published_figure_has_its_error_and_its_source() -> None:
    assert str(Published("combo", "maze", 76.2, "(paper)", 0.5)) == "76.2 ± 0.5 (paper)"


def test_the_csv_has_a_line_for_every_run() -> None:
    lines = list(csv.DictReader(io.StringIO(as_csv(SCORES))))
    assert [(line["method"], line["seed"], float(line["last_policy"])) for line in lines] == [
        ("iql", "0", 10.0),
        ("iql", "1", 20.0),
        ("bats", "0", 40.0),
    ]
    assert [line["picked_by_environment"] for line in lines] == ["50.0", "70.0", ""]


def test_logs_are_shown_with_every_seed_and_the_way_that_is_left(finished_run: Path) -> None:
    # the mean of iql is 15, of the log 10: 5 of the 90 points to the reference, or 6%; bats has 30 of them
    log, certificate = LogScore("maze", 3_000, 10.0), load_certificate(finished_run)
    assert certificate is not None
    scores = [*SCORES[:2], replace(SCORES[2], certificate=certificate)]
    earned, shares, certified = log_tables([log], scores)
    assert earned.heading == ["log", "rows", "mean of the log", "iql", "bats", "reference"]
    assert earned.rows == [["maze", "3,000", "10.0", "15.0 ± 5.0 (10.0, 20.0)", "40.0 ± 0.0 (40.0)", "100"]]
    assert shares.rows == [["maze", "6%", "33%"]]
    assert share_of_the_way(log, [None]) == ""
    ((task, method, seed, verdict, *bounds),) = certified.rows
    assert (task, method, seed, verdict) == ("maze", "bats", "0", "deploy" if certificate.deploy else "hold")
    values = certificate.clone.lower, certificate.clone.upper, certificate.logged_value
    assert [float(bound) for bound in bounds] == pytest.approx(values, rel=1e-4)
    text = as_markdown(scores, (), (earned, shares, certified))
    assert [part.splitlines()[0].split()[0] for part in text.split("### ")[1:4]] == ["Scores", "Share", "Verdicts"]
    assert "Log by log" in render(benchmark_page("some of them", scores, (), (earned, shares, certified)))
    last = list(csv.DictReader(io.StringIO(as_csv(scores))))[-1]
    assert (last["verdict"], float(last["lower_bound"])) == (verdict, certificate.clone.lower)


def test_another_policy_of_the_same_runs_is_a_column_beside_them() -> None:
    scores = [SCORES[2], replace(SCORES[2], method="shipped", last=70.0)]
    earned, shares, _ = log_tables([LogScore("maze", 3_000, 10.0)], scores)
    assert earned.heading[-3:] == ["bats", "shipped", "reference"]
    assert shares.rows == [["maze", "33%", "67%"]]
