"""What a run keeps of its stitching: every attempt, and a summary of each round."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from jaxtyping import Bool, Float, Int

from bats.arrays import short_repr
from bats.errors import check_rules
from bats.graph.rollouts import roll_out, stitched_share
from bats.graph.solve import Solution
from bats.storage.schema import MAY_BE_NOT_FINITE

SHARE_STEPS = 300
"""steps of the policy's rollouts from the starts over which the share of stitched ones is counted"""


class Outcome(IntEnum):
    """What became of an attempt."""

    ACCEPTED = 0
    TOO_FAR = 1
    """the plan ends too far from its target"""
    UNRELIABLE = 2
    """close enough by the ensemble, but the model is too wrong on held-out rows near the plan"""
    TERMINATES = 3
    """the episode would terminate on the way, or in a target where it continues"""
    DIVERGES = 4
    """a prediction is not finite"""


@dataclass(frozen=True, eq=False)
class Attempts:
    """Candidates that were planned, and their outcomes."""

    source: Int[np.ndarray, "C"]
    target: Int[np.ndarray, "C"]
    length: Int[np.ndarray, "C"]
    """actions of the plan that was kept"""
    first_length: Int[np.ndarray, "C"]
    """actions of the first plan; every number from there up to `length` was tried"""
    distance: Float[np.ndarray, "C"]
    """length of the neighbour edge that the plan had to bridge"""
    error: Float[np.ndarray, "C"] = field(metadata=MAY_BE_NOT_FINITE)
    """the plan's end error, including the model's local error"""
    outcome: Int[np.ndarray, "C"]

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_rules(
            {
                "state indices must not be negative": np.all((self.source >= 0) & (self.target >= 0)),
                "plans must have at least one action, and no fewer than the first plan": np.all(
                    (self.first_length >= 1) & (self.length >= self.first_length)
                ),
                "distances must not be negative": np.all(self.distance >= 0),
                "outcomes must be known ones": np.all(np.isin(self.outcome, list(Outcome))),
                "accepted plans must have finite errors": np.isfinite(self.error[self.accepted]).all(),
            }
        )

    def __len__(self) -> int:
        return len(self.source)

    @property
    def accepted(self) -> Bool[np.ndarray, "C"]:
        return self.outcome == Outcome.ACCEPTED


@dataclass(frozen=True)
class RoundRecord:
    """A round in numbers."""

    round: int
    sources: int
    """distinct states searched"""
    candidates: int
    tried: int
    accepted: int
    refused: dict[str, int]
    """by outcome"""
    mean_error: float
    """of the accepted stitches"""
    value_before: float
    """mean value of the starts when the round began"""
    value: float
    """and with the round's stitches"""
    stitched_share: float
    """of the steps of the policy's rollouts from the starts"""
    states: int
    edges: int
    max_length: int
    """most actions that its stitches could have"""

    @classmethod
    def of(
        cls,
        number: int,
        max_length: int,
        sources: int,
        candidates: int,
        attempts: Attempts,
        solution: Solution,
        *,
        value_before: float,
    ) -> RoundRecord:
        """The record of a round that has led to this solution."""
        mdp = solution.mdp
        counts = {outcome.name.lower(): int(np.sum(attempts.outcome == outcome)) for outcome in Outcome}
        accepted = counts.pop("accepted")
        return cls(
            round=number,
            sources=sources,
            candidates=candidates,
            tried=len(attempts),
            accepted=accepted,
            refused={outcome: count for outcome, count in counts.items() if count},
            mean_error=float(attempts.error[attempts.accepted].mean()) if accepted else 0.0,
            value_before=value_before,
            value=solution.start_value,
            stitched_share=stitched_share(mdp, roll_out(mdp, solution.policy, mdp.starts, SHARE_STEPS)),
            states=mdp.state_count,
            edges=mdp.edge_count,
            max_length=max_length,
        )
