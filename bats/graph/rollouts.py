"""Walks of a policy through the graph: what a solved MDP promises, step by step.

Values are discounted and charged with penalties; people and benchmarks count plain returns over an episode's length.
All walkers move together, one array operation a step. A walk stops after an edge of discount 0, which ends the
episode, and in a state without an edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from bats.arrays import TabularPolicy
from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED, TabularMDP

FAR = 1000
"""steps after which a walk is not followed further to see whom it meets"""


@dataclass(frozen=True, eq=False)
class Walks:
    """Trajectories of a policy in the graph, one row each."""

    edge: Int[np.ndarray, "n T"]
    """edge taken at each step, `NO_EDGE` after the end"""

    @property
    def length(self) -> Int[np.ndarray, "n"]:
        """Steps taken before the end; a walk has no gaps."""
        return np.count_nonzero(self.edge != NO_EDGE, axis=1)


def walk(mdp: TabularMDP, policy: TabularPolicy, first_states: Int[np.ndarray, "n"], steps: int) -> Walks:
    """Follows the policy from every first state for up to `steps` edges."""
    if len(policy) != mdp.state_count:  # a policy from before the last stitches would lead astray without a word
        raise SettingError(f"The policy must have {mdp.state_count} entries, one a state; got {len(policy)}.")
    edge = np.full((steps, len(first_states)), NO_EDGE, dtype=policy.dtype)  # a step's edges side by side in memory
    walker, place = np.arange(len(first_states)), first_states
    for step in range(steps):
        taken = policy[place]
        acting = taken != NO_EDGE
        walker, taken = walker[acting], taken[acting]
        if len(walker) == 0:
            break
        edge[step, walker] = taken
        goes_on = mdp.discount[taken] > 0
        walker, place = walker[goes_on], mdp.target[taken[goes_on]]
    return Walks(edge.T)


def on_the_way(mdp: TabularMDP, policy: TabularPolicy, first_states: Int[np.ndarray, "n"]) -> Int[np.ndarray, "m"]:
    """All states that the policy meets within `FAR` steps from any of the first ones, those included, in order."""
    reached = np.zeros(mdp.state_count, dtype=bool)
    here = np.unique(first_states)
    for _ in range(FAR):
        reached[here] = True
        taken = policy[here]
        taken = taken[taken != NO_EDGE]
        after = np.unique(mdp.target[taken[mdp.discount[taken] > 0]])
        here = after[~reached[after]]
        if len(here) == 0:
            break
    return np.flatnonzero(reached)


def undiscounted_return(mdp: TabularMDP, walks: Walks) -> Float[np.ndarray, "n"]:
    """The sum of each walk's rewards, neither discounted nor charged with a penalty."""
    rewards = np.append(mdp.reward, 0.0)  # NO_EDGE, which is -1, picks the 0
    return rewards[walks.edge].sum(axis=1, dtype=np.float64)


def stitched_share(mdp: TabularMDP, walks: Walks) -> float:
    """The share of all steps that go along stitches rather than the log; 0 without a step."""
    stitched = np.append(mdp.stitch_round != LOGGED, False)
    steps = int(walks.length.sum())
    return int(np.count_nonzero(stitched[walks.edge])) / steps if steps else 0.0


def weighted_return(mdp: TabularMDP, policy: TabularPolicy, steps: int) -> float:
    """The mean undiscounted return of the start states, by their weights."""
    return float(mdp.start_weights @ undiscounted_return(mdp, walk(mdp, policy, mdp.starts, steps)))
