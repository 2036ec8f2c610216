"""Predicted and actual returns of a run side by side.

    promised    undiscounted returns that the graph predicts for its rollouts, which are as long as an episode
    replayed    returns of the same actions in the environment, replayed open loop from the same states
    cloned      returns of the policy that was cloned from the graph

Promised and replayed differ by the errors of stitches and the rounding of logs, which add up in an open loop. Replayed
and cloned differ by feedback, which corrects errors, and by the errors of cloning. The rollouts start in the graph's
start states nearest to those of the policy's episodes. Promised and replayed need an environment that can be put into
a state, by itself or by a function of the user; elsewhere only the policy is evaluated.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Discrete
from jaxtyping import Float, Int
from scipy.spatial import cKDTree

from bats.arrays import Metric, Progress, no_progress
from bats.errors import SettingError
from bats.evaluation.episodes import evaluate, interval, open_environments, replay
from bats.graph.mdp import TabularMDP
from bats.graph.rollouts import roll_out, undiscounted_return
from bats.policy.files import policy_checksum
from bats.policy.policy import Policy
from bats.runs.folder import RunFolder
from bats.runs.result import run_metric, solve_again
from bats.storage.json_records import write_record
from bats.tasks.catalogue import Score, task_of_environment
from bats.tasks.episodes import Environment, Episode, SetState, placed

MEANING = {
    "promised": "mean return that the graph predicts for rollouts of its own policy, not discounted",
    "replayed": "mean return of the same actions in the environment, replayed open loop",
    "cloned": "mean return of the cloned policy in the environment",
}
EPISODES = 100
"""from an environment's own starts, if no number is given"""


@dataclass(frozen=True)
class ReturnEstimate:
    """A mean return with a 95% bootstrap interval."""

    mean_return: float
    low: float
    high: float
    score: float | None
    """the same normalised, if the task has reference scores"""
    score_low: float | None
    score_high: float | None
    episodes: int

    @classmethod
    def of(cls, returns: Float[np.ndarray, "n"], score: Score | None, *, seed: int) -> ReturnEstimate:
        mean, (low, high) = float(returns.mean()), interval(returns, seed=seed)
        scored, scored_low, scored_high = (None if score is None else float(score(x)) for x in (mean, low, high))
        return cls(mean, low, high, scored, scored_low, scored_high, len(returns))


@dataclass(frozen=True, eq=False)
class Comparison:
    """The returns of a policy in an environment, beside those of the graph that it was cloned from."""

    policy: str
    """checksum of the policy's file"""
    environment: str
    starts: str
    """the start states of the policy's episodes, in words"""
    episodes: int
    seed: int
    promised: ReturnEstimate | None
    """only of a run, and only in environments that can be put into a state; `replayed` too"""
    replayed: ReturnEstimate | None
    cloned: ReturnEstimate
    recorded: tuple[Episode, ...]
    """the policy's episodes, if they were recorded"""

    @property
    def columns(self) -> dict[str, ReturnEstimate]:
        """The estimates that exist, by name."""
        estimates = {"promised": self.promised, "replayed": self.replayed, "cloned": self.cloned}
        return {name: estimate for name, estimate in estimates.items() if estimate is not None}

    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Writes it as JSON, as `bats-rl report` reads it from the folder of a run."""
        record = {name: getattr(self, name) for name in ("policy", "environment", "starts", "episodes", "seed")}
        for name, estimate in self.columns.items():
            record[name] = {field: value for field, value in asdict(estimate).items() if value is not None}
        write_record(Path(path), record, overwrite=overwrite)


def compare(
    policy: Policy,
    environment: str,
    *,
    run: RunFolder | None = None,
    set_state: SetState | None = None,
    episodes: int | None = None,
    seed: int = 0,
    record: bool = False,
    progress: Progress = no_progress,
) -> Comparison:
    """Evaluates a policy in an environment that Gymnasium knows, and the graph of the `run` that it was cloned from.

    `episodes` start where the environment starts them. Without a number the task's own start states are used, or 100
    episodes if it has none: in a maze the same number in every cell. `set_state` as in `evaluate`, for the graph; the
    tasks that need one and can have one come with it.
    """
    if set_state is not None and run is None:
        raise SettingError("A function that sets the state needs the folder of a run: it is for the run's graph.")
    with open_environments(environment, 1) as (opened,):
        _check_spaces(policy, opened, environment)
        task, spec = task_of_environment(opened), opened.spec
        if set_state is None and task is not None:
            set_state = task.set_state
        takes_states = set_state is not None or (task is not None and task.takes_states)
        solution = solve_again(run) if run is not None and takes_states else None
        if set_state is not None and solution is not None:  # tried before the work
            placed(opened, solution.mdp.states[solution.mdp.starts[0]], set_state, seed=seed)
    # environments without a time limit are not opened, and only a spec has one
    assert spec is not None
    assert spec.max_episode_steps is not None

    starts, starts_summary = None, "the environment's own"
    if episodes is None and task is not None and task.starts is not None:
        starts, starts_summary = task.starts(seed), task.starts_summary
    elif episodes is None:
        episodes = EPISODES
    played = evaluate(
        policy, environment, episodes=episodes, starts=starts, seed=seed, record=record, progress=progress
    )

    estimate = partial(ReturnEstimate.of, score=None if task is None else task.score, seed=seed)
    promised, replayed, cloned = None, None, estimate(played.returns)
    if run is not None and solution is not None:
        mdp, metric = solution.mdp, run_metric(run.summary())
        # the graph only starts in logged states, so its rollouts start as near to the episodes as it can
        first_states = nearest_starts(mdp, played.starts, metric)
        rollouts = roll_out(mdp, solution.policy, first_states, spec.max_episode_steps)
        promised = estimate(undiscounted_return(mdp, rollouts))
        replayed = estimate(
            replay(mdp, rollouts, first_states, environment, set_state=set_state, seed=seed, progress=progress).returns
        )
    return Comparison(
        policy=policy_checksum(policy),
        environment=spec.id,
        starts=starts_summary,
        episodes=len(played.returns),
        seed=seed,
        promised=promised,
        replayed=replayed,
        cloned=cloned,
        recorded=played.episodes,
    )


def nearest_starts(mdp: TabularMDP, states: Float[np.ndarray, "n D"], metric: Metric) -> Int[np.ndarray, "n"]:
    """The start state of the graph nearest to each of the given states."""
    tree = cKDTree(metric.embed(mdp.states[mdp.starts].astype(np.float64)))
    return mdp.starts[tree.query(metric.embed(states))[1]]


def _check_spaces(policy: Policy, environment: Environment, name: str) -> None:
    """Refuses an environment whose observations or actions are of another kind than the policy's."""
    observations, actions = environment.observation_space, environment.action_space
    # a discrete observation has the empty shape, which is one number; dictionaries and texts have none
    size = None if observations.shape is None else int(np.prod(observations.shape))
    if size != len(policy.mean):
        observed = f"type {type(observations).__name__}" if size is None else f"size {size}"
        expected = f"The policy expects observations of size {len(policy.mean)}"
        raise SettingError(f"{expected}, but '{name}' has observations of {observed}.")
    if policy.action_count is not None:
        fits = isinstance(actions, Discrete) and policy.action_count <= actions.n
        output = f"one of {policy.action_count} discrete actions"
    else:
        fits = isinstance(actions, Box) and actions.shape == policy.low.shape
        output = f"actions of size {len(policy.low)}"
    if not fits:
        raise SettingError(f"The policy outputs {output}, but '{name}' expects {actions}.")
