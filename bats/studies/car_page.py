"""The four panels as one HTML page that opens offline, to point at and to zoom into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bats.data.episodes import plural
from bats.report.html import Figure, Page, Section, Table, Tile, plain_numbers, write_page
from bats.report.rounds import titled
from bats.studies.car_findings import Findings, LowerBound, VariantFindings
from bats.studies.car_picture import BLUE, GOLD, GREEN, LOG, ORANGE, PINK, SERIES


def write_car_page(found: Findings, path: Path) -> None:
    """Writes the page whole or not at all."""
    returns = {who: float(earned.mean()) for who, earned in found.returns.items()}
    seeds, episodes = found.returns["bats"].shape
    tiles = (
        Tile("BATS, then cloning", f"{returns['bats']:.1f}", "mean return; 90 counts as solved", main=True),
        Tile("the expert", f"{returns['expert']:.1f}", "who drove 5 of the log's 25 episodes"),
        Tile("cloning the log", f"{returns['plain']:.2f}", "the same network without stitching"),
    )
    figures = (_actions(found), _phase_plane(found), _value_errors(found.variants), _lower_bound(found.bound))
    rows = tuple((figure.name, f"{figure.value:.6g}", figure.unit) for figure in found.figures())
    page = Page(
        title="Mountain car",
        subtitle=f"{plural(seeds, 'seed')}, {plural(episodes, 'episode')} each, discount {found.settings['gamma']:g}",
        tiles=tiles,
        sections=(
            Section("The walk and its values", figures=figures),
            Section("Every figure", tables=(Table(("figure", "value", "unit"), rows),), folded=True),
        ),
        footer="Made by bats-rl benchmark mountain-car.",
    )
    write_page(page, path, overwrite=True)


def _line(name: str, points: np.ndarray, colour: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": plain_numbers(points[:, 0]),
        "y": plain_numbers(points[:, 1]),
        "line": {"color": colour, **more},
    }


def _actions(found: Findings) -> Figure:
    shown = found.shown
    colours = [ORANGE if stitched else BLUE for stitched in shown.stitched.tolist()]
    trace = {
        "type": "bar",
        "x": list(range(len(shown.actions))),
        "y": plain_numbers(shown.actions),
        "marker": {"color": colours},
        "hovertemplate": "step %{x}: %{y:.3f}<extra></extra>",
    }
    layout = {"xaxis": titled("step"), "yaxis": titled("force", range=[-1.1, 1.1]), "bargap": 0.1}
    caption = "Blue: steps of the log. Orange: steps of stitches."
    return Figure("actions", "Actions along a stitched walk", caption, [trace], layout)


def _phase_plane(found: Findings) -> Figure:
    shown = found.shown
    log = _line("the log", found.logged, LOG) | {"mode": "markers", "marker": {"color": LOG, "size": 2}}
    traces = [
        log,
        _line("that episode", found.original, GOLD, width=1),
        _line("the graph's walk", shown.graph, BLUE, width=4),
        _line("its actions in the true car", shown.replay, GREEN, dash="dash"),
        _line("its actions in the model alone", shown.model, PINK),
    ]
    layout = {"xaxis": titled("position"), "yaxis": titled("velocity"), "showlegend": True}
    caption = "From where a logged episode begins that never reaches the goal, which lies at 0.45."
    return Figure("phase-plane", "The same walk in the phase plane", caption, traces, layout)


def _value_errors(variants: tuple[VariantFindings, ...]) -> Figure:
    traces = []
    for variant, colours in zip(variants, SERIES, strict=False):
        pairs = (("its actions", variant.errors.of_actions), ("its clone", variant.errors.of_clone))
        for (what, error), colour in zip(pairs, colours, strict=True):
            percent = (np.arange(len(error)) + 0.5) / len(error) * 100
            traces.append(_line(f"{variant.label}: {what}", np.column_stack([percent, np.sort(error)]), colour))
    layout = {"xaxis": titled("percent of the states"), "yaxis": titled("error of the value"), "showlegend": True}
    caption = "Value in the graph less the true discounted return, of states on the policy's walks, each curve sorted."
    return Figure("value-errors", "Errors of the graph's values", caption, traces, layout)


def _lower_bound(bound: LowerBound) -> Figure:
    middle = bound.corners + np.array(bound.size) / 2
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": plain_numbers(middle[:, 0]),
        "y": plain_numbers(middle[:, 1]),
        "marker": {
            "symbol": "square",
            "size": 6,
            "color": plain_numbers(bound.values),
            "colorscale": "Turbo",
            "showscale": True,
        },
        "hovertemplate": "position %{x:.3f}, velocity %{y:.4f}: %{marker.color:.2f}<extra></extra>",
    }
    layout = {"xaxis": titled("position"), "yaxis": titled("velocity")}
    caption = "Of the graph's policy, the mean over the logged states in each cell."
    return Figure("lower-bound", "Lower bound on the value", caption, [trace], layout)
