"""The plots of how a run went: the model's errors, the rounds, and what was tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle, pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from bats.report.contents import Story
from bats.report.html import Figure, plain_numbers, plot_text
from bats.stitching.records import Outcome

LABELS = {
    "accepted": "accepted",
    "missed": "too far from its target",
    "doubted": "model too wrong nearby",
    "ended": "task would end on the way",
    "ran_away": "prediction not finite",
}
COLOURS = {
    "accepted": "#2a9d8f",
    "missed": "#e0a030",
    "doubted": "#c0679b",
    "ended": "#7d6bb3",
    "ran_away": "#7b8490",
}
LOGGED, LOG_ALONE, STITCHED = "#8a94a3", "#3b82c4", "#e4572e"
"""what was logged, the best of the log, and with stitches; seen on light and dark paper alike"""
SEVERAL = ("#e4572e", "#3b82c4", "#2a9d8f", "#e0a030", "#c0679b", "#7d6bb3", "#8a94a3")
"""for runs side by side"""
BINS = 60
DECADES_AROUND = 1000.0
"""errors are drawn from the tolerance divided by this to the tolerance times this"""

OUTCOMES = tuple(outcome.name.lower() for outcome in Outcome)
"""in the order of their numbers"""


def titled(text: str, **more: Any) -> dict[str, Any]:
    """An axis with a title."""
    return {"title": {"text": text, "standoff": 8}, **more}


def upright(place: float, text: str, shown: tuple[float, float]) -> dict[str, Any]:
    """A dashed upright line with a label, parts of a layout; near an end of what is shown the label leans inwards."""
    line = {"color": STITCHED, "width": 2, "dash": "dash"}
    shape = {"type": "line", "x0": place, "x1": place, "y0": 0, "y1": 1, "yref": "paper", "line": line}
    along = (place - shown[0]) / (shown[1] - shown[0])
    side = "left" if along < 0.2 else "right" if along > 0.8 else "center"
    label = {"x": place, "y": 1, "yref": "paper", "xanchor": side, "yanchor": "bottom", "text": text}
    return {"shapes": [shape], "annotations": [label | {"showarrow": False}]}


def model_errors(story: Story, error: dict[str, Any]) -> Figure:
    kinds = {"mean_absolute": "mean", "root_mean_square": "root mean square", "largest": "largest"}
    names = [plot_text(story.dimension(number)) for number in range(len(error["mean_absolute"]))]
    places = list(range(len(names)))  # by number: two columns may have names that look the same
    traces = [
        {
            "type": "bar",
            "name": label,
            "x": places,
            "y": plain_numbers(np.asarray(error[kind], dtype=np.float64)),
            "marker": {"color": colour},
            "hovertemplate": "%{y:.3g}",
        }
        for (kind, label), colour in zip(kinds.items(), (LOG_ALONE, LOGGED, "#c9ced6"), strict=True)
    ]
    amounts = np.concatenate([np.asarray(error[kind], dtype=np.float64) for kind in kinds])
    ticks = _ticks(amounts[amounts > 0])
    few = {"tickvals": places, "ticktext": names} if len(names) <= 12 else {}
    layout = {
        "xaxis": titled("number of the state", **few),
        "yaxis": titled("error", type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks]),
        "hovermode": "x unified",
    }
    caption = "How far the elites' mean prediction of the next state is off, in the log's own units, on rows that "
    caption += "nothing was learned from."
    return Figure("model-errors", "Error of one step, by number of the state", caption, traces, layout)


def value_by_round(stories: Sequence[Story], names: Sequence[str]) -> Figure:
    """Value at the starts; with one run, what the log earned and allows besides."""
    alone = len(stories) == 1
    traces: list[dict[str, Any]] = []
    for story, name, colour in zip(stories, names, cycle(SEVERAL)):
        first = [story.rounds[0].value_before] if story.rounds else [story.ended.log_value]
        values = np.array([*first, *(each.value for each in story.rounds)])
        shares = [0.0, *(each.stitched_share for each in story.rounds)]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": "with stitches" if alone else plot_text(name),
                "x": list(range(len(values))),
                "y": plain_numbers(values, 6),
                "customdata": plain_numbers(np.array(shares), 4),
                "line": {"color": colour},
                "hovertemplate": "round %{x}: %{y:.5g}, %{customdata:.1%} of the steps stitched<extra></extra>",
            }
        )
    if alone:
        ended, last = stories[0].ended, len(stories[0].rounds)
        for value, name, colour in (
            (ended.log_value, "best in the log alone", LOG_ALONE),
            (ended.logged_value, "as logged", LOGGED),
        ):
            line = {"color": colour, "dash": "dash"}
            hover = "%{y:.5g}"
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": name,
                    "x": [0, last],
                    "y": plain_numbers(np.array([value, value])),
                }
                | {"line": line, "hovertemplate": hover}
            )
    layout = {
        "xaxis": titled("round", rangemode="tozero", **_whole(max(len(story.rounds) for story in stories))),
        "yaxis": titled("value at the starts", rangemode="tozero"),
    }
    caption = "Mean discounted value of the start states after each round of stitching."
    if any(story.settings.get("charge") == "afterwards" for story in stories):
        caption += " Errors are charged, and stitches dropped, after the last round only: the final value is lower."
    return Figure("value-by-round", "Value over the rounds", caption, traces, layout)


def tried_by_round(story: Story) -> Figure:
    rounds = [each.round for each in story.rounds]
    counts = {
        name: [each.accepted if name == "accepted" else each.refused.get(name, 0) for each in story.rounds]
        for name in OUTCOMES
    }
    layout = {
        "barmode": "stack",
        "xaxis": titled("round", **_whole(len(rounds))),
        "yaxis": titled("attempts"),
        "hovermode": "x unified",
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
    caption = "What became of the joins that were planned in each round, and why the others were refused."
    return Figure("tried-by-round", "Tried, accepted and refused", caption, _stacked(rounds, counts), layout)


def tried_by_error(story: Story) -> Figure:
    """On a scale of powers: errors of refused attempts reach hundreds of tolerances."""
    error = np.concatenate([each.error for each in story.tried]).astype(np.float64)
    outcome = np.concatenate([each.outcome for each in story.tried])
    middle = story.tolerance or float(np.max(error[outcome == 0], initial=1e-9))
    least, greatest = middle / DECADES_AROUND, middle * DECADES_AROUND
    power = np.log10(np.clip(np.nan_to_num(error, nan=np.inf), least, greatest))
    edges = np.linspace(np.log10(least), np.log10(greatest), BINS + 1)
    place = np.clip(np.searchsorted(edges, power, side="right") - 1, 0, BINS - 1)
    counts = {
        name: np.bincount(place[outcome == number], minlength=BINS).tolist() for number, name in enumerate(OUTCOMES)
    }
    used = np.flatnonzero(np.bincount(place, minlength=BINS))
    least_used, most_used = max(min(used.min(), BINS // 2) - 1, 0), min(max(used.max(), BINS // 2 - 1) + 2, BINS)
    shown = float(edges[least_used]), float(edges[most_used])  # the tolerance, in the middle, is always among them
    ticks = _ticks(10 ** np.array(shown))
    layout = {
        "barmode": "stack",
        "bargap": 0,
        "xaxis": titled(
            "error, in units of the metric",
            tickvals=plain_numbers(np.log10(ticks)),
            ticktext=[f"{tick:g}" for tick in ticks],
            range=plain_numbers(np.array(shown)),
        ),
        "yaxis": titled("attempts"),
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
    if story.tolerance is not None:
        layout |= upright(float(np.log10(story.tolerance)), f"tolerance {story.tolerance:g}", shown)
    bounds = [f"{10**low:.2g} to {10**high:.2g}" for low, high in pairwise(edges)]
    traces = _stacked(plain_numbers((edges[:-1] + edges[1:]) / 2), counts)
    for trace in traces:
        trace |= {"customdata": bounds, "hovertemplate": "error %{customdata}: %{y:,}"}
    beyond = int(np.count_nonzero(~(error < greatest)))
    caption = "A stitch's error is how far it may end from its target."
    caption += f" The last bar holds {beyond:,} with larger errors." if beyond else ""
    return Figure("tried-by-error", "Attempts by error", caption, traces, layout)


def tried_by_length(story: Story) -> Figure:
    length = np.concatenate([each.length for each in story.tried])
    outcome = np.concatenate([each.outcome for each in story.tried])
    longest = int(length.max(initial=1))
    counts = {
        name: np.bincount(length[outcome == number], minlength=longest + 1)[1:].tolist()
        for number, name in enumerate(OUTCOMES)
    }
    layout = {
        "barmode": "stack",
        "xaxis": titled("actions of the stitch", **_whole(longest)),
        "yaxis": titled("attempts"),
        "hovermode": "x unified",
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
    return Figure("tried-by-length", "Attempts by length", "", _stacked(list(range(1, longest + 1)), counts), layout)


def _stacked(places: Sequence[int | float | None], counts: dict[str, list[int]]) -> list[dict[str, Any]]:
    """Bars on top of each other, one colour an outcome that occurs."""
    return [
        {
            "type": "bar",
            "name": LABELS[name],
            "x": list(places),
            "y": counts[name],
            "marker": {"color": COLOURS[name], "line": {"width": 0}},
            "hovertemplate": "%{y:,}",
        }
        for name in OUTCOMES
        if any(counts[name])
    ]


def _ticks(amounts: Float[np.ndarray, "n"]) -> list[float]:
    """Round numbers for an axis of powers that shows these amounts, three or more where there is room."""
    if len(amounts) == 0:
        return []
    least, greatest = float(amounts.min()), float(amounts.max())
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(greatest)) + 1)
    ticks: list[float] = []
    for steps in ("1", "1 3", "1 2 5", "1 1.5 2 3 4 5 6 7 8 9", "1 1.2 1.4 1.6 1.8 2 2.2 2.5 3 3.5 4 5 6 7 8 9"):
        ticks = [float(f"{step}e{power}") for power in powers for step in steps.split()]
        ticks = [tick for tick in ticks if least <= tick <= greatest]
        if len(ticks) >= 3:
            break
    return ticks


def _whole(greatest: int) -> dict[str, Any]:
    """Ticks at whole numbers: Plotly would put some between where there are few."""
    return {"dtick": 1} if greatest <= 10 else {}
