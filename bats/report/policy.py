"""The policy: returns of its rollouts, which of them were cloned, the clone, and what it earns in an environment."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from bats.evaluation.comparison import MEANING
from bats.policy.demonstrations import Selection
from bats.report import plots
from bats.report.contents import Contents, finite_number
from bats.report.html import Figure, Section, Table, in_words, name_in_words, side_by_side
from bats.runs.records import FROM_GRAPH, IMPROVED
from bats.storage.json_records import flatten

BINS = 30
MAX_BARS, MIN_BARS = 500, 10
"""an axis is at most, and at least, this many bars wide"""
ALIKE = 1e-9
"""values that differ by less than this share of the largest are drawn as one bar"""
COLOURS = {"promised": plots.GREY, "replayed": plots.BLUE, "cloned": plots.ORANGE}
INTERVALS = {"mean_return": ("low", "high"), "score": ("score_low", "score_high")}
"""entries of an evaluation that have a 95% interval, and the names of its ends"""


def rollouts_section(run: Contents) -> Section:
    """The returns of the graph policy's rollouts from the starts, and which of them were cloned."""
    selection, returns = run.selection, run.selection.returns
    count, cloned = len(returns), int(np.count_nonzero(selection.kept))
    facts = {
        "rollouts": f"{count:,}, at most {selection.steps:,} steps each",
        "mean return": f"{run.mean_return:.6g}",
        "min": f"{returns.min():.6g}",
        "max": f"{returns.max():.6g}",
        "cloned": f"{cloned:,} ({cloned / count:.1%})",
        "threshold": f"{selection.threshold:.4g}",
    }
    if run.stops:
        facts["end in a dead end"] = f"{run.stops:.1%} of the start weight; the log does not show what follows"
    text = (
        "A rollout is cloned if its return is at least the threshold."
        if selection.by_return
        else "The return of an episode depends mostly on where it starts. Therefore each return is taken as a share "
        "of the best return from nearby starts. A rollout is cloned if this share is at least the threshold."
    )
    figures = [returns_figure({run.header.log: run}), selection_figure(selection)]
    return Section("Returns in the graph", text, facts, figures=figures)


def returns_figure(runs: Mapping[str, Contents]) -> Figure:
    """The distribution of the returns of the rollouts from the starts, by the starts' weights."""
    edges = _bin_edges(np.concatenate([run.selection.returns for run in runs.values()]))
    hover = "return %{customdata}: %{y:.1%} of the starts<extra></extra>"
    opacity = 1.0 if len(runs) == 1 else 0.5  # bars of several runs lie on top of each other
    traces = []
    for (name, run), colour in zip(runs.items(), cycle(plots.PALETTE)):
        share = np.histogram(run.selection.returns, bins=edges, weights=run.selection.start_weights)[0]
        traces.append(_histogram(plots.label(name), edges, plots.numbers(share), colour, hover) | {"opacity": opacity})
    steps = " or ".join(f"{length:,}" for length in sorted({run.selection.steps for run in runs.values()}))
    x, y = {"range": list(_visible(edges))}, {"tickformat": ".0%", "rangemode": "tozero"}
    layout = plots.axes(f"return in {steps} steps, not discounted", "share of the starts", x, y)
    caption = f"Rollouts of the graph's policy from the starts, at most {steps} steps, without penalties."
    return Figure("returns", "Returns of the rollouts", caption, traces, layout | {"barmode": "overlay"})


def selection_figure(selection: Selection) -> Figure:
    """The rollouts by the quantity that the threshold applies to."""
    measured = selection.returns if selection.by_return else selection.share
    threshold = selection.threshold if math.isfinite(selection.threshold) else None
    edges = _bin_edges(measured, threshold)
    visible = _visible(edges, threshold)
    hover = f"{selection.measure} %{{customdata}}: %{{y:,}} rollouts"
    traces = [
        _histogram(name, edges, np.histogram(measured[part], bins=edges)[0].tolist(), colour, hover)
        for name, part, colour in (("not cloned", ~selection.kept, plots.GREY), ("cloned", selection.kept, plots.GREEN))
        if part.any()
    ]
    layout = plots.axes(selection.measure, "rollouts", {"range": list(visible)}, {"rangemode": "tozero"})
    if threshold is not None:
        layout |= plots.vertical_line(threshold, f"threshold {threshold:.4g}", visible)
    quantity = "their return" if selection.by_return else "their share of the best return from nearby starts"
    caption = f"The same rollouts by {quantity}. Rollouts to the left of the threshold are not cloned."
    return Figure("selection", "Which rollouts are cloned", caption, traces, layout | plots.STACKED)


def policy_section(run: Contents) -> Section:
    """The network, how to load it, and its whole summary."""
    card, selection = run.policy_card, run.selection
    # nothing in a card is checked but that it is an object, so only the selection is relied on
    labels = {"hidden": "hidden layers", "rows": "training rows", "validation_error": "validation error"}
    facts = {label: in_words(card[name]) for name, label in labels.items() if name in card}
    stitched = run.summary.policy in FROM_GRAPH
    if stitched:
        facts["rollouts cloned"] = f"{np.count_nonzero(selection.kept):,} of {len(selection.kept):,}"
        facts["threshold"] = f"{selection.threshold:.4g} ({selection.measure})"
    facts["file"] = "policy.safetensors, in the run's folder"
    cloned = "the cloned rollouts" if stitched else "rows of the log, without stitches"
    improved = " Then it was improved in the model." if run.summary.policy == IMPROVED else ""
    file = json.dumps((run.path / "policy.safetensors").as_posix(), ensure_ascii=False)
    lines = ("import bats", f"policy = bats.load_policy({file})", "action = policy.predict(observation)")
    rows = [(name_in_words(name), in_words(value)) for name, value in flatten(card)]
    return Section(
        "The cloned policy",
        f"A network that maps observations to actions. It was trained on the states and actions of {cloned}.{improved}",
        facts,
        code="\n".join(lines),
        tables=[Table(("fact", "value"), rows, words=True)],
        folded=True,
    )


