"""The report of a run shows what is in its folder, in one file that loads nothing and executes no text from outside."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest

import bats.report.html
from bats.bounds.certificate import load_certificate, save_certificate
from bats.cli.main import main
from bats.data.episodes import Note
from bats.errors import BatsError, DataError, OutputError, SettingError
from bats.report.contents import Contents, evenly_spaced
from bats.report.maps import MAX_UNPROJECTED, plane_of
from bats.report.page import compare_reports, write_report
from bats.report.plots import label, numbers
from bats.report.rounds import attempts_by_error, rounds_sections, value_by_round
from bats.runs.folder import RunFolder
from bats.runs.records import LogCard
from bats.runs.result import load_result
from bats.stitching.records import Attempts, Outcome
from bats.storage.json_records import write_record
from tests.conftest import CopyRun
from tests.logs import folder_bytes
from tests.report.browser import BINARY, Browser, open_browser
from tests.report.pages import HOSTILE, LINK, SCRIPT, Parsed, data_of, facts_of, plots_of, rows_of, text_of
from tests.runs.relisted import relisted
from tests.small_runs import small_log

PLOTS = ("bounds", "bounds-by-start", "model-errors", "value-by-round", "attempts-by-round", "attempts-by-error")
PLOTS += ("attempts-by-length", "rollouts", "value-map", "returns", "selection")
"""those of a run without an evaluation"""
TITLE = f"{PurePath(HOSTILE).name}: stitched and solved"
MAX_BYTES = 8_000_000


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture(scope="module")
def contents(finished_run: Path) -> Contents:
    return Contents(finished_run)


@pytest.fixture(scope="module")
def page(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(finished_run, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def hostile(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose log, columns, notes and further files try to smuggle in scripts, pictures and links."""
    folder = tmp_path_factory.mktemp("hostile") / "<b>hostile"
    shutil.copytree(finished_run, folder)
    edit_json(folder / "run.json", log=HOSTILE, seed=7, reused=LINK)
    card = LogCard.of(replace(small_log(), observation_names=(SCRIPT, LINK)))
    write_record(folder / "log.json", replace(card, notes=(Note("problem", HOSTILE),)))
    columns = {"promised": {"mean_return": 10.5}, HOSTILE: {"mean_return": 9.0, "low": 8.5, "high": 9.5, SCRIPT: LINK}}
    cloned = {"mean_return": SCRIPT, "low": LINK, "score": [HOSTILE]}
    (folder / "evaluation.json").write_text(json.dumps(columns | {"cloned": cloned, "environment": HOSTILE}))
    certificate = load_certificate(folder)
    assert certificate is not None
    save_certificate(replace(certificate, reasons=(HOSTILE, LINK)), folder)
    (folder / "policy.json").write_text(json.dumps({"rows": LINK, "card": {SCRIPT: HOSTILE}, "hidden": [8, SCRIPT]}))
    return relisted(folder)


def test_the_report_shows_how_the_run_ended(page: Path, finished_run: Path, contents: Contents) -> None:
    facts, run = facts_of(page), RunFolder(finished_run)
    summary, records = run.summary(), run.records()
    assert facts["Best with stitches"] == f"{summary.value:.6g}"
    assert facts["Best in the log alone"] == f"{summary.log_value:.6g}"
    assert facts["Value of the log"] == f"{summary.logged_value:.6g}"
    assert facts["Stitched steps"] == f"{records[-1].stitched_share:.1%}"
    accepted = sum(record.accepted for record in records)
    assert facts["Stitches"] == str(accepted) == str(contents.mdp.stitch_count)
    assert facts["distinct states"] == str(contents.mdp.real_count)
    assert facts["stitch.tolerance"] == "2"
    assert facts["held-out rows"] == "50"
    assert "none in the log" in text_of(page)
    assert facts["total"] == f"{sum(timing.seconds for timing in run.timings()):.1f} s"


