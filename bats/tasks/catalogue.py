"""Every task a log can be collected for, by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bats.arrays import Progress, no_progress
from bats.data.dataset import Dataset
from bats.errors import BatsError
from bats.tasks import hopper, mountain_car, worlds
from bats.tasks.maze2d.log import collect_maze
from bats.tasks.maze2d.maps import MAZES, Maze, find_maze
from bats.tasks.maze2d.starts import label_starts

Collector = Callable[[int | None, int, Progress], Dataset]


@dataclass(frozen=True)
class Task:
    """A task: its environment in Gymnasium, and how a log of it is made."""

    name: str
    environment: str
    summary: str
    collector: Collector


def _maze_log(maze: Maze, rows: int | None, seed: int, progress: Progress) -> Dataset:
    log = collect_maze(maze, maze.log_rows if rows is None else rows, seed, progress=progress)
    return label_starts(log.dataset(), maze)[0]


def _mountain_car_log(rows: int | None, seed: int, progress: Progress) -> Dataset:
    return mountain_car.collect_mountain_car(rows, seed, progress=progress)


def _hopper_log(rows: int | None, seed: int, progress: Progress) -> Dataset:
    return hopper.collect_hopper(100_000 if rows is None else rows, seed, progress=progress)


def _world_log(world: worlds.World, name: str, rows: int | None, seed: int, progress: Progress) -> Dataset:
    return worlds.collect_world(world, 5_000 if rows is None else rows, seed, name=name, progress=progress)


TASKS: tuple[Task, ...] = (
    *(
        Task(
            name=maze.task,
            environment=maze.environment,
            summary=f"D4RL's {maze.task}: noisy waypoint controller, {maze.log_rows:,} rows",
            collector=partial(_maze_log, maze),
        )
        for maze in MAZES
    ),
    Task(
        name=mountain_car.TASK,
        environment=mountain_car.ENVIRONMENT,
        summary="20 random episodes and 5 of an expert, about 20,600 rows",
        collector=_mountain_car_log,
    ),
    Task(
        name=hopper.TASK,
        environment=hopper.ENVIRONMENT,
        summary="a disturbed posture controller, 11 numbers a state, 100,000 rows",
        collector=_hopper_log,
    ),
    Task(
        name="chain",
        environment=worlds.CHAIN_ENVIRONMENT,
        summary="random moves in a chain of 10 states, known optimal values, 5,000 rows",
        collector=partial(_world_log, worlds.CHAIN, "chain"),
    ),
    Task(
        name="grid",
        environment=worlds.GRID_ENVIRONMENT,
        summary="random moves in a grid of 36 states, known optimal values, 5,000 rows",
        collector=partial(_world_log, worlds.GRID, "grid"),
    ),
)
TASK_NAMES: tuple[str, ...] = tuple(task.name for task in TASKS)


def find_task(name: str) -> Task:
    """The task of this name; `maze2d-umaze-v1` and Gymnasium's names are understood too."""
    for task in TASKS:
        if name in (task.name, task.environment, task.environment.removeprefix("bats/")):
            return task
    raise BatsError(f"There is no task called '{name}'; known are {', '.join(TASK_NAMES)}.")


def task_of_log(name: str) -> Task | None:
    """The task that a log is called after, `maze2d-umaze-0.hdf5` say, or None: a guess, to be told as one."""
    stem = Path(name).stem
    fitting = [task for task in TASKS if re.match(rf"{re.escape(task.name)}(?![A-Za-z0-9])", stem)]
    return max(fitting, key=lambda task: len(task.name), default=None)


def collect(task: str, rows: int | None = None, seed: int = 0, *, progress: Progress = no_progress) -> Dataset:
    """Collects a log of `rows` rows, or of the task's usual size. The same seed gives the same bytes.

    A maze's log comes with its start states labelled; the other tasks' starts are the first rows of episodes.
    """
    return find_task(task).collector(rows, seed, progress)


def collect_published(
    task: str, rows: int | None = None, seed: int = 0, *, progress: Progress = no_progress
) -> dict[str, np.ndarray]:
    """The run that `collect` makes of a maze, as the arrays D4RL's files have, slips included (see `maze2d.log`)."""
    maze = find_maze(task, wanted="a published layout")
    return collect_maze(maze, maze.log_rows if rows is None else rows, seed, progress=progress).published()
