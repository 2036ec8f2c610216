"""The first part of a report: deploy or hold in words, the bounds as bars, and which of two runs is better for sure."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bats.bounds.certificate import Certified, Worth, load_certified, save_certified
from bats.report.page import compare_reports, write_report
from bats.report.verdict import by_start, worth
from bats.runs.pipeline import Result, fit
from tests.report_pages import HOSTILE, SCRIPT, Parsed, facts_of, plots_of
from tests.small_runs import SMALL, walks


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return fit(walks(), SMALL, folder=tmp_path_factory.mktemp("place") / "run")


def judged(result: Result, name: str, lower: float, upper: float, reasons: tuple[str, ...] = ()) -> Path:
    """A copy of the run with another certificate."""
    folder = result.folder.with_name(name)
    shutil.copytree(result.folder, folder)
    found = load_certified(folder)
    assert found is not None
    said = replace(found.verdict, lower=lower, upper=upper, reasons=reasons)
    card = replace(found.card, verdict=said, clone=Worth(lower, upper, (upper - lower) / 20))
    save_certified(Certified(card, found.at_starts), folder)
    return folder


def text_of(page: Path) -> str:
    return " ".join(Parsed(page.read_text()).text)


def test_the_verdict_comes_first_with_its_reasons_and_numbers(result: Result, tmp_path: Path) -> None:
    page = write_report(result.folder, tmp_path / "held.html")
    said, text, told = result.verdict, text_of(page), facts_of(page)
    assert said is not None
    assert not said.deploy
    assert text.index("Deploy or hold") < text.index("What was in the log")
    assert " ".join(("Hold.", *said.reasons)) in text
    assert told["verdict"] == "Hold"
    assert told["worth at least"] == f"{said.lower:.6g}"
    assert told["worth at most"] == f"{said.upper:.6g}"
    assert told["the log earned"] == f"{said.logged_value:.6g}"
    assert told["starts within the data"] == f"{said.coverage:.1%}"
    assert told["rests on stitches"] == f"{said.share_on_stitches:.1%}"
    assert told["width of the bounds"] == f"{said.width:.1%}"


def test_a_policy_without_a_reason_to_hold_is_to_be_deployed(result: Result, tmp_path: Path) -> None:
    page = write_report(judged(result, "good", 6.0, 8.0), tmp_path / "good.html")
    assert facts_of(page)["verdict"] == "Deploy"
    assert "Deploy. From the starts the cloned policy is worth at least 6, and the log earned 0.7488." in text_of(page)


def test_bars_reach_from_the_lower_to_the_upper_bound_and_the_log_is_a_line(result: Result, tmp_path: Path) -> None:
    plots = plots_of(write_report(judged(result, "bars", 6.0, 8.5), tmp_path / "bars.html"))
    found = load_certified(result.folder)
    assert found is not None
    clone, graph = plots["worth"]["traces"]
    assert (clone["base"], clone["x"]) == ([6.0], [2.5])
    assert graph["base"][0] == pytest.approx(found.card.graph.lower)
    assert graph["base"][0] + graph["x"][0] == pytest.approx(found.card.graph.upper)
    line = plots["worth"]["layout"]["shapes"][0]
    assert line["x0"] == line["x1"] == found.verdict.logged_value
    low, high = plots["worth"]["layout"]["xaxis"]["range"]
    assert low < found.card.floor
    assert high > found.card.ceiling
    drawn = {trace["name"]: trace["y"] for trace in plots["worth-by-start"]["traces"]}
    assert len(drawn["clone: at least"]) == len(result.mdp.starts)
    assert all(low <= high for low, high in zip(drawn["graph: at least"], drawn["graph: at most"], strict=True))


def test_values_that_are_all_the_same_are_drawn_all_the_same() -> None:
    figure = worth([("a", Worth(0.0, 0.0, 0.0)), ("b", Worth(0.0, 0.0, 0.0))], 0.0, (0.0, 0.0))
    low, high = figure.layout["xaxis"]["range"]
    assert low < 0 < high


def test_many_starts_are_thinned(result: Result) -> None:
    found = result.certificate
    assert found is not None
    many = replace(found.at_starts, **{name: np.resize(held, 5000) for name, held in vars(found.at_starts).items()})
    figure = by_start(replace(found, at_starts=many))
    assert {len(trace["x"]) for trace in figure.traces} == {2000}
    assert figure.caption.endswith("2,000 of 5,000 starts are drawn.")


def test_reasons_and_names_that_are_hostile_stay_text(result: Result, tmp_path: Path) -> None:
    folder = judged(result, "hostile", 1.0, 2.0, (HOSTILE,))
    for page in (
        write_report(folder, tmp_path / "hostile.html"),
        compare_reports([folder, result.folder], tmp_path / "both.html"),
    ):
        assert SCRIPT not in page.read_text()
        assert SCRIPT in text_of(page)
    figure = worth([(HOSTILE, Worth(0.0, 1.0, 1.0))], None, (0.0, 1.0))
    assert SCRIPT not in json.dumps([figure.traces, dict(figure.layout)])


def test_of_two_runs_the_page_says_which_is_sure_to_be_better(result: Result, tmp_path: Path) -> None:
    low, high = judged(result, "low", 1.0, 3.0), judged(result, "high", 3.5, 5.0)
    text = text_of(compare_reports([low, high], tmp_path / "better.html"))
    assert "high is sure to be better than low at the starts, by 0.5 or more." in text
    text = text_of(compare_reports([high, low], tmp_path / "worse.html"))
    assert "high is sure to be better than low at the starts, by 0.5 or more." in text
    touching = judged(result, "touching", 3.0, 9.0)
    page = compare_reports([low, touching], tmp_path / "overlap.html")
    assert "the bounds overlap, so neither is sure to be better" in text_of(page)
    assert [trace["base"] for trace in plots_of(page)["worth"]["traces"]] == [[1.0], [3.0]]
    assert "shapes" in plots_of(page)["worth"]["layout"]


def test_bounds_of_different_logs_are_not_compared(result: Result, tmp_path: Path) -> None:
    low, other = judged(result, "here", 1.0, 3.0), judged(result, "elsewhere", 3.5, 5.0)
    held = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps(held | {"fingerprint": "0" * 64}))
    text = text_of(compare_reports([low, other], tmp_path / "logs.html"))
    assert "sure to be better" not in text
    assert "here and elsewhere have different logs or discounts, and their bounds cannot be compared." in text


def test_a_run_without_a_certificate_is_told_without_one(result: Result, tmp_path: Path) -> None:
    bare = result.folder.with_name("bare")
    shutil.copytree(result.folder, bare)
    (bare / "certificate.json").unlink()
    (bare / "bounds.safetensors").unlink()
    page = write_report(bare, tmp_path / "bare.html")
    assert "Deploy or hold" not in text_of(page)
    assert "worth" not in plots_of(page)
    assert "no certificate was made" in text_of(compare_reports([bare, result.folder], tmp_path / "one.html"))
    shutil.copytree(bare, bare.with_name("bare-too"))
    neither = text_of(compare_reports([bare, bare.with_name("bare-too")], tmp_path / "none.html"))
    assert "Deploy or hold" not in neither
