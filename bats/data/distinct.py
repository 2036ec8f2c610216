"""Numbering distinct rows: which states of a log are the same state, and which actions the same action.

Rows are compared bit by bit, so two states are the same exactly if all their numbers are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int
from numba import njit

from bats.arrays import Observations, States

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Any]
StateIndex = Int[np.ndarray, "N"]
"""the state of each row"""


def compiled(kernel: Kernel) -> Kernel:
    """Compiles a function with Numba at its first call, and caches the result on disk if a folder is writable."""
    try:
        return njit(cache=True)(kernel)
    except RuntimeError:  # neither the package's folder nor the user's cache is writable
        return njit(kernel)


def merge_states(observations: Observations, next_observations: Observations) -> tuple[States, StateIndex, StateIndex]:
    """The distinct states of a log, and for each row the index of its state and of its next state."""
    # rows interleave to s0 s0' s1 s1' …, so that states are numbered along each trajectory
    visited = np.stack([observations, next_observations], axis=1).reshape(2 * len(observations), -1)
    index, first_seen = number_rows(row_bits(visited))
    return visited[first_seen], index[0::2].copy(), index[1::2].copy()


def row_bits(table: np.ndarray) -> Int[np.ndarray, "N words"]:
    """Each row as 32-bit integers that are equal exactly where the rows are; 0.0 and -0.0 are equal."""
    rows = table.reshape(len(table), -1)
    # adding zero turns -0.0 into 0.0
    return np.ascontiguousarray(rows + rows.dtype.type(0)).view(np.int32)


def number_rows(words: Array) -> tuple[Array, Array]:
    """Numbers the distinct rows of a table in the order of their first appearance.

    Returns each row's number and, for each number, the row where it first appeared.
    """
    # allocated here and filled by the kernel: a kernel that returned arrays would lose them at an interrupt
    number = np.empty(len(words), dtype=np.int32)
    first = np.empty(len(words), dtype=np.int32)
    count = _number_rows(words, number, first)
    return number, first[:count].copy()


@compiled
def _number_rows(words: Array, number: Array, first: Array) -> int:
    """Fills `number` and `first` with an open-addressing hash table; returns the number of distinct rows."""
    rows, width = words.shape
    slots = 1
    while slots < 2 * rows:
        slots *= 2
    mask = np.uint64(slots - 1)
    table = np.full(slots, -1, dtype=np.int32)
    count = 0
    for row in range(rows):
        mixed = np.uint64(0x9E3779B97F4A7C15)
        for column in range(width):
            mixed = (mixed ^ np.uint64(np.uint32(words[row, column]))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed ^= mixed >> np.uint64(29)
        slot = mixed & mask
        while True:
            entry = table[slot]
            if entry < 0:
                table[slot] = count
                first[count] = row
                number[row] = count
                count += 1
                break
            # whole rows are compared: equal hashes alone never merge two rows
            column = 0
            while column < width and words[first[entry], column] == words[row, column]:
                column += 1
            if column == width:
                number[row] = entry
                break
            slot = (slot + np.uint64(1)) & mask
    return count
