"""`bats-rl benchmark`: the paper's experiments, each fitted, played, measured and drawn by one command."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console

from bats.cli.output import print_columns, print_line
from bats.cli.progress import shown_progress
from bats.errors import SettingError

if TYPE_CHECKING:
    from bats.studies.car_findings import Findings

WHO = {"expert": "expert", "plain": "cloning the log", "bats": "BATS, then cloning"}


@dataclass(frozen=True)
class Benchmark:
    """Repeat an experiment of the paper: fit the log of a task, play in its environment, measure and draw.

    mountain-car [section 5]: 20 random episodes and 5 of an expert. Measured are returns of the expert, of a clone of
    the whole log and of BATS; how far replays and the learned model part from the stitched walks; errors of the values.
    Fits are kept in the folder: the same command goes on where it was stopped, and more seeds only add their own.
    """

    study: Annotated[tyro.conf.Positional[Literal["mountain-car"]], tyro.conf.arg(metavar="STUDY")]
    """mountain-car"""
    seeds: int = 5
    """full fits, all on the same log"""
    episodes: int = 100
    """played by each policy of each seed"""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """folder for runs, figures.json, mountain-car.svg and mountain-car.html; by default runs/STUDY"""
    quiet: tyro.conf.FlagCreatePairsOff[bool] = False
    """no progress display"""


def run_benchmark(command: Benchmark, out: Console, told: Console) -> None:
    """Runs the study, writes what it found and drew, and prints every figure."""
    for name in ("seeds", "episodes"):
        if getattr(command, name) < 1:
            raise SettingError(f"--{name} must be at least 1; got {getattr(command, name)}.")
    from bats.studies import mountain_car  # brings in JAX
    from bats.studies.car_page import write_car_page
    from bats.studies.car_picture import write_picture

    folder = command.out or Path("runs") / command.study
    config = replace(mountain_car.DEFAULT, seeds=command.seeds, episodes=command.episodes)
    with shown_progress(told, quiet=command.quiet) as progress:
        found = mountain_car.run_study(folder, config, progress=progress)
    files = [folder / name for name in ("figures.json", "mountain-car.svg", "mountain-car.html")]
    found.save(files[0])
    write_picture(found, files[1])
    write_car_page(found, files[2])
    print_returns(found, out)
    print_line(f"wrote {', '.join(str(file) for file in files)}", out)
    for figure in found.figures():
        print_line(str(figure), out)


def print_returns(found: Findings, out: Console) -> None:
    """Mean returns side by side, of all seeds and of each."""
    columns = {}
    for who, returns in found.returns.items():
        means = returns.mean(axis=1)
        columns[WHO[who]] = {
            "mean return": f"{returns.mean():.2f}",
            "seeds": f"{means.min():.2f} to {means.max():.2f}",
            "worst episode": f"{returns.min():.2f}",
            "episodes": f"{returns.size:,}",
        }
    print_columns(columns, out)
