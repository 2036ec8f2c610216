"""The four panels of the paper's figure on the mountain car, drawn from what the study found, as an SVG file.

actions along a stitched walk       the phase plane: log, walk, replay, model
errors of the graph's values        the lower bound on them, by position and velocity
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float

from bats.storage.atomic import atomic_path
from bats.studies.car_findings import Findings, LowerBound, VariantFindings
from bats.studies.car_tracks import Track
from bats.studies.svg_charts import (
    FAINT,
    INK,
    PAPER,
    SHADE_COUNT,
    Axis,
    Chart,
    names,
    shade_colour,
    text,
    ticks,
    written,
)
from bats.tasks.mountain_car import EXPERT_FORCE

WIDTH, HEIGHT = 1240, 960
WIDE, HIGH = 500.0, 320.0
"""of a panel's chart"""
COLUMNS, ROWS = (80.0, 700.0), (92.0, 552.0)
"""where the charts' upper left corners are"""
BLUE, LIGHT, ORANGE, GOLD = "#2f74b5", "#9cc6ee", "#e4572e", "#d9a400"
GREEN, PINK, LOG = "#0b6e3f", "#ee7fbf", "#c3c9d2"
SERIES = (("#2f74b5", "#ee8a1d"), ("#1f9d61", "#c9302c"), ("#7d6bb3", "#8a6d3b"))
"""graph's actions and clone, of each variant in turn"""
EVEN = 0.25
"""errors up to about this are drawn in even steps"""
ERROR_TICKS = {
    float(np.arcsinh(error / EVEN)): name
    for error, name in written((-50.0, -10.0, -3.0, -1.0, -0.3, 0.0, 0.3, 1.0, 3.0, 10.0, 50.0)).items()
}
"""where labels stand on the axis of errors"""
GOAL = 0.45
POSITIONS, VELOCITIES = (-1.25, 0.6), (-0.075, 0.075)


def write_picture(found: Findings, path: Path) -> None:
    """Writes the picture whole or not at all."""
    with atomic_path(path, overwrite=True) as temporary:
        temporary.write_text(drawn(found), encoding="utf-8")


