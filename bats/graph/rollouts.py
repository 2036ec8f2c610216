"""Rollouts of a policy through the graph: what a solved MDP promises, step by step.

Values are discounted and penalized; people and benchmarks count plain returns over an episode's length. All rollouts
advance together, one array operation per step. A rollout stops after an edge of discount 0, which terminates the
episode, and in a state without an edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from bats.arrays import TabularPolicy
from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE, mark_reached
from bats.graph.mdp import LOGGED, TabularMDP

MAX_STEPS = 1000
"""steps after which a rollout is not followed further to see which states it reaches"""


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Trajectories of a policy in the graph, one row each."""

    edge: Int[np.ndarray, "n T"]
    """edge taken at each step that any rollout made, `NO_EDGE` after the end"""

    @property
    def length(self) -> Int[np.ndarray, "n"]:
        return np.count_nonzero(self.edge != NO_EDGE, axis=1)


def roll_out(mdp: TabularMDP, policy: TabularPolicy, first_states: Int[np.ndarray, "n"], steps: int) -> Rollouts:
    """Rolls the policy out from every first state for up to `steps` edges."""
    if len(policy) != mdp.state_count:  # a policy from before the last stitches would silently lead astray
        raise SettingError(f"The policy must have {mdp.state_count} entries, one per state; got {len(policy)}.")
    row, state = np.arange(len(first_states)), first_states
    made = []
    for _ in range(steps):
        taken = policy[state]
        acting = taken != NO_EDGE
        row, taken = row[acting], taken[acting]
        if len(row) == 0:
            break
        edge = np.full(len(first_states), NO_EDGE, dtype=policy.dtype)
        edge[row] = taken
        made.append(edge)
        continues = mdp.discount[taken] > 0
        row, state = row[continues], mdp.target[taken[continues]]
    # a step's edges side by side in memory
    return Rollouts(np.array(made, dtype=policy.dtype).reshape(len(made), len(first_states)).T)


def reachable(mdp: TabularMDP, policy: TabularPolicy, first_states: Int[np.ndarray, "n"]) -> Int[np.ndarray, "m"]:
    """All states that the policy visits within `MAX_STEPS` steps of any of the first ones, those included, in order."""
    continues = (policy != NO_EDGE) & (mdp.discount[policy] > 0)
    next_state = np.where(continues, mdp.target[policy], -1)
    reached = np.zeros(mdp.state_count, dtype=bool)
    mark_reached(first_states, next_state, MAX_STEPS - 1, reached)
    return np.flatnonzero(reached)


def undiscounted_return(mdp: TabularMDP, rollouts: Rollouts) -> Float[np.ndarray, "n"]:
    """The sum of each rollout's rewards, neither discounted nor penalized."""
    rewards = np.append(mdp.reward, 0.0)  # NO_EDGE, which is -1, picks the 0
    return rewards[rollouts.edge].sum(axis=1, dtype=np.float64)


def ends_in_dead_end(
    mdp: TabularMDP, policy: TabularPolicy, first_states: Int[np.ndarray, "n"], steps: int
) -> Bool[np.ndarray, "n"]:
    """From which of the first states the policy comes to one whose future the log does not show, in fewer steps."""
    dead_end, terminated = mdp.state_count, mdp.state_count + 1
    following = np.where(mdp.discount[policy] > 0, mdp.target[policy], terminated)
    jump = np.append(np.where(policy == NO_EDGE, dead_end, following), [dead_end, terminated])
    state = first_states
    while steps:  # in jumps of 1, 2, 4, … steps, since there may be a million starts
        if steps % 2:
            state = jump[state]
        jump, steps = jump[jump], steps // 2
    return state == dead_end


def stitched_share(mdp: TabularMDP, rollouts: Rollouts) -> float:
    """The share of all steps that follow stitches rather than the log; 0 without a step."""
    stitched = np.append(mdp.stitch_round != LOGGED, False)
    steps = int(rollouts.length.sum())
    return int(np.count_nonzero(stitched[rollouts.edge])) / steps if steps else 0.0
