"""Walks of a stitched graph beside what becomes of their actions: in the true car, and in the learned model alone.

    graph       the states that the graph says the walk goes through
    replay      the true car, put into the walk's first state, with the walk's actions one after another
    model       the learned model from the same state with the same actions: each step from where the last one led

The graph comes back to logged states at the end of every stitch; the model on its own never does.

Where the graph says that the goal is reached and the true car is not quite there, a walk has no more actions. Its last
one is then kept up for a few steps, and it is told how many replays need that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bats.arrays import Metric, Progress, no_progress
from bats.data.dataset import Dataset
from bats.data.distinct import merge_states
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED, TabularMDP
from bats.graph.rollouts import Walks, walk
from bats.model.ensemble import Dynamics
from bats.runs.pipeline import Result
from bats.tasks.episodes import Episode, open_loop, play
from bats.tasks.mountain_car import EPISODE_STEPS, PlacedCar

AFTERWARDS = 10
"""most steps for which a walk's last action is kept up"""


@dataclass(frozen=True, eq=False)
class Track:
    """One walk, three times."""

    graph: Float[np.ndarray, "G 2"]
    """one more than there are steps"""
    actions: Float[np.ndarray, "T"]
    stitched: Bool[np.ndarray, "T"]
    """which steps go along a stitch"""
    replay: Float[np.ndarray, "R 2"]
    """ends with the episode, or with the actions"""
    model: Float[np.ndarray, "G 2"]
    arrives: bool
    """the walk ends the task in the graph"""
    replay_arrives: bool
    """and its actions do in the true car, the last of them kept up if need be"""
    on_time: bool
    """without that"""


@dataclass(frozen=True)
class Apart:
    """How far a path is from the graph's, step by step, while both last."""

    mean: float
    end: float
    """at the last step that both have"""

    @classmethod
    def of(cls, path: Float[np.ndarray, "n D"], graph: Float[np.ndarray, "m D"]) -> Apart:
        steps = min(len(path), len(graph))
        distance = np.linalg.norm(path[1:steps].astype(np.float64) - graph[1:steps], axis=1)
        return cls(float(distance.mean()), float(distance[-1]))


def hopeless_rows(log: Dataset) -> Int[np.ndarray, "n"]:
    """Rows of the episodes that never reach the goal."""
    episode = np.cumsum(log.episode_ends) - log.episode_ends
    return np.flatnonzero(~np.isin(episode, episode[log.terminations]))


def states_of_rows(log: Dataset, rows: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
    """The states of the graph that rows of its log set out from."""
    return merge_states(log.observations, log.next_observations)[1][rows].astype(np.int64)


def logged_path(log: Dataset, row: int) -> Float[np.ndarray, "n 2"]:
    """What the log says happened from a row on, to the end of its episode."""
    last = row + int(np.argmax(log.episode_ends[row:]))
    return np.concatenate([log.observations[row : last + 1], log.next_observations[last : last + 1]])


def follow(result: Result, first_states: Int[np.ndarray, "n"], *, progress: Progress = no_progress) -> list[Track]:
    """The graph's walks from some states, in their order, replayed and rolled out; each must have an action to take."""
    mdp = result.mdp
    walks = walk(mdp, result.solution.policy, first_states, EPISODE_STEPS)
    replays = replayed(mdp, walks, first_states, progress=progress)
    imagined = rolled_out(result.model.dynamics, mdp, walks, first_states)
    tracks = []
    for edges, replay, path in zip(walks.edge, replays, imagined, strict=True):
        taken = edges[edges != NO_EDGE]
        tracks.append(
            Track(
                graph=mdp.states[np.append(mdp.source[taken[:1]], mdp.target[taken])],
                actions=mdp.action[taken, 0],
                stitched=mdp.stitch_round[taken] != LOGGED,
                replay=replay.episode.observations,
                model=path[: len(taken) + 1],
                arrives=bool(mdp.discount[taken[-1]] == 0),
                replay_arrives=replay.episode.terminated,
                on_time=replay.on_time,
            )
        )
    return tracks


@dataclass(frozen=True, eq=False)
class Replay:
    """What a walk's actions did in the true car."""

    episode: Episode
    on_time: bool
    """it reached the goal within the walk's own actions"""


def replayed(
    mdp: TabularMDP, walks: Walks, first_states: Int[np.ndarray, "n"], *, progress: Progress = no_progress
) -> list[Replay]:
    """The true car under the actions of the walks, each from exactly the state where its walk begins.

    Where the walk ends the task in the graph but the car is not there yet, the last action is repeated.
    """
    edges = [row[row != NO_EDGE] for row in walks.edge]
    actions = [mdp.action[taken] for taken in edges]
    extra = [AFTERWARDS if len(taken) > 0 and mdp.discount[taken[-1]] == 0 else 0 for taken in edges]
    repeated = [
        np.concatenate([own, np.repeat(own[-1:], more, axis=0)]) for own, more in zip(actions, extra, strict=True)
    ]
    car = PlacedCar()
    try:
        episodes = play(
            [car],
            open_loop(repeated),
            seeds=[None] * len(edges),
            states=mdp.states[first_states],
            progress=progress,
            stage="replaying",
        )
    finally:
        car.close()
    return [
        Replay(episode, on_time=episode.terminated and len(episode) <= len(own))
        for episode, own in zip(episodes, actions, strict=True)
    ]


def rolled_out(
    dynamics: Dynamics, mdp: TabularMDP, walks: Walks, first_states: Int[np.ndarray, "n"]
) -> Float[np.ndarray, "n G 2"]:
    """Where the elites' mean prediction leads under the actions of the walks; beyond a walk's end it means nothing."""
    start = jnp.asarray(mdp.states[first_states], jnp.float32)
    actions = np.where(walks.edge[..., None] == NO_EDGE, 0.0, mdp.action[walks.edge])
    path = _open_loop(dynamics, start, jnp.asarray(actions, jnp.float32))
    return np.concatenate([np.asarray(start)[:, None], np.asarray(path)], axis=1)


@eqx.filter_jit
def _open_loop(dynamics: Dynamics, start: Float[Array, "n 2"], actions: Float[Array, "n T 1"]) -> Float[Array, "n T 2"]:
    def step(here: Array, action: Array) -> tuple[Array, Array]:
        everyone = [jnp.broadcast_to(part, (dynamics.member_count, *part.shape)) for part in (here, action)]
        there = here + dynamics.change(*everyone)[0].mean(axis=0)
        return there, there

    return jnp.moveaxis(jax.lax.scan(step, start, jnp.moveaxis(actions, 1, 0))[1], 0, 1)


def distances(tracks: Sequence[Track], metric: Metric | None = None) -> dict[str, Float[np.ndarray, "n 2"]]:
    """Mean distance and distance at the end, of the replays and of the model, to the graph; raw without a metric."""

    def placed(states: np.ndarray) -> np.ndarray:
        return states if metric is None else np.asarray(metric.embed(states))

    found: dict[str, list[tuple[float, float]]] = {"replay": [], "model": []}
    for track in tracks:
        graph = placed(track.graph)
        for name, path in (("replay", track.replay), ("model", track.model)):
            apart = Apart.of(placed(path), graph)
            found[name].append((apart.mean, apart.end))
    return {name: np.array(pairs).reshape(-1, 2) for name, pairs in found.items()}
