"""Neighbours of a state by a metric, searched only for the states that need them and at several scales.

In dense data the nearest states are a tiny crowd that all lead the same way, and none of them is worth stitching to.
KD-trees over random subsets of the states find neighbours farther away at the same cost:

    scale 1        the 8 nearest of all states
    scale 0.02     the 8 nearest of every fiftieth state, 2.7 times as far in four dimensions

Subsets are drawn anew every round, so that over the rounds every state can become a neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import cKDTree

from bats.arrays import concat
from bats.config import NeighbourConfig

MIN_SUBSET = 64
"""states that a subset keeps at least, so that small logs are not thinned to nothing"""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a query and one of its neighbours."""

    query: Int[np.ndarray, "P"]
    """row of the query points"""
    neighbour: Int[np.ndarray, "P"]
    """index of the neighbouring state"""
    distance: Float[np.ndarray, "P"]

    def __len__(self) -> int:
        return len(self.query)


@dataclass(frozen=True, eq=False)
class Forest:
    """KD-trees over the states and over subsets of them, each with the indices of its states."""

    trees: tuple[tuple[cKDTree, Int[np.ndarray, "_"]], ...]
    config: NeighbourConfig

    def near(self, points: Float[np.ndarray, "q m"]) -> Pairs:
        """The neighbours of embedded points at every scale. A pair may appear at two scales."""
        return concat([self._search(tree, states, points) for tree, states in self.trees])

    def _search(self, tree: cKDTree, states: Int[np.ndarray, "n"], points: Float[np.ndarray, "q m"]) -> Pairs:
        if self.config.count is None:
            lists = tree.query_ball_point(points, self.config.radius, workers=-1, return_sorted=True)
            query = np.repeat(np.arange(len(points)), [len(near) for near in lists])
            near = np.concatenate([np.asarray(one, dtype=np.int64) for one in lists]) if len(query) else query
            return Pairs(query, states[near], np.linalg.norm(tree.data[near] - points[query], axis=1))
        ranks = np.arange(1, min(self.config.count, len(states)) + 1)
        radius = np.inf if self.config.radius is None else self.config.radius
        distance, near = tree.query(points, k=ranks, distance_upper_bound=radius, workers=-1)
        query, rank = np.nonzero(np.isfinite(distance))
        return Pairs(query, states[near[query, rank]], distance[query, rank])


@dataclass(frozen=True, eq=False)
class NeighbourIndex:
    """All states that may be neighbours, embedded."""

    points: Float[np.ndarray, "n m"]
    config: NeighbourConfig

    @cached_property
    def _full_tree(self) -> cKDTree:
        return cKDTree(self.points)

    def draw(self, rng: np.random.Generator, config: NeighbourConfig | None = None) -> Forest:
        """A tree for every scale, over freshly drawn subsets."""
        config = config or self.config
        return Forest(tuple(self._tree(scale, rng) for scale in config.scales), config)

    def draw_among(self, states: Int[np.ndarray, "some"], rng: np.random.Generator) -> Forest:
        """Trees over the given states alone, and over a tenth of them."""
        tenth = rng.choice(states, -(-len(states) // 10), replace=False)
        return Forest(tuple((cKDTree(self.points[part]), part) for part in (states, tenth)), self.config)

    def _tree(self, scale: float, rng: np.random.Generator) -> tuple[cKDTree, Int[np.ndarray, "kept"]]:
        size = min(max(round(scale * len(self.points)), MIN_SUBSET), len(self.points))
        if size == len(self.points):
            return self._full_tree, np.arange(size)
        # with replacement: a repeat costs one neighbour of one state, a true permutation a pass over all states
        subset = np.unique(rng.integers(0, len(self.points), size))
        return cKDTree(self.points[subset]), subset
