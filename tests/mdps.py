"""Small MDPs to test on: by hand from a list of edges, and random ones for hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from bats.graph.mdp import NO_STITCH, Stitches, TabularMDP

SEEDS = st.integers(0, 2**32 - 1)


def mdp_from_edges(
    states: int,
    edges: list[tuple[int, int, float]],
    *,
    gamma: float = 0.9,
    ends: tuple[int, ...] = (),
    starts: tuple[int, ...] = (0,),
) -> TabularMDP:
    """An MDP from (source, target, reward) triples; the edges listed in `ends` have discount 0."""
    order = sorted(range(len(edges)), key=lambda edge: edges[edge][0])
    source = np.array([edges[edge][0] for edge in order], dtype=np.int32)
    first_edge = np.searchsorted(source, np.arange(states + 1)).astype(np.int64)
    return TabularMDP(
        states=np.arange(states, dtype=np.float64)[:, None],
        real_count=states,
        gamma=gamma,
        penalty=0.0,
        first_edge=first_edge,
        target=np.array([edges[edge][1] for edge in order], dtype=np.int32),
        action=np.array([[float(edge)] for edge in order]).reshape(-1, 1),
        reward=np.array([edges[edge][2] for edge in order], dtype=np.float64),
        discount=np.array([0.0 if edge in ends else gamma for edge in order]),
        stitch_round=np.zeros(len(order), dtype=np.int16),
        stitch=np.full(len(order), NO_STITCH, dtype=np.int32),
        stitch_count=0,
        planning_error=np.zeros(len(order), dtype=np.float32),
        starts=np.array(starts, dtype=np.int32),
        start_weights=np.full(len(starts), 1 / len(starts)),
        action_count=None,
    )


@st.composite
def random_mdps(draw: st.DrawFn, *, max_states: int = 30) -> TabularMDP:
    """Cycles, self-loops, dead ends, terminals, negative and equal rewards, parallel edges, several components."""
    rng = np.random.default_rng(draw(SEEDS))
    states = draw(st.integers(1, max_states))
    count = draw(st.integers(1, 3 * max_states))
    component = rng.integers(0, draw(st.integers(1, 3)), size=states)  # edges stay within their component
    source = rng.integers(0, states, size=count)
    target = np.array([rng.choice(np.flatnonzero(component == component[state])) for state in source])
    in_chain = rng.random(count) < draw(st.sampled_from([0.0, 0.5, 0.9]))  # logs are mostly chains
    target = np.where(in_chain & (source + 1 < states), np.minimum(source + 1, states - 1), target)
    scale = draw(st.sampled_from([1.0, 1e-3, 1e3]))
    rewards = draw(st.sampled_from(["normal", "sparse", "negative", "zero"]))
    drawn = {
        "normal": rng.normal(size=count),
        "sparse": (rng.random(count) < 0.1).astype(float),
        "negative": -rng.random(count),
        "zero": np.zeros(count),
    }[rewards]
    terminating = np.flatnonzero(rng.random(count) < draw(st.sampled_from([0.0, 0.2])))
    edges = list(zip(source.tolist(), target.tolist(), (scale * drawn).tolist(), strict=True))
    gamma = draw(st.sampled_from([0.5, 0.9, 0.99]))
    starts = tuple(rng.integers(0, states, size=3).tolist())
    return mdp_from_edges(states, edges, gamma=gamma, ends=tuple(terminating.tolist()), starts=starts)


def stitches_between(
    source: list[int],
    target: list[int],
    *,
    reward: list[list[float]] | None = None,
    length: list[int] | None = None,
    action: np.ndarray | None = None,
    state: np.ndarray | None = None,
    planning_error: list[float] | None = None,
) -> Stitches:
    """Stitches between states of one number; whatever is not given is 0, and every stitch has its full length."""
    count = len(source)
    rewards = np.zeros((count, 1)) if reward is None else np.array(reward, dtype=np.float64)
    longest = rewards.shape[1]
    return Stitches(
        source=np.array(source),
        target=np.array(target),
        length=np.full(count, longest) if length is None else np.array(length),
        action=np.zeros((count, longest, 1)) if action is None else action,
        state=np.zeros((count, longest - 1, 1)) if state is None else state,
        reward=rewards,
        planning_error=np.zeros(count) if planning_error is None else np.array(planning_error),
    )


def random_stitches(mdp: TabularMDP, rng: np.random.Generator, *, count: int = 5, max_length: int = 3) -> Stitches:
    """Arbitrary stitches between the real states of an MDP with one number in an action."""
    width = mdp.states.shape[1]
    return Stitches(
        source=rng.integers(0, mdp.real_count, size=count),
        target=rng.integers(0, mdp.real_count, size=count),
        length=rng.integers(1, max_length + 1, size=count),
        action=rng.normal(size=(count, max_length, 1)),
        state=rng.normal(size=(count, max_length - 1, width)),
        reward=rng.normal(size=(count, max_length)),
        planning_error=rng.random(count),
    )
