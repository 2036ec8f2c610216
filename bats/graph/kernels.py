"""The compiled inner loops, on plain arrays. Numba compiles each once and keeps the result on disk.

Callers guarantee shapes and meaning; see `graph.mdp` and `graph.solve`. Every kernel takes linear time. Kernels fill
arrays that are handed to them and return numbers only: an interrupt that arrives while one runs is then raised after
it, whereas an array on its way back would be lost, and the process with it.
"""

from __future__ import annotations

import numpy as np

from bats.data.distinct import Array, compiled

NO_EDGE = -1
_UNSEEN, _DONE = 0, -1


@compiled
def follow_edges(
    edge_of: Array, target: Array, reward: Array, discount: Array, gain: Array, factor: Array, end: Array
) -> None:
    """Follows the one edge of every state, `edge_of`, to the end and fills in, exactly,

        value(state) = gain(state) + factor(state) * value(end(state)).

    A state without an edge is its own end. One edge per state makes a functional graph, so a path either stops or
    enters a cycle. A cycle needs no end: with reward R and discount product g once around, its value is R / (1 - g).
    Everything else is filled in backwards along the path, so that each state is visited once.
    """
    states = len(edge_of)
    position = np.zeros(states, dtype=np.int32)  # _UNSEEN, _DONE, or 1 + position on the current path
    path = np.empty(states, dtype=np.int32)
    for start in range(states):
        length = 0
        state = start
        while position[state] == _UNSEEN:
            edge = edge_of[state]
            if edge >= 0 and discount[edge] > 0.0:
                path[length] = state
                length += 1
                position[state] = length
                state = target[edge]
            else:
                gain[state] = 0.0 if edge < 0 else reward[edge]
                factor[state] = 1.0 if edge < 0 else 0.0
                end[state] = state
                position[state] = _DONE
        if position[state] > 0:  # the path came back to itself: close the cycle at the state where it was entered
            around, product = 0.0, 1.0
            for step in range(length - 1, position[state] - 2, -1):
                edge = edge_of[path[step]]
                around = reward[edge] + discount[edge] * around
                product *= discount[edge]
            gain[state] = around / (1.0 - product)
            factor[state] = 0.0
            end[state] = state
        for step in range(length - 1, -1, -1):
            passed = path[step]
            if passed != state:
                edge = edge_of[passed]
                after = target[edge]
                gain[passed] = reward[edge] + discount[edge] * gain[after]
                factor[passed] = discount[edge] * factor[after]
                end[passed] = end[after]
            position[passed] = _DONE


@compiled
def improve_policy(
    first_edge: Array, target: Array, reward: Array, discount: Array, value: Array, policy: Array, sweeps: int
) -> int:
    """Moves states to better edges, in place, and returns the number of moves; 0 if `policy` was optimal.

    `value` is the policy's own at first and rises as states move, so that a gain found in one state is seen by those
    before it in the same sweep (logs run forwards, so sweeps run backwards). Values never exceed those of the policy so
    far, so it only improves. A gain within rounding is ignored: equal edges could swap for ever.
    """
    moves = 0
    for _ in range(sweeps):
        for state in range(len(policy) - 1, -1, -1):
            current = policy[state]
            if current < 0:
                continue
            best = current
            best_value = reward[current] + discount[current] * value[target[current]]
            threshold = best_value + 1e-13 * max(1.0, abs(best_value))
            for edge in range(first_edge[state], first_edge[state + 1]):
                edge_value = reward[edge] + discount[edge] * value[target[edge]]
                if edge_value > threshold:
                    best_value = threshold = edge_value
                    best = edge
            if best != current:
                policy[state] = best
                moves += 1
            if best_value > value[state]:
                value[state] = best_value
        if moves == 0:
            break
    return moves


@compiled
def mark_reached(first_states: Array, next_state: Array, steps: int, reached: Array) -> None:
    """Marks every state within `steps` steps of a first state, those included; a negative next state ends a path."""
    frontier = np.empty(len(reached), dtype=np.int64)
    count = 0
    for state in first_states:
        if not reached[state]:
            reached[state] = True
            frontier[count] = state
            count += 1
    # all paths advance together, so that a state is marked at its smallest distance
    for _ in range(steps):
        kept = 0
        for index in range(count):
            state = next_state[frontier[index]]
            if state >= 0 and not reached[state]:
                reached[state] = True
                frontier[kept] = state
                kept += 1
        count = kept
        if count == 0:
            break


@compiled
def choose_edges(states: Array, uniforms: Array, first_edge: Array, cumulative: Array, chosen: Array) -> None:
    """Draws an edge for each state: the first one whose cumulative probability exceeds a uniform number."""
    for row in range(len(states)):
        low, high = first_edge[states[row]], first_edge[states[row] + 1]
        if low == high:
            chosen[row] = NO_EDGE
            continue
        last = high - 1
        while low < last:  # binary search: a state of a discrete log may have a great many edges
            middle = (low + last) // 2
            if cumulative[middle] > uniforms[row]:
                last = middle
            else:
                low = middle + 1
        chosen[row] = low
