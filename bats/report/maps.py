"""The plots in the plane of the states: walks over the log, and what the log's states are worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED as FROM_LOG
from bats.report.contents import Story, evenly
from bats.report.html import Figure, plain_numbers, plot_text
from bats.report.rounds import LOG_ALONE, STITCHED, titled

CLOUD = 5000
"""states of the log that are drawn"""
FEW = 500
"""states that are so few are drawn as larger dots"""
DRAWN = 8
"""walks that are drawn"""
ALL_STARTS = 300
"""starts that are drawn"""
MOST_AS_THEY_ARE = 4
"""states of more numbers than this are projected; with fewer, the first two are most often places"""
SAME_SCALE = 3.0
"""axes whose spreads differ by less than this factor are drawn to one scale, as a plan would be"""
FITTED = 20_000
"""states that the projection is fitted to"""
COLD_TO_WARM = [[0.0, "#3d5a98"], [0.5, "#3aa99f"], [1.0, "#f2b134"]]


@dataclass(frozen=True, eq=False)
class Plane:
    """Where states are drawn. Only those that are drawn are projected: there may be millions."""

    across: str
    up: str
    how: str
    """which numbers these are, in a sentence"""
    states: Float[np.ndarray, "S D"]
    centre: Float[np.ndarray, "D"]
    directions: Float[np.ndarray, "D 2"]

    def places(self, chosen: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n 2"]:
        return (self.states[chosen].astype(np.float64) - self.centre) @ self.directions

    def axes(self) -> dict[str, Any]:
        x, y = titled(plot_text(self.across), zeroline=False), titled(plot_text(self.up), zeroline=False)
        spread = np.ptp(self.places(evenly(len(self.states), FITTED)), axis=0)
        if 0 < spread.max() < SAME_SCALE * spread.min():
            y |= {"scaleanchor": "x", "constrain": "domain", "constraintoward": "top"}
            x |= {"constrain": "domain"}
        return {"xaxis": x, "yaxis": y}


def plane_of(story: Story) -> Plane:
    """The first two numbers of a state; of many numbers the two directions in which the log is spread most."""
    mdp = story.walked.mdp
    width = mdp.states.shape[1]
    if width == 1:
        states = np.column_stack([mdp.states[:, 0], story.walked.solution.value])
        how = "Across is the state's one number, up its value."
        return Plane(story.dimension(0), "value", how, states, np.zeros(2), np.eye(2))
    if width <= MOST_AS_THEY_ARE:
        how = "" if width == 2 else f"Drawn are the first two of the state's {width} numbers."
        return Plane(story.dimension(0), story.dimension(1), how, mdp.states[:, :2], np.zeros(2), np.eye(2))
    fitted = mdp.states[evenly(mdp.real_count, FITTED)].astype(np.float64)
    centre, scale = fitted.mean(axis=0), fitted.std(axis=0)
    scale[scale == 0] = 1.0
    _, spread, directions = np.linalg.svd((fitted - centre) / scale, full_matrices=False)
    share = spread**2 / max(float((spread**2).sum()), 1e-300)
    how = (
        f"The state has {width} numbers; drawn are the two directions in which the log is spread most, "
        f"each number measured by its standard deviation."
    )
    names = [f"{which} direction ({share[number]:.0%} of the spread)" for number, which in ((0, "1st"), (1, "2nd"))]
    return Plane(names[0], names[1], how, mdp.states, centre, directions[:2].T / scale[:, None])


def walks_over_log(story: Story, plane: Plane) -> Figure:
    """Walks of the policy, steps of the log and of stitches in different colours, over the log's states."""
    walked = story.walked
    order = np.argsort(walked.solution.value[walked.starts], kind="stable")
    chosen = order[evenly(len(order), DRAWN)]
    starts = walked.starts[evenly(len(walked.starts), ALL_STARTS)]
    cloud = _cloud(story)
    few = len(cloud) <= FEW
    dots = {"color": "#98a2b0", "size": 7 if few else 3, "opacity": 0.8 if few else 0.35}
    traces = [
        _points(plane, cloud, "states of the log", dots),
        _steps(story, plane, chosen, stitched=False),
        _steps(story, plane, chosen, stitched=True),
        _points(
            plane, starts, "starts", {"color": "#b9c2cd", "size": 6, "symbol": "circle-open"}, hidden=len(starts) > 30
        ),
        _points(
            plane,
            walked.starts[chosen],
            "starts of these walks",
            {"color": "#2a9d5c", "size": 11, "symbol": "star", "line": {"color": "#ffffff", "width": 1}},
        ),
    ]
    caption = (
        f"{len(chosen)} walks of the policy, from the start worth least to the one worth most. {plane.how} "
        "Click a name to hide or show it; drag, or use the buttons, to zoom; click twice to see all again."
    )
    return Figure("walks", "Stitched trajectories over the log", caption, traces, plane.axes(), square=True)


