"""One recipe for all logs of the zoo: a scripted controller acts with a probability that is drawn for each episode.

That probability is the skill of the episode. In all other steps the action is uniformly random. Skill is a uniform
number to a power, usually the fourth: then it is below 0.1 in more than half of the episodes, and above 0.9 in one of
39. So a log is mostly random, and yet it has some good episodes, most of them short of what the controller does alone.

Two rules decide the power, and no result of any method does. The mean return of a log is at most a third of the way
from random actions to the controller, and at least five of its episodes reach the goal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from jaxtyping import Float
from numpy.typing import ArrayLike

from bats.arrays import Progress, RowFlags, no_progress
from bats.data.dataset import Dataset
from bats.data.episodes import Note
from bats.tasks.common import check_rows, generator, normalised
from bats.tasks.episodes import Controller, SetState, as_dataset, make_environment, play_rows

Goal = Callable[[Dataset], RowFlags]
"""the rows in which what the task is about is achieved"""


@dataclass(frozen=True)
class ControlTask:
    """A task with a scripted controller, which is its reference."""

    name: str
    environment: str
    controller: Controller
    goal: Goal
    goal_summary: str
    random_return: float
    """mean return of uniformly random actions, which scores 0"""
    reference_return: float
    """mean return of the controller, which scores 100"""
    set_state: SetState | None = None
    """None: the observation does not show the whole state"""

    def normalised_score(self, returns: ArrayLike | float | int) -> Float[np.ndarray, "..."]:
        return normalised(returns, self.random_return, self.reference_return)


@dataclass(frozen=True)
class SkillCollector:
    """Collects a log of a task with the recipe above."""

    task: ControlTask
    rows: int = 60_000
    largest_skill: float = 1.0
    """0: all actions are random"""
    skill_power: int = 4
    """skills are a uniform number to this power; the larger, the fewer good episodes"""

    @property
    def summary(self) -> str:
        controller = "a scripted controller of varying skill, and random actions"
        return f"{controller if self.largest_skill > 0 else 'random actions'}, {self.rows:,} rows"

    def __call__(self, rows: int | None, seed: int, *, progress: Progress = no_progress) -> Dataset:
        """Whole episodes, the last one truncated. Starts are the first rows of episodes."""
        rows = check_rows(rows, self.rows)
        start_rng, skill_rng, action_rng = generator(seed).spawn(3)
        environment = make_environment(self.task.environment)
        space = environment.action_space
        random_action = random_controller(space, action_rng)

        def new_controller() -> Controller:
            skill = self.largest_skill * skill_rng.uniform() ** self.skill_power

            def act(observation: np.ndarray) -> Any:
                return (self.task.controller if skill_rng.uniform() < skill else random_action)(observation)

            return act

        episodes = play_rows(environment, new_controller, rows, start_rng, progress)
        environment.close()
        count = int(space.n) if isinstance(space, Discrete) else None
        log = as_dataset(episodes, name=self.task.name, action_count=count)
        seen = f"{goals_seen(self.task, log):,} of {log.episode_count:,} episodes"
        fact = f"The log was made with skills up to {self.largest_skill:g} and seed {seed}. "
        fact += f"The goal, {self.task.goal_summary}, is seen in {seen}."
        return replace(log, notes=(*log.notes, Note("fact", fact)))


def random_controller(space: Space[Any], rng: np.random.Generator) -> Controller:
    """Uniformly random actions of a space."""
    if isinstance(space, Discrete):
        return lambda observation: rng.integers(space.n)
    assert isinstance(space, Box)
    return lambda observation: rng.uniform(space.low, space.high).astype(space.dtype)


def goals_seen(task: ControlTask, log: Dataset) -> int:
    """In how many episodes of a log the goal is reached."""
    return len(np.unique(log.episode_numbers[task.goal(log)]))
