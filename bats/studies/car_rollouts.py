"""Rollouts of a stitched graph beside what their actions do in the true car and in the learned model alone.

    graph       the states that the rollout visits in the graph
    replay      the true car, put into the first state, with the actions of the rollout played open loop
    model       the learned model from the same state with the same actions, each step from the last prediction

At the end of every stitch the graph is back in a logged state; the model on its own never is.

A stitch may end a little short of its target, so the true car may not have reached the goal when the rollout ends. The
replay then repeats the last action for a few steps, and replays that do not need that are counted as on time.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bats.arrays import Indices, Metric, Progress, no_progress
from bats.data.dataset import Dataset
from bats.data.distinct import merge_states
from bats.evaluation.episodes import open_environments
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED, TabularMDP
from bats.graph.rollouts import Rollouts, roll_out
from bats.metric.scaled import ScaledMetric
from bats.model.ensemble import Dynamics
from bats.runs.result import Result
from bats.streams import Stream, generator
from bats.tasks.episodes import Episode, open_loop, play
from bats.tasks.mountain_car import ENVIRONMENT, EPISODE_STEPS
from bats.tasks.zoo.classic_control import place_car

EXTRA_STEPS = 10
"""most steps for which the last action is repeated"""


@dataclass(frozen=True, eq=False)
class CarRollout:
    """One rollout in the graph, in the true car and in the model."""

    graph: Float[np.ndarray, "G 2"]
    """one more state than actions"""
    actions: Float[np.ndarray, "T"]
    stitched: Bool[np.ndarray, "T"]
    """which steps belong to a stitch"""
    replay: Float[np.ndarray, "R 2"]
    """until the episode or the actions end"""
    model: Float[np.ndarray, "G 2"]
    arrives: bool
    """the rollout reaches the goal in the graph"""
    replay_arrives: bool
    """its actions reach the goal in the true car, the last one repeated if necessary"""
    on_time: bool
    """they do so without repetition"""


@dataclass(frozen=True, eq=False)
class RolloutErrors:
    """Rollouts from logged states of episodes that never reach the goal, compared with replay and model."""

    count: int
    rollouts_arrive: float
    """share that reaches the goal in the graph"""
    replays_arrive: float
    """share of those whose replay reaches the goal"""
    replays_on_time: float
    """share of those whose replay needs no repeated action"""
    distances: dict[str, dict[str, Float[np.ndarray, "n 2"]]]
    """by unit (raw or metric) and path (replay or model): distance to the graph's states, for each rollout that arrives
    the mean over its steps and the distance at its end"""


def measure_rollouts(result: Result, log: Dataset, count: int, *, progress: Progress = no_progress) -> RolloutErrors:
    """Compares rollouts from up to `count` states, sampled from the episodes that never reach the goal."""
    rows = failed_rows(log)
    sample = generator(0, Stream.STUDY_ROLLOUTS).choice(rows, min(count, len(rows)), replace=False)
    # rows in the same state have the same rollout
    rollouts = compare_rollouts(result, np.unique(states_of_rows(log, sample)), progress=progress)
    arriving = [rollout for rollout in rollouts if rollout.arrives]

    def distances(path: str, metric: Metric) -> Float[np.ndarray, "n 2"]:
        pairs = [path_distance(metric.embed(getattr(one, path)), metric.embed(one.graph)) for one in arriving]
        return np.array(pairs).reshape(-1, 2)  # two columns even if nothing arrives

    units = {"raw": ScaledMetric.of(log, "raw"), "metric": result.metric}
    return RolloutErrors(
        count=len(rollouts),
        rollouts_arrive=len(arriving) / len(rollouts),
        replays_arrive=sum(rollout.replay_arrives for rollout in arriving) / max(len(arriving), 1),
        replays_on_time=sum(rollout.on_time for rollout in arriving) / max(len(arriving), 1),
        distances={unit: {path: distances(path, units[unit]) for path in ("replay", "model")} for unit in units},
    )


def example_rollout(result: Result, log: Dataset) -> tuple[Float[np.ndarray, "n 2"], CarRollout]:
    """The states of a logged episode that never reaches the goal, and the graph's rollout from its first state.

    It is the first such episode whose rollout reaches the goal in the graph, or the first of all where none does.
    """
    rows = np.intersect1d(failed_rows(log), np.flatnonzero(np.append(True, log.episode_ends[:-1])))
    rollouts = compare_rollouts(result, states_of_rows(log, rows))
    index = next((i for i, rollout in enumerate(rollouts) if rollout.arrives), 0)
    return logged_path(log, int(rows[index])), rollouts[index]


def compare_rollouts(result: Result, first_states: Indices, *, progress: Progress = no_progress) -> list[CarRollout]:
    """Rolls the graph's policy out from states that have an action, and its actions in the true car and the model."""
    mdp = result.mdp
    rollouts = roll_out(mdp, result.solution.policy, first_states, EPISODE_STEPS)
    replays = replay_actions(mdp, rollouts, first_states, progress=progress)
    # After the end of a rollout NO_EDGE, which is -1, picks an arbitrary action. What follows from it is cut off below.
    actions = jnp.asarray(mdp.action[rollouts.edge])
    paths = np.asarray(unroll_mean(result.model.dynamics, jnp.asarray(mdp.states[first_states]), actions))
    compared = []
    for edges, replay, path in zip(rollouts.edge, replays, paths, strict=True):
        taken = edges[edges != NO_EDGE]
        compared.append(
            CarRollout(
                graph=mdp.states[np.append(mdp.source[taken[:1]], mdp.target[taken])],
                actions=mdp.action[taken, 0],
                stitched=mdp.stitch_round[taken] != LOGGED,
                replay=replay.observations,
                model=path[: len(taken) + 1],
                arrives=bool(mdp.discount[taken[-1]] == 0),
                replay_arrives=replay.terminated,
                on_time=replay.terminated and len(replay) <= len(taken),
            )
        )
    return compared


