"""A page of a report: headings, facts, tables and plots in one HTML file that needs nothing else.

Text from logs and files is shown and never executed. The templates escape it, the data of the plots travel as JSON that
cannot end its element, and a content security policy allows two scripts, known by their checksums, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Figure:
    """A plot, as Plotly's traces and layout."""

    name: str
    """letters and hyphens, unique on a page"""
    title: str
    caption: str
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    square: bool = False
    """a map rather than a chart: as high as it is wide, where there is room"""


@dataclass(frozen=True)
class Table:
    """Rows of text under a heading; the first cell names the row."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    words: bool = False
    """sentences rather than numbers"""


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading of its own."""

    title: str
    text: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    """lines to copy"""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    folded: bool = False
    """the tables stay folded until they are clicked"""


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
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    footer: str


def render(page: Page) -> str:
    """The page as the text of one HTML file."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bats.report", "parts"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,  # a misspelt name in a template must not become an empty text
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}  # browsers do not read NaN
    figures = [figure for section in page.sections for figure in section.figures]
    # checksums instead of 'unsafe-inline': a script that got past the escaping would still not run
    scripts = (_plotly(), _part("plots.js"))
    return environment.get_template("page.html").render(
        page=page,
        plots=[{"name": figure.name, "traces": figure.traces, "layout": figure.layout} for figure in figures],
        style=Markup(_part("style.css")),
        scripts=[Markup(script) for script in scripts],
        script_hashes=" ".join(f"'sha256-{_checksum(script)}'" for script in scripts),
    )


def side_by_side(columns: Mapping[str, Mapping[str, str]], missing: str = "") -> Table:
    """A table with a column per mapping and a row per name that any of them has."""
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [(name, *(column.get(name, missing) for column in columns.values())) for name in names]
    return Table(("", *columns), rows, words=True)


def name_in_words(name: str) -> str:
    """A name from a file as words."""
    return re.sub(r"[_.]+", " ", name)


def in_words(value: Any) -> str:
    """A value of unknown type as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(in_words, value))
    return str(value)


def _part(name: str) -> str:
    return files("bats.report").joinpath("parts", name).read_text(encoding="utf-8").replace("\r\n", "\n")


@cache
def _plotly() -> str:
    """Plotly's script as the browser will see it: line ends are part of its checksum."""
    return str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")


def _checksum(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
