"""All tasks by name: what environment each one has, how its log is collected, and how its policies are evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import gymnasium
import numpy as np
from numpy.typing import ArrayLike

from bats.arrays import Arrays, Progress, no_progress
from bats.config import FilePath, Function, checked
from bats.data.dataset import Dataset
from bats.errors import BatsError
from bats.tasks import hopper, mountain_car
from bats.tasks.episodes import Environment, SetState
from bats.tasks.locomotion import MIXED_ROWS, MIXED_SCORE, ROBOTS, MixedCollector, Robot
from bats.tasks.maze2d.log import collect_maze
from bats.tasks.maze2d.maps import MAZES, Maze, find_maze, stratified_starts
from bats.tasks.maze2d.starts import label_starts
from bats.tasks.worlds import WORLDS, World, collect_world
from bats.tasks.zoo.skill import SkillCollector
from bats.tasks.zoo.tasks import MOUNTAIN_CAR, ZOO

Score = Callable[[ArrayLike], np.ndarray]
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
    set_state: SetState | None = None
    """puts an environment that does not take states itself into one"""


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


def _mixed_task(robot: Robot) -> Task:
    collector = MixedCollector(robot)
    until = f"until it scores {MIXED_SCORE}, at most {MIXED_ROWS:,} rows"
    summary = f"what soft actor-critic sees while it learns, {until}; takes hours and can be continued"
    return Task(collector.task, robot.environment, summary, collector, score=robot.normalised_score)


def _control_task(collector: SkillCollector) -> Task:
    task = collector.task
    return Task(
        task.name,
        task.environment,
        collector.summary,
        collector,
        score=task.normalised_score,
        set_state=task.set_state,
    )


def _world_task(name: str, environment: str, world: World) -> Task:
    summary = f"random moves in a {name} of {len(world.positions())} states, known optimal values, 5,000 rows"
    return Task(name, environment, summary, partial(collect_world, world, name=name), takes_states=True)


TASKS: tuple[Task, ...] = (
    *(_maze_task(maze) for maze in MAZES),
    Task(
        mountain_car.TASK,
        mountain_car.ENVIRONMENT,
        mountain_car.SUMMARY,
        mountain_car.collect_mountain_car,
        score=MOUNTAIN_CAR.normalised_score,
        set_state=MOUNTAIN_CAR.set_state,
    ),
    Task(hopper.TASK, hopper.ENVIRONMENT, hopper.SUMMARY, hopper.collect_hopper, score=ROBOTS[0].normalised_score),
    *(_mixed_task(robot) for robot in ROBOTS),
    *(_control_task(collector) for collector in ZOO),
    *(_world_task(*entry) for entry in WORLDS),
)
TASK_NAMES: tuple[str, ...] = tuple(task.name for task in TASKS)


def find_task(name: str) -> Task:
    """The task with this name; `umaze`, `maze2d-umaze-v1` and Gymnasium's names are accepted too."""
    for task in TASKS:
        if name in (
            task.name,
            task.name.removeprefix("maze2d-"),
            task.environment,
            task.environment.removeprefix("bats/"),
        ):
            return task
    similar = get_close_matches(str(name), TASK_NAMES)
    meant = f"similar: {', '.join(similar)}; " if similar else ""
    hint = f" Gymnasium has an environment of this name: use `bats-rl evaluate --environment {name}`."
    hint = hint if name in list(gymnasium.registry) else ""  # a list: the name may be anything
    raise BatsError(f"There is no task called '{name}'; {meant}`bats-rl data collect list` shows all names.{hint}")


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


def collect(
    task: str,
    rows: int | None = None,
    seed: int = 0,
    *,
    unfinished: Path | str | None = None,
    progress: Progress = no_progress,
) -> Dataset:
    """Collects a log of `rows` rows, or of the task's usual size. The same seed gives the same bytes.

    A maze's log comes with its start states labelled; the starts of other tasks are the first rows of episodes. The
    mixed logs take hours: with a file `unfinished`, a collection that was stopped goes on when it is called again. The
    file stays until it is removed.
    """
    collector = find_task(task).collector
    kept: Path | None = checked("unfinished", FilePath | None, unfinished)
    if isinstance(collector, MixedCollector):
        collector = replace(collector, unfinished=kept)
    return collector(rows, seed, progress=checked("progress", Function, progress))


def normalised_score(task: str, returns: ArrayLike | float | int) -> np.ndarray:
    """The returns of a task on the scale of its reference scores: a random policy has 0, the reference 100."""
    found = find_task(task)
    if found.score is None:
        without = " and ".join(task.name for task in TASKS if task.score is None)
        raise BatsError(f"The task {found.name} has no reference scores; all tasks except {without} have them.")
    return found.score(returns)


def collect_published(task: str, rows: int | None = None, seed: int = 0, *, progress: Progress = no_progress) -> Arrays:
    """The same run of a maze as `collect` records, as the arrays of D4RL's files (see `maze2d.log`)."""
    return collect_maze(find_maze(task, feature="a published layout"), rows, seed, progress=progress).published()
