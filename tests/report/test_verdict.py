"""The first part of a report: the verdict in words, bounds as bars, and which of two runs is certified to be better."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bats.bounds.certificate import Certificate, load_certificate, save_certificate
from bats.bounds.sandwich import StartValue
from bats.report.page import compare_reports, write_report
from bats.report.verdict import bounds_by_start, bounds_figure
from tests.conftest import CopyRun
from tests.report.pages import HOSTILE, SCRIPT, facts_of, plots_of, rows_of, text_of
from tests.runs.relisted import relisted


def certificate_of(folder: Path) -> Certificate:
    certificate = load_certificate(folder)
    assert certificate is not None
    return certificate


def bounded(folder: Path, lower: float, upper: float, reasons: tuple[str, ...] = ()) -> Path:
    """The folder of a run, with another certificate."""
    clone = StartValue(lower, upper, (upper - lower) / 20)
    save_certificate(replace(certificate_of(folder), clone=clone, reasons=reasons), folder)
    return relisted(folder) if (folder / "run.json").exists() else folder


def test_the_verdict_comes_first_with_its_reasons_and_numbers(finished_run: Path, tmp_path: Path) -> None:
    page = write_report(finished_run, tmp_path / "page.html")
    certificate, text, facts = certificate_of(finished_run), text_of(page), facts_of(page)
    assert not certificate.deploy
    assert text.index("Deploy or hold") < text.index("Read from")
    assert " ".join(("Hold:", *certificate.reasons)) in text
    assert {name: facts[name] for name in certificate.facts()} == certificate.facts()


def test_a_policy_without_a_reason_to_hold_is_to_be_deployed(run_copy: Path, tmp_path: Path) -> None:
    page = write_report(bounded(run_copy, 6.0, 8.0), tmp_path / "page.html")
    assert (
        "Deploy: at 95% confidence, the cloned policy's value is higher than the value of the logged behaviour"
        in text_of(page)
    )
    assert facts_of(page)["lower bound"] == "6"


def test_bars_reach_from_the_lower_to_the_upper_bound_and_the_log_is_a_line(run_copy: Path, tmp_path: Path) -> None:
    plots = plots_of(write_report(bounded(run_copy, 6.0, 8.5), tmp_path / "page.html"))
    certificate = certificate_of(run_copy)
    clone, graph = plots["bounds"]["traces"]
    assert (clone["base"], clone["x"]) == ([6.0], [2.5])
    assert graph["base"][0] == pytest.approx(certificate.graph.lower)
    assert graph["base"][0] + graph["x"][0] == pytest.approx(certificate.graph.upper)
    line = plots["bounds"]["layout"]["shapes"][0]
    assert line["x0"] == line["x1"] == certificate.logged_value
    low, high = plots["bounds"]["layout"]["xaxis"]["range"]
    assert low < certificate.floor
    assert high > certificate.ceiling
    drawn = {trace["name"]: trace["y"] for trace in plots["bounds-by-start"]["traces"]}
    assert len(drawn["cloned policy: lower bound"]) == len(certificate.at_starts.starts)
    assert all(
        low <= high
        for low, high in zip(drawn["graph's policy: lower bound"], drawn["graph's policy: upper bound"], strict=True)
    )


def test_bounds_that_are_all_the_same_can_be_drawn() -> None:
    zero = StartValue(0.0, 0.0, 0.0)
    low, high = bounds_figure({"a": zero, "b": zero}, 0.0, (0.0, 0.0)).layout["xaxis"]["range"]
    assert low < 0 < high


def test_many_starts_are_thinned(finished_run: Path) -> None:
    certificate = certificate_of(finished_run)
    many = {name: np.resize(array, 5000) for name, array in vars(certificate.at_starts).items()}
    many["weights"] = many["weights"] / many["weights"].sum()
    figure = bounds_by_start(replace(certificate, at_starts=replace(certificate.at_starts, **many)))
    assert {len(trace["x"]) for trace in figure.traces} == {2000}
    assert figure.caption.endswith("The plot shows 2,000 of 5,000 starts.")


def test_hostile_reasons_and_names_stay_text(finished_run: Path, copy_run: CopyRun, tmp_path: Path) -> None:
    folder = bounded(copy_run("hostile"), 1.0, 2.0, (HOSTILE,))
    for page in (
        write_report(folder, tmp_path / "hostile.html"),
        compare_reports([folder, finished_run], tmp_path / "both.html"),
    ):
        assert SCRIPT not in page.read_text()
        assert SCRIPT in text_of(page)
    figure = bounds_figure({HOSTILE: StartValue(0.0, 1.0, 1.0)}, None, (0.0, 1.0))
    assert SCRIPT not in json.dumps([figure.traces, dict(figure.layout)])


def test_of_two_runs_the_page_says_which_is_certified_to_be_better(copy_run: CopyRun, tmp_path: Path) -> None:
    low, high = bounded(copy_run("low"), 1.0, 3.0), bounded(copy_run("high"), 3.5, 5.0)
    text = text_of(compare_reports([low, high], tmp_path / "better.html"))
    assert "high is certified to be better than low, by at least 0.5 in value at the starts." in text
    text = text_of(compare_reports([high, low], tmp_path / "worse.html"))
    assert "high is certified to be better than low, by at least 0.5 in value at the starts." in text
    touching = bounded(copy_run("touching"), 3.0, 9.0)
    page = compare_reports([low, touching], tmp_path / "overlap.html")
    assert "overlap, so neither run is certified to be better" in text_of(page)
    assert [trace["base"] for trace in plots_of(page)["bounds"]["traces"]] == [[1.0], [3.0]]
    assert "shapes" in plots_of(page)["bounds"]["layout"]


def test_bounds_of_different_logs_are_not_compared(copy_run: CopyRun, tmp_path: Path) -> None:
    low, other = bounded(copy_run("low"), 1.0, 3.0), bounded(copy_run("other"), 3.5, 5.0)
    header = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps(header | {"rewards": "0" * 64}))
    relisted(other)
    text = text_of(compare_reports([low, other], tmp_path / "page.html"))
    assert "certified to be better" not in text
    assert "low and other have different logs or discounts, so their bounds cannot be compared." in text


def test_a_run_without_a_certificate_is_shown_without_one(
    finished_run: Path, copy_run: CopyRun, tmp_path: Path
) -> None:
    bare, also_bare = copy_run("bare"), copy_run("also-bare")
    for folder in (bare, also_bare):
        (folder / "certificate.json").unlink()
        (folder / "bounds.safetensors").unlink()
        relisted(folder)
    page = write_report(bare, tmp_path / "bare.html")
    assert "Deploy or hold" not in text_of(page)
    assert "bounds" not in plots_of(page)
    assert "no certificate" in text_of(compare_reports([bare, finished_run], tmp_path / "one.html"))
    assert "Deploy or hold" not in text_of(compare_reports([bare, also_bare], tmp_path / "none.html"))


def test_further_policies_and_certificates_have_a_table_of_their_own(run_copy: Path, tmp_path: Path) -> None:
    title = "Further policies and certificates"
    assert title not in text_of(write_report(run_copy, tmp_path / "none.html"))
    for name in ("wide", "narrow"):
        shutil.copy(run_copy / "policy.safetensors", run_copy / "policies" / f"{name}.safetensors")
    for name in ("wide", "confidence-0.99"):
        folder = run_copy / "certificates" / name
        folder.mkdir(parents=True)
        for file in ("certificate.json", "bounds.safetensors"):
            shutil.copy(run_copy / file, folder / file)
    bounded(run_copy / "certificates" / "wide", 6.0, 8.0)
    (run_copy / "certificates" / "unfinished").mkdir()
    page = write_report(run_copy, tmp_path / "page.html")
    rows = rows_of(page)
    assert title in text_of(page)
    assert rows["wide"] == [
        "6",
        "8",
        "deploy: at 95% confidence, the cloned policy's value is higher than the value of the logged behaviour",
    ]
    assert rows["confidence-0.99"][2] == certificate_of(run_copy).verdict
    assert rows["narrow"] == ["", "", "no certificate under this name"]
    assert "unfinished" not in rows


def test_a_certificate_of_a_policy_elsewhere_says_so(run_copy: Path, tmp_path: Path) -> None:
    own = certificate_of(run_copy)
    save_certificate(own, run_copy / "certificates" / "kept")
    save_certificate(replace(own, policy="0" * 64), run_copy / "certificates" / "moved")
    rows = rows_of(write_report(run_copy, tmp_path / "page.html"))
    elsewhere = "of a policy that is not in this folder (put its file into policies/)"
    assert rows["moved"][2] == f"{elsewhere}: {own.verdict}"
    assert rows["kept"][2] == own.verdict
