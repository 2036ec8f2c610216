"""Soft actor-critic in an environment: the losses and the updates of the offline methods, on a log that grows.

    a block of steps with the policy as it is -> as many updates on all steps so far -> the next block

Everything follows from the seed and from numbers of steps, episodes and updates, so a collection that was stopped goes
on from the steps and the networks alone: the environment is put back by resetting it to the seed of the unfinished
episode and repeating the actions. The environment must be deterministic, as Gymnasium's own are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bats.arrays import Arrays, Progress, field_values, no_progress, take
from bats.baselines.config import OnlineConfig
from bats.baselines.core import Log, Sizes, TrainingState, advance
from bats.baselines.methods.sac import METHOD
from bats.baselines.training import Progressed, Scales, Trainer
from bats.config import Seed, checked
from bats.data.dataset import Dataset
from bats.data.episodes import Note
from bats.errors import BatsError, DataError, SettingError
from bats.evaluation.episodes import evaluate, open_environments
from bats.networks.files import fill_tree, tree_arrays
from bats.policy.policy import Policy
from bats.runs.interrupts import noted_interrupts, stoppable
from bats.storage.json_records import read_value, to_plain
from bats.storage.schema import build
from bats.storage.tensors import read_tensors, write_tensors
from bats.streams import Stream, generator
from bats.tasks.common import check_rows
from bats.tasks.episodes import Environment
from bats.tasks.locomotion import MIXED_ROWS, MIXED_SCORE, MixedCollector, Robot

SAVE_SECONDS = 180.0
"""how often a collection that is to be kept is saved"""
UPDATES = 100
"""in one call of the compiled program: between two calls progress is shown"""
FINAL_EPISODES = 100
"""of the last policy: the evaluation that ended the log was chosen because it was good"""
_KIND = "bats-online"


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps in an environment in the order of time, in single precision, as D4RL's logs and the networks have them."""

    observations: Float[np.ndarray, "N D"]
    actions: Float[np.ndarray, "N A"]
    rewards: Float[np.ndarray, "N"]
    next_observations: Float[np.ndarray, "N D"]
    terminations: Bool[np.ndarray, "N"]
    episode_ends: Bool[np.ndarray, "N"]
    """by a termination or a time limit"""

    @classmethod
    def empty(cls, count: int, sizes: Sizes) -> Steps:
        states, actions = np.empty((2, count, sizes.states), np.float32), np.empty((count, sizes.actions), np.float32)
        flags = np.empty((2, count), bool)
        return cls(states[0], actions, np.empty(count, np.float32), states[1], *flags)

    def __len__(self) -> int:
        return len(self.rewards)

    def put(self, row: int, *values: object) -> None:
        for field, value in zip(fields(self), values, strict=True):
            getattr(self, field.name)[row] = value

    def dataset(self, *, name: str, notes: tuple[Note, ...] = ()) -> Dataset:
        """The steps as a log; an unfinished episode ends where they do."""
        last = np.arange(len(self)) == len(self) - 1
        return Dataset.from_arrays(
            self.observations,
            self.actions,
            self.rewards,
            next_observations=self.next_observations,
            terminations=self.terminations,
            timeouts=(self.episode_ends | last) & ~self.terminations,
            timeout_rule="trust",
            name=name,
            notes=notes,
        )


@dataclass(frozen=True)
class Tried:
    """An evaluation of the policy after so many steps."""

    step: int
    mean_return: float


@dataclass(frozen=True, eq=False)
class OnlineRun:
    """What was collected, and what it has taught."""

    steps: Steps
    evaluations: tuple[Tried, ...]
    policy: Policy


@dataclass(frozen=True, eq=False)
class _Reached:
    """How far a collection has come, at the end of a block."""

    steps: int
    states: TrainingState
    evaluations: tuple[Tried, ...] = ()


def train_online(
    environment: str,
    config: OnlineConfig,
    *,
    seed: int,
    unfinished: Path | None = None,
    progress: Progress = no_progress,
) -> OnlineRun:
    """Trains in an environment with continuous actions, until an evaluation is good enough or all steps are done.

    With a file `unfinished` the collection is kept there now and then and when it is interrupted, and goes on from it.
    """
    seed = checked("seed", Seed, seed)
    with noted_interrupts(), open_environments(environment, 1 + config.episodes) as (training, *others):
        run = _Collection(environment, training, config, seed)
        reached = run.load(unfinished) if unfinished is not None and unfinished.exists() else run.beginning()
        saved, shown = time.monotonic(), stoppable(progress)
        try:
            while not run.is_finished(reached):
                reached = run.next_block(reached, others, shown)
                if unfinished is not None and time.monotonic() - saved > SAVE_SECONDS:
                    run.save(reached, unfinished)
                    saved = time.monotonic()
        finally:  # also where it was interrupted
            if unfinished is not None:
                run.save(reached, unfinished)
        progress("collecting", config.steps, config.steps)
        return OnlineRun(take(run.steps, slice(reached.steps)), reached.evaluations, run.policy(reached.states))


