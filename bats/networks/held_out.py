"""Held-out splits: whole groups of rows, so that a held-out row has no neighbour in time among the training rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from bats.arrays import Indices

SEGMENT = 25
"""consecutive rows that stay together where there are no natural groups"""


def split_groups(group: Indices, counts: Sequence[int], rng: np.random.Generator) -> list[Int[np.ndarray, "_"]]:
    """Draws parts of `counts` whole groups; the last part is the rest. Returns the rows of each part in order."""
    names, index = np.unique(group, return_inverse=True)
    part_of_group = np.full(len(names), len(counts))
    order = rng.permutation(len(names))
    for part, groups in enumerate(np.split(order, np.cumsum(counts))[:-1]):
        part_of_group[groups] = part
    return [np.flatnonzero(part_of_group[index] == part) for part in range(len(counts) + 1)]


def segments(count: int, length: int = SEGMENT) -> Indices:
    """The segment number of each of `count` consecutive rows; segments are about `length` rows long."""
    parts = np.array_split(np.arange(count), max(count // length, 1))
    return np.repeat(np.arange(len(parts)), [len(part) for part in parts])
