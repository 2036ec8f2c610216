"""Reading a report's page back: what a browser would see in it, and what its plots are made of."""

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


def data_of(page: Path) -> str:
    """The data of the plots as they stand in the page."""
    found = re.search(r'<script type="application/json" id="plots">(.*?)</script>', page.read_text())
    assert found is not None
    return found[1]


def plots_of(page: Path) -> dict[str, dict[str, Any]]:
    return {plot["name"]: plot for plot in json.loads(data_of(page))}


def facts_of(page: Path) -> dict[str, str]:
    """The names and facts, the tiles and the two-column tables of a page; of equal names the first."""
    text = page.read_text().split('<script type="application/json"')[0]
    pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)
    pairs += [(name, number) for number, name in re.findall(r"<strong>(.*?)</strong><span>(.*?)</span>", text)]
    pairs += re.findall(r'<tr><th scope="row">([^<]*)</th><td>([^<]*)</td></tr>', text)
    return {html.unescape(name): html.unescape(fact) for name, fact in reversed(pairs)}
