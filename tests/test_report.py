"""The report of a run tells what is in its folder, in one file that loads nothing and obeys nobody's text."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath

import numpy as np
import pytest

from bats.cli.main import main
from bats.errors import DataError, OutputError, SettingError
from bats.report.contents import evenly, read_story
from bats.report.html import plain_numbers, plot_text
from bats.report.maps import MOST_AS_THEY_ARE, plane_of
from bats.report.page import compare_reports, write_report
from bats.runs.pipeline import Result, fit
from bats.stitching.records import LogCard, NoteCard
from bats.storage.json_records import as_json
from tests.browser import BINARY, Browser, open_browser
from tests.logs import folder_bytes
from tests.report_pages import HOSTILE, LINK, SCRIPT, Parsed, data_of, facts_of, plots_of
from tests.small_runs import SMALL, walks

PLOTS = ("worth", "worth-by-start", "model-errors", "value-by-round", "tried-by-round", "tried-by-error")
PLOTS += ("tried-by-length", "walks", "value-map", "returns", "candidates")
"""those of a run without an evaluation"""
TITLE = f"{PurePath(HOSTILE).name}: stitched and solved"
MOST_BYTES = 8_000_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def result(place: Path) -> Result:
    return fit(walks(), SMALL, folder=place / "run")


@pytest.fixture(scope="module")
def run(place: Path, result: Result) -> Path:
    return place / "run"


@pytest.fixture(scope="module")
def page(run: Path, place: Path) -> Path:
    return write_report(run, place / "report.html")


@pytest.fixture(scope="module")
def hostile(run: Path, place: Path) -> Path:
    """A run whose log, columns, notes and further files are somebody's attempt at mischief."""
    folder = place / "<b>hostile"
    shutil.copytree(run, folder)
    header = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(header | {"log": HOSTILE, "seed": 7}))
    dataset = replace(walks(), observation_names=(SCRIPT, LINK))
    card = replace(LogCard.of(dataset), notes=(NoteCard("problem", HOSTILE),))
    (folder / "log.json").write_text(as_json(card))
    judged = {"promised": {"mean_return": 10.5}, HOSTILE: {"mean_return": 9.0, "low": 8.5, "high": 9.5, SCRIPT: LINK}}
    cloned = {"mean_return": SCRIPT, "low": LINK, "score": [HOSTILE]}
    (folder / "evaluation.json").write_text(json.dumps(judged | {"cloned": cloned, "environment": HOSTILE}))
    certificate = json.loads((folder / "certificate.json").read_text())
    certificate["verdict"]["reasons"] = [HOSTILE, LINK]
    (folder / "certificate.json").write_text(json.dumps(certificate))
    (folder / "policy.json").write_text(json.dumps({"rows": LINK, "card": {SCRIPT: HOSTILE}, "hidden": [8, SCRIPT]}))
    return folder


def test_the_report_tells_what_the_run_ended_with(page: Path, run: Path, result: Result) -> None:
    told, ended = facts_of(page), json.loads((run / "finished.json").read_text())
    assert told["Best with stitches"] == f"{ended['value']:.6g}" == f"{result.value:.6g}"
    assert told["Best in the log alone"] == f"{ended['log_value']:.6g}"
    assert told["As logged"] == f"{ended['logged_value']:.6g}"
    assert told["Stitched steps"] == f"{result.records[-1].stitched_share:.1%}"
    accepted = sum(record.accepted for record in result.records)
    assert told["Stitches"] == str(accepted) == str(result.mdp.stitch_count)
    assert told["distinct states"] == str(result.mdp.real_count)
    assert told["stitch.tolerance"] == "2"
    assert told["held-out rows"] == "50"
    seconds = sum(timing.seconds for timing in result.timings)
    assert told["together"] == f"{seconds:.1f} s"


def test_the_plots_show_what_the_rounds_did(page: Path, result: Result) -> None:
    plots, records = plots_of(page), result.records
    assert tuple(plots) == PLOTS
    curve = plots["value-by-round"]["traces"][0]["y"]
    assert curve == pytest.approx([records[0].value_before, *(record.value for record in records)], rel=1e-5)
    tried = sum(record.tried for record in records)
    for name in ("tried-by-round", "tried-by-error", "tried-by-length"):
        counts = {trace["name"]: sum(trace["y"]) for trace in plots[name]["traces"]}
        assert sum(counts.values()) == tried
        assert counts["accepted"] == sum(record.accepted for record in records)
        assert counts["model too wrong nearby"] == sum(record.refused.get("doubted", 0) for record in records)
    assert sum(plots["returns"]["traces"][0]["y"]) == pytest.approx(1, abs=1e-3)
    assert plots["tried-by-error"]["layout"]["shapes"][0]["x0"] == pytest.approx(np.log10(2.0))


