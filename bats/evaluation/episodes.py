"""Returns in the real environment: of a policy, and of a graph's actions replayed open loop, with intervals.

The environment only measures. Nothing that is fitted or selected depends on it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from jaxtyping import Float, Int
from scipy.stats import DegenerateDataWarning, bootstrap

from bats.arrays import Progress, no_progress, short_repr
from bats.config import Count, Function, Seed, checked
from bats.errors import BatsError, SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import TabularMDP
from bats.graph.rollouts import Rollouts
from bats.storage.json_records import shown
from bats.tasks.catalogue import task_of_environment
from bats.tasks.common import draw_seeds, generator
from bats.tasks.episodes import ChooseActions, Environment, Episode, SetState, open_loop, play, step_limit
from bats.tasks.locomotion import made_quietly

Environments = str | Sequence[Environment]
"""an id that Gymnasium knows, or environments that are used in turn"""
AT_ONCE = 256
"""environments that are opened for one evaluation; further episodes take turns"""
RESAMPLES = 9999


@runtime_checkable
class Actor(Protocol):
    """Anything with an action for each row of observations, such as a `Policy`."""

    def predict(self, observation: np.ndarray, /) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The returns of episodes."""

    returns: Float[np.ndarray, "n"]
    lengths: Int[np.ndarray, "n"]
    scores: Float[np.ndarray, "n"] | None
    """normalised returns, if the task has reference scores"""
    starts: Float[np.ndarray, "n D"]
    """the first observation of each episode"""
    episodes: tuple[Episode, ...]
    """empty unless they were recorded"""

    __repr__ = short_repr

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())


def evaluate(
    actor: Actor | ChooseActions,
    environment: Environments,
    *,
    episodes: int | None = None,
    starts: Float[np.ndarray, "n D"] | None = None,
    set_state: SetState | None = None,
    seed: int = 0,
    record: bool = False,
    progress: Progress = no_progress,
) -> Evaluation:
    """Plays episodes from the environment's own start states, or from `starts` if it can be put into a state.

    `set_state(environment, state)` puts an environment that was just reset into a state and returns the observation;
    without it, the environment is asked for the state with `reset(options={"state": …})`, which few understand.
    `actor`: a `Policy`, for example, or a function `ChooseActions`, which also gets the episodes and the step. An
    episode lasts until the environment ends it, so the environment must have a time limit.
    """
    seed, episodes = checked("seed", Seed, seed), checked("episodes", Count | None, episodes)
    record, progress = checked("record", bool, record), checked("progress", Function, progress)
    set_state = checked("set_state", Function | None, set_state)
    if not isinstance(actor, Actor) and not callable(actor):
        raise SettingError(f"`actor` must be a policy or a function that chooses actions; got {shown(actor)}.")
    if (episodes is None) == (starts is None):
        raise SettingError("Give exactly one of `episodes` (a number) and `starts` (one start state per episode).")
    starts = None if starts is None else _start_states(starts)
    count = episodes if starts is None else len(starts)

    def choose(observations: np.ndarray, running: Sequence[int], step: int) -> Iterable[Any]:
        return actor.predict(observations) if isinstance(actor, Actor) else actor(observations, running, step)

    seeds = draw_seeds(generator(seed), count)
    with open_environments(environment, min(count, AT_ONCE)) as opened:
        played = play(
            opened,
            choose,
            seeds=seeds,
            states=starts,
            set_state=set_state,
            keep_observations=record,
            progress=progress,
        )
        task = task_of_environment(opened[0])
    returns = np.array([episode.rewards.sum() for episode in played])
    lengths = np.array([len(episode) for episode in played])
    scores = None if task is None or task.score is None else task.score(returns)
    first_observations = np.stack([episode.observations[0] for episode in played])
    return Evaluation(returns, lengths, scores, first_observations, tuple(played) if record else ())


def replay(
    mdp: TabularMDP,
    rollouts: Rollouts,
    first_states: Int[np.ndarray, "n"],
    environment: Environments,
    *,
    set_state: SetState | None = None,
    seed: int = 0,
    record: bool = False,
    progress: Progress = no_progress,
) -> Evaluation:
    """Plays the actions of rollouts in a graph open loop, each from exactly the state where the rollout starts.

    Only for environments that can be put into a state, as in `evaluate`. A rollout that stops in the graph has no
    further actions, so its replay stops there too, if the environment has not ended it before.
    """
    starts, count = mdp.states[first_states], len(rollouts.edge)
    if len(starts) < 1 or len(starts) != count:
        raise SettingError(f"A replay needs one first state per rollout; got {len(starts)} for {count} rollouts.")
    # A discrete action is a 64-bit integer in Gymnasium, whatever the graph stores.
    actions = mdp.action if mdp.action_count is None else mdp.action.astype(np.int64)
    choose = open_loop([actions[edges[edges != NO_EDGE]] for edges in rollouts.edge])

    def replaying(stage: str, done: int, total: int) -> None:
        progress("replaying", done, total)

    return evaluate(
        choose, environment, starts=starts, set_state=set_state, seed=seed, record=record, progress=replaying
    )


def interval(values: Float[np.ndarray, "n"], *, seed: int = 0) -> tuple[float, float]:
    """A 95% bootstrap interval for the mean, bias-corrected and accelerated; a single point if all values are equal.

    For stratified starts it is a little too wide, because the resamples are not stratified.
    """
    mean = float(values.mean())
    if len(values) < 2 or np.ptp(values) == 0:
        return mean, mean
    with np.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
        # nearly constant values are dealt with below, and are no concern of the caller's
        warnings.simplefilter("ignore", DegenerateDataWarning)
        rng = np.random.default_rng(seed)
        result = bootstrap((values,), np.mean, confidence_level=0.95, n_resamples=RESAMPLES, rng=rng)
    low, high = float(result.confidence_interval.low), float(result.confidence_interval.high)
    # If almost all values are equal, the acceleration is not defined and the ends are not numbers.
    return (low, high) if np.isfinite([low, high]).all() else (mean, mean)


def _start_states(starts: object) -> Float[np.ndarray, "n D"]:
    """Start states as a table of numbers, one row per episode."""
    try:
        table = np.asarray(starts, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        table = np.empty(0)
    if table.ndim != 2 or table.size == 0 or not np.isfinite(table).all():
        raise SettingError(f"`starts` must be finite numbers, one row per episode; got {shown(starts)}.")
    return np.asarray(starts)


@contextmanager
def open_environments(environment: Environments, count: int) -> Iterator[list[Environment]]:
    """Makes `count` environments and closes them after the block; given environments are used and left open."""
    if not isinstance(environment, str):
        listed = isinstance(environment, Sequence) and len(environment) > 0
        if not listed or not all(hasattr(one, "reset") for one in environment):
            expected = "the id of a Gymnasium environment, or a list of environments"
            raise SettingError(f"`environment` must be {expected}; got {shown(environment)}.")
        yield list(environment)
        return
    with ExitStack() as closing:
        try:
            with made_quietly(environment):
                opened = [
                    closing.enter_context(gymnasium.make(environment, disable_env_checker=True)) for _ in range(count)
                ]
        except Exception as error:  # the id may be `module:name`, and the user's module may raise anything
            raise BatsError(f"Gymnasium cannot make '{environment}': {error}") from error
        if step_limit(opened[0]) is None:
            raise SettingError(f"'{environment}' has no time limit, so an episode might never end.")
        yield opened