def value_map(story: Story, plane: Plane) -> Figure:
    walked = story.walked
    chosen = _cloud(story)
    value = walked.solution.value[chosen]
    chosen, value = chosen[np.argsort(value, kind="stable")], np.sort(value, kind="stable")  # the best lie on top
    size = 12 if len(chosen) <= FEW else 5
    trace = _points(plane, chosen, "value", {"color": plain_numbers(value), "coloraxis": "coloraxis", "size": size})
    trace["hovertemplate"] = "%{x:.4g}, %{y:.4g}<br>worth %{marker.color:.4g}<extra></extra>"
    trace["showlegend"] = False
    low, high = np.percentile(value, [1, 99])  # a few extreme states would leave all others in one colour
    limits = {"cmin": float(low), "cmax": float(high)} if high > low else {}
    bar = {"title": {"text": "value", "side": "top"}}
    layout = plane.axes() | {"coloraxis": {"colorscale": COLD_TO_WARM, "colorbar": bar} | limits}
    some = "" if len(chosen) == walked.mdp.real_count else f"{len(chosen):,} of the log's "
    count = f"{some or 'The log has '}{walked.mdp.real_count:,} states"
    caption = f"{count}, coloured by what they are worth with stitches. {plane.how}"
    return Figure("value-map", "What the log's states are worth", caption, [trace], layout, square=True)


def _cloud(story: Story) -> Int[np.ndarray, "n"]:
    """States of the log, thinned; drawn by chance, as even steps through a log of equal episodes would make stripes."""
    count = story.walked.mdp.real_count
    if count <= CLOUD:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, CLOUD, replace=False))


def _points(
    plane: Plane, states: Int[np.ndarray, "n"], name: str, marker: dict[str, Any], *, hidden: bool = False
) -> dict[str, Any]:
    places = plane.places(states)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": plain_numbers(places[:, 0]),
        "y": plain_numbers(places[:, 1]),
        "marker": marker,
        "visible": "legendonly" if hidden else True,
        "hovertemplate": "%{x:.4g}, %{y:.4g}",
    }


def _steps(story: Story, plane: Plane, chosen: Int[np.ndarray, "n"], *, stitched: bool) -> dict[str, Any]:
    """The steps of some walks along the log, or along stitches, as one line with gaps."""
    mdp, value = story.walked.mdp, story.walked.solution.value
    x: list[float | None] = []
    y: list[float | None] = []
    facts: list[list[float | None]] = []
    for number, row in enumerate(story.walked.walks.edge[chosen], start=1):
        edge = row[row != NO_EDGE]
        wanted = np.flatnonzero((mdp.stitch_round[edge] != FROM_LOG) == stitched)
        if len(wanted) == 0:
            continue
        for run in np.split(wanted, np.flatnonzero(np.diff(wanted) > 1) + 1):
            taken = edge[run]
            states = np.append(mdp.source[taken[:1]], mdp.target[taken])
            places = plane.places(states)
            x += [*plain_numbers(places[:, 0]), None]
            y += [*plain_numbers(places[:, 1]), None]
            steps = np.append(run[:1], run + 1)
            rounds = np.append(mdp.stitch_round[taken[:1]], mdp.stitch_round[taken])
            table = np.column_stack([np.full(len(steps), number), steps, value[states], rounds])
            facts += [*(plain_numbers(line) for line in table), [None] * 4]
    told = "walk %{customdata[0]}, step %{customdata[1]}: %{x:.4g}, %{y:.4g}<br>worth %{customdata[2]:.4g}"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "steps along stitches" if stitched else "steps of the log",
        "x": x,
        "y": y,
        "customdata": facts,
        "line": {"color": STITCHED if stitched else LOG_ALONE, "width": 2.5 if stitched else 1.5},
        "marker": {"size": 4 if stitched else 3},
        "hovertemplate": told + (", stitched in round %{customdata[3]}" if stitched else "") + "<extra></extra>",
    }
