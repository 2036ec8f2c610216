"""Small true worlds, logs that show part of them, and stitches that do not end where they claim to.

A world has more states than its log. A policy of the graph acts in the graph's real states; everywhere else, where
stitches may end, the world's `default_action` continues it, so the policy has a true value everywhere. A stitch taken
in a real state is played to its end, wherever that is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bats.bounds.sandwich import ErrorBounds, GraphBounds, sandwich
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import NO_STITCH, Stitches, TabularMDP, add_stitches
from bats.graph.solve import first_edges
from tests.mdps import mdp_from_edges
from tests.oracles.exact_bisimulation import bisimulation_distances

ACTIONS, MAX_LENGTH = 3, 3


@dataclass(frozen=True, eq=False)
class World:
    """The truth: where every action leads from every state, and its reward."""

    next_state: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    """states where the task is over: they stay and have reward 0"""
    default_action: np.ndarray
    """the action in every state that is not in the graph"""
    gamma: float

    @property
    def reward_range(self) -> tuple[float, float]:
        rewards = self.reward[~self.terminated]
        over = (0.0,) if self.terminated.any() else ()
        return min(rewards.min(), *over, np.inf), max(rewards.max(), *over, -np.inf)


@dataclass(frozen=True, eq=False)
class Log:
    """What a log shows of a world."""

    mdp: TabularMDP
    world_state: np.ndarray
    """the world's state of every real state"""


@dataclass(frozen=True, eq=False)
class Stitched:
    """A log's graph with stitches, and what the stitches truly do."""

    mdp: TabularMDP
    world_state: np.ndarray
    stitches: Stitches
    reward_range: np.ndarray
    """smallest and largest possible reward of each action of each stitch"""
    true_end: np.ndarray
    """the world's state where each stitch truly ends"""
    true_reward: np.ndarray
    """the true discounted reward of each stitch"""

    @property
    def target(self) -> np.ndarray:
        """The world's state where each stitch claims to end."""
        return self.world_state[self.stitches.target]


def random_world(rng: np.random.Generator, *, rewards: str, terminates: bool, states: int = 12) -> World:
    size = (states, ACTIONS)
    reward = {
        "normal": rng.normal(size=size),
        "sparse": (rng.random(size) < 0.2).astype(float),
        "negative": -1 - rng.random(size),
        "positive": 1 + rng.random(size),
    }[rewards]
    terminated = rng.random(states) < (0.2 if terminates else 0.0)
    terminated[0] = False
    next_state = rng.integers(0, states, size=size)
    next_state = np.where(terminated[:, None], np.arange(states)[:, None], next_state)
    reward = np.where(terminated[:, None], 0.0, reward)
    gamma = float(rng.choice([0.5, 0.9, 0.97]))
    return World(next_state, reward, terminated, rng.integers(0, ACTIONS, states), gamma)


def random_log(world: World, rng: np.random.Generator, *, shown: float = 0.6) -> Log:
    """Some actions between some of the states, at least one."""
    states = len(world.next_state)
    known = rng.random(states) < 0.7
    known[[0, world.next_state[0, 0]]] = True
    logged = known[:, None] & known[world.next_state] & ~world.terminated[:, None]
    logged &= rng.random(world.next_state.shape) < shown
    logged[0, 0] = True
    source, action = np.nonzero(logged)
    target = world.next_state[source, action]
    world_state = np.unique(np.concatenate([source, target]))
    number = np.full(states, -1)
    number[world_state] = np.arange(len(world_state))
    rows = zip(number[source].tolist(), number[target].tolist(), world.reward[source, action].tolist(), strict=True)
    mdp = mdp_from_edges(
        len(world_state),
        list(rows),
        gamma=world.gamma,
        ends=tuple(np.flatnonzero(world.terminated[target]).tolist()),
        starts=tuple(rng.choice(len(world_state), size=min(3, len(world_state)), replace=False).tolist()),
    )
    return Log(mdp, world_state)


