"""Small true worlds, logs that show a part of them, and stitches that do not land where they say.

A world has more states than its log shows. A policy of the graph says what to do in real states; everywhere else, where
stitches may land, the world's `habit` is what the policy's extension does, so the policy has a true value everywhere.
A stitch taken in a real state is played to its end, wherever that is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bats.bounds.sandwich import Bounds, Doubts, reward_ranges, sandwich
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import NO_STITCH, Stitches, TabularMDP, add_stitches
from bats.graph.solve import first_edges
from bats.metric.bisimulation_exact import bisimulation_distances
from tests.mdps import mdp_from_edges

ACTIONS, LONGEST = 3, 3


@dataclass(frozen=True, eq=False)
class World:
    """The truth: where every action leads from every state, and what it pays."""

    move: np.ndarray
    pay: np.ndarray
    over: np.ndarray
    """states where the task has ended: they stay and pay nothing"""
    habit: np.ndarray
    """what is done in every state that the graph has no say in"""
    gamma: float

    @property
    def reward_range(self) -> tuple[float, float]:
        paid = self.pay[~self.over]
        ended = (0.0,) if self.over.any() else ()
        return min(paid.min(), *ended, np.inf), max(paid.max(), *ended, -np.inf)


@dataclass(frozen=True, eq=False)
class Log:
    """What a log shows of a world."""

    mdp: TabularMDP
    place: np.ndarray
    """the world's state of every real state"""


@dataclass(frozen=True, eq=False)
class Stitched:
    """A log's graph with stitches, and what they truly do."""

    mdp: TabularMDP
    place: np.ndarray
    stitches: Stitches
    landing: np.ndarray
    """the world's state where each stitch truly ends"""
    earned: np.ndarray
    """what each truly earns on the way, discounted"""

    @property
    def target(self) -> np.ndarray:
        """The world's state where each stitch claims to end."""
        return self.place[self.stitches.target]


def random_world(rng: np.random.Generator, *, rewards: str, ends: bool, states: int = 12) -> World:
    size = (states, ACTIONS)
    pay = {
        "normal": rng.normal(size=size),
        "sparse": (rng.random(size) < 0.2).astype(float),
        "negative": -1 - rng.random(size),
        "positive": 1 + rng.random(size),
    }[rewards]
    over = rng.random(states) < (0.2 if ends else 0.0)
    over[0] = False
    move = rng.integers(0, states, size=size)
    move = np.where(over[:, None], np.arange(states)[:, None], move)
    pay = np.where(over[:, None], 0.0, pay)
    return World(move, pay, over, rng.integers(0, ACTIONS, states), float(rng.choice([0.5, 0.9, 0.97])))


def random_log(world: World, rng: np.random.Generator, *, shown: float = 0.6) -> Log:
    """Some actions between some of the states; there is always one."""
    states = len(world.move)
    known = rng.random(states) < 0.7
    known[[0, world.move[0, 0]]] = True
    seen = known[:, None] & known[world.move] & ~world.over[:, None] & (rng.random(world.move.shape) < shown)
    seen[0, 0] = True
    source, action = np.nonzero(seen)
    target = world.move[source, action]
    place = np.unique(np.concatenate([source, target]))
    number = np.full(states, -1)
    number[place] = np.arange(len(place))
    rows = zip(number[source].tolist(), number[target].tolist(), world.pay[source, action].tolist(), strict=True)
    mdp = mdp_from_edges(
        len(place),
        list(rows),
        gamma=world.gamma,
        ends=tuple(np.flatnonzero(world.over[target]).tolist()),
        starts=tuple(rng.choice(len(place), size=min(3, len(place)), replace=False).tolist()),
    )
    return Log(mdp, place)


def random_stitches(world: World, log: Log, rng: np.random.Generator, *, count: int, wrong_rewards: float) -> Stitched:
    """Stitches of random actions that claim to end in random real states."""
    sources = np.flatnonzero(~world.over[log.place])
    source, length = rng.choice(sources, size=count), rng.integers(1, LONGEST + 1, size=count)
    action = rng.integers(0, ACTIONS, size=(count, LONGEST))
    here, paid = log.place[source], np.zeros((count, LONGEST))
    for step in range(LONGEST):
        going = step < length
        paid[:, step] = np.where(going, world.pay[here, action[:, step]], 0.0)
        here = np.where(going, world.move[here, action[:, step]], here)
    low, high = (paid + sign * wrong_rewards * rng.random(paid.shape) for sign in (-1, 1))
    claimed = low + rng.random(paid.shape) * (high - low)
    stitches = Stitches.judged_by_one(
        source=source,
        target=rng.integers(0, len(log.place), size=count),
        length=length,
        action=action[:, :, None].astype(float),
        state=rng.normal(size=(count, LONGEST - 1, 1)),
        reward=claimed,
        planning_error=np.zeros(count),
    )
    stitches = replace(stitches, reward_range=np.stack([low, high], axis=-1))
    earned = paid @ world.gamma ** np.arange(LONGEST)
    return Stitched(add_stitches(log.mdp, stitches, stitch_round=1), log.place, stitches, here, earned)


