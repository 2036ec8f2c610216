"""The command `bats-rl`. It parses, calls the library and prints; whatever it shows can be had from Python too."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bats import mdp_files
from bats.dataset import Dataset
from bats.episodes import Note, TimeoutRule, counted
from bats.errors import BatsError, OutputError
from bats.formats import ColumnMap, load_dataset, write_hdf5, write_minari
from bats.mdp import TabularMDP, from_dataset
from bats.progress import shown_progress
from bats.solve import logged_value, policy_iteration, start_value
from bats.tasks import TASKS, collect, collect_published, find_task, write_published
from bats.types import Reporter
from bats.validate import Validation, validate

LogName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]
Switch = tyro.conf.FlagCreatePairsOff[bool]
MARKS = {"problem": ("!", "bold red"), "decision": ("·", "cyan"), "fact": ("·", "dim")}


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

    def load(self, file: str, report: Reporter) -> Dataset:
        columns = None if self.columns is None else ColumnMap.parse(self.columns)
        discrete = None if self.actions == "auto" else self.actions == "discrete"
        return load_dataset(file, columns=columns, discrete=discrete, timeout_rule=self.timeouts, report=report)


@dataclass(frozen=True)
class Validate:
    """Show what is in a log, and every problem and decision in reading it."""

    file: LogName
    """a log: .hdf5 (D4RL keys), .npz, .csv, .parquet, a Minari folder, or minari:ID"""
    strict: Switch = False
    """end with exit code 1 if there is a problem, for scripts"""
    reading: tyro.conf.OmitArgPrefixes[Reading] = Reading()


@dataclass(frozen=True)
class Solve:
    """Turn a log into a tabular MDP and solve it exactly."""

    file: LogName
    """a log: .hdf5 (D4RL keys), .npz, .csv, .parquet, a Minari folder, or minari:ID"""
    gamma: float = 0.99
    """discount of one step"""
    dead_end_value: float = 0.0
    """what a state is worth whose future the log does not show"""
    save: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """folder to save the MDP in; `bats.load_mdp` reads it"""
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
    | Annotated[Solve, tyro.conf.subcommand("solve")]
    | Annotated[Data, tyro.conf.subcommand("data")]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; 0 if it did what was asked, 1 for problems under --strict, 2 if input or call were wrong."""
    if list(sys.argv[1:] if arguments is None else arguments) == ["--version"]:
        print(version("bats-rl"))
        return 0
    command = tyro.cli(
        Command,
        prog="bats-rl",
        description="Best Action Trajectory Stitching: from a log to a policy with a value you can trust.",
        args=arguments,
        config=(tyro.conf.OmitSubcommandPrefixes,),
    )
    out, told = Console(), Console(stderr=True)
    try:
        return _run(command, out, told)
    except BatsError as error:
        told.print(Text.assemble(("error: ", "bold red"), str(error)))
        return 2
    except KeyboardInterrupt:
        told.print("interrupted; nothing was left half written")
        return 130
    except BrokenPipeError:  # whoever was reading has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(command: Validate | Solve | Data, out: Console, told: Console) -> int:
    match command:
        case Validate():
            with shown_progress(told, quiet=command.reading.quiet) as report:
                dataset = command.reading.load(command.file, report)
                found = validate(dataset)
            _print_validation(dataset, found, out)
            return 1 if command.strict and found.problems else 0
        case Solve():
            _solve(command, out, told)
        case Data(Collect(task="list")):
            _print_facts("tasks", {task.name: task.summary for task in TASKS}, out)
        case Data(Collect() as wanted):
            _collect(wanted, out, told)
        case Data(Convert() as wanted):
            _check_target(wanted.out)
            with shown_progress(told, quiet=wanted.reading.quiet) as report:
                dataset = wanted.reading.load(wanted.file, report)
                _write(dataset, wanted.out)
            _print_written(dataset, wanted.out, out)
    return 0


def _collect(wanted: Collect, out: Console, told: Console) -> None:
    target = wanted.out or f"{find_task(wanted.task).name}-{wanted.seed}.hdf5"
    if wanted.published and target.startswith("minari:"):
        raise OutputError(f"{target}: the published layout is one of HDF5 files; leave out --published.")
    _check_target(target)
    with shown_progress(told, quiet=wanted.quiet) as report:
        if wanted.published:
            arrays = collect_published(wanted.task, wanted.rows, wanted.seed, report=report)
            write_published(arrays, Path(target))
        else:
            dataset = collect(wanted.task, wanted.rows, wanted.seed, report=report)
            _write(dataset, target)
    if wanted.published:
        _print_line(f"wrote {len(arrays['rewards']):,} rows in the published layout to {target}", out)
    else:
        _print_written(dataset, target, out)


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


