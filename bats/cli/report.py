"""`bats-rl report`: a finished run as a page for people, or several runs side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from bats.cli.output import print_line
from bats.errors import OutputError, SettingError
from bats.report.page import NAME, compare_reports, write_report

COMPARISON = Path("comparison.html")
"""where runs are compared, unless told"""


@dataclass(frozen=True)
class Report:
    """Write a finished run as one HTML page that needs no network, or compare several runs on one page."""

    runs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="")
    ]
    """folders of finished runs"""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """file to write; by default report.html in the run's folder, or comparison.html here for several"""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """replace the file if there is one"""


def run_report(command: Report, out: Console) -> None:
    """Writes the page and says where it is."""
    if not command.runs:
        raise SettingError("Name the folder of a finished run, or several to compare them.")
    target = command.out or (command.runs[0] / NAME if len(command.runs) == 1 else COMPARISON)
    if target.exists() and not command.overwrite:
        raise OutputError(f"{target} exists already; choose another name with --out, or --overwrite.")
    if len(command.runs) == 1:
        written = write_report(command.runs[0], command.out, overwrite=command.overwrite)
    else:
        written = compare_reports(command.runs, command.out or COMPARISON, overwrite=command.overwrite)
    print_line(f"wrote {written}", out)
