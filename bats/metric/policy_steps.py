"""What a policy does in every state, as arrays to learn from, and which of the states a learner may see.

    states      s0 s1 s2 s3 …           one row a state
    following    1  2  2  0 …           the row where the policy goes from there: always one of the same rows

A state without an edge stays where it is and is paid the interest of what it is worth, as in the exact metric. Rows
may be all states of an MDP, or only those that the policy comes through from some.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int, UInt64

from bats.arrays import StateValues, TabularPolicy
from bats.errors import DataError, SettingError
from bats.graph.kernels import NO_EDGE, mark_reached
from bats.graph.mdp import TabularMDP
from bats.graph.solve import checked_policy
from bats.metric.bisimulation_exact import one_step

Part = Literal["fit", "calibrate", "test"]


@dataclass(frozen=True, eq=False)
class Transitions:
    """One step of a policy from each of n states, closed under going on."""

    states: Float[np.ndarray, "n D"]
    actions: Float[np.ndarray, "n A"]
    """as networks take them: discrete ones one-hot, 0 where a state has no edge"""
    rewards: Float[np.ndarray, "n"]
    discounts: Float[np.ndarray, "n"]
    """gamma, or 0 where the episode ends"""
    following: Int[np.ndarray, "n"]
    """the row of the next state"""

    def __post_init__(self) -> None:
        if {len(part) for part in (self.actions, self.rewards, self.discounts, self.following)} != {len(self.states)}:
            raise SettingError("States, actions, rewards, discounts and what follows must be of the same length.")
        if len(self) and not (self.following.min() >= 0 and self.following.max() < len(self)):
            raise SettingError(f"`following` must name rows from 0 to {len(self) - 1}.")

    def __len__(self) -> int:
        return len(self.states)

    def values(self) -> Float[np.ndarray, "n"]:
        """What the policy is worth in each state: of twice as many steps in every turn, until nothing is left."""
        value, weight, here = self.rewards.astype(np.float64), self.discounts.astype(np.float64), self.following
        while weight.max(initial=0.0) > np.finfo(np.float64).eps ** 2:
            value, weight, here = value + weight * value[here], weight * weight[here], here[here]
        return value

    @classmethod
    def of(
        cls,
        mdp: TabularMDP,
        policy: TabularPolicy,
        *,
        from_states: Int[np.ndarray, "m"] | None = None,
        dead_end_value: float | StateValues = 0.0,
    ) -> Transitions:
        """Every state's step; with `from_states` only of those that the policy comes through from them, in order.

        Rewards are those that `policy_value` sees, penalties included, and so is `dead_end_value`.
        """
        step = one_step(mdp, checked_policy(mdp, policy), dead_end_value)
        rows = np.arange(mdp.state_count)
        if from_states is not None:
            if len(from_states) and not (from_states.min() >= 0 and from_states.max() < mdp.state_count):
                raise SettingError(f"`from_states` must name states from 0 to {mdp.state_count - 1}.")
            reached = np.zeros(mdp.state_count, dtype=bool)
            mark_reached(from_states, step.target, reached)
            rows = np.flatnonzero(reached)
        if len(rows) == 0:
            raise DataError("states to learn from", "none")
        place = np.zeros(mdp.state_count, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        return cls(
            states=mdp.states[rows].astype(np.float32),
            actions=_actions(mdp, policy[rows]),
            rewards=step.reward[rows],
            discounts=step.discount[rows],
            following=place[step.target[rows]],
        )


@dataclass(frozen=True)
class Split:
    """Which states are fitted to, which calibrate and which only test.

    A state's own numbers decide, so that it stays in its part when rows are added, left out or re-ordered, and when
    learning goes on for another policy.
    """

    seed: int
    held_out: float
    """share of the states that is not fitted to: half of it calibrates, half tests"""

    def rows(self, states: Float[np.ndarray, "n D"], part: Part) -> Int[np.ndarray, "k"]:
        """The rows of the states that belong to a part."""
        drawn = _uniform(states, self.seed)
        low, high = {
            "fit": (self.held_out, 1.0),
            "calibrate": (0.0, self.held_out / 2),
            "test": (self.held_out / 2, self.held_out),
        }[part]
        return np.flatnonzero((low <= drawn) & (drawn < high))


def _actions(mdp: TabularMDP, edge: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n A"]:
    acting = edge != NO_EDGE
    width = mdp.action.shape[1] if mdp.action_count is None else mdp.action_count
    actions = np.zeros((len(edge), width), dtype=np.float32)
    chosen = mdp.action[edge[acting]]
    if mdp.action_count is None:
        actions[acting] = chosen
    else:
        actions[np.flatnonzero(acting), chosen] = 1.0
    return actions


def _uniform(states: Float[np.ndarray, "n D"], seed: int) -> Float[np.ndarray, "n"]:
    """A number from 0 to 1 for each state that only its own numbers and the seed decide."""
    words = (np.ascontiguousarray(states, dtype=np.float32) + np.float32(0)).view(np.uint32)  # -0.0 is 0.0
    mixed = _stirred(np.full(len(words), seed, dtype=np.uint64))
    for column in words.T:
        mixed = _stirred(mixed ^ column)
    return (mixed >> np.uint64(11)) / float(2**53)


def _stirred(numbers: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
    """Spreads every bit over all: the finaliser of the splitmix64 generator."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