def _solve(command: Solve, out: Console, told: Console) -> None:
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        seconds[stage] = time.perf_counter() - begun

    if command.save is not None and command.save.exists():
        raise OutputError(f"{command.save} exists already; choose another name.")
    with shown_progress(told, quiet=command.reading.quiet) as report:
        with timed("read"):
            dataset = command.reading.load(command.file, report)
        with timed("build"):
            mdp = from_dataset(dataset, gamma=command.gamma)
        with timed("solve"):
            solution = policy_iteration(mdp, dead_end_value=command.dead_end_value)
        if command.save is not None:
            mdp_files.save_mdp(mdp, command.save)
    _print_solution(dataset, mdp, start_value(mdp, solution.value), solution.rounds, seconds, command, out)


def _print_solution(
    dataset: Dataset,
    mdp: TabularMDP,
    worth: float,
    rounds: int,
    seconds: dict[str, float],
    command: Solve,
    out: Console,
) -> None:
    dead = int(((mdp.out_degree == 0) & ~mdp.terminal).sum())
    choices = int((mdp.out_degree > 1).sum())
    logged = logged_value(dataset, gamma=mdp.gamma, dead_end_value=command.dead_end_value)
    facts = {
        "states": f"{mdp.state_count:,}, of which {choices:,} have more than one action",
        "edges": f"{mdp.edge_count:,}",
        "dead ends": f"{dead:,}" + (f", taken as worth {command.dead_end_value:g}" if dead else ""),
        "start states": f"{len(mdp.starts):,}",
        "best value at the starts": f"{worth:.6g} (discount {mdp.gamma:g})",
        "what the log earned from them": f"{logged:.6g}",
        "rounds of policy iteration": f"{rounds}",
        "seconds": ", ".join(f"{stage} {spent:.2f}" for stage, spent in seconds.items()),
    }
    if command.save is not None:
        facts["saved in"] = str(command.save)
    _print_facts(f"{dataset.name}: solved exactly", facts, out)
    _print_problems(dataset, out)


def _print_validation(dataset: Dataset, found: Validation, out: Console) -> None:
    _print_facts(dataset.name, found.facts, out)
    table = Table("number", "least", "mean", "greatest", title="ranges", title_justify="left")
    for column in found.columns:
        mark = "  constant" if column.constant else ""
        numbers = (f"{column.least:g}", f"{column.mean:g}", f"{column.greatest:g}{mark}")
        table.add_row(Text(column.name), *numbers)
    out.print(table)
    for note in found.notes:
        _print_note(note, out)
    if found.problems:
        out.print(f"{len(found.problems)} to look at", style="bold red")
    else:
        out.print("nothing to mend", style="bold green")


def _print_facts(title: str, facts: dict[str, str], out: Console) -> None:
    table = Table(title=Text(title), title_justify="left", show_header=False)
    for name, fact in facts.items():
        table.add_row(name, Text(fact))
    out.print(table)


def _print_written(dataset: Dataset, target: str, out: Console) -> None:
    _print_line(f"wrote {dataset!r} to {target}", out)
    first_rows = np.flatnonzero(np.concatenate([[True], dataset.episode_ends[:-1]]))
    if target.startswith("minari:") and not np.array_equal(dataset.starts, first_rows):
        lost = "Minari has no place for start states: read back, episodes start at their first rows."
        _print_note(Note("problem", lost), out)
    _print_problems(dataset, out)


def _print_problems(dataset: Dataset, out: Console) -> None:
    """The problems met in reading, and that there is more to know."""
    for note in dataset.notes:
        if note.kind == "problem":
            _print_note(note, out)
    decisions = sum(note.kind == "decision" for note in dataset.notes)
    if decisions:
        _print_line(f"{counted(decisions, 'decision')} in reading it: `bats-rl validate` tells", out)


def _print_note(note: Note, out: Console) -> None:
    mark, style = MARKS[note.kind]
    # soft: lines that go into a file are not broken, so that they can be searched
    out.print(Text.assemble((f"{mark} {note.kind}: ", style), note.text), soft_wrap=not out.is_terminal)


def _print_line(line: str, out: Console) -> None:
    out.print(Text(line), soft_wrap=not out.is_terminal)


if __name__ == "__main__":
    sys.exit(main())