def test_the_walks_are_drawn_step_by_step_in_their_colours(page: Path, run: Path) -> None:
    traces = {trace["name"]: trace for trace in plots_of(page)["walks"]["traces"]}
    walked = read_story(run).walked
    assert len(traces["states of the log"]["x"]) == walked.mdp.real_count
    order = np.argsort(walked.solution.value[walked.starts], kind="stable")
    edges = walked.walks.edge[order[evenly(len(order), 8)]]
    stitched = np.append(walked.mdp.stitch_round > 0, False)[edges]

    def steps(name: str) -> int:
        """Points less one for each stretch, which ends with a gap."""
        return len(traces[name]["x"]) - 2 * traces[name]["x"].count(None)

    assert steps("steps along stitches") == np.count_nonzero(stitched)
    assert steps("steps of the log") == np.count_nonzero((edges >= 0) & ~stitched)


def test_nothing_is_loaded_and_nobody_elses_script_may_run(page: Path, hostile: Path, place: Path) -> None:
    for each in (page, write_report(hostile, place / "quiet.html")):
        parsed = Parsed(each.read_text())
        tags = [tag for tag, _ in parsed.elements]
        assert not {"img", "link", "iframe", "a", "object", "embed", "base"} & set(tags)
        assert tags.count("script") == 3
        for _, attributes in parsed.elements:
            assert not {"src", "href", "srcset", "action", "data"} & set(attributes)
            assert not [name for name in attributes if name.startswith("on")]
        policy = next(held["content"] for tag, held in parsed.elements if "http-equiv" in held)
        assert policy is not None
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe-eval" not in policy
        assert each.stat().st_size < MOST_BYTES


def test_hostile_text_is_shown_and_not_obeyed(hostile: Path, place: Path) -> None:
    page = write_report(hostile, place / "shown.html")
    parsed = Parsed(page.read_text())
    assert TITLE in parsed.text
    assert f"Read from {HOSTILE}." in parsed.text
    assert {HOSTILE, SCRIPT, LINK} <= set(parsed.text)
    assert "<" not in data_of(page)
    plots = plots_of(page)
    assert plots["walks"]["layout"]["xaxis"]["title"]["text"] == html.escape(SCRIPT, quote=False)
    assert plots["walks"]["layout"]["yaxis"]["title"]["text"] == html.escape(LINK, quote=False)
    assert plots["judged"]["traces"][1]["error_y"]["array"] == [0.5]
    assert plots["judged"]["layout"]["xaxis"]["ticktext"][1] == plot_text(HOSTILE) + "<br>9"
    told = facts_of(page)
    assert told["card " + SCRIPT] == told["environment"] == HOSTILE
    assert told["rows cloned from"] == LINK
    assert told["hidden layers"] == f"8, {SCRIPT}"


def test_labels_in_plots_are_short_and_plain() -> None:
    assert plot_text("<b>&") == "&lt;b&gt;&amp;"
    assert len(plot_text("x" * 1000)) == 40
    assert plain_numbers(np.array([1.23456789, np.nan, np.inf])) == [1.2346, None, None]


def test_runs_are_set_side_by_side(run: Path, hostile: Path, place: Path) -> None:
    page = compare_reports([run, hostile], place / "both.html")
    parsed, ended = Parsed(page.read_text()), json.loads((run / "finished.json").read_text())
    assert parsed.text.count(f"{ended['value']:.6g}") == 4  # two tiles, two columns
    assert PurePath(HOSTILE).name in parsed.text
    rows = re.findall(r'<th scope="row">seed</th><td>(\d+)</td><td>(\d+)</td>', page.read_text())
    assert rows == [("0", "7")]
    plots = plots_of(page)
    assert [trace["name"] for trace in plots["value-by-round"]["traces"]] == ["run", "&lt;b&gt;hostile"]
    with pytest.raises(SettingError, match="two runs or more; got 1"):
        compare_reports([run], place / "one.html")


@pytest.mark.parametrize("numbers", [1, 2, 4, 5])
def test_states_of_any_width_have_a_place_in_the_plane(run: Path, numbers: int) -> None:
    story = read_story(run)
    mdp = story.walked.mdp
    states = np.random.default_rng(0).normal(size=(mdp.state_count, numbers)) * np.arange(1, numbers + 1)
    if numbers > MOST_AS_THEY_ARE:
        states[:, 3] = 2 * states[:, 1]  # so that the most spread direction is known
    plane = plane_of(replace(story, walked=replace(story.walked, mdp=replace(mdp, states=states))))
    places = plane.places(np.arange(mdp.state_count))
    assert places.shape == (mdp.state_count, 2)
    if numbers > MOST_AS_THEY_ARE:
        along = np.corrcoef(places[: mdp.real_count, 0], states[: mdp.real_count, 1])[0, 1]
        assert abs(along) > 0.9
    else:
        np.testing.assert_array_equal(places[:, 0], states[:, 0])