def replay_actions(
    mdp: TabularMDP, rollouts: Rollouts, first_states: Int[np.ndarray, "n"], *, progress: Progress = no_progress
) -> list[Episode]:
    """Plays the actions of rollouts in the true car, each from exactly the state where the rollout starts."""
    actions = []
    for edges in rollouts.edge:
        taken = edges[edges != NO_EDGE]
        # only where the graph reaches the goal: other rollouts stop for want of actions, and so does their replay
        repeats = EXTRA_STEPS if len(taken) and mdp.discount[taken[-1]] == 0 else 0
        actions.append(mdp.action[np.append(taken, np.repeat(taken[-1:], repeats))])
    seeds, states = [None] * len(actions), mdp.states[first_states]
    with open_environments(ENVIRONMENT, 1) as car:
        return play(
            car,
            open_loop(actions),
            seeds=seeds,
            states=states,
            set_state=place_car,
            progress=progress,
            stage="replaying",
        )


@eqx.filter_jit
def unroll_mean(
    dynamics: Dynamics, start: Float[Array, "n 2"], actions: Float[Array, "n T 1"]
) -> Float[Array, "n T+1 2"]:
    """The states that actions lead to if every step adds the mean of the members' predictions."""

    def step(state: Array, action: Array) -> tuple[Array, Array]:
        inputs = (jnp.broadcast_to(part, (dynamics.member_count, *part.shape)) for part in (state, action))
        state = state + dynamics.delta(*inputs)[0].mean(axis=0)
        return state, state

    visited = jax.lax.scan(step, start, jnp.moveaxis(actions, 1, 0))[1]
    return jnp.concatenate([start[:, None], jnp.moveaxis(visited, 0, 1)], axis=1)


def path_distance(path: Float[np.ndarray, "n D"], graph: Float[np.ndarray, "m D"]) -> tuple[float, float]:
    """The mean distance of two paths over the steps that both have, and the distance at the last of these."""
    steps = min(len(path), len(graph))
    distance = np.linalg.norm(path[1:steps].astype(np.float64) - graph[1:steps], axis=1)
    return float(distance.mean()), float(distance[-1])


def failed_rows(log: Dataset) -> Int[np.ndarray, "n"]:
    """The rows of episodes that never reach the goal."""
    episode = np.cumsum(log.episode_ends) - log.episode_ends
    return np.flatnonzero(~np.isin(episode, episode[log.terminations]))


def states_of_rows(log: Dataset, rows: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
    """The states of the log's graph in which rows start."""
    return merge_states(log.observations, log.next_observations)[1][rows].astype(np.int64)


def logged_path(log: Dataset, row: int) -> Float[np.ndarray, "n 2"]:
    """The logged states from a row to the end of its episode."""
    last = row + int(np.argmax(log.episode_ends[row:]))
    return np.concatenate([log.observations[row : last + 1], log.next_observations[last : last + 1]])
