"""Reads a report's page back: what a browser would see in it, and what its plots are made of."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

SCRIPT = "<script>alert(1)</script>"
HOSTILE = f'{SCRIPT}"><img src="https://example.com/x.png" onerror="alert(2)">'
LINK = '<a href="javascript:alert(3)">%{x}</a>'


class Parsed(HTMLParser):
    """What a browser would see: the elements with their attributes, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None and data.strip():
            self.text.append(data.strip())


def text_of(page: Path) -> str:
    """All text outside scripts and styles."""
    return " ".join(Parsed(page.read_text()).text)


def data_of(page: Path) -> str:
    """The data of the plots as they stand in the page."""
    match = re.search(r'<script type="application/json" id="plots">(.*?)</script>', page.read_text())
    assert match is not None
    return match[1]


def plots_of(page: Path) -> dict[str, dict[str, Any]]:
    return {plot["name"]: plot for plot in json.loads(data_of(page))}


def facts_of(page: Path) -> dict[str, str]:
    """The names and facts, the tiles and the two-column tables of a page; of equal names the first."""
    text = page.read_text().split('<script type="application/json"')[0]
    pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)
    pairs += [(name, number) for number, name in re.findall(r"<strong>(.*?)</strong><span>(.*?)</span>", text)]
    pairs += re.findall(r'<tr><th scope="row">([^<]*)</th><td>([^<]*)</td></tr>', text)
    return {html.unescape(name): html.unescape(fact) for name, fact in reversed(pairs)}


def rows_of(page: Path) -> dict[str, list[str]]:
    """The rows of all tables by their names."""
    rows = re.findall(r'<tr><th scope="row">([^<]*)</th>(.*?)</tr>', page.read_text())
    cells = {name: re.findall(r"<td>([^<]*)</td>", row) for name, row in rows}
    return {html.unescape(name): [html.unescape(cell) for cell in row] for name, row in cells.items()}


def bars_of(plot: dict[str, Any]) -> dict[str, dict[float, int]]:
    """The heights of the bars by their positions, for each name in the legend."""
    return {trace["name"]: dict(zip(trace["x"], trace["y"], strict=True)) for trace in plot["traces"]}
