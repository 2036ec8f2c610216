"""Charts as the text of an SVG file: frames with ticks, lines, marks, coloured cells and the names of colours.

A picture for a document needs no plotting library: a chart here is a rectangle of the page and a range of numbers, and
everything drawn in it goes through `Chart.x` and `Chart.y`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np
from jaxtyping import Float, Int

PAPER, INK, FAINT, GRID = "#ffffff", "#2d3440", "#6b7482", "#e6e9ed"
FONT = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"'
SHADES = ("#30123b", "#4458cb", "#3e9bfe", "#18d5cc", "#46f783", "#a2fc3c", "#e1dc37", "#fda330", "#ef5a11", "#a81604")
"""dark blue to red over green: low to high"""


@dataclass(frozen=True)
class Axis:
    """What a side of a chart is called, and the labels at some of its places."""

    name: str
    ticks: Mapping[float, str]


@dataclass(frozen=True)
class Chart:
    """A rectangle of the page, and what its sides stand for."""

    left: float
    top: float
    width: float
    height: float
    across: tuple[float, float]
    upwards: tuple[float, float]

    def x(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(self.left + (values - self.across[0]) / (self.across[1] - self.across[0]) * self.width)

    def y(self, values: np.ndarray) -> np.ndarray:
        share = (values - self.upwards[0]) / (self.upwards[1] - self.upwards[0])
        return np.asarray(self.top + (1 - share) * self.height)

    def places(self, points: Float[np.ndarray, "n 2"]) -> list[tuple[float, float]]:
        """Points on the page, to a tenth of a pixel."""
        across, upwards = np.round(self.x(points[:, 0]), 1), np.round(self.y(points[:, 1]), 1)
        return list(zip(across.tolist(), upwards.tolist(), strict=True))

    def frame(self, title: str, remark: str, across: Axis, upwards: Axis) -> list[str]:
        """Axes with ticks, their names, a title and a line below it."""
        bottom, right = self.top + self.height, self.left + self.width
        parts = [
            text(title, self.left, self.top - 38, size=17.0, weight=600),
            text(remark, self.left, self.top - 17, size=12.5, colour=FAINT),
            text(across.name, self.left + self.width / 2, bottom + 42, size=13.0, anchor="middle", colour=FAINT),
            f'<g transform="translate({self.left - 46:g} {self.top + self.height / 2:g}) rotate(-90)">'
            f"{text(upwards.name, 0.0, 0.0, size=13.0, anchor='middle', colour=FAINT)}</g>",
        ]
        for place, label in across.ticks.items():
            x = float(self.x(np.array(place)))
            parts.append(f'<path d="M{x:.1f} {self.top:g}V{bottom:g}" stroke="{GRID}"/>')
            parts.append(text(label, x, bottom + 19, size=12.0, anchor="middle"))
        for place, label in upwards.ticks.items():
            y = float(self.y(np.array(place)))
            parts.append(f'<path d="M{self.left:g} {y:.1f}H{right:g}" stroke="{GRID}"/>')
            parts.append(text(label, self.left - 9, y + 4, size=12.0, anchor="end"))
        parts.append(f'<path d="M{self.left:g} {self.top:g}V{bottom:g}H{right:g}" fill="none" stroke="{INK}"/>')
        return parts

    def line(
        self, points: Float[np.ndarray, "n 2"], colour: str, *, width: float = 2.0, dash: str = "", opacity: float = 1.0
    ) -> str:
        """A line through points, cut off at the sides of the chart."""
        path = "L".join(f"{x:g} {y:g}" for x, y in self.places(points))
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        return (
            f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{width:g}" stroke-linejoin="round" '
            f'stroke-linecap="round" stroke-opacity="{opacity:g}"{dashed} clip-path="url(#{self.name})"/>'
        )

    def dots(self, points: Float[np.ndarray, "n 2"], colour: str, *, size: float, opacity: float = 1.0) -> str:
        """Round marks, all in one shape."""
        path = "".join(f"M{x:g} {y:g}h0" for x, y in self.places(points))
        return (
            f'<path d="{path}" stroke="{colour}" stroke-width="{size:g}" stroke-linecap="round" '
            f'stroke-opacity="{opacity:g}" clip-path="url(#{self.name})"/>'
        )

    def cells(
        self, corners: Float[np.ndarray, "n 2"], size: tuple[float, float], shade: Int[np.ndarray, "n"]
    ) -> list[str]:
        """Rectangles with their lower left corners at some points, one shape for each shade."""
        wide, high = size[0] / (self.across[1] - self.across[0]), size[1] / (self.upwards[1] - self.upwards[0])
        wide, high = wide * self.width + 0.4, high * self.height + 0.4  # a little more, or seams would be seen
        parts = []
        for number in np.unique(shade).tolist():
            path = "".join(
                f"M{x:g} {y:g}h{wide:.1f}v{-high:.1f}h{-wide:.1f}z" for x, y in self.places(corners[shade == number])
            )
            parts.append(f'<path d="{path}" fill="{shade_colour(number)}"/>')
        return parts

    @property
    def name(self) -> str:
        """Of the shape that cuts off what goes beyond the chart."""
        return f"within-{self.left:g}-{self.top:g}"

    def clip(self) -> str:
        box = f'x="{self.left:g}" y="{self.top:g}" width="{self.width:g}" height="{self.height:g}"'
        return f'<clipPath id="{self.name}"><rect {box}/></clipPath>'


SHADE_COUNT = 40


def shade_colour(number: int) -> str:
    """A colour of the scale, from 0 to `SHADE_COUNT` - 1, between the two nearest of `SHADES`."""
    place = number / (SHADE_COUNT - 1) * (len(SHADES) - 1)
    low = min(int(place), len(SHADES) - 2)
    ends = [np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) for colour in SHADES[low : low + 2]]
    mixed = np.rint(ends[0] + (place - low) * (ends[1] - ends[0])).astype(int)
    return "#" + "".join(f"{part:02x}" for part in mixed)


def text(
    words: str, x: float, y: float, *, size: float, anchor: str = "start", colour: str = INK, weight: int = 400
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {FONT} font-size="{size:g}" font-weight="{weight}" fill="{colour}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )


def names(entries: Sequence[tuple[str, str, str]], x: float, y: float, *, step: float = 19.0) -> list[str]:
    """What colours mean, below each other: a name, a colour, and "line", "dashed" or "dot"."""
    parts = []
    for number, (name, colour, kind) in enumerate(entries):
        here = y + number * step
        if kind == "dot":
            parts.append(f'<circle cx="{x + 11:g}" cy="{here:g}" r="4" fill="{colour}"/>')
        else:
            dash = ' stroke-dasharray="5 4"' if kind == "dashed" else ""
            parts.append(f'<path d="M{x:g} {here:g}h22" stroke="{colour}" stroke-width="3"{dash}/>')
        parts.append(text(name, x + 29, here + 4.2, size=12.5))
    return parts


def ticks(low: float, high: float, most: int = 6) -> dict[float, str]:
    """Round numbers between two others, no more than about `most`, and how they are written."""
    rough = max(high - low, 1e-12) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if power * factor >= rough * (1 - 1e-9))
    places = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return written(float(f"{number * step:.10g}") for number in places)


def written(numbers: Iterable[float]) -> dict[float, str]:
    """Numbers with their labels."""
    return {number: f"{number:g}".replace("-", "\N{MINUS SIGN}") for number in numbers}
