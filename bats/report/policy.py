"""The parts of a report about the policy: what its walks earn, which were cloned, the clone, and what it kept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from bats.report.contents import Earned, Story, entries, finite
from bats.report.html import Figure, Section, Table, plain_numbers, plot_text, spoken, told
from bats.report.rounds import COLOURS, LOG_ALONE, LOGGED, SEVERAL, STITCHED, titled, upright

BINS = 30
MOST_BARS = 500
"""on either side of a cut"""
ALIKE = 1e-9
"""values that differ by less than this share of themselves are drawn as one bar"""
FEWEST_BARS = 10
"""there is room for as many, even where all values are the same"""
COLUMNS = {
    "promised": "Promised is what the policy's walks through the graph earn.",
    "replayed": "Replayed is what the actions of these walks earn in the environment, played one after the other "
    "whatever happens.",
    "cloned": "Cloned is what the network earns there, choosing each action by what it sees.",
}
"""what was judged, in the order in which it is told"""
JUDGED = {"promised": LOGGED, "replayed": LOG_ALONE, "cloned": STITCHED}
INTERVALS = {"mean_return": ("low", "high"), "score": ("score_low", "score_high")}
"""what is told with an interval, and where its ends are"""


def returns_section(story: Story) -> Section:
    earned = story.earned
    facts = (
        ("mean return", f"{earned.mean_return:.6g}"),
        ("least", f"{earned.returns.min():.6g}"),
        ("greatest", f"{earned.returns.max():.6g}"),
        ("walks", f"{len(earned.returns):,}"),
    )
    return Section("What the policy earns in the graph", facts=facts, figures=(returns([story], [story.log]),))


def returns(stories: Sequence[Story], names: Sequence[str]) -> Figure:
    """How the returns of the walks from the starts are spread, by the starts' weights."""
    every = np.concatenate([story.earned.returns for story in stories])
    edges = _edges(every)
    traces = []
    for story, name, colour in zip(stories, names, cycle(SEVERAL)):
        earned = story.earned
        trace: dict[str, Any] = {
            "type": "bar" if len(stories) == 1 else "scatter",
            "name": plot_text(name),
            "x": plain_numbers((edges[:-1] + edges[1:]) / 2, 12),
            "y": plain_numbers(np.histogram(earned.returns, bins=edges, weights=earned.weights)[0]),
            "hovertemplate": "return about %{x:.4g}: %{y:.1%} of the starts<extra></extra>",
        }
        line = {"mode": "lines", "line": {"color": colour, "shape": "hvh"}}
        bars = {"marker": {"color": colour}, "width": _width(edges)}
        traces.append(trace | (bars if len(stories) == 1 else line))
    lengths = sorted({story.earned.steps for story in stories})
    within = " or ".join(f"{length:,}" for length in lengths)
    layout: dict[str, Any] = {
        "xaxis": titled(f"return in {within} steps, not discounted", range=list(_shown(edges))),
        "yaxis": titled("share of the starts", tickformat=".0%", rangemode="tozero"),
    }
    caption = f"The policy's walks through the graph, {within} steps at most, without penalties."
    return Figure("returns", "Returns of the policy's walks", caption, traces, layout)


def candidates_section(story: Story) -> Section:
    """Which of the walks were cloned, and which fell short."""
    earned = story.earned
    count, kept = len(earned.kept), int(np.count_nonzero(earned.kept))
    facts = (
        ("walks", f"{count:,}"),
        ("kept", f"{kept:,} ({kept / count:.1%})"),
        ("cut", f"{earned.cut:.4g}"),
        ("steps", f"{earned.steps:,} at most"),
    )
    text = (
        "A walk is cloned if it returns at least the cut."
        if earned.by_return
        else "Where an episode starts decides most of what it can earn. So each walk is measured by its return as a "
        "share of the best among the walks that start nearest, and cloned if that reaches the cut."
    )
    return Section("Which walks were cloned", text, facts, figures=(candidates(earned),))


