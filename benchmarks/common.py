"""What the scripts share: lines with figures, logs of tasks, and settings for a quick try."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable
from pathlib import Path

from bats.config import Config
from bats.data.dataset import Dataset
from bats.data.formats.load import load_dataset
from bats.presets import changed, preset
from bats.tasks import collect

QUICK_ROWS = 20_000
QUICK: Config = changed(
    preset("demo"),
    model={"updates": 1000, "members": 2, "elites": 2, "hidden": (64, 64)},
    stitch={"rounds": 2, "recovery_rounds": 1, "samples": 1000, "attempts": 500},
    cloning={"hidden": (64, 64), "updates": 500},
    bisimulation={"updates": 300},
)
"""settings that are enough to see that a script runs"""


def script_parser(description: str | None, *, quick: str = "") -> ArgumentParser:
    """A parser that shows the docstring of a script; with `quick`, which says what is smaller, it has a flag for it."""
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    if quick:
        parser.add_argument("--quick", action="store_true", help=f"to see that it runs: {quick}")
    return parser


def print_figures(figures: Iterable[tuple[str, float, str]], *, prefix: str = "") -> None:
    """One line per figure: name, value and unit."""
    # figures of a quick try are marked, so that they are never taken for measurements
    mark = "quick_" if "--quick" in sys.argv else ""
    for name, value, unit in figures:
        print(f"figure {mark}{prefix}{name} {value:.6g} {unit}", flush=True)


def task_log(task: str, file: Path | None = None, *, rows: int | None = None) -> Dataset:
    """The log of a task with seed 0, collected, or read from a file where it was collected before."""
    return collect(task, rows, seed=0) if file is None else load_dataset(file)
