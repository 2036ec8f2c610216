"""What a run's promise is worth in the true environment: three returns side by side.

    promised    what the graph says: the undiscounted returns of its policy's walks, as long as an episode is
    replayed    what the actions of the same walks earn in the environment, played open loop from the same states
    cloned      what the policy earns that was cloned from them

Between promised and replayed lie the errors of stitches and the rounding of logs, which a replay drags along; between
replayed and cloned lie feedback, which mends them, and what cloning lost. The walks begin in the graph's start states
nearest to where the policy's episodes begin. They take an environment that can be put into a state; elsewhere only the
policy is judged.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Discrete
from jaxtyping import Float, Int
from scipy.spatial import cKDTree

from bats.arrays import Metric, Progress, no_progress
from bats.data.episodes import plural
from bats.errors import SettingError
from bats.evaluation.episodes import (
    STARTS_PER_CELL,
    Environment,
    environments,
    evaluate,
    interval,
    maze_of,
    replay,
    step_limit,
)
from bats.graph.mdp import TabularMDP
from bats.graph.rollouts import undiscounted_return, walk
from bats.metric.scaled import ScaledMetric
from bats.policy.policy import Policy
from bats.runs.folder import RunFolder
from bats.runs.solve_again import Changes, resolve
from bats.storage.atomic import atomic_path
from bats.tasks.maze2d import Maze, Maze2dEnv, stratified_starts
from bats.tasks.recording import Episode
from bats.tasks.worlds import WorldEnv

EPISODES = 100
"""from an environment's own starts, where no number is given"""
OTHER_STARTS_PER_CELL = 4
"""in the mazes that `STARTS_PER_CELL` does not name"""


@dataclass(frozen=True)
class Earned:
    """What episodes earned in the mean, and the ends of a 95% bootstrap interval."""

    mean_return: float
    low: float
    high: float
    score: float | None
    """the same normalised, where the task has reference scores"""
    score_low: float | None
    score_high: float | None
    episodes: int

    @classmethod
    def of(cls, returns: Float[np.ndarray, "n"], maze: Maze | None, *, seed: int) -> Earned:
        def score(earned: float) -> float | None:
            return None if maze is None else float(maze.normalised_score(earned))

        mean, (low, high) = float(returns.mean()), interval(returns, seed=seed)
        return cls(mean, low, high, score(mean), score(low), score(high), len(returns))


