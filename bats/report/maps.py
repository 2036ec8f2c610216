"""Plots in the plane of the states: rollouts over the log, and the values of the log's states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED
from bats.report import plots
from bats.report.contents import Contents, evenly_spaced
from bats.report.html import Figure, Section

MAX_STATES, MAX_STARTS, MAX_ROLLOUTS = 5000, 300, 8
"""drawn at most"""
FEW, CROWD = 500, 30
"""states up to the first number are drawn as larger dots, starts beyond the second are hidden at first"""
MAX_UNPROJECTED = 4
"""states with more components are projected; otherwise the first two are drawn, which most often are positions"""
SAME_SCALE = 3.0
"""axes whose spreads differ by less than this factor are drawn to one scale, as a floor plan would be"""
FITTED = 20_000
"""states that the projection is fitted to, at most"""
LARGEST_PARTS = 3
"""components of the state that are named for each principal component"""
COLD_TO_WARM = [[0.0, "#3d5a98"], [0.5, "#3aa99f"], [1.0, "#f2b134"]]


@dataclass(frozen=True, eq=False)
class Plane:
    """A projection of states to two coordinates. Only states that are drawn are projected: there may be millions."""

    x_label: str
    y_label: str
    description: str
    """which components of the state these are, in a sentence"""
    states: Float[np.ndarray, "S D"]
    centre: Float[np.ndarray, "D"]
    directions: Float[np.ndarray, "D 2"]

    def project(self, states: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n 2"]:
        """The coordinates of the states with these indices."""
        return (self.states[states].astype(np.float64) - self.centre) @ self.directions

    def axes(self) -> dict[str, Any]:
        """The axes, parts of a layout."""
        spread = np.ptp(self.project(evenly_spaced(len(self.states), FITTED)), axis=0)
        same_scale = 0 < spread.max() < SAME_SCALE * spread.min()
        x = {"constrain": "domain"} if same_scale else {}
        y = {"scaleanchor": "x", "constraintoward": "top", **x} if same_scale else {}
        no_line = {"zeroline": False}
        return plots.axes(plots.label(self.x_label), plots.label(self.y_label), no_line | x, no_line | y)


def plane_of(run: Contents) -> Plane:
    """The first two components of a state, or the first two principal components if there are many."""
    states = run.mdp.states
    width = states.shape[1]
    if width == 1:
        points = np.column_stack([states[:, 0], run.value])
        return Plane(run.dimension(0), "value", "A state has one component.", points, np.zeros(2), np.eye(2))
    if width <= MAX_UNPROJECTED:
        description = "" if width == 2 else f"The plot shows the first two of {width} state components."
        return Plane(run.dimension(0), run.dimension(1), description, states[:, :2], np.zeros(2), np.eye(2))
    fitted = states[evenly_spaced(run.mdp.real_count, FITTED)].astype(np.float64)
    centre, std = fitted.mean(axis=0), fitted.std(axis=0)
    std[std == 0] = 1.0  # a component that never changes has no part in any direction
    _, spread, directions = np.linalg.svd((fitted - centre) / std, full_matrices=False)
    share = spread**2 / max(float((spread**2).sum()), 1e-300)
    labels = [f"{nth} principal component ({share[i]:.0%} of the variance)" for i, nth in enumerate(("1st", "2nd"))]
    description = (
        f"A state has {width} components. The plot shows the first two principal components (PCA) of the standardised "
        "states."
    )
    if run.log_card.observation_names:
        largest = np.argsort(-np.abs(directions[:2]), axis=1, kind="stable")[:, :LARGEST_PARTS]
        first, second = (", ".join(run.dimension(index) for index in parts.tolist()) for parts in largest)
        description += f" The components with the largest weights are {first} in the first and {second} in the second."
    return Plane(labels[0], labels[1], description, states, centre, directions[:2].T / std[:, None])


def maps_section(run: Contents) -> Section:
    plane = plane_of(run)
    return Section("Trajectories and values", figures=[rollouts_over_log(run, plane), value_map(run, plane)])


def rollouts_over_log(run: Contents, plane: Plane) -> Figure:
    """Rollouts of the policy over the log's states; steps of the log and steps along stitches differ in colour."""
    # from the lowest to the highest value, so that failures are drawn as well as successes
    order = np.argsort(run.value[run.starts], kind="stable")
    drawn = order[evenly_spaced(len(order), MAX_ROLLOUTS)]
    starts = run.starts[evenly_spaced(len(run.starts), MAX_STARTS)]
    cloud = _sampled_states(run)
    few = len(cloud) <= FEW
    dot = {"color": "#98a2b0", "size": 7 if few else 3, "opacity": 0.8 if few else 0.35}
    star = {"color": "#2a9d5c", "size": 11, "symbol": "star", "line": {"color": "#ffffff", "width": 1}}
    start_points = _points(plane, starts, "starts", {"color": "#b9c2cd", "size": 6, "symbol": "circle-open"})
    if len(starts) > CROWD:
        start_points["visible"] = "legendonly"  # a click in the legend shows them
    traces = [
        _points(plane, cloud, "states of the log", dot),
        _steps(run, plane, drawn, stitched=False),
        _steps(run, plane, drawn, stitched=True),
        start_points,
        _points(plane, run.starts[drawn], "starts of these rollouts", star),
    ]
    caption = (
        f"{len(drawn)} rollouts of the policy; their starts were chosen evenly from the lowest to the highest value. "
        f"{plane.description} Click a name in the legend to hide or show it. Drag, or use the buttons, to zoom; "
        "double-click to reset the view."
    )
    return Figure("rollouts", "Rollouts of the policy over the log", caption, traces, plane.axes(), square=True)


