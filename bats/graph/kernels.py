"""The compiled inner loops, on plain arrays. Numba compiles each once and keeps the result on disk.

Callers own shapes and meaning; see `graph.mdp` and `graph.solve`. Every kernel is linear in what it is given. Kernels
fill arrays that are handed to them and return numbers only: an interrupt that arrives while one runs is then raised
after it, whereas an array on its way back would be lost, and the process with it.
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
    """Follows the one edge of every state, `edge_of`, until there is none, and fills in where that leads:

        value(state) = gain(state) + factor(state) * value(end(state)),

    exactly, whatever the value at the end. A state without an edge is its own end. One edge a state makes a
    functional graph, so a walk either stops or enters a cycle, and a cycle needs no end: with reward R and discount
    product g once around it is worth R / (1 - g). All else is filled in backwards along the walk, which visits each
    state once.
    """
    states = len(edge_of)
    place = np.zeros(states, dtype=np.int32)  # _UNSEEN, _DONE, or 1 + place on the walk under way
    walk = np.empty(states, dtype=np.int32)
    for start in range(states):
        length = 0
        state = start
        while place[state] == _UNSEEN:
            edge = edge_of[state]
            if edge >= 0 and discount[edge] > 0.0:
                walk[length] = state
                length += 1
                place[state] = length
                state = target[edge]
            else:
                gain[state] = 0.0 if edge < 0 else reward[edge]
                factor[state] = 1.0 if edge < 0 else 0.0
                end[state] = state
                place[state] = _DONE
        if place[state] > 0:  # the walk came back to itself: close the cycle at the state where it was entered
            around, product = 0.0, 1.0
            for step in range(length - 1, place[state] - 2, -1):
                edge = edge_of[walk[step]]
                around = reward[edge] + discount[edge] * around
                product *= discount[edge]
            gain[state] = around / (1.0 - product)
            factor[state] = 0.0
            end[state] = state
        for step in range(length - 1, -1, -1):
            passed = walk[step]
            if passed != state:
                edge = edge_of[passed]
                after = target[edge]
                gain[passed] = reward[edge] + discount[edge] * gain[after]
                factor[passed] = discount[edge] * factor[after]
                end[passed] = end[after]
            place[passed] = _DONE


@compiled
def improve_policy(
    first_edge: Array, target: Array, reward: Array, discount: Array, value: Array, policy: Array, sweeps: int
) -> int:
    """Moves states to better edges, in place, and returns how many moves were made; none if `policy` was optimal.

    `value` is the policy's own at first and rises as states move, so that a gain found at a state is seen by those
    before it in the same sweep (logs run forwards, so sweeps run backwards). Values never exceed what the policy in
    the making is worth, so it only gets better. A gain within rounding is none: equal edges could swap for ever.
    """
    moves = 0
    for _ in range(sweeps):
        for state in range(len(policy) - 1, -1, -1):
            held = policy[state]
            if held < 0:
                continue
            chosen = held
            worth = reward[held] + discount[held] * value[target[held]]
            least = worth + 1e-13 * max(1.0, abs(worth))
            for edge in range(first_edge[state], first_edge[state + 1]):
                other = reward[edge] + discount[edge] * value[target[edge]]
                if other > least:
                    worth = least = other
                    chosen = edge
            if chosen != held:
                policy[state] = chosen
                moves += 1
            if worth > value[state]:
                value[state] = worth
        if moves == 0:
            break
    return moves


@compiled
def mark_reached(starts: Array, following: Array, reached: Array) -> None:
    """Marks every state that a walk from one of the starts comes through, itself included; each is visited once."""
    for start in starts:
        state = start
        while not reached[state]:
            reached[state] = True
            state = following[state]


@compiled
def choose_edges(states: Array, uniforms: Array, first_edge: Array, cumulative: Array, chosen: Array) -> None:
    """Draws an edge for each walker: the first one of its state whose cumulative share exceeds its uniform number."""
    for walker in range(len(states)):
        low, high = first_edge[states[walker]], first_edge[states[walker] + 1]
        if low == high:
            chosen[walker] = NO_EDGE
            continue
        last = high - 1
        while low < last:  # binary search: a state of a discrete log may have a great many edges
            middle = (low + last) // 2
            if cumulative[middle] > uniforms[walker]:
                last = middle
            else:
                low = middle + 1
        chosen[walker] = low
