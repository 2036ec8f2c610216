"""The command `bats-rl`. It parses, calls the library and prints; whatever it shows can be had from Python too."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Generic, Literal, TypeVar

import tyro
from rich.console import Console
from rich.text import Text

from bats.arrays import Progress
from bats.cli.benchmark import Benchmark, run_benchmark
from bats.cli.evaluate import Evaluate, run_evaluate
from bats.cli.export import Export, run_export
from bats.cli.output import print_facts, print_line, print_validation, print_written
from bats.cli.progress import shown_progress
from bats.cli.report import Report, run_report
from bats.cli.solve import Under, solve_log, solve_run
from bats.data.checks import validate
from bats.data.dataset import Dataset
from bats.data.episodes import TimeoutRule
from bats.data.formats.load import ColumnMap, load_dataset, write_hdf5, write_minari
from bats.errors import BatsError, OutputError, SettingError
from bats.runs.folder import RunFolder
from bats.tasks import TASKS, collect, collect_published, find_task, write_published

if TYPE_CHECKING:
    from bats.config import Config

Settings = TypeVar("Settings")
LogName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]
Switch = tyro.conf.FlagCreatePairsOff[bool]


@dataclass(frozen=True)
class Reading:
    """How a log is read."""

    columns: Annotated[str | None, tyro.conf.arg(metavar="MAP", help_behavior_hint="")] = None
    """for CSV and Parquet: which columns hold what, as "observations=x,y actions=u rewards=r episode=run" """
    actions: Literal["auto", "discrete", "continuous"] = "auto"
    """whether an action is one of several (an index) or numbers; auto: one whole number a row is an index"""
    timeouts: TimeoutRule = "auto"
    """auto: a flagged timeout ends an episode unless the states go on; trust: always; ignore: never"""
    quiet: Switch = False
    """no progress display"""

    def load(self, file: str, progress: Progress) -> Dataset:
        columns = None if self.columns is None else ColumnMap.parse(self.columns)
        discrete = None if self.actions == "auto" else self.actions == "discrete"
        return load_dataset(file, columns=columns, discrete=discrete, timeout_rule=self.timeouts, progress=progress)


@dataclass(frozen=True)
class Validate:
    """Show what is in a log, and every problem and decision in reading it."""

    file: LogName
    """a log: .hdf5 (D4RL keys), .npz, .csv, .parquet, a Minari folder, or minari:ID"""
    strict: Switch = False
    """end with exit code 1 if there is a problem, for scripts"""
    reading: tyro.conf.OmitArgPrefixes[Reading] = Reading()


@dataclass(frozen=True)
class Fit(Generic[Settings]):
    """Learn a model of a log, stitch the log with it, solve the result, clone a policy and say whether to deploy it.

    Goes on where it stopped."""

    file: LogName
    """a log: .hdf5 (D4RL keys), .npz, .csv, .parquet, a Minari folder, or minari:ID"""
    settings: Annotated[Settings, tyro.conf.arg(name="")]
    out: Annotated[Path | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="")] = None
    """folder of the run; by default runs/LOG-SEED"""
    preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = "default"
    """what the other settings are unless given: default, demo, or paper-TASK for the paper's own"""
    seed: int = 0
    """the same seed gives the same run, on the same machine"""
    reading: tyro.conf.OmitArgPrefixes[Reading] = Reading()


@dataclass(frozen=True)
class SettingsLater:
    """Stands in for the settings where nobody asked about them: knowing them takes a second."""


@dataclass(frozen=True)
class Solve:
    """Turn a log into a tabular MDP and solve it exactly, or solve a finished run again under other settings."""

    file: LogName
    """a log: .hdf5 (D4RL keys), .npz, .csv, .parquet, a Minari folder, or minari:ID; or the folder of a run"""
    under: tyro.conf.OmitArgPrefixes[Under] = field(default_factory=Under)
    reading: tyro.conf.OmitArgPrefixes[Reading] = Reading()


@dataclass(frozen=True)
class Collect:
    """Make the log of a known task."""

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
    """a task's name; `bats-rl data collect list` shows them all"""
    rows: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """transitions to collect; by default the task's usual number"""
    seed: int = 0
    """the same seed gives the same log, byte for byte"""
    out: Annotated[str | None, tyro.conf.arg(metavar="OUT", help_behavior_hint="")] = None
    """file to write (.hdf5), or minari:ID; by default TASK-SEED.hdf5 here"""
    published: Switch = False
    """mazes only: write D4RL's own layout with its slips (rewards a row late, stale rows, no next states)"""
    quiet: Switch = False
    """no progress display"""


@dataclass(frozen=True)
class Convert:
    """Read a log in any format and write it in another."""

    file: LogName
    """a log: .hdf5 (D4RL keys), .npz, .csv, .parquet, a Minari folder, or minari:ID"""
    out: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="OUT")]
    """file to write (.hdf5), or minari:ID"""
    reading: tyro.conf.OmitArgPrefixes[Reading] = Reading()


@dataclass(frozen=True)
class Data:
    """Make and convert logs."""

    command: Collect | Convert


