"""A page of a report: headings, facts, tables and plots, made into one HTML file that needs nothing else.

Text that is not ours is shown and never obeyed. The templates escape it; data for the plots travel as JSON that cannot
end its element; and a content security policy lets the browser run the two scripts known by their checksums, no other,
and load nothing from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from bats.storage.atomic import atomic_path

LONGEST_LABEL = 40
"""letters of a label in a plot, which cannot break lines"""


@dataclass(frozen=True)
class Figure:
    """A plot, as Plotly's traces and layout."""

    name: str
    """letters and hyphens, different for each on a page"""
    title: str
    caption: str
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    square: bool = False
    """a map rather than a chart: as high as it is wide, where there is room"""


@dataclass(frozen=True)
class Table:
    """Rows of words under a heading; the first cell of each row names it."""

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    words: bool = False
    """sentences rather than numbers"""


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading of its own."""

    title: str
    text: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    code: str = ""
    """lines to copy"""
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: bool = False
    """its tables are long and stay folded until asked for"""


@dataclass(frozen=True)
class Tile:
    """A number that should be seen first."""

    name: str
    number: str
    remark: str = ""
    main: bool = False


@dataclass(frozen=True)
class Page:
    title: str
    subtitle: str
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    footer: str


def write_page(page: Page, out: Path, *, overwrite: bool) -> None:
    """Writes the page whole or not at all."""
    with atomic_path(out, overwrite=overwrite) as temporary:
        temporary.write_text(rendered(page), encoding="utf-8")


def rendered(page: Page) -> str:
    """The page as the text of one HTML file."""
    surroundings = jinja2.Environment(
        loader=jinja2.PackageLoader("bats.report", "parts"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    surroundings.policies["json.dumps_kwargs"] = {"allow_nan": False}  # no browser reads it
    figures = [figure for section in page.sections for figure in section.figures]
    scripts = (_plotly(), _part("plots.js"))
    return surroundings.get_template("page.html").render(
        page=page,
        plots=[{"name": each.name, "traces": each.traces, "layout": each.layout} for each in figures],
        style=Markup(_part("style.css")),
        scripts=[Markup(script) for script in scripts],
        policy=" ".join(f"'sha256-{_checksum(script)}'" for script in scripts),
    )


def plot_text(text: str) -> str:
    """Text that is not ours for a label in a plot: Plotly understands some HTML there, and entities."""
    short = text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"
    return html.escape(short, quote=False)


def plain_numbers(values: np.ndarray, digits: int = 5) -> list[float | None]:
    """Numbers for a plot, rounded so that they take little room; None for what is not finite."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values.ravel().tolist()]


def spoken(name: str) -> str:
    """A name from a file as words."""
    return re.sub(r"[_.]+", " ", name)


def told(value: Any) -> str:
    """A value of unknown type in words."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(told(entry) for entry in value)
    if isinstance(value, dict):
        return "; ".join(f"{name}: {told(entry)}" for name, entry in value.items())
    return str(value)


def _part(name: str) -> str:
    return files("bats.report").joinpath("parts", name).read_text(encoding="utf-8").replace("\r\n", "\n")


@cache
def _plotly() -> str:
    """Plotly's own script, as the browser will see it: line ends are part of its checksum."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    return str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")


def _checksum(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
