"""Neighbours of a state by a metric, asked only for the states that need them and at several scales.

In dense data the nearest states are a tiny crowd: all of them lead where the state itself leads, and nothing among them
is worth stitching to. Trees over random thinnings of the states answer with neighbours that lie farther away, at the
same cost:

    scale 1        the 8 nearest of all states
    scale 0.02     the 8 nearest of every fiftieth state, 2.7 times as far in four dimensions
    …

Thinnings are drawn anew every round, so that in time everyone is somebody's neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import cKDTree

from bats.errors import SettingError

FEWEST = 64
"""a thinning keeps at least so many states, or all: small logs are not thinned to nothing"""


@dataclass(frozen=True)
class NeighbourConfig:
    """Who counts as a neighbour [the graph G_epsilon]."""

    count: int | None = 8
    """most neighbours at each scale, the nearest ones; None: all within the radius"""
    radius: float | None = None
    """farthest a neighbour may be [epsilon]; None: as far as the nearest ones are"""
    scales: tuple[float, ...] = (1.0, 0.1, 0.02, 0.005)
    """shares of the states that are asked"""

    def __post_init__(self) -> None:
        if self.count is None and self.radius is None:
            raise SettingError("Neighbours need a `count` or a `radius`; got neither.")
        if self.count is not None and self.count < 1:
            raise SettingError(f"`count` must be at least 1; got {self.count}.")
        if self.radius is not None and not self.radius > 0:
            raise SettingError(f"`radius` must be positive; got {self.radius}.")
        if not self.scales or not all(0 < scale <= 1 for scale in self.scales):
            raise SettingError(f"`scales` must be shares of the states, above 0 and up to 1; got {self.scales}.")


@dataclass(frozen=True, eq=False)
class Pairs:
    """Who is whose neighbour: `place` numbers what was asked about, `neighbour` the states that answered."""

    place: Int[np.ndarray, "P"]
    neighbour: Int[np.ndarray, "P"]
    distance: Float[np.ndarray, "P"]

    def __len__(self) -> int:
        return len(self.place)

    def and_also(self, *others: Pairs) -> Pairs:
        """These pairs and others after them."""
        every = (self, *others)
        return Pairs(*(np.concatenate([getattr(pairs, part.name) for pairs in every]) for part in fields(Pairs)))


@dataclass(frozen=True, eq=False)
class Neighbours:
    """All states that may be neighbours, embedded."""

    points: Float[np.ndarray, "n m"]
    config: NeighbourConfig

    @cached_property
    def _whole(self) -> cKDTree:
        return cKDTree(self.points)

    def drawn(self, rng: np.random.Generator) -> Forest:
        """A tree for every scale, with thinnings drawn anew."""
        return Forest(tuple(self._tree(scale, rng) for scale in self.config.scales), self.config)

    def at(self, config: NeighbourConfig) -> Neighbours:
        """The same states with others who count as neighbours."""
        return Neighbours(self.points, config)

    def among(self, states: Int[np.ndarray, "some"], rng: np.random.Generator) -> Forest:
        """Trees over some of the states alone, and over a tenth of those."""
        few = rng.choice(states, -(-len(states) // 10), replace=False)
        return Forest(tuple((cKDTree(self.points[each]), each) for each in (states, few)), self.config)

    def _tree(self, scale: float, rng: np.random.Generator) -> tuple[cKDTree, Int[np.ndarray, "kept"]]:
        kept = min(max(round(scale * len(self.points)), FEWEST), len(self.points))
        if kept == len(self.points):
            return self._whole, np.arange(kept)
        # with replacement: a repeat costs one neighbour of one state, a true permutation a pass over all of them
        chosen = np.unique(rng.integers(0, len(self.points), kept))
        return cKDTree(self.points[chosen]), chosen


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees over the states and over thinnings of them, each with the numbers of the states it holds."""

    trees: tuple[tuple[cKDTree, Int[np.ndarray, "_"]], ...]
    config: NeighbourConfig

    def near(self, places: Float[np.ndarray, "q m"]) -> Pairs:
        """The neighbours of some embedded places, at every scale. A pair may turn up at two scales."""
        found = [self._asked(tree, number, places) for tree, number in self.trees]
        return found[0].and_also(*found[1:])

    def _asked(self, tree: cKDTree, number: Int[np.ndarray, "kept"], places: Float[np.ndarray, "q m"]) -> Pairs:
        if self.config.count is None:
            return _within(tree, number, places, self.config.radius or 0.0)
        count = min(self.config.count, len(number))
        radius = np.inf if self.config.radius is None else self.config.radius
        distance, near = tree.query(places, k=np.arange(1, count + 1), distance_upper_bound=radius, workers=-1)
        place, rank = np.nonzero(np.isfinite(distance))
        return Pairs(place, number[near[place, rank]], distance[place, rank])


def _within(tree: cKDTree, number: Int[np.ndarray, "kept"], places: Float[np.ndarray, "q m"], radius: float) -> Pairs:
    """Everyone within the radius."""
    lists = tree.query_ball_point(places, radius, workers=-1, return_sorted=True)
    place = np.repeat(np.arange(len(places)), [len(near) for near in lists])
    near = np.concatenate([np.asarray(each, dtype=np.int64) for each in lists]) if len(place) else place
    distance = np.linalg.norm(tree.data[near] - places[place], axis=1)
    return Pairs(place, number[near], distance)
