"""What a report shows of the policy: rollouts that could be cloned, the clone, and its returns in an environment."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bats.errors import DataError
from bats.evaluation.comparison import MEANING
from bats.policy.demonstrations import Selection
from bats.policy.files import load_policy
from bats.report.contents import finite_number
from bats.report.page import compare_reports, write_report
from bats.report.policy import evaluation_figure, selection_figure
from bats.runs.folder import RunFolder
from tests.conftest import CopyRun
from tests.report.pages import HOSTILE, LINK, SCRIPT, bars_of, facts_of, plots_of, rows_of, text_of
from tests.runs.relisted import relisted

PROMISED = {"mean_return": 12.0, "low": 11.0, "high": 13.5, "score": 80.0, "score_low": 70.0, "score_high": 95.0}
CLONED = {"mean_return": 9.5, "low": 8.0, "high": 11.0, "score": 61.25, "score_low": 50.0, "score_high": 77.0}
EVALUATION = {"environment": "bats/corner-v0", "episodes": 20, "seed": 3, "cloned": CLONED, "promised": PROMISED}


def evaluated(folder: Path, evaluation: object) -> Path:
    """The folder, with an evaluation."""
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    return folder


def test_the_bars_count_the_saved_rollouts_on_their_side_of_the_threshold(run_copy: Path, tmp_path: Path) -> None:
    selection = RunFolder(run_copy).selection()
    share = np.linspace(0.2, 1.0, len(selection.share))
    RunFolder(run_copy).save_selection(replace(selection, share=share, kept=share >= 0.7, threshold=0.7))
    relisted(run_copy)
    page = write_report(run_copy, tmp_path / "page.html")
    plot, facts = plots_of(page)["selection"], facts_of(page)
    bars, kept = bars_of(plot), int(np.count_nonzero(share >= 0.7))
    assert sum(bars["cloned"].values()) == kept
    assert sum(bars["not cloned"].values()) == len(share) - kept
    assert all(x > 0.7 for x, count in bars["cloned"].items() if count)
    assert all(x < 0.7 for x, count in bars["not cloned"].items() if count)
    assert plot["layout"]["shapes"][0]["x0"] == 0.7
    assert plot["layout"]["xaxis"]["title"]["text"] == "share of the best return from nearby starts"
    assert facts["cloned"] == f"{kept} ({kept / len(share):.1%})"
    assert facts["threshold"] == "0.7"
    assert facts["rollouts"] == f"{len(share)}, at most 1,000 steps each"


def selected(measured: list[float], threshold: float) -> Selection:
    """Rollouts with these returns, selected by them."""
    returns, count = np.array(measured), len(measured)
    weights = np.full(count, 1 / count)
    kept = returns >= threshold
    return Selection(np.arange(count), weights, returns, np.ones(count), kept, threshold, by_return=True, steps=100)


@pytest.mark.parametrize(
    ("measured", "threshold"),
    [
        ([1.0, 2.0, 3.0, 10.0], 3.0),
        ([5.0, 5.0, 5.0], 5.0),  # all alike
        ([1.0, 2.0, 4.0], 4.0),  # the best alone is kept
        ([1.0, 2.0, 4.0], -7.0),  # a threshold far below all
        ([1.0, 2.0, 4.0], -1e300),
        ([1.0, 2.0, 4.0], 4.0 - 1e-12),  # a threshold just below the best
        ([-3.5, 0.1, 0.2, 0.3], 0.2),
        ([0.1, np.nextafter(0.1, 1), 0.1], 0.1),  # all but alike
        ([0.1, np.nextafter(0.1, 0), 0.1], 0.1),
        ([1e6, 1e6 + 0.25, 1e6 + 0.5], 1e6 + 0.25),
        ([0.0, 0.0], 0.0),
        (list(np.random.default_rng(0).normal(size=1000)), 0.123),
    ],
)
def test_no_rollout_is_lost_or_on_the_wrong_side_whatever_the_returns(measured: list[float], threshold: float) -> None:
    figure = selection_figure(selected(measured, threshold))
    bars = bars_of({"traces": figure.traces})
    above = sum(value >= threshold for value in measured)
    assert sum(bars["cloned"].values()) == above
    assert sum(bars.get("not cloned", {}).values()) == len(measured) - above
    assert len(bars["cloned"]) <= 50
    assert all(x > threshold for x, count in bars["cloned"].items() if count)
    assert all(x < threshold for x, count in bars.get("not cloned", {}).items() if count)
    low, high = figure.layout["xaxis"]["range"]
    assert low < min(*measured, threshold)
    assert high > max(*measured, threshold)
    assert 0.95 * (high - low) / figure.traces[0]["width"] < 600  # bars can be seen


def test_a_threshold_of_returns_is_drawn_over_returns(run_copy: Path, tmp_path: Path) -> None:
    selection = RunFolder(run_copy).selection()
    threshold = float(np.median(selection.returns))
    kept = selection.returns >= threshold
    RunFolder(run_copy).save_selection(replace(selection, kept=kept, threshold=threshold, by_return=True))
    relisted(run_copy)
    plot = plots_of(write_report(run_copy, tmp_path / "page.html"))["selection"]
    assert plot["layout"]["xaxis"]["title"]["text"] == "return"
    assert plot["layout"]["shapes"][0]["x0"] == threshold
    assert sum(bars_of(plot)["cloned"].values()) == kept.sum()


def test_a_threshold_that_is_no_number_is_not_drawn() -> None:
    figure = selection_figure(selected([1.0, 2.0], -np.inf))
    assert "shapes" not in figure.layout
    assert sum(bars_of({"traces": figure.traces})["cloned"].values()) == 2


def test_returns_are_those_of_the_saved_rollouts_weighted_by_their_starts(finished_run: Path, tmp_path: Path) -> None:
    page = write_report(finished_run, tmp_path / "page.html")
    selection, mdp = RunFolder(finished_run).selection(), RunFolder(finished_run).load_graph()
    np.testing.assert_array_equal(selection.start, mdp.starts)
    facts, plot = facts_of(page), plots_of(page)["returns"]
    assert facts["mean return"] == f"{mdp.start_weights @ selection.returns:.6g}"
    assert facts["min"] == f"{selection.returns.min():.6g}"
    assert facts["max"] == f"{selection.returns.max():.6g}"
    assert sum(plot["traces"][0]["y"]) == pytest.approx(1, abs=1e-3)
    assert "1,000 steps" in plot["layout"]["xaxis"]["title"]["text"]


def test_rollouts_of_another_graph_are_refused(run_copy: Path) -> None:
    run = RunFolder(run_copy)
    run.save_selection(replace(run.selection(), start=run.selection().start + 10**6))
    relisted(run_copy)
    with pytest.raises(DataError, match="expected rollouts from the start states of this graph"):
        write_report(run_copy)


def test_the_policy_is_described_and_its_lines_load_it(finished_run: Path, tmp_path: Path) -> None:
    page = write_report(finished_run, tmp_path / "page.html")
    facts, card = facts_of(page), json.loads((finished_run / "policy.json").read_text())
    assert facts["hidden layers"] == "8"
    assert facts["training rows"] == f"{card['rows']:,}"
    assert facts["validation error"] == f"{card['validation_error']:.6g}"
    assert facts["rollouts cloned"] == f"{card['rollouts_cloned']} of {card['rollouts']}"
    assert facts["threshold measure"] == card["threshold_measure"]
    assert facts["cloning batch size"] == "32"
    lines = re.search(r"<pre><code>(.*?)</code></pre>", page.read_text(), re.DOTALL)
    assert lines is not None
    states = RunFolder(finished_run).load_graph().states[:3]
    names: dict[str, Any] = {"observation": states}
    exec(html.unescape(lines[1]), names)
    np.testing.assert_array_equal(names["action"], load_policy(finished_run / "policy.safetensors").predict(states))


def test_promised_and_cloned_are_shown_side_by_side(run_copy: Path, tmp_path: Path) -> None:
    page = write_report(evaluated(run_copy, EVALUATION), tmp_path / "page.html")
    plot, facts, rows, text = plots_of(page)["evaluation"], facts_of(page), rows_of(page), text_of(page)
    assert [trace["y"] for trace in plot["traces"]] == [[12.0], [9.5]]  # promised first, however they were written
    assert plot["traces"][1]["error_y"]["array"] == [1.5]
    assert plot["traces"][1]["error_y"]["arrayminus"] == [1.5]
    assert plot["layout"]["xaxis"]["ticktext"] == ["promised<br>12<br>score 80.0", "cloned<br>9.5<br>score 61.2"]
    assert rows["mean return"] == ["12 (11 to 13.5)", "9.5 (8 to 11)"]
    assert rows["score"] == ["80.0 (70.0 to 95.0)", "61.2 (50.0 to 77.0)"]
    assert not {"low", "high", "score low"} & set(rows)
    assert facts["environment"] == "bats/corner-v0"
    assert facts["Cloned policy's score"] == "61.2"
    assert f"Promised: {MEANING['promised']}. Cloned: {MEANING['cloned']}." in text
    assert "Replayed:" not in text


@pytest.mark.parametrize("present", [(), ("promised",), ("cloned",), ("replayed", "cloned")])
def test_columns_may_be_missing(run_copy: Path, tmp_path: Path, present: tuple[str, ...]) -> None:
    columns = {column: {"mean_return": -4.0} for column in present}
    page = write_report(evaluated(run_copy, {"episodes": 5, **columns}), tmp_path / "page.html")
    plots, facts = plots_of(page), facts_of(page)
    assert ("evaluation" in plots) == bool(present)
    assert (facts.get("Cloned policy") == "-4") == ("cloned" in present)
    if present:
        assert [trace["name"] for trace in plots["evaluation"]["traces"]] == list(present)
        assert not [trace for trace in plots["evaluation"]["traces"] if "error_y" in trace]


def test_entries_that_are_no_numbers_are_shown_and_not_drawn() -> None:
    assert evaluation_figure({"cloned": {"mean_return": SCRIPT}, HOSTILE: {}}) is None
    figure = evaluation_figure({HOSTILE: {"mean_return": 1.0, "low": LINK, "high": 2.0, "score": True}})
    assert figure is not None
    assert "error_y" not in figure.traces[0]
    assert figure.layout["xaxis"]["ticktext"][0].startswith("&lt;script&gt;")
    assert "score" not in figure.layout["xaxis"]["ticktext"][0]
    assert [finite_number(value) for value in (1, True, "1", None, 10**400, float("nan"))] == [1.0, *[None] * 5]


def test_an_interval_with_ends_that_are_no_numbers_is_shown_as_it_is(run_copy: Path, tmp_path: Path) -> None:
    odd = {"cloned": {"mean_return": 3.0, "low": LINK, "high": 4.0}}
    rows = rows_of(write_report(evaluated(run_copy, odd), tmp_path / "page.html"))
    assert rows["mean return"] == ["3"]
    assert rows["low"] == [LINK]
    assert rows["high"] == ["4"]


def test_an_evaluation_that_is_no_object_is_refused(run_copy: Path) -> None:
    with pytest.raises(DataError, match=r"evaluation\.json: expected a JSON object, found list"):
        write_report(evaluated(run_copy, []))


def test_returns_of_the_clones_are_compared_where_they_are_known(
    finished_run: Path, copy_run: CopyRun, tmp_path: Path
) -> None:
    first = evaluated(copy_run("first"), EVALUATION)
    rows = rows_of(compare_reports([first, finished_run], tmp_path / "compared.html"))
    assert rows["mean return of the cloned policy"] == ["9.5", "not known"]
    assert rows["score of the cloned policy"] == ["61.25", "not known"]
    selection = RunFolder(finished_run).selection()
    assert rows["rollouts cloned"] == [f"{np.count_nonzero(selection.kept)} of {len(selection.kept)}"] * 2
    neither = rows_of(compare_reports([finished_run, copy_run("second")], tmp_path / "neither.html"))
    assert not [name for name in neither if name.startswith("cloned:")]