def random_stitches(world: World, log: Log, rng: np.random.Generator, *, count: int, reward_error: float) -> Stitched:
    """Stitches of random actions that claim to end in random real states."""
    sources = np.flatnonzero(~world.terminated[log.world_state])
    source, length = rng.choice(sources, size=count), rng.integers(1, MAX_LENGTH + 1, size=count)
    action = rng.integers(0, ACTIONS, size=(count, MAX_LENGTH))
    state, rewards = log.world_state[source], np.zeros((count, MAX_LENGTH))
    for step in range(MAX_LENGTH):
        acting = step < length
        rewards[:, step] = np.where(acting, world.reward[state, action[:, step]], 0.0)
        state = np.where(acting, world.next_state[state, action[:, step]], state)
    low, high = (rewards + sign * reward_error * rng.random(rewards.shape) for sign in (-1, 1))
    stitches = Stitches(
        source=source,
        target=rng.integers(0, len(log.world_state), size=count),
        length=length,
        action=action[:, :, None].astype(float),
        state=rng.normal(size=(count, MAX_LENGTH - 1, 1)),
        reward=low + rng.random(rewards.shape) * (high - low),
        planning_error=np.zeros(count),
    )
    true_reward = rewards @ world.gamma ** np.arange(MAX_LENGTH)
    mdp = add_stitches(log.mdp, stitches, stitch_round=1)
    return Stitched(mdp, log.world_state, stitches, np.stack([low, high], axis=-1), state, true_reward)


@dataclass(frozen=True, eq=False)
class Played:
    """A policy of a graph as it is played in the world: one step, or one stitch, from every state."""

    reward: np.ndarray
    discount: np.ndarray
    next_state: np.ndarray
    value: np.ndarray

    @property
    def distances(self) -> np.ndarray:
        """The exact bisimulation metric of the world under the policy; terminated states are dead ends."""
        acting = np.flatnonzero(self.discount > 0)
        edges = [(int(state), int(self.next_state[state]), float(self.reward[state])) for state in acting]
        chain = mdp_from_edges(len(self.value), edges, gamma=float(self.discount.max()))
        return bisimulation_distances(replace(chain, discount=self.discount[acting]), first_edges(chain))


def play(world: World, graph: Stitched, policy: np.ndarray) -> Played:
    """The policy's true value everywhere, by a plain linear solve."""
    states = np.arange(len(world.next_state))
    reward, next_state = world.reward[states, world.default_action], world.next_state[states, world.default_action]
    discount = np.where(world.terminated, 0.0, world.gamma)
    for number, state in enumerate(graph.world_state):
        edge = policy[number]
        if edge == NO_EDGE or world.terminated[state]:
            continue
        stitch = graph.mdp.stitch[edge]
        if stitch == NO_STITCH:
            reward[state], next_state[state] = graph.mdp.reward[edge], graph.world_state[graph.mdp.target[edge]]
        else:
            reward[state], next_state[state] = graph.true_reward[stitch], graph.true_end[stitch]
            discount[state] = world.gamma ** graph.stitches.length[stitch]
    transitions = np.zeros((len(states), len(states)))
    transitions[states, next_state] = discount
    return Played(reward, discount, next_state, np.linalg.solve(np.eye(len(states)) - transitions, reward))


@dataclass(frozen=True, eq=False)
class Bounded:
    """Errors that are true of a policy, its bounds, and its true value in the real states."""

    errors: ErrorBounds
    bounds: GraphBounds
    truth: np.ndarray
    played: Played


def truly_bounded(world: World, graph: Stitched, policy: np.ndarray, *, bisimulation: bool = False) -> Bounded:
    """Bounds from the true value differences at the ends of the stitches, or from their bisimulation distances."""
    played = play(world, graph, policy)
    if bisimulation:
        end_value = played.distances[graph.true_end, graph.target]
    else:
        end_value = np.abs(played.value[graph.true_end] - played.value[graph.target])
    errors = ErrorBounds(end_value, graph.reward_range, world.reward_range)
    bounds = sandwich(graph.mdp, errors, policy)
    return Bounded(errors, bounds, played.value[graph.world_state], played)
