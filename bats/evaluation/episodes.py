"""Episodes in the true environment, where there is one: what a policy earns, and how sure that is.

All episodes go on together: one answer of the policy a step, for everyone still under way. Walks through a graph are
replayed open loop: their actions one after another, wherever they lead. The environment judges; it never chooses
anything.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from jaxtyping import Float, Int
from scipy.stats import DegenerateDataWarning, bootstrap

from bats.arrays import Progress, no_progress
from bats.errors import BatsError, SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import TabularMDP
from bats.graph.rollouts import Walks
from bats.tasks.maze2d import MAZES, Maze, find_maze, stratified_starts
from bats.tasks.recording import Episode
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
class Evaluation:
    """What episodes earned."""

    returns: Float[np.ndarray, "n"]
    lengths: Int[np.ndarray, "n"]
    scores: Float[np.ndarray, "n"] | None
    """normalised returns, where the task has reference scores"""
    starts: Float[np.ndarray, "n D"]
    """the first observation of each"""
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
    progress: Progress = no_progress,
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
    with environments(environment, min(count, AT_ONCE)) as made:
        turns, steps = range(0, count, len(made)), step_limit(made[0]) or 1
        played: list[_Played] = []
        for turn, first in enumerate(turns):
            these = slice(first, first + len(made))
            on_step = partial(_tell, progress, turn * steps, len(turns) * steps)
            played += _play(actor, made, seeds[these], options[these], record, on_step)
        return _evaluation(played, maze_of(made[0]))


def replay(
    mdp: TabularMDP,
    walks: Walks,
    first_states: Int[np.ndarray, "n"],
    environment: str | Sequence[Environment],
    *,
    seed: int = 0,
    record: bool = False,
    progress: Progress = no_progress,
) -> Evaluation:
    """Plays the actions of walks through a graph open loop, each from exactly the state where the walk begins.

    Only for environments that can be put into a state. A walk that stops in the graph has no further actions, so its
    replay stops there as well, if the environment has not ended it before.
    """
    if len(first_states) < 1 or len(first_states) != len(walks.edge):
        raise SettingError(f"A replay takes a first state for each walk; got {len(first_states)}, {len(walks.edge)}.")
    offered = mdp.action if mdp.action_count is None else mdp.action.astype(np.int64)  # as Gymnasium's Discrete has it
    rng, played = generator(seed), []
    with environments(environment, 1) as made:
        for number, (edges, state) in enumerate(zip(walks.edge, mdp.states[first_states], strict=True)):
            progress("replaying", number, len(first_states))
            episode = _follow(made[0], offered[edges[edges != NO_EDGE]], seed=draw_seed(rng), options={"state": state})
            earned, start = float(episode.rewards.sum()), episode.observations[0]
            played.append(_Played(earned, len(episode), start, episode if record else None))
        return _evaluation(played, maze_of(made[0]))


def interval(values: Float[np.ndarray, "n"], *, confidence: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """A bootstrap interval for the mean, bias-corrected and accelerated; a single point where all values are equal.

    Of stratified starts it is on the wide side: the draws that it is made of are not stratified.
    """
    if len(values) < 2 or np.ptp(values) == 0:
        return float(values.mean()), float(values.mean())
    with np.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)
        found = bootstrap(
            (values,), np.mean, confidence_level=confidence, n_resamples=RESAMPLES, rng=np.random.default_rng(seed)
        ).confidence_interval
    if not np.isfinite([found.low, found.high]).all():  # almost all values are equal
        return float(values.mean()), float(values.mean())
    return float(found.low), float(found.high)


def judged_starts(maze: Maze | str, *, seed: int) -> Float[np.ndarray, "n 4"]:
    """The stratified starts that a maze is judged on, the same number in every cell."""
    found = find_maze(maze)
    if found.name not in STARTS_PER_CELL:
        raise BatsError(f"Nothing is agreed on for '{found.task}'; take `stratified_starts` with a number of your own.")
    return stratified_starts(found, STARTS_PER_CELL[found.name], seed=seed)


@contextmanager
def environments(environment: str | Sequence[Environment], count: int) -> Iterator[list[Environment]]:
    """`count` environments of the name, for as long as the block lasts, or those that are given."""
    if not isinstance(environment, str):
        if len(environment) == 0:
            raise SettingError("An evaluation takes at least 1 environment; got none.")
        yield list(environment)
        return
    made: list[Environment] = []
    try:
        made.extend(_made(environment) for _ in range(count))
        if step_limit(made[0]) is None:
            raise SettingError(f"'{environment}' has no time limit, so an episode might never end.")
        yield made
    finally:
        for one in made:
            one.close()


def step_limit(environment: Environment) -> int | None:
    """The most steps of an episode, where the environment is registered with a limit."""
    return None if environment.spec is None else environment.spec.max_episode_steps


def maze_of(environment: Environment) -> Maze | None:
    """The maze that an environment is, which has reference scores."""
    name = None if environment.spec is None else environment.spec.id
    return next((maze for maze in MAZES if maze.environment == name), None)


@dataclass(frozen=True, eq=False)
class _Played:
    """What is kept of an episode."""

    earned: float
    length: int
    start: Float[np.ndarray, "D"]
    episode: Episode | None


def _evaluation(played: Sequence[_Played], maze: Maze | None) -> Evaluation:
    returns = np.array([each.earned for each in played], dtype=np.float64)
    return Evaluation(
        returns=returns,
        lengths=np.array([each.length for each in played]),
        scores=None if maze is None else maze.normalised_score(returns),
        starts=np.stack([each.start for each in played]),
        episodes=tuple(each.episode for each in played if each.episode is not None),
    )


def _made(environment: str) -> Environment:
    try:
        return gymnasium.make(environment, disable_env_checker=True)
    except (gymnasium.error.Error, ImportError) as error:  # a name may be `module:name`, and the module not there
        raise BatsError(f"Gymnasium cannot make '{environment}': {error}") from error


def _row(observation: Any) -> Float[np.ndarray, "D"]:
    """An observation as a row of numbers; a discrete one is a row of one."""
    row = np.ravel(np.asarray(observation))
    if row.dtype.kind not in "biuf":
        raise SettingError(f"Only observations that are numbers can be acted on; got {type(observation).__name__}.")
    return row if row.dtype.kind == "f" else row.astype(np.float64)


def _tell(progress: Progress, before: int, total: int, step: int) -> None:
    progress("playing", min(before + step, total), total)


def _play(
    actor: Actor,
    made: Sequence[Environment],
    seeds: Sequence[int],
    options: Sequence[dict[str, Any] | None],
    record: bool,
    on_step: Callable[[int], None],
) -> list[_Played]:
    """One episode in each of the first environments, all step by step together."""
    count = len(seeds)
    here = [_row(made[i].reset(seed=seeds[i], options=options[i])[0]) for i in range(count)]
    seen: list[list[np.ndarray]] = [[first] for first in here]
    acted: list[list[np.ndarray]] = [[] for _ in range(count)]
    rewards: list[list[float]] = [[] for _ in range(count)]
    terminated = [False] * count
    under_way, step = list(range(count)), 0
    while under_way:
        on_step(step)
        actions = actor.predict(np.stack([here[i] for i in under_way]))
        still = []
        for i, action in zip(under_way, actions, strict=True):
            observation, reward, ended, cut, _ = made[i].step(action)
            here[i], terminated[i] = _row(observation), bool(ended)
            rewards[i].append(float(reward))
            if record:
                seen[i].append(here[i])
                acted[i].append(action)
            if not (ended or cut):
                still.append(i)
        under_way, step = still, step + 1
    on_step(step)
    kept = [
        Episode(np.stack(seen[i]), np.stack(acted[i]), np.array(rewards[i]), terminated[i]) if record else None
        for i in range(count)
    ]
    return [_Played(float(np.sum(rewards[i])), len(rewards[i]), seen[i][0], kept[i]) for i in range(count)]


def _follow(environment: Environment, actions: np.ndarray, *, seed: int, options: dict[str, Any]) -> Episode:
    """The episode that a list of actions makes, whatever is observed on the way."""
    seen = [_row(environment.reset(seed=seed, options=options)[0])]
    rewards: list[float] = []
    ended = cut = False
    for action in actions:
        observation, reward, ended, cut, _ = environment.step(action)
        seen.append(_row(observation))
        rewards.append(float(reward))
        if ended or cut:
            break
    return Episode(np.stack(seen), actions[: len(rewards)], np.array(rewards, dtype=np.float64), bool(ended))