@dataclass(frozen=True, eq=False)
class Judgement:
    """What an environment says of a policy, and of the graph that it was cloned from."""

    environment: str
    starts: str
    """where the policy's episodes began, in words"""
    episodes: int
    seed: int
    promised: Earned | None
    """of a run only, in environments that can be put into a state"""
    replayed: Earned | None
    cloned: Earned
    played: tuple[Episode, ...]
    """the policy's episodes, where recording was asked for"""

    @property
    def columns(self) -> dict[str, Earned]:
        """What there is of promised, replayed and cloned."""
        held = {"promised": self.promised, "replayed": self.replayed, "cloned": self.cloned}
        return {name: earned for name, earned in held.items() if earned is not None}

    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Writes it as JSON, as `bats-rl report` reads it from the folder of a run."""
        told = {name: getattr(self, name) for name in ("environment", "starts", "episodes", "seed")}
        for name, earned in self.columns.items():
            told[name] = {part: number for part, number in asdict(earned).items() if number is not None}
        with atomic_path(Path(path), overwrite=overwrite) as temporary:
            temporary.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def judge(
    policy: Policy,
    environment: str,
    *,
    run: RunFolder | None = None,
    episodes: int | None = None,
    seed: int = 0,
    record: bool = False,
    progress: Progress = no_progress,
) -> Judgement:
    """Plays a policy in an environment that Gymnasium knows by name, and the walks of the `run` that it comes from.

    `episodes` begin where the environment begins them. Without a number, mazes are judged from the same number of
    starts in every cell, others in 100 episodes.
    """
    venue = _Venue.of(environment, policy)
    if episodes is None and venue.maze is not None:
        per_cell = STARTS_PER_CELL.get(venue.maze.name, OTHER_STARTS_PER_CELL)
        starts, told = stratified_starts(venue.maze, per_cell, seed=seed), f"{per_cell} in every cell of the maze"
        played = evaluate(policy, environment, starts=starts, seed=seed, record=record, progress=progress)
    else:
        told, count = "the environment's own", EPISODES if episodes is None else episodes
        played = evaluate(policy, environment, episodes=count, seed=seed, record=record, progress=progress)
    promised = replayed = None
    if run is not None and venue.takes_states:
        promised, replayed = _promised_and_replayed(run, venue, played.starts, seed=seed, progress=progress)
    return Judgement(
        environment=venue.name,
        starts=told,
        episodes=len(played.returns),
        seed=seed,
        promised=promised,
        replayed=replayed,
        cloned=Earned.of(played.returns, venue.maze, seed=seed),
        played=played.episodes,
    )


def nearest_starts(mdp: TabularMDP, wanted: Float[np.ndarray, "n D"], metric: Metric) -> Int[np.ndarray, "n"]:
    """The start state of the graph nearest to each wanted state."""
    tree = cKDTree(metric.embed(mdp.states[mdp.starts].astype(np.float64)))
    return mdp.starts[tree.query(metric.embed(wanted))[1]]


@dataclass(frozen=True)
class _Venue:
    """An environment as a place to be judged in."""

    environment: str
    """as it was asked for"""
    name: str
    steps: int
    """most steps of an episode"""
    maze: Maze | None
    takes_states: bool
    """it begins where `reset(options={"state": …})` says, and its observations are such states"""

    @classmethod
    def of(cls, environment: str, policy: Policy) -> _Venue:
        """Makes the environment once to look at it; refused where the policy is of another kind."""
        with environments(environment, 1) as made:
            one, steps = made[0], step_limit(made[0])
            assert one.spec is not None  # or there would be no limit, which is refused
            assert steps is not None
            _check_fit(policy, one, environment)
            takes_states = isinstance(one.unwrapped, Maze2dEnv | WorldEnv)
            return cls(environment, one.spec.id, steps, maze_of(one), takes_states)


def _promised_and_replayed(
    run: RunFolder, venue: _Venue, starts: Float[np.ndarray, "n D"], *, seed: int, progress: Progress
) -> tuple[Earned, Earned]:
    """What the graph promises from its start states nearest to those given, and what its actions earn from there."""
    metric = ScaledMetric(np.array(run.finished().metric, dtype=np.float32))
    solved = resolve(run, Changes())
    first_states = nearest_starts(solved.mdp, starts, metric)
    walks = walk(solved.mdp, solved.solution.policy, first_states, venue.steps)
    replayed = replay(solved.mdp, walks, first_states, venue.environment, seed=seed, progress=progress)
    promised = undiscounted_return(solved.mdp, walks)
    return Earned.of(promised, venue.maze, seed=seed), Earned.of(replayed.returns, venue.maze, seed=seed)


def _check_fit(policy: Policy, environment: Environment, name: str) -> None:
    """Complains where an environment shows or takes other things than the policy was cloned from."""
    seen, taken = environment.observation_space, environment.action_space
    numbers = 1 if isinstance(seen, Discrete) else int(np.prod(seen.shape)) if isinstance(seen, Box) else None
    if numbers != len(policy.mean):
        found = type(seen).__name__ if numbers is None else plural(numbers, "number")
        raise SettingError(f"The policy looks at {plural(len(policy.mean), 'number')}, but '{name}' shows {found}.")
    if policy.action_count is not None:
        fits = isinstance(taken, Discrete) and policy.action_count <= taken.n
        wanted = f"one of {policy.action_count} actions"
    else:
        fits = isinstance(taken, Box) and taken.shape == policy.low.shape
        wanted = f"actions of {plural(len(policy.low), 'number')}"
    if not fits:
        raise SettingError(f"The policy answers with {wanted}, but '{name}' takes {taken}.")
