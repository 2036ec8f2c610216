"""What a report tells of the policy: the walks it could be cloned from, the clone, and what was promised and kept."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bats.errors import DataError
from bats.report.contents import Earned, finite
from bats.report.page import compare_reports, write_report
from bats.report.policy import candidates, judged
from bats.runs.folder import RunFolder
from bats.runs.pipeline import Result, fit
from tests.report_pages import HOSTILE, LINK, SCRIPT, Parsed, facts_of, plots_of
from tests.small_runs import SMALL, walks

PROMISED = {"mean_return": 12.0, "low": 11.0, "high": 13.5, "score": 80.0, "score_low": 70.0, "score_high": 95.0}
CLONED = {"mean_return": 9.5, "low": 8.0, "high": 11.0, "score": 61.25, "score_low": 50.0, "score_high": 77.0}
JUDGED = {"environment": "bats/corner-v0", "episodes": 20, "seed": 3, "cloned": CLONED, "promised": PROMISED}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def result(place: Path) -> Result:
    return fit(walks(), SMALL, folder=place / "run")


@pytest.fixture(scope="module")
def run(place: Path, result: Result) -> Path:
    return place / "run"


def another(run: Path, name: str, evaluation: dict[str, Any] | None = None) -> Path:
    """A copy of the run, with an evaluation or without."""
    folder = run.with_name(name)
    shutil.copytree(run, folder)
    if evaluation is not None:
        (folder / "evaluation.json").write_text(json.dumps(evaluation))
    return folder


def rows_of(page: Path) -> dict[str, list[str]]:
    """The tables' rows by their names."""
    rows = re.findall(r'<tr><th scope="row">([^<]*)</th>(.*?)</tr>', page.read_text())
    cells = {name: re.findall(r"<td>([^<]*)</td>", held) for name, held in rows}
    return {html.unescape(name): [html.unescape(cell) for cell in held] for name, held in cells.items()}


def bars_of(plot: dict[str, Any]) -> dict[str, dict[float, int]]:
    """How many there are at which place, by the bars' names."""
    return {trace["name"]: dict(zip(trace["x"], trace["y"], strict=True)) for trace in plot["traces"]}


def test_the_bars_count_the_walks_that_were_saved_on_their_side_of_the_cut(run: Path, place: Path) -> None:
    folder = another(run, "candidates")
    arrays, facts = RunFolder(run).walks()
    arrays["share"] = np.linspace(0.2, 1.0, len(arrays["share"]))
    arrays["kept"] = arrays["share"] >= 0.7
    RunFolder(folder).save_walks(arrays, {"cut": 0.7, "steps": facts["steps"], "by": facts["by"]})
    arrays, facts = RunFolder(folder).walks()
    page = write_report(folder, place / "candidates.html")
    plot, told = plots_of(page)["candidates"], facts_of(page)
    bars = bars_of(plot)
    kept = int(arrays["kept"].sum())
    assert 0 < kept < len(arrays["kept"])
    assert sum(bars["cloned"].values()) == kept
    assert sum(bars["left out"].values()) == len(arrays["kept"]) - kept
    assert all(x > facts["cut"] for x, count in bars["cloned"].items() if count)
    assert all(x < facts["cut"] for x, count in bars["left out"].items() if count)
    line = plot["layout"]["shapes"][0]
    assert line["x0"] == line["x1"] == facts["cut"]
    assert line["line"]["dash"] == "dash"
    assert plot["layout"]["annotations"][0]["text"] == f"cut {facts['cut']:.4g}"
    assert told["kept"] == f"{kept} ({kept / len(arrays['kept']):.1%})"
    assert told["cut"] == f"{facts['cut']:.4g}"
    assert told["steps"] == "1,000 at most"


def earned(measured: list[float], cut: float, by: str = "return") -> Earned:
    values = np.array(measured)
    even = np.full(len(values), 1 / len(values))
    return Earned(values, np.ones(len(values)), values >= cut, even, cut, by, 100)