Command = (
    Annotated[Validate, tyro.conf.subcommand("validate")]
    | Annotated[Fit[SettingsLater], tyro.conf.subcommand("fit")]
    | Annotated[Solve, tyro.conf.subcommand("solve")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Benchmark, tyro.conf.subcommand("benchmark")]
    | Annotated[Data, tyro.conf.subcommand("data")]
)
Parsed = Validate | Fit[SettingsLater] | Solve | Evaluate | Report | Export | Benchmark | Data


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; 0 if it did what was asked, 1 for problems under --strict, 2 if input or call were wrong."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        print(version("bats-rl"))
        return 0
    out, told = Console(), Console(stderr=True)
    fitting = arguments[:1] == ["fit"]
    resumed = arguments[:1] in (["fit"], ["benchmark"])
    try:
        if fitting:
            _fit(_parsed_fit(arguments[1:]), out, told)
            return 0
        return _run(_parsed(arguments), out, told)
    except BatsError as error:
        told.print(Text.assemble(("error: ", "bold red"), str(error)))
        return 2
    except KeyboardInterrupt:
        more = "; the same command goes on after the last finished round or checkpoint" if resumed else ""
        told.print(f"interrupted; nothing was left half written{more}")
        return 130
    except BrokenPipeError:  # whoever was reading has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parsed(arguments: list[str]) -> Parsed:
    return tyro.cli(
        Command,
        prog="bats-rl",
        description="Best Action Trajectory Stitching: from a log to a policy with a value you can trust.",
        args=arguments,
        config=(tyro.conf.OmitSubcommandPrefixes,),
    )


def _parsed_fit(arguments: list[str]) -> Fit[Config]:
    """The preset is read first: it says what the settings are that are not given."""
    from bats.config import Config, preset  # brings in JAX, which nothing else here needs

    first = argparse.ArgumentParser(prog="bats-rl fit", add_help=False, allow_abbrev=False)
    first.add_argument("--preset", default="default")
    name = first.parse_known_args(arguments)[0].preset
    unless_given = Fit(file=tyro.MISSING, settings=preset(name), preset=name)
    return tyro.cli(
        Fit[Config], prog="bats-rl fit", args=arguments, default=unless_given, config=(tyro.conf.AvoidSubcommands,)
    )


def _run(command: Parsed, out: Console, told: Console) -> int:
    match command:
        case Validate():
            with shown_progress(told, quiet=command.reading.quiet) as progress:
                dataset = command.reading.load(command.file, progress)
                found = validate(dataset)
            print_validation(dataset, found, out)
            return 1 if command.strict and found.problems else 0
        case Fit():
            raise AssertionError("`fit` is parsed by itself")
        case Solve():
            _solve(command, out, told)
        case Evaluate():
            run_evaluate(command, out, told)
        case Report():
            run_report(command, out)
        case Export():
            run_export(command, out)
        case Benchmark():
            run_benchmark(command, out, told)
        case Data(Collect(task="list")):
            print_facts("tasks", {task.name: task.summary for task in TASKS}, out)
        case Data(Collect() as wanted):
            _collect(wanted, out, told)
        case Data(Convert() as wanted):
            _check_target(wanted.out)
            with shown_progress(told, quiet=wanted.reading.quiet) as progress:
                dataset = wanted.reading.load(wanted.file, progress)
                _write(dataset, wanted.out)
            print_written(dataset, wanted.out, out)
    return 0


def _collect(wanted: Collect, out: Console, told: Console) -> None:
    target = wanted.out or f"{find_task(wanted.task).name}-{wanted.seed}.hdf5"
    if wanted.published and target.startswith("minari:"):
        raise OutputError(f"{target}: the published layout is one of HDF5 files; leave out --published.")
    _check_target(target)
    with shown_progress(told, quiet=wanted.quiet) as progress:
        if wanted.published:
            arrays = collect_published(wanted.task, wanted.rows, wanted.seed, progress=progress)
            write_published(arrays, Path(target))
        else:
            dataset = collect(wanted.task, wanted.rows, wanted.seed, progress=progress)
            _write(dataset, target)
    if wanted.published:
        print_line(f"wrote {len(arrays['rewards']):,} rows in the published layout to {target}", out)
    else:
        print_written(dataset, target, out)


def _check_target(target: str) -> None:
    """Complains about a target before the work is done, not after."""
    if target.startswith("minari:"):
        return
    if Path(target).suffix not in (".hdf5", ".h5"):
        raise OutputError(f"{target}: a log is written as .hdf5 or to minari:ID.")
    if Path(target).exists():
        raise OutputError(f"{target} exists already; choose another name.")


def _write(dataset: Dataset, target: str) -> None:
    if target.startswith("minari:"):
        write_minari(dataset, target.removeprefix("minari:"))
    else:
        write_hdf5(dataset, Path(target))


def _fit(command: Fit[Config], out: Console, told: Console) -> None:
    from bats.cli.fit import fit_log  # brings in JAX

    name = re.sub(r"[^\w.-]+", "-", Path(command.file).stem)
    fit_log(
        lambda progress: command.reading.load(command.file, progress),
        command.settings,
        command.out or Path("runs") / f"{name}-{command.seed}",
        seed=command.seed,
        quiet=command.reading.quiet,
        out=out,
        told=told,
    )


def _solve(command: Solve, out: Console, told: Console) -> None:
    shown = partial(shown_progress, told, quiet=command.reading.quiet)  # over before anything is printed
    if RunFolder(Path(command.file)).is_run:
        if replace(command.reading, quiet=False) != Reading():
            raise SettingError(
                "--columns, --actions and --timeouts say how a log is read; this is the folder of a run."
            )
        solve_run(Path(command.file), command.under, shown, out)
        return

    def read() -> Dataset:
        with shown() as progress:
            return command.reading.load(command.file, progress)

    solve_log(read, command.under, out)


if __name__ == "__main__":
    sys.exit(main())