def value_map(run: Contents, plane: Plane) -> Figure:
    """The log's states, coloured by value; the best are drawn last, so that they lie on top."""
    states = _sampled_states(run)
    states = states[np.argsort(run.value[states], kind="stable")]
    value = run.value[states]
    size = 12 if len(states) <= FEW else 5
    trace = _points(plane, states, "value", {"color": plots.numbers(value), "coloraxis": "coloraxis", "size": size})
    trace["hovertemplate"] = "%{x:.4g}, %{y:.4g}<br>value %{marker.color:.4g}<extra></extra>"
    trace["showlegend"] = False
    low, high = np.percentile(value, [1, 99])  # a few extreme states would leave all others in one colour
    limits = {"cmin": float(low), "cmax": float(high)} if high > low else {}
    bar = {"title": {"text": "value", "side": "top"}}
    layout = plane.axes() | {"coloraxis": {"colorscale": COLD_TO_WARM, "colorbar": bar} | limits}
    total = run.mdp.real_count
    count = f"The log's {total:,} states" if len(states) == total else f"{len(states):,} of the log's {total:,} states"
    caption = f"{count}, coloured by their value in the stitched graph. {plane.description}"
    return Figure("value-map", "Values of the log's states", caption, [trace], layout, square=True)


def _sampled_states(run: Contents) -> Int[np.ndarray, "n"]:
    """States of the log, sampled at random: evenly spaced ones of a log with equal episodes would form stripes."""
    count = run.mdp.real_count
    return np.sort(np.random.default_rng(0).choice(count, min(count, MAX_STATES), replace=False))


def _points(plane: Plane, states: Int[np.ndarray, "n"], name: str, marker: dict[str, Any]) -> dict[str, Any]:
    x, y = plane.project(states).T
    return plots.scatter(name, plots.numbers(x), plots.numbers(y), "%{x:.4g}, %{y:.4g}", marker=marker)


def _steps(run: Contents, plane: Plane, drawn: Int[np.ndarray, "n"], *, stitched: bool) -> dict[str, Any]:
    """The steps of some rollouts along the log, or along stitches, as one line with gaps."""
    mdp, pieces = run.mdp, [np.empty((0, 6))]
    for number, row in enumerate(run.rollouts.edge[drawn], start=1):
        edges = row[row != NO_EDGE]
        steps = np.flatnonzero((mdp.stitch_round[edges] != LOGGED) == stitched)
        for piece in np.split(steps, np.flatnonzero(np.diff(steps) > 1) + 1) if len(steps) else ():
            # a piece has one state more than steps, so the state before it goes with its first step
            taken = edges[np.append(piece[:1], piece)]
            states = np.append(mdp.source[taken[:1]], mdp.target[taken[1:]])
            step = np.append(piece[:1], piece + 1)
            # stitches of a reused run were there before round 1
            facts = np.full(len(states), number), step, run.value[states], np.maximum(mdp.stitch_round[taken], 0)
            # a row that is not finite interrupts the line
            pieces += [np.column_stack([plane.project(states), *facts]), np.full((1, 6), np.nan)]
    table = np.concatenate(pieces)
    x, y, customdata = plots.numbers(table[:, 0]), plots.numbers(table[:, 1]), [*map(plots.numbers, table[:, 2:])]
    name, colour, width, size = "logged steps", plots.BLUE, 1.5, 3
    if stitched:
        name, colour, width, size = "stitched steps", plots.ORANGE, 2.5, 4
    hover = "rollout %{customdata[0]}, step %{customdata[1]}: %{x:.4g}, %{y:.4g}<br>value %{customdata[2]:.4g}"
    hover += ", stitched in round %{customdata[3]}" if stitched else ""
    settings = {"mode": "lines+markers", "line": {"color": colour, "width": width}, "marker": {"size": size}}
    return plots.scatter(name, x, y, hover + "<extra></extra>", customdata=customdata, **settings)
