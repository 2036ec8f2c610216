"""Episodes of Gymnasium environments: the loop that plays them, and the log that they make.

Everything that is played goes through `play`: logs are collected by a controller that sees one observation at a time,
policies are evaluated on the observations of all running episodes together, and the actions of a graph are replayed
open loop, whatever is observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Float
from numpy.random import Generator

from bats.arrays import Actions, Progress, RowNumbers, no_progress
from bats.data.dataset import Dataset
from bats.errors import BatsError, SettingError
from bats.tasks.common import draw_seeds

Environment = gymnasium.Env[Any, Any]
Controller = Callable[[np.ndarray], Any]
"""the action for one observation"""
ChooseActions = Callable[[np.ndarray, Sequence[int], int], Iterable[Any]]
"""the actions for the observations of all running episodes, given the indices of these episodes and the step; an action
of None stops its episode"""
SetState = Callable[[Environment, np.ndarray], Any]
"""puts an environment that was just reset into a state, and returns its observation, which is that state"""


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode: a row per step, and one more observation than rows."""

    observations: Float[np.ndarray, "M D"]
    """only the first one if the others were not kept"""
    actions: Actions
    rewards: RowNumbers
    terminated: bool
    """the task ended in the last row; otherwise a limit was reached, or there were no more actions"""

    def __len__(self) -> int:
        return len(self.rewards)


def play(
    environments: Sequence[Environment],
    choose: ChooseActions,
    *,
    seeds: Sequence[int | None],
    states: Float[np.ndarray, "n D"] | None = None,
    set_state: SetState | None = None,
    max_steps: int | None = None,
    keep_observations: bool = True,
    progress: Progress = no_progress,
    stage: str = "playing",
) -> list[Episode]:
    """Plays one episode per seed, from `states` if given: one in each environment at a time, further ones in turn.

    An episode runs until its environment ends it, `choose` returns None for it, or `max_steps` are done. Without
    `set_state`, an environment is asked for a state with `reset(options={"state": …})`.
    """
    turns = range(0, len(seeds), len(environments))
    # Progress counts steps, not episodes, because episodes with a time limit tend to end all at once.
    turn_steps = max_steps or step_limit(environments[0]) or 1
    total = len(turns) * turn_steps
    episodes: list[Episode] = []
    for turn, first in enumerate(turns):
        recorders: dict[int, _Recorder] = {}
        for i, environment in zip(range(first, len(seeds)), environments, strict=False):
            if states is not None and set_state is not None:
                current = placed(environment, states[i], set_state, seed=seeds[i])
            else:
                options = None if states is None else {"state": states[i]}
                current = _as_row(environment.reset(seed=seeds[i], options=options)[0])
            recorders[i] = _Recorder(environment, current, keep_observations)
        running, step = list(recorders), 0
        while running and (max_steps is None or step < max_steps):
            progress(stage, min(turn * turn_steps + step, total), total)
            # one call for all running episodes: a network answers many observations as fast as one
            actions = choose(np.stack([recorders[i].current for i in running]), running, step)
            chosen = zip(running, actions, strict=True)
            running = [i for i, action in chosen if action is not None and recorders[i].step(action)]
            step += 1
        progress(stage, min(turn * turn_steps + step, total), total)
        episodes += [recorder.episode() for recorder in recorders.values()]
    return episodes


def placed(
    environment: Environment, state: Float[np.ndarray, "D"], set_state: SetState, *, seed: int | None = None
) -> Float[np.ndarray, "D"]:
    """Resets an environment and puts it into a state; the observation after that, which must be the state."""
    environment.reset(seed=seed)
    name = getattr(set_state, "__name__", "set_state")
    try:
        observation = set_state(environment, state.copy())
        found = np.empty(0) if observation is None else _as_row(observation)
    except Exception as error:  # the user's function may raise anything
        failure = f"{type(error).__name__}: {error}"
        raise SettingError(f"{name} failed to set the state {state.tolist()}: {failure}.") from error
    # a function may have to compute an angle from its sine and cosine, which costs half of the digits at worst
    types = [state.dtype, np.dtype(environment.observation_space.dtype)]
    tolerance = np.sqrt(max(np.finfo(dtype if dtype.kind == "f" else np.float64).eps for dtype in types))
    if found.shape != state.shape or not np.allclose(found, state, rtol=tolerance, atol=tolerance):
        got = "nothing" if observation is None else f"{found.tolist()}"
        raise SettingError(f"{name} must return the observation, which must be the state {state.tolist()}; got {got}.")
    return found


