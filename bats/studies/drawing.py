"""Drawing with matplotlib, an optional extra: its parts, the style that figures share, and how they are saved."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from bats.errors import BatsError, OutputError
from bats.storage.atomic import write_atomic

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle
except ImportError as error:
    raise BatsError("Drawing a study needs matplotlib: pip install 'bats-rl[studies]'") from error

__all__ = ["GREY", "STYLE", "Axes", "Circle", "Figure", "ListedColormap", "rc_context", "save_figure"]
GREY = "#6b7482"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG or SVG, by the ending of the file's name, whole or not at all."""
    if path.suffix not in (".png", ".svg"):
        raise OutputError(f"{path}: a figure is written as .png or .svg.")
    content = io.BytesIO()
    # with fixed ids and without the date, equal figures are equal files
    with rc_context({"svg.hashsalt": "bats"}):
        figure.savefig(content, format=path.suffix[1:], dpi=150, metadata={"Date": None})
    write_atomic(path, content.getvalue(), overwrite=True)