def test_what_is_no_finished_run_is_refused(run: Path, place: Path) -> None:
    with pytest.raises(DataError, match="expected the folder of a run, found none"):
        write_report(place / "nowhere")
    unfinished = place / "unfinished"
    shutil.copytree(run, unfinished)
    (unfinished / "finished.json").unlink()
    with pytest.raises(DataError, match="expected a finished run, found one that is not"):
        write_report(unfinished)
    assert not (unfinished / "report.html").exists()
    damaged = place / "damaged"
    shutil.copytree(run, damaged)
    (damaged / "evaluation.json").write_text("[]")
    with pytest.raises(DataError, match=r"evaluation\.json: expected a JSON object, found list"):
        write_report(damaged)


def test_the_command_writes_a_report_and_never_over_another_file(
    run: Path, hostile: Path, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "300")
    before = folder_bytes(run)
    assert main(["report", str(run), "--out", "told.html"]) == 0
    assert capsys.readouterr().out == "wrote told.html\n"
    first = Path("told.html").read_bytes()
    assert main(["report", str(run), "--out", "told.html"]) == 2
    assert "told.html exists already" in capsys.readouterr().err
    assert main(["report", str(run), "--out", "told.html", "--overwrite"]) == 0
    assert Path("told.html").read_bytes() == first
    assert folder_bytes(run) == before
    assert main(["report", str(run), str(hostile)]) == 0
    assert "2 runs compared" in Path("comparison.html").read_text()
    assert main(["report"]) == 2
    assert "Name the folder of a finished run" in capsys.readouterr().err
    with pytest.raises(OutputError, match="exists already"):
        write_report(run, Path("told.html"))
    assert write_report(hostile) == hostile / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if BINARY is None:
        pytest.skip("no Chromium here; `apt-get install chromium` brings one")
    with open_browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


QUESTIONS = {
    "drawn": "[...document.querySelectorAll('.plot')]"
    ".map(plot => [plot.id, plot.querySelectorAll('.main-svg').length])",
    "overflow": "document.documentElement.scrollWidth - document.documentElement.clientWidth",
    "outside": "[...document.querySelectorAll('.plot, .tile, section')]"
    ".filter(each => each.getBoundingClientRect().right > innerWidth).length",
    "hover": "Plotly.Fx.hover('value-by-round', [{curveNumber: 0, pointNumber: 1}]),"
    "document.querySelector('#value-by-round .hovertext')?.textContent",
    "buttons": "document.querySelectorAll('#value-by-round .modebar-btn').length",
    "links": "document.querySelectorAll('a[href], a[*|href], img').length",
    "title": "document.querySelector('h1').textContent",
    "axis": "document.querySelector('#walks .xtitle')?.textContent",
}


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("kind", ["plain", "hostile", "both"])
def test_a_browser_draws_it_all_and_asks_for_nothing(
    browser: Browser, result: Result, run: Path, hostile: Path, tmp_path: Path, kind: str, width: int
) -> None:
    out = tmp_path / "page.html"
    if kind == "both":
        compare_reports([run, hostile], out)
    else:
        write_report(run if kind == "plain" else hostile, out)
    seen = browser.show(out, width=width, height=900, questions=QUESTIONS, dark=width < 600)
    assert seen.errors == []
    assert seen.requests == []
    names = {"plain": PLOTS, "hostile": (*PLOTS, "judged"), "both": ("worth", "value-by-round", "returns")}[kind]
    drawn = dict(seen.facts["drawn"])
    assert list(drawn) == list(names)
    assert all(count >= 2 for count in drawn.values())
    assert seen.facts["overflow"] <= 0
    assert seen.facts["outside"] == 0
    assert seen.facts["links"] == 0
    assert seen.facts["hover"].startswith(f"round 1: {result.records[0].value:.5g}")
    assert seen.facts["buttons"] == 5
    if kind == "hostile":
        assert seen.facts["title"] == TITLE
        assert seen.facts["axis"] == SCRIPT


def test_the_browser_would_notice(browser: Browser, page: Path, tmp_path: Path) -> None:
    """A script and a picture that are smuggled in are stopped by the page's policy, and the stopping is seen."""
    smuggled = tmp_path / "smuggled.html"
    text = page.read_text().replace(
        "<main>", '<main><script>window.ran = 1</script><img src="https://example.com/a.png">'
    )
    smuggled.write_text(text)
    seen = browser.show(smuggled, width=1280, height=900, questions={"ran": "window.ran ?? 'no'"})
    assert seen.facts["ran"] == "no"
    assert len(seen.errors) == 2
    assert all("Content Security Policy" in error for error in seen.errors)