class _Recorder:
    """An episode while it is being played."""

    def __init__(self, environment: Environment, first: np.ndarray, keep_observations: bool) -> None:
        self._environment, self._keep_observations = environment, keep_observations
        self.current, self._observations = first, [first]
        self._actions: list[Any] = []
        self._rewards: list[float] = []
        self._terminated = False

    def step(self, action: Any) -> bool:
        """Takes one step. Returns whether the episode continues."""
        observation, reward, terminated, truncated, _ = self._environment.step(action)
        self.current, self._terminated = _as_row(observation), bool(terminated)
        self._actions.append(action)
        self._rewards.append(float(reward))
        if self._keep_observations:
            self._observations.append(self.current)
        return not (terminated or truncated)

    def episode(self) -> Episode:
        # Without a single step only the action space knows the shape of an action.
        space = self._environment.action_space
        actions = np.array(self._actions) if self._actions else np.empty((0, *(space.shape or ())), space.dtype)
        rewards = np.array(self._rewards, dtype=np.float64)
        return Episode(np.stack(self._observations), actions, rewards, self._terminated)


def closed_loop(controller: Controller) -> ChooseActions:
    """Calls the controller with each observation by itself."""
    return lambda observations, episodes, step: [controller(observation) for observation in observations]


def open_loop(actions: Sequence[np.ndarray]) -> ChooseActions:
    """Plays a list of actions in each episode; the episode stops at the end of its list."""
    return lambda observations, episodes, step: [actions[i][step] if step < len(actions[i]) else None for i in episodes]


def play_rows(
    environment: Environment, new_controller: Callable[[], Controller], rows: int, rng: Generator, progress: Progress
) -> list[Episode]:
    """Plays episodes with a new controller each until there are `rows` rows; the last one is truncated there."""
    episodes: list[Episode] = []
    done = 0
    while done < rows:
        progress("collecting", done, rows)
        choose = closed_loop(new_controller())
        episodes += play([environment], choose, seeds=draw_seeds(rng, 1), max_steps=rows - done)
        done += len(episodes[-1])
    progress("collecting", rows, rows)
    return episodes


def as_dataset(episodes: Sequence[Episode], *, name: str, action_count: int | None = None) -> Dataset:
    """The episodes as a log, one after another."""
    lengths = [len(episode) for episode in episodes]
    last = np.concatenate([np.arange(length) == length - 1 for length in lengths])
    terminated = np.repeat([episode.terminated for episode in episodes], lengths)
    return Dataset.from_arrays(
        np.concatenate([episode.observations[:-1] for episode in episodes]),
        np.concatenate([episode.actions for episode in episodes]),
        np.concatenate([episode.rewards for episode in episodes]),
        next_observations=np.concatenate([episode.observations[1:] for episode in episodes]),
        terminations=last & terminated,
        timeouts=last & ~terminated,
        # the other rules guess from the next row whether a timeout is real; these are known to be
        timeout_rule="trust",
        action_count=action_count,
        name=name,
    )


def make_environment(environment: str) -> Environment:
    """One of Gymnasium's own environments, or an error that says which extra of this package it needs."""
    try:
        return gymnasium.make(environment, disable_env_checker=True)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        # as in `gymnasium.envs.mujoco.hopper_v5:HopperEnv`, whose error would name Gymnasium's extra
        extra = str(gymnasium.spec(environment).entry_point).split(".")[2]
        raise BatsError(f"{environment} needs packages that are missing: pip install 'bats-rl[{extra}]'") from error


def step_limit(environment: Environment) -> int | None:
    """The maximum length of an episode, if the environment was registered with one."""
    return None if environment.spec is None else environment.spec.max_episode_steps


def _as_row(observation: Any) -> Float[np.ndarray, "D"]:
    """A copy of an observation as a row of floats; a discrete one is a row of one number."""
    row = np.array(observation).ravel()  # copied, as some environments write every observation into the same array
    if row.dtype.kind not in "biuf":
        raise SettingError(f"Observations must be numbers or arrays of numbers; got {type(observation).__name__}.")
    return row if row.dtype.kind == "f" else row.astype(np.float64)