def evaluation_section(run: Contents) -> Section | None:
    """Returns in the environment side by side; None where the policy was not evaluated."""
    if not run.evaluation:
        return None
    # promised, replayed, cloned, and then whatever else a file written by hand has
    order = dict.fromkeys([*MEANING, *run.columns])
    columns = {name: run.columns[name] for name in order if name in run.columns}
    facts = {
        name_in_words(name): in_words(value)
        for name, value in run.evaluation.items()
        if name not in (*columns, "policy")
    }
    entries = {name_in_words(name): evaluation_entries(column) for name, column in columns.items()}
    figure = evaluation_figure(columns)
    return Section(
        "Promised, replayed, cloned",
        " ".join(f"{name.capitalize()}: {MEANING[name]}." for name in columns if name in MEANING),
        facts,
        figures=() if figure is None else [figure],
        tables=[side_by_side(entries)] if columns else (),
    )


def evaluation_figure(columns: Mapping[str, Mapping[str, Any]]) -> Figure | None:
    """Mean returns side by side, with their intervals where these are known; None without any mean return."""
    traces: list[dict[str, Any]] = []
    labels: list[str] = []
    for (name, entries), spare_colour in zip(columns.items(), cycle(plots.PALETTE)):
        mean, low, high, score = (finite_number(entries.get(key)) for key in ("mean_return", "low", "high", "score"))
        if mean is None:
            continue
        label, hover, whiskers = plots.label(name), "mean return %{y:.5g}", {}
        if low is not None and high is not None:
            ends = {"type": "data", "symmetric": False, "array": [high - mean], "arrayminus": [mean - low]}
            hover, whiskers = f"{hover}, {low:.5g} to {high:.5g}", {"error_y": ends | {"thickness": 1.5, "width": 8}}
        colour = COLOURS.get(name, spare_colour)
        bar = plots.bars(label, [len(traces)], [mean], colour, hover + "<extra></extra>", width=0.6, showlegend=False)
        traces.append(bar | whiskers)
        labels.append(f"{label}<br>{mean:.4g}" + ("" if score is None else f"<br>score {score:.1f}"))
    if not traces:
        return None
    x = {"tickvals": list(range(len(traces))), "ticktext": labels, "showgrid": False, "zeroline": False}
    layout = plots.axes("", "mean return", x, {"rangemode": "tozero"})
    caption = "The returns are not discounted. Error bars are 95% intervals of the mean."
    return Figure("evaluation", "Mean returns", caption, traces, layout)


def evaluation_entries(column: Mapping[str, Any]) -> dict[str, str]:
    """The entries of a column as text; an interval stands behind what it is an interval of."""
    entries = {name: _measure(name, value) for name, value in column.items()}
    for name, (low, high) in INTERVALS.items():
        # ends that are not numbers, in a file written by hand, are shown as they are, in rows of their own
        if name in entries and all(finite_number(column.get(end)) is not None for end in (low, high)):
            entries[name] += f" ({_measure(name, column[low])} to {_measure(name, column[high])})"
            del entries[low], entries[high]
    return {name_in_words(name): text for name, text in entries.items()}


def _measure(name: str, value: object) -> str:
    """A score or a mean return in no more digits than are known; anything else as it is."""
    number = finite_number(value) if name in INTERVALS else None
    if number is None:
        return in_words(value)
    return f"{number:.1f}" if name == "score" else f"{number:.5g}"


def _bin_edges(values: Float[np.ndarray, "n"], threshold: float | None = None) -> Float[np.ndarray, "edges"]:
    """Edges of equal bars over all values; a threshold among them lies between two bars."""
    low, high = float(values.min()), float(values.max())
    threshold = low if threshold is None else threshold
    size = max(abs(low), abs(high), ALIKE)
    width = (high - low if high - low > ALIKE * size else size) / BINS
    # the threshold is drawn even if it is far from all values, and the bars must stay wide enough to be seen
    width = max(width, (max(high, threshold) - min(low, threshold)) / MAX_BARS)
    # counted from the threshold, no bar holds rollouts from both sides of it
    anchor = threshold if low < threshold <= high else low
    above = max(round((high - anchor) / width), 1)
    if high - anchor > width:
        width = (high - anchor) / above  # the last bar ends at the largest value: shares do not exceed 1
    below = math.ceil((anchor - low) / width)
    edges = anchor + width * np.arange(-below, above + 1)
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)  # rounding must not lose a value
    return edges


def _histogram(
    name: str, edges: Float[np.ndarray, "edges"], heights: Sequence[int | float | None], colour: str, hover: str
) -> dict[str, Any]:
    """A bar between each two edges; the pointer shows between which."""
    centres = plots.numbers((edges[:-1] + edges[1:]) / 2, 12)
    # without a width Plotly takes the distance to the next bar, and there may be one bar alone
    width = 0.95 * float(edges[1] - edges[0])
    ranges = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)]
    return plots.bars(name, centres, heights, colour, hover, customdata=ranges, width=width)


def _visible(edges: Float[np.ndarray, "edges"], threshold: float | None = None) -> tuple[float, float]:
    """The range of an axis: all bars and the threshold, and room for ten bars where there are fewer."""
    low, high = float(edges[0]), float(edges[-1])
    low, high = (low, high) if threshold is None else (min(low, threshold), max(high, threshold))
    room = max(0.02 * (high - low), (MIN_BARS * float(edges[1] - edges[0]) - (high - low)) / 2)
    return low - room, high + room
