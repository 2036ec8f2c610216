"""Parts of plots: traces and layouts as Plotly takes them, with the colours and labels that all plots share."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

GREY, BLUE, ORANGE = "#8a94a3", "#3b82c4", "#e4572e"
"""in every plot: the value of the log, the log alone, with stitches; readable on light and dark paper"""
GREEN, YELLOW, PINK, PURPLE = "#2a9d8f", "#e0a030", "#c0679b", "#7d6bb3"
PALETTE = (ORANGE, BLUE, GREEN, YELLOW, PINK, PURPLE, GREY)
"""for runs side by side"""
LEGEND = {"showlegend": True, "legend": {"traceorder": "normal"}}
STACKED = {"barmode": "stack", **LEGEND}
"""parts of a layout: a legend even for one trace, and bars on top of each other"""
MAX_LABEL = 40
"""letters of a label, which cannot break lines"""


def axes(x: str, y: str, x_settings: Mapping[str, Any] = {}, y_settings: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Two axes with their titles, part of a layout."""
    pairs = (("xaxis", x, x_settings), ("yaxis", y, y_settings))
    return {name: {"title": {"text": title, "standoff": 8}, **settings} for name, title, settings in pairs}


def bars(name: str, x: Sequence[Any], y: Sequence[Any], colour: str, hover: str, **settings: Any) -> dict[str, Any]:
    """A trace of bars."""
    marker = {"color": colour, "line": {"width": 0}}
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": marker, "hovertemplate": hover, **settings}


def scatter(name: str, x: Sequence[Any], y: Sequence[Any], hover: str, **settings: Any) -> dict[str, Any]:
    """A trace of points; `mode="lines"` connects them."""
    return {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "hovertemplate": hover, **settings}


def vertical_line(x: float, text: str, visible: tuple[float, float]) -> dict[str, Any]:
    """A dashed line with a label, parts of a layout whose x axis shows the visible range."""
    line = {"color": ORANGE, "width": 2, "dash": "dash"}
    shape = {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line}
    # near an end of the axis a centred label would leave the plot
    share = (x - visible[0]) / (visible[1] - visible[0])
    anchor = "left" if share < 0.2 else "right" if share > 0.8 else "center"
    note = {"x": x, "y": 1, "yref": "paper", "xanchor": anchor, "yanchor": "bottom", "text": text, "showarrow": False}
    return {"shapes": [shape], "annotations": [note]}


def label(text: str) -> str:
    """Text from outside as a label, where Plotly would interpret some HTML, and entities."""
    return html.escape(text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…", quote=False)


def numbers(values: np.ndarray, digits: int = 5) -> list[float | None]:
    """Numbers rounded to save space; None for those that are not finite."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values.ravel().tolist()]
