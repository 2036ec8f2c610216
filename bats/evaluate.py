"""Episodes in the true environment, where there is one: what a policy earns, and how sure that is.

All episodes go on together: one answer of the policy a step, for everyone still under way. The environment judges; it
never chooses anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from jaxtyping import Float, Int
from scipy.stats import bootstrap

from bats.errors import BatsError, SettingError
from bats.tasks.maze2d import MAZES, Maze, find_maze, stratified_starts
from bats.tasks.seeds import draw_seed, generator

AT_ONCE = 256
"""environments made for one evaluation; more episodes than that take turns"""
RESAMPLES = 9999
STARTS_PER_CELL = {"umaze": 20, "medium": 4, "large": 3}
"""starts in each cell of the mazes that everybody is judged on: 140, 104 and 138 episodes"""

Environment = gymnasium.Env[Any, Any]


@runtime_checkable
class Actor(Protocol):
    """Whatever acts: an action for each row of observations."""

    def predict(self, observation: np.ndarray, /) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode as it went."""

    observations: Float[np.ndarray, "M D"]
    """one more than there are steps"""
    actions: np.ndarray
    rewards: Float[np.ndarray, "T"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What episodes earned."""

    returns: Float[np.ndarray, "n"]
    lengths: Int[np.ndarray, "n"]
    scores: Float[np.ndarray, "n"] | None
    """normalised returns, where the task has reference scores"""
    episodes: tuple[Episode, ...]
    """as they went, where recording was asked for"""

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    @property
    def score(self) -> float:
        """The mean normalised return."""
        if self.scores is None:
            raise SettingError("This task has no reference scores; look at the returns.")
        return float(self.scores.mean())


def evaluate(
    actor: Actor,
    environment: str | Sequence[Environment],
    *,
    episodes: int | None = None,
    starts: Float[np.ndarray, "n D"] | None = None,
    seed: int = 0,
    record: bool = False,
) -> Evaluation:
    """Plays episodes, from `starts` where the environment can be put there, otherwise from its own.

    `environment` is a name that Gymnasium knows, or environments that are used in turn. An episode lasts until the
    environment ends it, so it must have a time limit.
    """
    if (episodes is None) == (starts is None):
        raise SettingError("Give `episodes`, a number, or `starts`, one state each; not both, and not neither.")
    count = len(starts) if starts is not None else episodes or 0
    if count < 1:
        raise SettingError(f"An evaluation takes at least 1 episode; got {count}.")
    rng = generator(seed)
    seeds = [draw_seed(rng) for _ in range(count)]
    options = [None if starts is None else {"state": start} for start in (range(count) if starts is None else starts)]
    made = _made(environment, min(count, AT_ONCE))
    try:
        played = [
            episode
            for first in range(0, count, len(made))
            for episode in _play(
                actor, made, seeds[first : first + len(made)], options[first : first + len(made)], record
            )
        ]
        scores_of = _reference(made[0])
    finally:
        if isinstance(environment, str):
            for one in made:
                one.close()
    returns = np.array([earned for earned, _, _ in played], dtype=np.float64)
    return Evaluation(
        returns=returns,
        lengths=np.array([length for _, length, _ in played]),
        scores=None if scores_of is None else scores_of.normalised_score(returns),
        episodes=tuple(episode for _, _, episode in played if episode is not None),
    )


def interval(values: Float[np.ndarray, "n"], *, confidence: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """A bootstrap interval for the mean, bias-corrected and accelerated; a single point where all values are equal.

    Of stratified starts it is on the wide side: the draws that it is made of are not stratified.
    """
    if len(values) < 2 or np.ptp(values) == 0:
        return float(values.mean()), float(values.mean())
    found = bootstrap(
        (values,), np.mean, confidence_level=confidence, n_resamples=RESAMPLES, rng=np.random.default_rng(seed)
    ).confidence_interval
    return float(found.low), float(found.high)


def judged_starts(maze: Maze | str, *, seed: int) -> Float[np.ndarray, "n 4"]:
    """The stratified starts that a maze is judged on, the same number in every cell."""
    found = find_maze(maze)
    if found.name not in STARTS_PER_CELL:
        raise BatsError(f"Nothing is agreed on for '{found.task}'; take `stratified_starts` with a number of your own.")
    return stratified_starts(found, STARTS_PER_CELL[found.name], seed=seed)


def _made(environment: str | Sequence[Environment], count: int) -> list[Environment]:
    if not isinstance(environment, str):
        if len(environment) == 0:
            raise SettingError("An evaluation takes at least 1 environment; got none.")
        return list(environment)
    try:
        made = [gymnasium.make(environment, disable_env_checker=True) for _ in range(count)]
    except gymnasium.error.Error as error:
        raise BatsError(f"Gymnasium cannot make '{environment}': {error}") from error
    if made[0].spec is None or made[0].spec.max_episode_steps is None:
        raise SettingError(f"'{environment}' has no time limit, so an episode might never end.")
    return made


def _reference(environment: Environment) -> Maze | None:
    name = None if environment.spec is None else environment.spec.id
    return next((maze for maze in MAZES if maze.environment == name), None)


def _play(
    actor: Actor,
    environments: Sequence[Environment],
    seeds: Sequence[int],
    options: Sequence[dict[str, Any] | None],
    record: bool,
) -> list[tuple[float, int, Episode | None]]:
    """One episode in each of the first environments, all step by step together."""
    count = len(seeds)
    here = [environments[i].reset(seed=seeds[i], options=options[i])[0] for i in range(count)]
    seen: list[list[np.ndarray]] = [[first] for first in here]
    acted: list[list[np.ndarray]] = [[] for _ in range(count)]
    rewards: list[list[float]] = [[] for _ in range(count)]
    under_way = list(range(count))
    while under_way:
        actions = actor.predict(np.stack([here[i] for i in under_way]))
        still = []
        for i, action in zip(under_way, actions, strict=True):
            here[i], reward, ended, cut, _ = environments[i].step(action)
            rewards[i].append(float(reward))
            if record:
                seen[i].append(here[i])
                acted[i].append(action)
            if not (ended or cut):
                still.append(i)
        under_way = still
    kept = [
        Episode(np.stack(seen[i]), np.stack(acted[i]), np.array(rewards[i])) if record else None for i in range(count)
    ]
    return [(float(np.sum(rewards[i])), len(rewards[i]), kept[i]) for i in range(count)]
