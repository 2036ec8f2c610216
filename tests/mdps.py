"""Small MDPs to test on: by hand from a list of edges, and random ones for hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from bats.graph.mdp import NO_STITCH, TabularMDP


def mdp_from_edges(
    states: int,
    edges: list[tuple[int, int, float]],
    *,
    gamma: float = 0.9,
    ends: tuple[int, ...] = (),
    starts: tuple[int, ...] = (0,),
) -> TabularMDP:
    """An MDP from (source, target, reward) triples; the edges named in `ends` have discount 0."""
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
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    states = draw(st.integers(1, max_states))
    count = draw(st.integers(1, 3 * max_states))
    island = rng.integers(0, draw(st.integers(1, 3)), size=states)  # edges stay within an island
    source = rng.integers(0, states, size=count)
    target = np.array([rng.choice(np.flatnonzero(island == island[here])) for here in source])
    along = rng.random(count) < draw(st.sampled_from([0.0, 0.5, 0.9]))  # chains, as logs have them
    target = np.where(along & (source + 1 < states), np.minimum(source + 1, states - 1), target)
    scale = draw(st.sampled_from([1.0, 1e-3, 1e3]))
    rewards = draw(st.sampled_from(["normal", "sparse", "negative", "zero"]))
    drawn = {
        "normal": rng.normal(size=count),
        "sparse": (rng.random(count) < 0.1).astype(float),
        "negative": -rng.random(count),
        "zero": np.zeros(count),
    }[rewards]
    ends = np.flatnonzero(rng.random(count) < draw(st.sampled_from([0.0, 0.2])))
    edges = list(zip(source.tolist(), target.tolist(), (scale * drawn).tolist(), strict=True))
    gamma = draw(st.sampled_from([0.5, 0.9, 0.99]))
    starts = tuple(rng.integers(0, states, size=3).tolist())
    return mdp_from_edges(states, edges, gamma=gamma, ends=tuple(ends.tolist()), starts=starts)
