"""All tasks by name: what environment each one has, how its log is collected, and how its policies are evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from bats.arrays import Arrays, Progress, no_progress
from bats.config import Function, checked
from bats.data.dataset import Dataset
from bats.errors import BatsError
from bats.tasks import hopper, mountain_car
from bats.tasks.episodes import Environment
from bats.tasks.maze2d.log import collect_maze
from bats.tasks.maze2d.maps import MAZES, Maze, find_maze, stratified_starts
from bats.tasks.maze2d.starts import label_starts
from bats.tasks.worlds import WORLDS, World, collect_world

Score = Callable[[float | np.ndarray], np.ndarray]
"""normalises returns"""


@runtime_checkable
class Collector(Protocol):
    """Collects a log of `rows` rows, or of the task's usual size if that is None."""

    def __call__(self, rows: int | None, seed: int, *, progress: Progress) -> Dataset: ...


@dataclass(frozen=True)
class Task:
    """A task: its environment in Gymnasium, how a log of it is collected, and what an evaluation needs to know."""

    name: str
    environment: str
    summary: str
    collector: Collector
    score: Score | None = None
    """None: the task has no reference scores"""
    starts: Callable[[int], np.ndarray] | None = None
    """the start states that policies are evaluated from, for a seed; None: those of the environment"""
    starts_summary: str = "the environment's own"
    takes_states: bool = False
    """`reset(options={"state": …})` puts the environment into a state, and its observations are such states"""


def _maze_task(maze: Maze) -> Task:
    def collect_labelled(rows: int | None, seed: int, *, progress: Progress) -> Dataset:
        return label_starts(collect_maze(maze, rows, seed, progress=progress).dataset(), maze)[0]

    return Task(
        maze.task,
        maze.environment,
        f"D4RL's {maze.task}: noisy waypoint controller, {maze.log_rows:,} rows",
        collect_labelled,
        score=maze.normalised_score,
        starts=lambda seed: stratified_starts(maze, maze.starts_per_cell, seed=seed),
        starts_summary=f"{maze.starts_per_cell} in every cell of the maze",
        takes_states=True,
    )


def _world_task(name: str, environment: str, world: World) -> Task:
    summary = f"random moves in a {name} of {len(world.positions())} states, known optimal values, 5,000 rows"
    return Task(name, environment, summary, partial(collect_world, world, name=name), takes_states=True)


TASKS: tuple[Task, ...] = (
    *(_maze_task(maze) for maze in MAZES),
    # Gymnasium's car ignores a requested state (`mountain_car.PlacedCar` does not), so it has no `takes_states`.
    Task(mountain_car.TASK, mountain_car.ENVIRONMENT, mountain_car.SUMMARY, mountain_car.collect_mountain_car),
    Task(hopper.TASK, hopper.ENVIRONMENT, hopper.SUMMARY, hopper.collect_hopper),
    *(_world_task(*entry) for entry in WORLDS),
)
TASK_NAMES: tuple[str, ...] = tuple(task.name for task in TASKS)


def find_task(name: str) -> Task:
    """The task with this name; `maze2d-umaze-v1` and Gymnasium's names are accepted too."""
    for task in TASKS:
        if name in (task.name, task.environment, task.environment.removeprefix("bats/")):
            return task
    raise BatsError(f"There is no task called '{name}'; known tasks: {', '.join(TASK_NAMES)}.")


def task_of_environment(environment: Environment) -> Task | None:
    """The task that an environment was made for, or None for an environment of the user's own."""
    name = None if environment.spec is None else environment.spec.id
    return next((task for task in TASKS if task.environment == name), None)


def task_of_log(name: str) -> Task | None:
    """The task whose name a log's name starts with, as in `maze2d-umaze-0.hdf5`: a guess, to be reported as one."""
    stem = Path(name).stem
    # `chains.hdf5` is no log of the chain; of two names that match, the longer one is meant
    matches = [task for task in TASKS if re.match(rf"{re.escape(task.name)}(?![A-Za-z0-9])", stem)]
    return max(matches, key=lambda task: len(task.name), default=None)


def collect(task: str, rows: int | None = None, seed: int = 0, *, progress: Progress = no_progress) -> Dataset:
    """Collects a log of `rows` rows, or of the task's usual size. The same seed gives the same bytes.

    A maze's log comes with its start states labelled; the starts of other tasks are the first rows of episodes.
    """
    return find_task(task).collector(rows, seed, progress=checked("progress", Function, progress))


def collect_published(task: str, rows: int | None = None, seed: int = 0, *, progress: Progress = no_progress) -> Arrays:
    """The same run of a maze as `collect` records, as the arrays of D4RL's files (see `maze2d.log`)."""
    return collect_maze(find_maze(task, feature="a published layout"), rows, seed, progress=progress).published()
