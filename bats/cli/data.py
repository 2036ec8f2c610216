"""`bats-rl validate`, `data collect` and `data convert`: logs in, logs out."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.table import Table

from bats.arrays import EdgeActions, Progress
from bats.cli.options import add_options
from bats.cli.output import Terminal, print_facts, print_line, print_note, print_notes, shown_progress, shown_text
from bats.data.checks import Validation, reward_notes, validate
from bats.data.dataset import Dataset
from bats.data.episodes import Note
from bats.data.formats.fields import ColumnMap
from bats.data.formats.hdf5 import write_hdf5
from bats.data.formats.load import load_dataset
from bats.data.formats.minari import write_minari
from bats.errors import OutputError, SettingError
from bats.graph.relabel import RewardFunction, goal_reward
from bats.storage.atomic import output_errors, refuse_existing

MAX_RANGES = 1000
"""components whose ranges are printed"""
LOG = "a log: .hdf5 (D4RL keys), .npz, .csv, .parquet, a Minari folder, or minari:ID"
OUT = "file to write (.hdf5), or minari:ID"
QUIET = "\n    --quiet  show no progress\n"
COLUMNS = """
    --columns MAP  for CSV and Parquet: the columns of each field, for example
        'observations=x,y actions=u rewards=r episode=run'
"""
READING = """
    --actions auto|discrete|continuous  how actions are read. discrete: as an index; continuous: as a vector; auto: as
        an index if there is one integer per row (default: auto)
    --timeouts auto|trust|ignore  which timeouts end an episode. trust: all; ignore: none; auto: all, unless the
        states continue after at least 95% of the timeouts; then only timeouts after which the states do not continue
        (default: auto)
    --max-memory X  maximum memory for reading the log, in gigabytes; the default is half of what this process may use
"""
REWARD = """
    --reward MODULE:FUNCTION  use another reward: a function of three arrays (states, actions, next states) that returns
        the rewards; the current folder is searched for modules too
    --goal NUMBERS  use another reward: 1 if the first components of the next state are within --radius of this point,
        else 0; for example --goal 3,1 --radius 0.5
    --radius X  radius around --goal
"""


def read_log(file: str, arguments: Namespace, progress: Progress) -> Dataset:
    """Reads a log as the arguments say."""
    return load_dataset(
        file,
        columns=None if arguments.columns is None else ColumnMap.parse(arguments.columns),
        discrete=None if arguments.actions == "auto" else arguments.actions == "discrete",
        timeout_rule=arguments.timeouts,
        max_memory=arguments.max_memory,
        progress=progress,
    )


def load_function(name: str, option: str) -> Callable[..., Any]:
    """The function called `package.module:function`; the current folder is searched for modules too."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise SettingError(f"{option} must have the form package.module:function; got '{name}'.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(import_module(module), function)
    except Exception as error:  # the user's module may raise anything
        raise SettingError(f"{option} {name} could not be loaded: {type(error).__name__}: {error}.") from error
    if not callable(found):
        raise SettingError(f"{option} must be a function; {name} is of type {type(found).__name__}.")
    function_of_user: Callable[..., Any] = found
    return function_of_user


def load_reward(name: str) -> RewardFunction:
    """The reward called `package.module:function`."""
    user_function = load_function(name, "--reward")

    def reward(
        states: Float[np.ndarray, "E D"], actions: EdgeActions, next_states: Float[np.ndarray, "E D"]
    ) -> np.ndarray:  # of any shape: `with_reward` checks it
        try:
            return np.asarray(user_function(states, actions, next_states), dtype=np.float64)
        except Exception as error:
            raise SettingError(f"The reward {name} failed: {type(error).__name__}: {error}.") from error

    reward.__name__ = name
    return reward


def read_reward(arguments: Namespace) -> RewardFunction | None:
    """The reward that the options ask for; None: the log's own."""
    if arguments.goal is not None and arguments.reward is not None:
        raise SettingError("Give either --reward or --goal, not both.")
    if (arguments.goal is None) != (arguments.radius is None):
        raise SettingError("--goal and --radius must be given together; only one of them was given.")
    if arguments.goal is not None:
        return goal_reward(np.array(arguments.goal), arguments.radius)
    return None if arguments.reward is None else load_reward(arguments.reward)


def read_training_log(arguments: Namespace, reward: RewardFunction | None, terminal: Terminal) -> Dataset:
    """The log to train on, with another reward if one is given. Shows what was decided in reading it."""
    with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
        dataset = read_log(arguments.log, arguments, progress)
        if reward is not None:
            dataset = dataset.with_rewards(reward(dataset.observations, dataset.actions, dataset.next_observations))
    dataset = replace(dataset, notes=(*dataset.notes, *reward_notes(dataset)))
    print_notes(dataset, terminal.out)  # before the work, which a problem of the log may make useless
    return dataset


def name_of_log(log: str) -> str:
    """The name of a log's file as a part of a folder's name."""
    return re.sub(r"[^\w.-]+", "-", Path(log).stem)


