"""Value iteration: a few readable lines with a guaranteed error, as the reference for the exact solver."""

from __future__ import annotations

import numpy as np

from bats.arrays import StateValues, TabularPolicy
from bats.graph.mdp import TabularMDP
from bats.graph.solve import best_edge_values, boundary_values, edge_values, first_edges


def value_iteration(
    mdp: TabularMDP, *, tolerance: float, dead_end_value: float | StateValues = 0.0, max_sweeps: int = 1_000_000
) -> tuple[StateValues, int]:
    """Values with `max |value - V*| <= tolerance`, and the number of sweeps.

    A sweep contracts distances by gamma, so it is enough that the last one moved no state by more than
    `tolerance * (1 - gamma) / gamma`.
    """
    threshold = tolerance * (1 - mdp.gamma) / mdp.gamma
    value = boundary_values(mdp, dead_end_value)
    acting = mdp.out_degree > 0
    for sweep in range(1, max_sweeps + 1):
        best = best_edge_values(mdp, edge_values(mdp, value))
        change = float(np.max(np.abs(best - value[acting]), initial=0.0))
        value[acting] = best
        if change <= threshold:
            return value, sweep
    raise RuntimeError(f"{change=:.2g} after {max_sweeps} sweeps; {threshold:.2g} was needed.")


def greedy_policy(mdp: TabularMDP, value: StateValues) -> TabularPolicy:
    """The best edge of every state, given the values of the states it leads to; of equal ones the first."""
    edge_value = edge_values(mdp, value)
    acting = mdp.out_degree > 0
    best = np.repeat(best_edge_values(mdp, edge_value), mdp.out_degree[acting])
    best_edges = np.flatnonzero(edge_value == best)
    policy = first_edges(mdp)
    policy[acting] = best_edges[np.searchsorted(best_edges, policy[acting])]
    return policy