@dataclass(frozen=True, eq=False)
class Played:
    """A policy of a graph as it is played in the world: one step, or one stitch, from every state."""

    reward: np.ndarray
    discount: np.ndarray
    after: np.ndarray
    value: np.ndarray

    @property
    def distances(self) -> np.ndarray:
        """The exact bisimulation metric of the world under the policy; where the task is over stays a dead end."""
        acting = np.flatnonzero(self.discount > 0)
        edges = [(int(state), int(self.after[state]), float(self.reward[state])) for state in acting]
        chain = mdp_from_edges(len(self.value), edges, gamma=float(self.discount.max()))
        return bisimulation_distances(replace(chain, discount=self.discount[acting]), first_edges(chain))


def played(world: World, graph: Stitched, policy: np.ndarray, strays: np.ndarray | None = None) -> Played:
    """The policy's true value everywhere, by a plain linear solve.

    A cloned policy strays: in real states where `strays` names an action, it does that instead of what the graph says.
    """
    everywhere = np.arange(len(world.move))
    reward, after = world.pay[everywhere, world.habit], world.move[everywhere, world.habit]
    discount = np.where(world.over, 0.0, world.gamma)
    for state, place in enumerate(graph.place):
        edge = policy[state]
        if edge == NO_EDGE or world.over[place]:
            continue
        stitch = graph.mdp.stitch[edge]
        if stitch == NO_STITCH:
            reward[place], after[place] = graph.mdp.reward[edge], graph.place[graph.mdp.target[edge]]
        else:
            reward[place], after[place] = graph.earned[stitch], graph.landing[stitch]
            discount[place] = world.gamma ** graph.stitches.length[stitch]
        if strays is not None and strays[state] >= 0:
            action = strays[state]
            reward[place], after[place] = world.pay[place, action], world.move[place, action]
            discount[place] = world.gamma
    steps = np.zeros((len(everywhere), len(everywhere)))
    steps[everywhere, after] = discount
    return Played(reward, discount, after, np.linalg.solve(np.eye(len(everywhere)) - steps, reward))


def stray_cost(
    world: World, graph: Stitched, policy: np.ndarray, as_cloned: Played, strays: np.ndarray | None
) -> np.ndarray:
    """How much doing as the graph says for once would change what a cloned policy has, in every state of the graph."""
    cost = np.zeros(graph.mdp.state_count)
    if strays is not None:
        meant = played(world, graph, policy)
        once = meant.reward + meant.discount * as_cloned.value[meant.after]
        cost[: len(graph.place)] = np.abs(as_cloned.value - once)[graph.place]
    return cost


@dataclass(frozen=True, eq=False)
class Bounded:
    """A graph with doubts that are true of the policy they lead to, its bounds, and its true value in real states."""

    doubts: Doubts
    bounds: Bounds
    truth: np.ndarray
    played: Played


def truly_bounded(
    world: World,
    graph: Stitched,
    *,
    policy: np.ndarray | None = None,
    bisimulation: bool = False,
    strays: np.ndarray | None = None,
) -> Bounded:
    """Doubts that are true, found by raising them until they are: true ones depend on the policy, and it on them.

    It ends, since there are finitely many policies and each asks for the same every time.
    """
    doubts = Doubts(
        landing=np.zeros(len(graph.stitches)),
        rewards=reward_ranges([graph.stitches]),
        deviation=np.zeros(graph.mdp.state_count),
        reward_range=world.reward_range,
    )
    while True:
        bounds = sandwich(graph.mdp, doubts, policy=policy)
        truth = played(world, graph, bounds.policy, strays)
        if bisimulation:
            landing = truth.distances[graph.landing, graph.target]
        else:
            landing = np.abs(truth.value[graph.landing] - truth.value[graph.target])
        deviation = stray_cost(world, graph, bounds.policy, truth, strays)
        if np.all(landing <= doubts.landing) and np.all(deviation <= doubts.deviation):
            return Bounded(doubts, bounds, truth.value[graph.place], truth)
        doubts = replace(
            doubts, landing=np.maximum(doubts.landing, landing), deviation=np.maximum(doubts.deviation, deviation)
        )