def drawn(found: Findings) -> str:
    """The text of an SVG file."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        "<title>Mountain car: a stitched walk, its replay, errors of its values and a lower bound on them</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>',
        *_actions(found.shown),
        *_phase_plane(found),
        *_value_errors(found.variants),
        *_lower_bound(found.bound),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _actions(shown: Track) -> list[str]:
    steps = float(len(shown.actions))
    chart = Chart(COLUMNS[0], ROWS[0], WIDE, HIGH, (0.0, steps), (-1.1, 1.1))
    share = np.mean(shown.stitched)
    remark = f"{steps:g} steps, {share:.0%} of them on stitches; dashed: the expert's force"
    parts = [
        chart.clip(),
        *chart.frame(
            "Actions along a stitched walk",
            remark,
            Axis("step", ticks(0.0, steps)),
            Axis("force", written((-1.0, -0.5, 0.0, 0.5, 1.0))),
        ),
        *(
            chart.line(np.array([[0.0, force], [steps, force]]), FAINT, width=1.0, dash="4 4")
            for force in (EXPERT_FORCE, -EXPERT_FORCE)
        ),
    ]
    edges = np.repeat(np.arange(steps + 1), 2)[1:-1]
    parts.append(chart.line(np.column_stack([edges, np.repeat(shown.actions, 2)]), BLUE, width=1.3, opacity=0.55))
    middle = np.column_stack([np.arange(steps) + 0.5, shown.actions])
    parts.append(chart.dots(middle[~shown.stitched], BLUE, size=6.0))
    parts.append(chart.dots(middle[shown.stitched], ORANGE, size=6.0))
    legend = [("step of the log", BLUE, "dot"), ("step of a stitch", ORANGE, "dot")]
    return [*parts, *_boxed(legend, chart, 142.0, corner="lower right")]


def _phase_plane(found: Findings) -> list[str]:
    chart, shown = Chart(COLUMNS[1], ROWS[0], WIDE, HIGH, POSITIONS, VELOCITIES), found.shown
    parts = [
        chart.clip(),
        *chart.frame(
            "The same walk in the phase plane",
            "from where a logged episode begins that never reaches the goal",
            Axis("position", ticks(*POSITIONS)),
            Axis("velocity", ticks(*VELOCITIES)),
        ),
        chart.dots(found.logged, LOG, size=2.2, opacity=0.8),
        chart.line(np.array([[GOAL, -1.0], [GOAL, 1.0]]), INK, width=1.2, dash="5 4"),
        text("goal", float(chart.x(np.array(GOAL))) - 6, chart.top + 14, size=12.0, anchor="end", colour=FAINT),
        chart.line(found.original, GOLD, width=1.1, opacity=0.9),
        chart.line(shown.graph, LIGHT, width=11.0),
        chart.line(shown.model, PINK, width=5.0),
        chart.line(shown.replay, GREEN, width=2.4, dash="2 6"),
        chart.dots(shown.graph[:1], INK, size=10.0),
    ]
    legend = [
        ("the log", LOG, "dot"),
        ("that episode", GOLD, "line"),
        ("the graph's walk", LIGHT, "line"),
        ("its actions in the true car", GREEN, "dashed"),
        ("its actions in the model alone", PINK, "line"),
    ]
    return [*parts, *_boxed(legend, chart, 236.0, corner="lower right")]


def _value_errors(variants: tuple[VariantFindings, ...]) -> list[str]:
    """Sorted: every curve is the distribution of its errors, whatever the states."""
    series: list[tuple[str, str, Float[np.ndarray, "n"]]] = []
    for variant, colours in zip(variants, SERIES, strict=False):
        series.append((f"{variant.label}: its actions", colours[0], np.sort(variant.errors.of_actions)))
        series.append((f"{variant.label}: its clone", colours[1], np.sort(variant.errors.of_clone)))
    bent = np.concatenate([_bent(error) for *_, error in series])
    low, high = min(float(bent.min()), -1.0), max(float(bent.max()), 1.0)
    chart = Chart(COLUMNS[0], ROWS[1], WIDE, HIGH, (0.0, 100.0), (low - 0.3, high + 0.3))
    parts = [
        chart.clip(),
        *chart.frame(
            "Value in the graph less true return",
            f"discounted, {len(variants[0].errors.graph)} states on the policy's walks, each curve sorted",
            Axis("percent of the states", ticks(0.0, 100.0)),
            Axis("error of the value", {place: name for place, name in ERROR_TICKS.items() if low <= place <= high}),
        ),
        chart.line(np.array([[0.0, 0.0], [100.0, 0.0]]), INK, width=1.2),
    ]
    for _, colour, error in series:
        percent = (np.arange(len(error)) + 0.5) / len(error) * 100
        parts.append(chart.line(np.column_stack([percent, _bent(error)]), colour, width=2.6))
    return [*parts, *_boxed([(name, colour, "line") for name, colour, _ in series], chart, 288.0, corner="lower right")]


def _bent(error: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """Even steps around 0, powers of ten farther out: errors of a tenth and of a hundred are seen in one chart."""
    return np.arcsinh(error / EVEN)


def _lower_bound(bound: LowerBound) -> list[str]:
    chart = Chart(COLUMNS[1], ROWS[1], WIDE - 62, HIGH, POSITIONS, VELOCITIES)
    low, high = float(bound.values.min()), float(bound.values.max())
    at_starts = f"{bound.start_lower:.1f} of {bound.start_value:.1f} at the starts"
    share = (bound.values - low) / max(high - low, 1e-12)
    shade = np.minimum(share * SHADE_COUNT, SHADE_COUNT - 1).astype(np.int64)
    parts = [
        chart.clip(),
        *chart.frame(
            "Lower bound on the value",
            f"of the graph's policy, as certified; {at_starts}",
            Axis("position", ticks(*POSITIONS)),
            Axis("velocity", ticks(*VELOCITIES)),
        ),
        *chart.cells(bound.corners, bound.size, shade),
    ]
    left, each = chart.left + chart.width + 22, chart.height / SHADE_COUNT
    for number in range(SHADE_COUNT):
        y = chart.top + chart.height - (number + 1) * each
        parts.append(
            f'<rect x="{left:g}" y="{y:.1f}" width="16" height="{each + 0.4:.1f}" fill="{shade_colour(number)}"/>'
        )
    scale = Chart(left, chart.top, 16.0, chart.height, (0.0, 1.0), (low, high))
    for tick, label in ticks(low, high).items():
        parts.append(text(label, left + 22, float(scale.y(np.array(tick))) + 4, size=12.0))
    return parts


def _boxed(entries: list[tuple[str, str, str]], chart: Chart, width: float, *, corner: str) -> list[str]:
    """The names of colours on a light ground, in a corner of a chart."""
    high = 19 * len(entries) + 8
    left = chart.left + chart.width - width - 8 if "right" in corner else chart.left + 10
    top = chart.top + chart.height - high - 8 if "lower" in corner else chart.top + 8
    box = f'x="{left:g}" y="{top:g}" width="{width:g}" height="{high:g}" rx="4"'
    ground = f'<rect {box} fill="{PAPER}" fill-opacity="0.88"/>'
    return [ground, *names(entries, left + 8, top + 14)]