def candidates(earned: Earned) -> Figure:
    """The walks by what they were measured by; the cut lies between two bars, so none is on both sides of it."""
    edges = _edges(earned.measured, earned.cut)
    what = "return" if earned.by_return else "share of the best return nearby"
    traces = [
        {
            "type": "bar",
            "name": name,
            "x": plain_numbers((edges[:-1] + edges[1:]) / 2, 12),
            "y": np.histogram(earned.measured[part], bins=edges)[0].tolist(),
            "customdata": [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)],
            "marker": {"color": colour, "line": {"width": 0}},
            "width": _width(edges),
            "hovertemplate": f"{what} %{{customdata}}: %{{y:,}} walks",
        }
        for name, part, colour in (("left out", ~earned.kept, LOGGED), ("cloned", earned.kept, COLOURS["accepted"]))
        if part.any()
    ]
    cut = earned.cut if math.isfinite(earned.cut) else None
    shown = _shown(edges, cut)
    layout = {
        "barmode": "stack",
        "xaxis": titled(what, range=list(shown)),
        "yaxis": titled("walks", rangemode="tozero"),
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
    if cut is not None:
        layout |= upright(cut, f"cut {cut:.4g}", shown)
    caption = f"The policy's walks from the starts, {earned.steps:,} steps at most, without penalties."
    return Figure("candidates", "Walks that could be cloned", caption, traces, layout)


def policy_section(story: Story) -> Section:
    card, earned = story.policy, story.earned
    named = {"hidden": "hidden layers", "rows": "rows cloned from", "validation_error": "validation error"}
    facts = {label: told(card[name]) for name, label in named.items() if name in card}
    kept = int(np.count_nonzero(earned.kept))
    file = (story.path / "policy.safetensors").as_posix()
    facts |= {
        "walks cloned": f"{kept:,} of {len(earned.kept):,}",
        "cut": f"{earned.cut:.4g}, {earned.by}",
        "file": "policy.safetensors, in the run's folder",
    }
    lines = (
        "import bats",
        f"policy = bats.load_policy({json.dumps(file, ensure_ascii=False)})",
        "action = policy.predict(observation)",
    )
    rows = tuple((spoken(name), told(value)) for name, value in entries(card))
    text = "A network that answers an observation with an action, learned from the states and actions of these walks."
    return Section(
        "The cloned policy",
        text,
        tuple(facts.items()),
        code="\n".join(lines),
        tables=(Table(("fact", "value"), rows, words=True),) if rows else (),
        folded=True,
    )


def evaluation_section(story: Story) -> Section | None:
    """What was promised, what a replay of the walks and what the cloned policy earned, as columns side by side."""
    if not story.evaluation:
        return None
    held = {name: column for name, column in story.evaluation.items() if isinstance(column, dict)}
    columns = {name: held[name] for name in (*(known for known in COLUMNS if known in held), *held)}
    facts = [
        (spoken(name), value if isinstance(value, str) else told(value))
        for name, value in story.evaluation.items()
        if not isinstance(value, dict)
    ]
    figure = judged(columns)
    return Section(
        "Promised and kept",
        " ".join(sentence for name, sentence in COLUMNS.items() if name in columns),
        tuple(facts),
        figures=() if figure is None else (figure,),
        tables=(_judged_table(columns),) if columns else (),
    )


def judged(columns: Mapping[str, Mapping[str, Any]]) -> Figure | None:
    """Mean returns side by side, with the ends of their intervals where they are told."""
    bars: list[dict[str, Any]] = []
    labels: list[str] = []
    for (name, facts), spare in zip(columns.items(), cycle(SEVERAL)):
        mean, low, high = (finite(facts.get(part)) for part in ("mean_return", "low", "high"))
        if mean is None:
            continue
        score = finite(facts.get("score"))
        labels.append("<br>".join([plot_text(name), f"{mean:.4g}", *([] if score is None else [f"score {score:.1f}"])]))
        bar: dict[str, Any] = {"type": "bar", "name": plot_text(name), "x": [len(bars)], "y": [mean]}
        bar |= {"width": 0.6, "showlegend": False, "marker": {"color": JUDGED.get(name, spare)}}
        bar |= {"hovertemplate": "mean return %{y:.5g}<extra></extra>"}
        if low is not None and high is not None:
            ends = {"array": [high - mean], "arrayminus": [mean - low], "thickness": 1.5, "width": 8}
            bar["error_y"] = {"type": "data", "symmetric": False, **ends}
            bar["hovertemplate"] = f"mean return %{{y:.5g}}, {low:.5g} to {high:.5g}<extra></extra>"
        bars.append(bar)
    if not bars:
        return None
    layout = {
        "xaxis": titled("", tickvals=list(range(len(bars))), ticktext=labels, showgrid=False, zeroline=False),
        "yaxis": titled("mean return", rangemode="tozero"),
    }
    caption = "Not discounted. Whiskers are 95% intervals of the mean where there are any."
    return Figure("judged", "Mean returns", caption, bars, layout)


def _judged_table(columns: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row for each fact; the ends of an interval share a row below what they belong to."""
    held = list(columns.values())
    rows: list[tuple[str, ...]] = []
    told_already: set[str] = set()
    for name in dict.fromkeys(name for column in held for name in column):
        if name in told_already:
            continue
        rows.append((spoken(name), *(_measure(name, column.get(name, "")) for column in held)))
        ends = INTERVALS.get(name, ())
        intervals = [_interval(name, *(column.get(end) for end in ends)) if ends else None for column in held]
        if any(intervals) and None not in intervals:
            rows.append(("95% interval", *(interval or "" for interval in intervals)))
            told_already |= set(ends)
    return Table(("", *(spoken(name) for name in columns)), tuple(rows), words=True)


def _interval(name: str, low: object, high: object) -> str | None:
    """An interval in words, nothing where there is none, and None where its ends are something else."""
    if finite(low) is not None and finite(high) is not None:
        return f"{_measure(name, low)} to {_measure(name, high)}"
    return "" if low is None and high is None else None


def _measure(name: str, value: object) -> str:
    """A score or a mean return in no more digits than are known; anything else as it stands."""
    number = finite(value) if name in INTERVALS else None
    if number is None:
        return told(value)
    return f"{number:.1f}" if name == "score" else f"{number:.5g}"


def _edges(values: Float[np.ndarray, "n"], cut: float | None = None) -> Float[np.ndarray, "edges"]:
    """Ends of equal bars over all values; the cut, where there is one, lies between two bars."""
    least, greatest = float(values.min()), float(values.max())
    size = max(abs(least), abs(greatest), ALIKE)
    alike = greatest - least <= ALIKE * size
    width = (size if alike else greatest - least) / BINS
    if cut is None or not math.isfinite(cut):
        return (least + greatest + width * np.array([-1, 1])) / 2 if alike else np.linspace(least, greatest, BINS + 1)
    width = max(width, max(abs(greatest - cut), abs(cut - least)) / MOST_BARS)  # a cut far from all values
    above = max(round((greatest - cut) / width), 1)
    if greatest > cut and not alike:
        width = (greatest - cut) / above  # the last bar ends with the greatest value
    below = max(math.ceil((cut - least) / width), 0)
    edges = cut + width * np.arange(-below, above + 1)
    edges[0], edges[-1] = min(edges[0], least), max(edges[-1], greatest)  # whatever rounding did
    return edges


def _width(edges: Float[np.ndarray, "edges"]) -> float:
    """The width of a bar, which Plotly would guess from the next one's place; there may be a single one."""
    return 0.95 * float(edges[1] - edges[0])


def _shown(edges: Float[np.ndarray, "edges"], cut: float | None = None) -> tuple[float, float]:
    """What an axis shows: all bars and the cut, and not a single bar as wide as the page."""
    places = [float(edges[0]), float(edges[-1]), *([] if cut is None else [cut])]
    low, high = min(places), max(places)
    room = max(0.02 * (high - low), (FEWEST_BARS * float(edges[1] - edges[0]) - (high - low)) / 2)
    return low - room, high + room