def test_components_are_called_by_the_names_of_the_log(run_copy: Path, page: Path, tmp_path: Path) -> None:
    assert {"component 0", "component 1"} <= rows_of(page).keys()
    named = replace(small_log(), observation_names=("cart_position", "pole_angle"), action_names=("push", "lift"))
    write_record(run_copy / "log.json", LogCard.of(named))
    relisted(run_copy)
    page = write_report(run_copy, tmp_path / "named.html")
    assert {"cart_position", "pole_angle", "push", "lift"} <= rows_of(page).keys()
    assert "component 0" not in text_of(page)
    axes = [plots_of(page)["rollouts"]["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
    assert axes == ["cart_position", "pole_angle"]
    assert all("component 0" not in json.dumps(plot) for plot in plots_of(page).values())


def test_the_value_of_the_log_is_the_certificate_s_whatever_dead_ends_are_worth(run_copy: Path, tmp_path: Path) -> None:
    run = RunFolder(run_copy)
    summary, certificate = run.summary(), load_certificate(run_copy)
    assert certificate is not None
    raised = summary.logged_value + 2 * summary.logged_dead_end_weight
    write_record(run_copy / "finished.json", replace(summary, dead_end_value=2.0, logged_value=raised), overwrite=True)
    relisted(run_copy)
    page, shown = write_report(run_copy, tmp_path / "report.html"), f"{certificate.logged_value:.6g}"
    assert f"{raised:.6g}" != shown
    assert facts_of(page)["Value of the log"] == shown
    assert facts_of(page)["value of the log"].startswith(f"{shown} ")
    (line,) = (trace for trace in plots_of(page)["value-by-round"]["traces"] if trace["name"] == "value of the log")
    assert line["y"] == pytest.approx([certificate.logged_value] * 2, rel=1e-4)
    assert load_result(run_copy).logged_value == pytest.approx(certificate.logged_value)
    assert "as logged" not in text_of(page).lower()


def test_a_log_with_terminations_is_not_said_to_have_none(run_copy: Path, tmp_path: Path) -> None:
    card = json.loads((run_copy / "model.json").read_text())
    card["kind"]["terminations"] = True
    (run_copy / "model.json").write_text(json.dumps(card))
    relisted(run_copy)
    assert "none in the log" not in text_of(write_report(run_copy, tmp_path / "report.html"))


def test_the_plots_show_what_the_rounds_did(page: Path, finished_run: Path) -> None:
    plots, records = plots_of(page), RunFolder(finished_run).records()
    assert tuple(plots) == PLOTS
    curve = plots["value-by-round"]["traces"][0]["y"]
    assert curve == pytest.approx([records[0].value_before, *(record.value for record in records)], rel=1e-5)
    tried = sum(record.tried for record in records)
    for name in ("attempts-by-round", "attempts-by-error", "attempts-by-length"):
        counts = {trace["name"]: sum(trace["y"]) for trace in plots[name]["traces"]}
        assert sum(counts.values()) == tried
        assert counts["accepted"] == sum(record.accepted for record in records)
        assert counts["model unreliable near the plan"] == sum(
            record.refused.get("unreliable", 0) for record in records
        )
    by_round = {trace["name"]: trace["y"] for trace in plots["attempts-by-round"]["traces"]}
    assert by_round["accepted"] == [record.accepted for record in records]
    assert sum(plots["returns"]["traces"][0]["y"]) == pytest.approx(1, abs=1e-3)
    assert plots["attempts-by-error"]["layout"]["shapes"][0]["x0"] == pytest.approx(np.log10(2.0))


def test_attempts_of_any_error_are_counted_on_their_side_of_the_tolerance() -> None:
    error = np.array([0.0, 1e-9, 0.1, 0.3, 0.5, 7.0, 1e9, np.inf, np.nan])
    outcome = np.where(error <= 0.4, Outcome.ACCEPTED, Outcome.TOO_FAR)
    ones = np.ones(len(error), dtype=np.int64)
    figure = attempts_by_error(Attempts(ones, ones, ones, ones, np.ones(len(error)), error, outcome), 0.4)
    accepted, refused = figure.traces
    assert sum(count for x, count in zip(accepted["x"], accepted["y"], strict=True) if x < np.log10(0.4)) == 4
    assert sum(count for x, count in zip(refused["x"], refused["y"], strict=True) if x > np.log10(0.4)) == 5
    assert "3 attempts with larger errors" in figure.caption
    assert figure.layout["xaxis"]["ticktext"] == ["0.0004", "0.004", "0.04", "0.4", "4", "40", "400"]


def test_a_run_that_found_nothing_to_try_has_no_rounds_to_show(contents: Contents) -> None:
    empty = copy(contents)
    empty.attempts, empty.records = [], ()
    assert rounds_sections(empty) == []
    assert value_by_round({"empty": empty}).traces[0]["y"] == numbers(np.array([contents.summary.log_value]), 6)


def test_rollouts_are_drawn_step_by_step_in_their_colours(page: Path, contents: Contents) -> None:
    traces = {trace["name"]: trace for trace in plots_of(page)["rollouts"]["traces"]}
    mdp = contents.mdp
    assert len(traces["states of the log"]["x"]) == mdp.real_count
    order = np.argsort(contents.value[contents.starts], kind="stable")
    edges = contents.rollouts.edge[order[evenly_spaced(len(order), 8)]]
    stitched = np.append(mdp.stitch_round > 0, False)[edges]

    def steps(name: str) -> int:
        """Points less one for each piece, which ends with a gap."""
        return len(traces[name]["x"]) - 2 * traces[name]["x"].count(None)

    assert steps("stitched steps") == np.count_nonzero(stitched)
    assert steps("logged steps") == np.count_nonzero((edges >= 0) & ~stitched)


def test_nothing_is_loaded_and_no_script_from_outside_may_run(page: Path, hostile: Path, tmp_path: Path) -> None:
    for file in (page, write_report(hostile, tmp_path / "quiet.html")):
        parsed = Parsed(file.read_text())
        tags = [tag for tag, _ in parsed.elements]
        assert not {"img", "link", "iframe", "a", "object", "embed", "base"} & set(tags)
        assert tags.count("script") == 3
        for _, attributes in parsed.elements:
            assert not {"src", "href", "srcset", "action", "data"} & set(attributes)
            assert not [name for name in attributes if name.startswith("on")]
        policy = next(attributes["content"] for _, attributes in parsed.elements if "http-equiv" in attributes)
        assert policy is not None
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe-eval" not in policy
        assert file.stat().st_size < MAX_BYTES


def test_hostile_text_is_shown_and_not_executed(hostile: Path, tmp_path: Path) -> None:
    page = write_report(hostile, tmp_path / "shown.html")
    parsed = Parsed(page.read_text())
    assert TITLE in parsed.text
    assert f"Read from {HOSTILE}." in parsed.text
    assert {HOSTILE, SCRIPT, LINK} <= set(parsed.text)
    assert "<" not in data_of(page)
    plots = plots_of(page)
    assert plots["rollouts"]["layout"]["xaxis"]["title"]["text"] == html.escape(SCRIPT, quote=False)
    assert plots["rollouts"]["layout"]["yaxis"]["title"]["text"] == html.escape(LINK, quote=False)
    assert plots["evaluation"]["traces"][1]["error_y"]["array"] == [0.5]
    assert plots["evaluation"]["layout"]["xaxis"]["ticktext"][1] == label(HOSTILE) + "<br>9"
    facts = facts_of(page)
    assert facts["card " + SCRIPT] == facts["environment"] == HOSTILE
    assert facts["training rows"] == facts["model and graph reused from"] == LINK
    assert facts["hidden layers"] == f"8, {SCRIPT}"


def test_labels_in_plots_are_short_and_plain() -> None:
    assert label("<b>&") == "&lt;b&gt;&amp;"
    assert len(label("x" * 1000)) == 40
    assert numbers(np.array([1.23456789, np.nan, np.inf])) == [1.2346, None, None]


def test_runs_are_shown_side_by_side(finished_run: Path, hostile: Path, tmp_path: Path) -> None:
    page = compare_reports([str(finished_run), hostile], str(tmp_path / "both.html"))
    parsed, summary = Parsed(page.read_text()), RunFolder(finished_run).summary()
    assert parsed.text.count(f"{summary.value:.6g}") == 4  # two tiles, two columns
    assert PurePath(HOSTILE).name in parsed.text
    rows = re.findall(r'<th scope="row">seed</th><td>(\d+)</td><td>(\d+)</td>', page.read_text())
    assert rows == [("0", "7")]
    assert "stitch.tolerance" not in parsed.text  # only settings that differ are shown
    plots = plots_of(page)
    names = [trace["name"] for trace in plots["value-by-round"]["traces"]]
    assert names == [finished_run.name, "&lt;b&gt;hostile"]
    assert all(sum(trace["y"]) == pytest.approx(1, abs=1e-3) for trace in plots["returns"]["traces"])
    with pytest.raises(SettingError, match="at least two runs; got 1"):
        compare_reports([finished_run], tmp_path / "one.html")


def test_runs_of_the_same_name_are_told_apart_by_their_paths(
    finished_run: Path, copy_run: CopyRun, tmp_path: Path
) -> None:
    other = copy_run(finished_run.name)
    text = text_of(compare_reports([finished_run, other], tmp_path / "paths.html"))
    assert f"{tmp_path.name}/{finished_run.name}" in text
    assert f"{finished_run.name} (2)" in text_of(compare_reports([other, other], tmp_path / "twice.html"))


@pytest.mark.parametrize("width", [1, 2, 4, 5])
def test_states_of_any_width_are_projected_to_a_plane(contents: Contents, width: int) -> None:
    mdp = contents.mdp
    states = np.random.default_rng(0).normal(size=(mdp.state_count, width)) * np.arange(1, width + 1)
    if width > MAX_UNPROJECTED:
        states[:, 3] = 2 * states[:, 1]  # so that the direction of the largest spread is known
    changed = copy(contents)
    changed.mdp = replace(mdp, states=states)
    plane = plane_of(changed)
    points = plane.project(np.arange(mdp.state_count))
    assert points.shape == (mdp.state_count, 2)
    if width > MAX_UNPROJECTED:
        correlation = np.corrcoef(points[: mdp.real_count, 0], states[: mdp.real_count, 1])[0, 1]
        assert abs(correlation) > 0.9
        assert "largest weights" not in plane.description
        changed.log_card = replace(contents.log_card, observation_names=tuple("abcde"))
        parts = re.search("largest weights are (., .), . in the first and", plane_of(changed).description)
        assert parts is not None
        assert set(parts[1].split(", ")) == {"b", "d"}
    else:
        np.testing.assert_array_equal(points[:, 0], states[:, 0])


def test_what_is_not_a_finished_run_is_refused(copy_run: CopyRun, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected the folder of a run, found no such folder"):
        write_report(tmp_path / "nowhere")
    unfinished = copy_run("unfinished")
    (unfinished / "finished.json").unlink()
    relisted(unfinished)
    with pytest.raises(DataError, match="expected a finished run, found an unfinished run"):
        write_report(unfinished)
    assert not (unfinished / "report.html").exists()


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("run.json", {"seed": "seven"}),
        ("run.json", {"seed": None}),
        ("run.json", {"log": 3}),
        ("run.json", {"version": 5}),
        ("run.json", {"version": "six"}),
        ("run.json", {"unknown": 1}),
        ("settings.json", {"gamma": "large"}),
        ("settings.json", {"gamma": 2.0}),
        ("log.json", {"rows": "many"}),
        ("model.json", {"held_out_error": {}}),
        ("model.json", {"held_out_error": None}),
        ("model.json", {"held_out_error": {"mean_absolute": [10**400], "root_mean_square": [1], "largest": [2]}}),
        ("model.json", {"kind": []}),
        ("model.json", {"held_out_error": {"mean_absolute": [1], "root_mean_square": "x", "largest": [2]}}),
    ],
)
def test_files_that_were_edited_wrongly_by_hand_are_named(run_copy: Path, file: str, changes: dict[str, Any]) -> None:
    edit_json(run_copy / file, **changes)
    if file in ("model.json", "log.json"):
        relisted(run_copy)
    with pytest.raises(BatsError, match=re.escape(file)):
        write_report(run_copy)


@pytest.mark.parametrize("file", ["run.json", "settings.json", "log.json", "model.json", "policy.json"])
@pytest.mark.parametrize("text", ["[]", "{", '"text"'])
def test_files_that_hold_something_else_are_named(run_copy: Path, file: str, text: str) -> None:
    (run_copy / file).write_text(text)
    with pytest.raises(DataError, match=re.escape(file)):
        write_report(run_copy)


@pytest.mark.parametrize("file", ["model.json", "policy.json"])
def test_a_summary_that_is_missing_is_named(run_copy: Path, file: str) -> None:
    (run_copy / file).unlink()
    for run in (run_copy, relisted(run_copy)):
        with pytest.raises(DataError, match=rf"{file}: expected a .*, found no such file"):
            write_report(run)


def test_a_missing_part_of_the_page_is_not_called_an_error_of_writing(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bats.report.html, "_part", lambda name: (tmp_path / "nowhere" / name).read_text())
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_report(finished_run, tmp_path / "out" / "report.html")
    assert not (tmp_path / "out").exists()


def test_the_command_writes_a_report_and_never_over_another_file(
    finished_run: Path,
    hostile: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    before, run = folder_bytes(finished_run), str(finished_run)
    assert main(["report", run, "--out", "page.html"]) == 0
    assert capsys.readouterr().out == "wrote page.html\n"
    first = Path("page.html").read_bytes()
    assert main(["report", run, "--out", "page.html"]) == 2
    assert "page.html exists already" in capsys.readouterr().err
    assert main(["report", run, "--out", "page.html", "--overwrite"]) == 0
    assert Path("page.html").read_bytes() == first
    assert folder_bytes(finished_run) == before
    assert main(["report", run, str(hostile)]) == 0
    assert "2 runs compared" in Path("comparison.html").read_text()
    with pytest.raises(SystemExit, match="2"):
        main(["report"])
    assert "RUN" in capsys.readouterr().err
    with pytest.raises(OutputError, match="exists already"):
        write_report(finished_run, Path("page.html"))


def test_without_a_name_the_report_goes_into_the_run_folder(run_copy: Path) -> None:
    assert write_report(run_copy) == run_copy / "report.html"
    assert (run_copy / "report.html").exists()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if BINARY is None:
        pytest.skip("no Chromium on this machine; `apt-get install chromium` brings one")
    with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


QUESTIONS = {
    "drawn": "[...document.querySelectorAll('.plot')]"
    ".map(plot => [plot.id, plot.querySelectorAll('.main-svg').length])",
    "overflow": "document.documentElement.scrollWidth - document.documentElement.clientWidth",
    "outside": "[...document.querySelectorAll('.plot, .tile, section')]"
    ".filter(element => element.getBoundingClientRect().right > innerWidth).length",
    "hover": "Plotly.Fx.hover('value-by-round', [{curveNumber: 0, pointNumber: 1}]),"
    "document.querySelector('#value-by-round .hovertext')?.textContent",
    "buttons": "document.querySelectorAll('#value-by-round .modebar-btn').length",
    "links": "document.querySelectorAll('a[href], a[*|href], img').length",
    "title": "document.querySelector('h1').textContent",
    "axis": "document.querySelector('#rollouts .xtitle')?.textContent",
}


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("kind", ["plain", "hostile", "both"])
def test_a_browser_draws_all_plots_and_requests_nothing(
    browser: Browser, finished_run: Path, hostile: Path, tmp_path: Path, kind: str, width: int
) -> None:
    out = tmp_path / "page.html"
    if kind == "both":
        compare_reports([finished_run, hostile], out)
    else:
        write_report(finished_run if kind == "plain" else hostile, out)
    view = browser.show(out, width=width, height=900, questions=QUESTIONS, dark=width < 600)
    assert view.errors == []
    assert view.requests == []
    plots = {"plain": PLOTS, "hostile": (*PLOTS, "evaluation"), "both": ("bounds", "value-by-round", "returns")}[kind]
    drawn = dict(view.facts["drawn"])
    assert list(drawn) == list(plots)
    assert all(count >= 2 for count in drawn.values())
    assert view.facts["overflow"] <= 0
    assert view.facts["outside"] == 0
    assert view.facts["links"] == 0
    assert view.facts["hover"].startswith(f"round 1: {RunFolder(finished_run).records()[0].value:.5g}")
    assert view.facts["buttons"] == 5
    if kind == "hostile":
        assert view.facts["title"] == TITLE
        assert view.facts["axis"] == SCRIPT


@pytest.mark.slow
def test_the_browser_would_notice(browser: Browser, page: Path, tmp_path: Path) -> None:
    """A script and a picture that are smuggled in are stopped by the page's policy, and the stopping is view."""
    smuggled = tmp_path / "smuggled.html"
    text = page.read_text().replace(
        "<main>", '<main><script>window.ran = 1</script><img src="https://example.com/a.png">'
    )
    smuggled.write_text(text)
    view = browser.show(smuggled, width=1280, height=900, questions={"ran": "window.ran ?? 'no'"})
    assert view.facts["ran"] == "no"
    assert len(view.errors) == 2
    assert all("Content Security Policy" in error for error in view.errors)