@pytest.mark.parametrize(
    ("measured", "cut"),
    [
        ([1.0, 2.0, 3.0, 10.0], 3.0),
        ([5.0, 5.0, 5.0], 5.0),  # all alike
        ([1.0, 2.0, 4.0], 4.0),  # the best alone is kept
        ([1.0, 2.0, 4.0], -7.0),  # a cut that all pass by far
        ([-3.5, 0.1, 0.2, 0.3], 0.2),
        ([0.1, np.nextafter(0.1, 1), 0.1], 0.1),  # all but alike
        ([0.1, np.nextafter(0.1, 0), 0.1], 0.1),
        ([1e6, 1e6 + 0.25, 1e6 + 0.5], 1e6 + 0.25),
        ([0.0, 0.0], 0.0),
        (list(np.random.default_rng(0).normal(size=1000)), 0.123),
    ],
)
def test_no_walk_is_lost_or_on_the_wrong_side_whatever_the_returns(measured: list[float], cut: float) -> None:
    figure = candidates(earned(measured, cut))
    bars = bars_of({"traces": figure.traces})
    above = sum(value >= cut for value in measured)
    assert sum(bars["cloned"].values()) == above
    assert sum(bars.get("left out", {}).values()) == len(measured) - above
    assert all(x > cut for x, count in bars["cloned"].items() if count)
    assert all(x < cut for x, count in bars.get("left out", {}).items() if count)
    low, high = figure.layout["xaxis"]["range"]
    assert low < min(*measured, cut)
    assert high > max(*measured, cut)


def test_a_cut_of_returns_is_drawn_over_returns(run: Path, place: Path) -> None:
    folder = another(run, "by-return")
    arrays, facts = RunFolder(run).walks()
    cut = float(np.median(arrays["returns"]))
    arrays["kept"] = arrays["returns"] >= cut
    RunFolder(folder).save_walks(arrays, {"cut": cut, "steps": facts["steps"], "by": "return"})
    plot = plots_of(write_report(folder, place / "by-return.html"))["candidates"]
    assert plot["layout"]["xaxis"]["title"]["text"] == "return"
    assert plot["layout"]["shapes"][0]["x0"] == cut
    assert sum(bars_of(plot)["cloned"].values()) == arrays["kept"].sum()


def test_a_cut_that_is_no_number_is_not_drawn() -> None:
    figure = candidates(earned([1.0, 2.0], -np.inf))
    assert "shapes" not in figure.layout
    assert sum(bars_of({"traces": figure.traces})["cloned"].values()) == 2


def test_returns_are_those_of_the_saved_walks_weighted_by_their_starts(run: Path, place: Path, result: Result) -> None:
    page = write_report(run, place / "returns.html")
    arrays, _ = RunFolder(run).walks()
    np.testing.assert_array_equal(arrays["start"], result.mdp.starts)
    told, plot = facts_of(page), plots_of(page)["returns"]
    assert told["mean return"] == f"{result.mdp.start_weights @ arrays['returns']:.6g}"
    assert told["least"] == f"{arrays['returns'].min():.6g}"
    assert told["walks"] == str(len(arrays["returns"]))
    assert sum(plot["traces"][0]["y"]) == pytest.approx(1, abs=1e-3)
    assert "1,000 steps" in plot["layout"]["xaxis"]["title"]["text"]


def test_walks_of_another_graph_are_refused(run: Path) -> None:
    arrays, facts = RunFolder(run).walks()
    kept_facts = {name: facts[name] for name in ("cut", "steps", "by")}
    folder = another(run, "other-walks")
    for damaged in ({**arrays, "start": arrays["start"] + 10**6}, {**arrays, "share": arrays["share"][1:]}):
        RunFolder(folder).save_walks(damaged, kept_facts)
        with pytest.raises(DataError, match="expected the policy's walks through this graph"):
            write_report(folder)
    RunFolder(folder).save_walks(arrays, {"cut": 0.5})
    with pytest.raises(DataError, match="expected the policy's walks through this graph"):
        write_report(folder)