class _Collection:
    """The environment, the steps taken in it, and the same steps on the device."""

    def __init__(self, name: str, environment: Environment, config: OnlineConfig, seed: int) -> None:
        self._environment, self._config, self._seed = environment, config, seed
        actions, observations = _box(environment.action_space), _box(environment.observation_space)
        if not actions.is_bounded():
            raise SettingError(f"Online training needs actions between bounds; got {actions}.")
        sizes = Sizes(observations.shape[0], actions.shape[0], discrete=False)
        ends = actions.low.astype(np.float32), actions.high.astype(np.float32)
        self._scales = Scales(np.zeros(sizes.states, np.float32), np.ones(sizes.states, np.float32), *ends)
        self.steps = Steps.empty(config.steps, sizes)
        table = jnp.zeros((1, config.steps, 2 * (sizes.states + sizes.actions + 1)), jnp.float32)
        log = Log(table, jnp.zeros(1, jnp.int32), sizes.states, sizes.actions, discrete=False)
        self._trainer = Trainer(METHOD, config.sac, log, (self._scales,), sizes, (0,), (seed,), None)
        self._facts = {"environment": name, "seed": seed, "settings": to_plain(config)}
        self._episode, self._observation = 0, self._reset(0)

    def beginning(self) -> _Reached:
        return _Reached(0, self._trainer.initial())

    def policy(self, states: TrainingState) -> Policy:
        return self._trainer.policy(states, 0)

    def is_finished(self, reached: _Reached) -> bool:
        config, last = self._config, reached.evaluations[-1:]
        good = config.enough is not None and any(tried.mean_return >= config.enough for tried in last)
        return reached.steps >= config.steps or good

    def next_block(self, reached: _Reached, others: list[Environment], progress: Progress) -> _Reached:
        """Takes the steps of a block and makes its updates; evaluates the policy where an evaluation is due."""
        config, first = self._config, reached.steps
        # a block also ends where something else begins
        ends = [(first // every + 1) * every for every in (config.block, config.evaluate_every)]
        random = first < config.random_steps
        end = min(*ends, config.steps, *([config.random_steps] if random else []))
        shown = "".join(f" (last return {tried.mean_return:.0f})" for tried in reached.evaluations[-1:])

        def report(done: int) -> None:
            progress(f"collecting{shown}", done, config.steps)

        report(first)
        self._take_steps(first, end, None if random else self.policy(reached.states))
        states = reached.states if random else self._updated(reached.states, first, end, report)
        if end % config.evaluate_every:
            return replace(reached, steps=end, states=states)
        start_seed = int(generator(self._seed, Stream.ONLINE_EVALUATIONS, end).integers(2**31))
        found = evaluate(self.policy(states), others, episodes=config.episodes, seed=start_seed)
        return _Reached(end, states, (*reached.evaluations, Tried(end, found.mean_return)))

    def _take_steps(self, first: int, end: int, policy: Policy | None) -> None:
        """Steps with a policy, or with random actions; they are also put into the log on the device."""
        rng, scales = generator(self._seed, Stream.ONLINE_ACTIONS, first), self._scales
        for row in range(first, end):
            if policy is None:
                action = rng.uniform(scales.low, scales.high).astype(np.float32)
            else:
                action = policy.predict(self._observation, deterministic=False, rng=rng)
            following, reward, terminated, truncated, _ = self._environment.step(action)
            before, after = self._observation, np.asarray(following, np.float32)
            self.steps.put(row, before, action, reward, after, terminated, terminated or truncated)
            self._observation = after
            if terminated or truncated:
                self._episode += 1
                self._observation = self._reset(self._episode)
        self._fill(first, end)

    def _updated(self, states: TrainingState, first: int, end: int, report: Callable[[int], None]) -> TrainingState:
        """The states after an update for each step of a block."""
        trainer, keys, logs = self._trainer, jax.random.key(self._seed)[None], jnp.zeros(1, jnp.int32)
        for done in range(first, end, UPDATES):
            count = jnp.int32(min(UPDATES, end - done))
            states = advance((trainer.log, METHOD, trainer.config), count, states, keys, logs, None)
            if found := Progressed(states, int(states.update[0]), is_snapshot=False).divergence(0):
                raise BatsError(f"Training in {self._facts['environment']} has diverged: {found}.")
            report(min(done + UPDATES, end))
        return states

    def _fill(self, first: int, end: int) -> None:
        """Puts steps into the log on the device."""
        steps, scales, log = take(self.steps, slice(first, end)), self._scales, self._trainer.log
        actions = (steps.actions - scales.centre) / scales.half
        numbers = steps.rewards[:, None], ~steps.terminations[:, None]
        # no loss looks at the next actions
        rows = np.hstack([steps.observations, actions, *numbers, steps.next_observations, actions], dtype=np.float32)
        log = replace(log, table=_with_rows(log.table, rows, first), count=jnp.array([end], jnp.int32))
        self._trainer = replace(self._trainer, log=log)

    def _reset(self, episode: int) -> Float[np.ndarray, "D"]:
        """The first observation of an episode."""
        start_seed = int(generator(self._seed, Stream.ONLINE_EPISODES, episode).integers(2**31))
        return np.asarray(self._environment.reset(seed=start_seed)[0], np.float32)

    def save(self, reached: _Reached, path: Path) -> None:
        steps = {f"steps.{name}": array[: reached.steps] for name, array in field_values(self.steps).items()}
        facts = {**self._facts, "evaluations": to_plain(reached.evaluations)}
        write_tensors(path, _KIND, steps | tree_arrays(reached.states), facts, overwrite=True)

    def load(self, path: Path) -> _Reached:
        """What was saved; the environment is put where it was."""
        arrays, facts = read_tensors(path, _KIND)
        for name, expected in self._facts.items():
            if facts.get(name) != expected:
                hint = "Remove the file to begin again."
                raise DataError(f"{expected}", f"{facts.get(name)}", file=str(path), field=name, hint=hint)
        named: Arrays = {name.removeprefix("steps."): array for name, array in arrays.items()}
        saved = build(Steps, named, file=str(path))
        if len(saved) > len(self.steps):
            raise DataError(f"at most {len(self.steps):,} steps", f"{len(saved):,}", file=str(path))
        for field in fields(saved):
            getattr(self.steps, field.name)[: len(saved)] = getattr(saved, field.name)
        self._fill(0, len(saved))
        self._return_to(saved, path)
        states = fill_tree(self._trainer.initial(), arrays, file=str(path))
        evaluations = read_value(tuple[Tried, ...], facts.get("evaluations"), str(path), "evaluations")
        return _Reached(len(saved), states, evaluations)

    def _return_to(self, steps: Steps, path: Path) -> None:
        """Plays the unfinished episode again."""
        ends = np.flatnonzero(steps.episode_ends)
        self._episode = len(ends)
        self._observation = self._reset(self._episode)
        for row in range(ends[-1] + 1 if len(ends) else 0, len(steps)):
            self._observation = np.asarray(self._environment.step(steps.actions[row])[0], np.float32)
            if not np.array_equal(self._observation, steps.next_observations[row]):
                hint = "The file may come from another machine or another version of the environment."
                raise DataError("the state that the environment gives", "another", file=str(path), row=row, hint=hint)


def _box(space: gymnasium.Space[Any]) -> gymnasium.spaces.Box:
    """The space of observations or actions that are rows of numbers; others are refused."""
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1:
        return space
    raise SettingError(f"Online training needs observations and actions that are rows of numbers; got {space}.")


@partial(jax.jit, donate_argnums=0)
def _with_rows(
    table: Float[Array, "one N columns"], rows: Float[Array, "n columns"], first: Int[Array, ""]
) -> Float[Array, "one N columns"]:
    return jax.lax.dynamic_update_slice(table, rows[None], (0, first, 0))


def collect_mixed(collector: MixedCollector, rows: int | None, seed: int, *, progress: Progress) -> Dataset:
    """The steps of online training until the policy is a third as good as D4RL's expert, with notes on it."""
    robot = collector.robot
    config = OnlineConfig(steps=check_rows(rows, MIXED_ROWS), enough=robot.mixed_return)
    run = train_online(robot.environment, config, seed=seed, unfinished=collector.unfinished, progress=progress)
    start_seed = int(generator(seed, Stream.ONLINE_EVALUATIONS, len(run.steps), 1).integers(2**31))
    with open_environments(robot.environment, config.episodes) as opened:  # a hundred of them take a while to make
        returns = evaluate(run.policy, opened, episodes=FINAL_EPISODES, seed=start_seed).returns
    return run.steps.dataset(name=collector.task, notes=_notes(robot, config, seed, run, returns))


def _notes(
    robot: Robot, config: OnlineConfig, seed: int, run: OnlineRun, returns: Float[np.ndarray, "n"]
) -> tuple[Note, ...]:
    """How a mixed log was made, why it ends where it does, and what its last policy earns."""
    versions = ", ".join(f"{package} {version(package)}" for package in ("gymnasium", "mujoco"))
    made = f"All steps of soft actor-critic while it learned in {robot.environment} ({versions}), seed {seed}: first "
    made += f"{config.random_steps:,} random steps, then blocks of {config.block:,} steps with as many updates."
    tried = [float(robot.normalised_score(one.mean_return)) for one in run.evaluations]
    rule = f"an evaluation ({config.episodes} episodes without noise every {config.evaluate_every:,} steps)"
    ended = f"It ends after {len(run.steps):,} steps, before a score of {MIXED_SCORE} in {rule}"
    if run.evaluations and run.evaluations[-1].mean_return >= robot.mixed_return:
        ended = f"It ends with the first score of {MIXED_SCORE} or more in {rule}"
    ended += f"; the last score was {tried[-1]:.1f}, the best {max(tried):.1f}." if tried else "."
    scores = robot.normalised_score(returns)
    error = scores.std(ddof=1) / len(scores) ** 0.5
    earns = f"The last policy has a mean return of {returns.mean():.1f} over {len(returns)} other episodes, a score of "
    earns += f"{scores.mean():.1f} with a standard error of {error:.1f}. Scores are by D4RL's references, "
    earns += f"{robot.random_return:g} and {robot.expert_return:g}."
    return tuple(Note("fact", text) for text in (made, ended, earns))
