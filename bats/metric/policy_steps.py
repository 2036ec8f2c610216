"""One step of a policy from each state, as rows to learn from, and which of the states a learner may see.

    states      s0 s1 s2 s3 …
    next_row     1  2  2  0 …           where the policy leads from there: always another of the rows

A state without an edge stays where it is and earns the interest of its value, (1 - gamma) times it, so that its
discounted rewards add up to exactly that value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int, UInt64

from bats.arrays import TabularPolicy
from bats.errors import DataError, SettingError, check_rules
from bats.graph.kernels import NO_EDGE, mark_reached
from bats.graph.mdp import TabularMDP
from bats.graph.solve import DeadEnds, boundary_values, checked_policy

Part = Literal["fit", "calibrate", "test"]


@dataclass(frozen=True, eq=False)
class PolicySteps:
    """One step of a policy from each of n states; every next state is among them."""

    states: Float[np.ndarray, "n D"]
    rewards: Float[np.ndarray, "n"]
    discounts: Float[np.ndarray, "n"]
    """gamma, or 0 where the episode terminates"""
    next_row: Int[np.ndarray, "n"]
    gamma: float

    def __len__(self) -> int:
        return len(self.states)

    def values(self) -> Float[np.ndarray, "n"]:
        """The policy's value in each state. Each turn doubles the number of steps, until the rest is negligible."""
        value, discount, row = self.rewards.astype(np.float64), self.discounts.astype(np.float64), self.next_row
        # the square of the rounding error, because values may be many orders of magnitude larger far from a state
        while discount.max(initial=0.0) > np.finfo(np.float64).eps ** 2:
            value, discount, row = value + discount * value[row], discount * discount[row], row[row]
        return value

    @classmethod
    def of(
        cls,
        mdp: TabularMDP,
        policy: TabularPolicy,
        *,
        from_states: Int[np.ndarray, "m"] | None = None,
        dead_end_value: DeadEnds = None,
    ) -> PolicySteps:
        """The step from every state, or only from those that the policy reaches from the given ones, in order.

        Rewards are those that `policy_value` sees, penalties included, and so is `dead_end_value`.
        """
        acting = checked_policy(mdp, policy) != NO_EDGE
        edge = policy[acting]
        target, discount = np.arange(mdp.state_count), np.full(mdp.state_count, mdp.gamma)
        reward = (1 - mdp.gamma) * boundary_values(mdp, dead_end_value)
        target[acting], discount[acting] = mdp.target[edge], mdp.discount[edge]
        reward[acting] = mdp.penalized_reward[edge]
        rows = np.arange(mdp.state_count)
        if from_states is not None:
            if len(from_states) and not (from_states.min() >= 0 and from_states.max() < mdp.state_count):
                raise SettingError(f"`from_states` must contain state indices from 0 to {mdp.state_count - 1}.")
            reached = np.zeros(mdp.state_count, dtype=bool)
            mark_reached(from_states, target, mdp.state_count, reached)
            rows = np.flatnonzero(reached)
        if len(rows) == 0:
            raise DataError("at least one state to learn the metric from", "none")
        row_of_state = np.zeros(mdp.state_count, dtype=np.int64)
        row_of_state[rows] = np.arange(len(rows))
        states = mdp.states[rows].astype(np.float32)
        return cls(states, reward[rows], discount[rows], row_of_state[target[rows]], mdp.gamma)


@dataclass(frozen=True)
class StateSplit:
    """Which states are fitted to, which calibrate and which only test.

    A hash of a state's own numbers decides, so that a state stays in its part when rows are added, left out or
    re-ordered, and when the metric is refreshed for another policy.
    """

    seed: int
    held_out: float
    """share of the states that is not fitted to: half of it calibrates, half tests"""

    def __post_init__(self) -> None:
        check_rules(
            {
                f"`seed` must be from 0 to 2^64 - 1; got {self.seed}": 0 <= self.seed < 2**64,
                f"`held_out` must be between 0 and 1; got {self.held_out}": 0 <= self.held_out <= 1,
            }
        )

    def rows(self, states: Float[np.ndarray, "n D"], part: Part) -> Int[np.ndarray, "k"]:
        """The rows of the states in a part."""
        uniform = _hash_uniform(states, self.seed)
        low, high = {
            "fit": (self.held_out, 1.0),
            "calibrate": (0.0, self.held_out / 2),
            "test": (self.held_out / 2, self.held_out),
        }[part]
        return np.flatnonzero((low <= uniform) & (uniform < high))


def _hash_uniform(states: Float[np.ndarray, "n D"], seed: int) -> Float[np.ndarray, "n"]:
    """A pseudo-random number from 0 to 1 for each state, decided by its own numbers and the seed alone."""
    words = (np.ascontiguousarray(states, dtype=np.float32) + np.float32(0)).view(np.uint32)  # -0.0 becomes 0.0
    mixed = _mix(np.full(len(words), seed, dtype=np.uint64))
    for column in words.T:
        mixed = _mix(mixed ^ column)
    return (mixed >> np.uint64(11)) / float(2**53)


def _mix(numbers: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
    """Spreads every bit over all others: the finalizer of the splitmix64 generator."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