def add_validate(parser: ArgumentParser) -> None:
    add_options(parser, f"LOG  {LOG}\n --strict  exit with code 1 if the log has a problem (useful in scripts) {QUIET}")
    add_options(parser.add_argument_group("reading the log"), COLUMNS + READING)


def run_validate(arguments: Namespace, terminal: Terminal) -> int:
    with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
        dataset = read_log(arguments.log, arguments, progress)
        validation = validate(dataset)
    print_validation(dataset, validation, terminal.out)
    return 1 if arguments.strict and validation.problems else 0


def print_validation(dataset: Dataset, validation: Validation, out: Console) -> None:
    print_facts(dataset.name, validation.facts, out)
    table = Table("component", "min", "mean", "max", title="ranges", title_justify="left")
    for column in validation.columns[:MAX_RANGES]:
        constant = "  constant" if column.constant else ""
        table.add_row(shown_text(column.name), f"{column.min:g}", f"{column.mean:g}", f"{column.max:g}{constant}")
    out.print(table)
    if (more := len(validation.columns) - MAX_RANGES) > 0:
        print_line(f"and {more:,} more components; in Python, `bats.validate(log).columns` lists all of them", out)
    for note in validation.notes:
        print_note(note, out)
    count = len(validation.problems)
    out.print(f"problems: {count}" if count else "no problems", style="bold red" if count else "bold green")


def add_collect(parser: ArgumentParser) -> None:
    table = f"""
    TASK  name of a task; `bats-rl data collect list` shows all names
    --rows N  number of rows to collect; the default depends on the task
    --seed SEED  the same seed gives the same log, byte for byte; for mixed logs, only on the same kind of machine
        (default: 0)
    --out OUT  {OUT}; the default is TASK-SEED.hdf5
    --published  mazes only: write the layout of D4RL's published files, including its errors (rewards are one row late,
        some observations are repeated, next states are missing)
    """
    add_options(parser, table + QUIET)


def run_collect(arguments: Namespace, terminal: Terminal) -> None:
    from bats.tasks import TASKS, collect, collect_published, find_task, write_published  # with Gymnasium
    from bats.tasks.locomotion import MixedCollector

    if arguments.task == "list":
        print_facts("tasks", {task.name: task.summary for task in TASKS}, terminal.out)
        return
    task = find_task(arguments.task)
    target = f"{task.name}-{arguments.seed}.hdf5" if arguments.out is None else arguments.out
    if arguments.published and target.startswith("minari:"):
        hint = "write to a .hdf5 file or leave out --published"
        raise OutputError(f"{target}: the published layout exists only as HDF5; {hint}.")
    _check_target(target)
    if arguments.published:
        with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
            arrays = collect_published(task.name, arguments.rows, arguments.seed, progress=progress)
        write_published(arrays, Path(target))
        print_line(f"wrote {len(arrays['rewards']):,} rows in the published layout to {target}", terminal.out)
        return
    name = f"{task.name}-{arguments.seed}" if target.startswith("minari:") else target
    unfinished = Path(name).with_suffix(".unfinished") if isinstance(task.collector, MixedCollector) else None
    try:
        with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
            dataset = collect(task.name, arguments.rows, arguments.seed, unfinished=unfinished, progress=progress)
    except KeyboardInterrupt:
        if unfinished is not None:
            print_line(f"the state is kept in {unfinished}; call the same command again to continue", terminal.err)
        raise
    _write(dataset, target)
    if unfinished is not None:  # not before the log is written
        with output_errors(unfinished, "removed"):
            unfinished.unlink()
    _print_written(dataset, target, terminal.out)


def add_convert(parser: ArgumentParser) -> None:
    add_options(parser, f"LOG  {LOG}\n OUT  {OUT}" + QUIET)
    add_options(parser.add_argument_group("reading the log"), COLUMNS + READING)


def run_convert(arguments: Namespace, terminal: Terminal) -> None:
    _check_target(arguments.out)
    with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
        dataset = read_log(arguments.log, arguments, progress)
        _write(dataset, arguments.out)
    _print_written(dataset, arguments.out, terminal.out)


def _check_target(target: str) -> None:
    """Refuses a target before the work, not after it."""
    if target.startswith("minari:"):
        return
    if Path(target).suffix not in (".hdf5", ".h5"):
        raise OutputError(f"{target}: a log can only be written to a .hdf5 file or to minari:ID.")
    refuse_existing(Path(target))


def _write(dataset: Dataset, target: str) -> None:
    if target.startswith("minari:"):
        write_minari(dataset, target.removeprefix("minari:"))
    else:
        write_hdf5(dataset, Path(target))


def _print_written(dataset: Dataset, target: str, out: Console) -> None:
    print_line(f"wrote {dataset!r} to {target}", out)
    first_rows = np.flatnonzero(np.concatenate([[True], dataset.episode_ends[:-1]]))
    if target.startswith("minari:") and not np.array_equal(dataset.starts, first_rows):
        text = "Minari cannot store start states. When this data set is read again, "
        text += "the first row of each episode is taken as its start."
        print_note(Note("problem", text), out)
    print_notes(dataset, out)
