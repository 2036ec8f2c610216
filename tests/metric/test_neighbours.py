"""Neighbours against all pairs, and what thinned searches add."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.config import NeighbourConfig
from bats.metric.neighbours import MIN_SUBSET, NeighbourIndex


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 6), st.sampled_from([None, 0.5, 2.0]))
def test_neighbours_are_the_nearest_of_all_states(seed: int, count: int, radius: float | None) -> None:
    rng = np.random.default_rng(seed)
    states, points = rng.normal(size=(50, 3)), rng.normal(size=(7, 3))
    pairs = NeighbourIndex(states, NeighbourConfig(count, radius, scales=(1.0,))).draw(rng).near(points)
    distance = np.linalg.norm(states[None] - points[:, None], axis=2)
    for query in range(7):
        nearest = np.argsort(distance[query])[:count]
        expected = nearest if radius is None else nearest[distance[query, nearest] < radius]
        assert set(pairs.neighbour[pairs.query == query].tolist()) == set(expected.tolist())
    assert pairs.distance == pytest.approx(distance[pairs.query, pairs.neighbour])
    everything = NeighbourIndex(states, NeighbourConfig(None, 1.0, scales=(1.0,))).draw(rng).near(points)
    assert len(everything) == np.count_nonzero(distance <= 1.0)


def test_thinned_searches_find_neighbours_farther_away() -> None:
    rng = np.random.default_rng(0)
    states, points = rng.random((20_000, 2)), 0.1 + 0.8 * rng.random((200, 2))

    def mean_distance(scale: float) -> float:
        index = NeighbourIndex(states, NeighbourConfig(8, None, scales=(scale,)))
        return float(index.draw(np.random.default_rng(1)).near(points).distance.mean())

    # in two dimensions a hundredth of the states are ten times as far apart
    assert mean_distance(0.01) / mean_distance(1.0) == pytest.approx(10, rel=0.1)


def test_small_logs_are_not_thinned_to_nothing() -> None:
    states = np.random.default_rng(0).random((MIN_SUBSET, 2))
    index = NeighbourIndex(states, NeighbourConfig(3, None, scales=(1.0, 0.001)))
    pairs = index.draw(np.random.default_rng(1)).near(states[:5])
    assert len(pairs) == 2 * 5 * 3  # both scales search all states


def test_a_search_among_some_states_finds_these_alone() -> None:
    rng = np.random.default_rng(0)
    states = rng.random((300, 2))
    among = np.arange(0, 300, 7)
    pairs = NeighbourIndex(states, NeighbourConfig(4, None)).draw_among(among, rng).near(states)
    assert set(pairs.neighbour.tolist()) == set(among.tolist())
    nearest = among[np.linalg.norm(states[among][None] - states[:, None], axis=2).argmin(axis=1)]
    for query in range(300):
        assert nearest[query] in pairs.neighbour[pairs.query == query]
