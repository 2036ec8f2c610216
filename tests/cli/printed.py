"""Reading what the command printed."""

from __future__ import annotations

import pytest


def facts(output: str) -> dict[str, str]:
    """The rows of a printed table of two columns."""
    rows = (line.strip("│ ").split("│") for line in output.splitlines())
    return {cells[0].strip(): cells[1].strip() for cells in rows if len(cells) == 2}


def table(output: str) -> dict[str, list[str]]:
    """The rows of a printed table with any number of columns, by their first cell."""
    lines = (line.replace("┃", "│").split("│")[1:-1] for line in output.splitlines())
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines if cells}


def error_text(capsys: pytest.CaptureFixture[str]) -> str:
    """What went to stderr since the last call, without line breaks."""
    return " ".join(capsys.readouterr().err.split())