def test_the_policy_is_told_and_its_lines_load_it(run: Path, place: Path, result: Result) -> None:
    page = write_report(run, place / "policy.html")
    told, card = facts_of(page), json.loads((run / "policy.json").read_text())
    assert told["hidden layers"] == "8"
    assert told["rows cloned from"] == f"{card['rows']:,}"
    assert told["validation error"] == f"{card['validation_error']:.6g}"
    assert told["walks cloned"] == f"{card['walks_cloned']} of {card['walks']}"
    assert told["cloning batch size"] == "32"
    lines = re.search(r"<pre><code>(.*?)</code></pre>", page.read_text(), re.DOTALL)
    assert lines is not None
    names: dict[str, Any] = {"observation": result.mdp.states[:3]}
    exec(html.unescape(lines[1]), names)
    np.testing.assert_array_equal(names["action"], result.policy.predict(result.mdp.states[:3]))


def test_promised_and_cloned_stand_side_by_side(run: Path, place: Path) -> None:
    page = write_report(another(run, "judged", JUDGED), place / "judged.html")
    plot, told, rows = plots_of(page)["judged"], facts_of(page), rows_of(page)
    assert [trace["y"] for trace in plot["traces"]] == [[12.0], [9.5]]  # promised first, however they were written
    assert plot["traces"][1]["error_y"]["array"] == [1.5]
    assert plot["traces"][1]["error_y"]["arrayminus"] == [1.5]
    assert plot["layout"]["xaxis"]["ticktext"] == ["promised<br>12<br>score 80.0", "cloned<br>9.5<br>score 61.2"]
    assert rows["mean return"] == ["12", "9.5"]
    assert rows["score"] == ["80.0", "61.2"]
    assert page.read_text().count("<td>50.0 to 77.0</td>") == 1
    assert page.read_text().count("<td>8 to 11</td>") == 1
    assert "low" not in rows
    assert told["environment"] == "bats/corner-v0"
    assert told["Cloned policy's score"] == "61.2"
    text = " ".join(Parsed(page.read_text()).text)
    assert "Promised is what" in text
    assert "Replayed is" not in text


@pytest.mark.parametrize("present", [(), ("promised",), ("cloned",), ("replayed", "cloned")])
def test_columns_may_be_missing(run: Path, place: Path, present: tuple[str, ...]) -> None:
    columns = {column: {"mean_return": -4.0} for column in present}
    name = "-".join(("only", *present))
    page = write_report(another(run, name, {"episodes": 5, **columns}), place / f"{name}.html")
    plots, told = plots_of(page), facts_of(page)
    assert ("judged" in plots) == bool(present)
    assert (told.get("Cloned policy") == "-4") == ("cloned" in present)
    if present:
        assert [trace["name"] for trace in plots["judged"]["traces"]] == list(present)
        assert not [trace for trace in plots["judged"]["traces"] if "error_y" in trace]


def test_entries_that_are_no_numbers_are_shown_and_not_drawn() -> None:
    assert judged({"cloned": {"mean_return": SCRIPT}, HOSTILE: {}}) is None
    figure = judged({HOSTILE: {"mean_return": 1.0, "low": LINK, "high": 2.0, "score": True}})
    assert figure is not None
    assert "error_y" not in figure.traces[0]
    assert figure.layout["xaxis"]["ticktext"][0].startswith("&lt;script&gt;")
    assert "score" not in figure.layout["xaxis"]["ticktext"][0]
    assert [finite(value) for value in (1, True, "1", None, 10**400, float("nan"))] == [1.0, *[None] * 5]


def test_an_interval_with_ends_that_are_no_numbers_is_told_as_it_stands(run: Path, place: Path) -> None:
    odd = {"cloned": {"mean_return": 3.0, "low": LINK, "high": 4.0}}
    rows = rows_of(write_report(another(run, "odd", odd), place / "odd.html"))
    assert rows["low"] == [LINK]
    assert rows["high"] == ["4"]


def test_what_the_clones_earned_is_compared_where_it_is_known(run: Path, place: Path) -> None:
    first = another(run, "first", JUDGED)
    page = compare_reports([first, run], place / "compared.html")
    rows = rows_of(page)
    assert rows["cloned: mean return"] == ["9.5", "not known"]
    assert rows["cloned: score"] == ["61.25", "not known"]
    kept = int(RunFolder(run).walks()[0]["kept"].sum())
    assert rows["walks cloned"] == [f"{kept} of 20"] * 2
    neither = rows_of(compare_reports([run, another(run, "second")], place / "neither.html"))
    assert not [name for name in neither if name.startswith("cloned:")]
