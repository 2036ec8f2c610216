"""Array aliases with their shapes, and the small protocols that modules share.

Letters: N rows of a log, S states, E edges, D numbers in a state, A numbers in an action, W start states,
C stitches, K the most actions in a stitch.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

Observations = Float[np.ndarray, "N D"]
Actions = Float[np.ndarray, "N A"] | Int[np.ndarray, "N"]
"""numbers in a box, or the index of one of several discrete actions"""
RowNumbers = Float[np.ndarray, "N"]
RowFlags = Bool[np.ndarray, "N"]

States = Float[np.ndarray, "S D"]
StateValues = Float[np.ndarray, "S"]
StateFlags = Bool[np.ndarray, "S"]
EdgeValues = Float[np.ndarray, "E"]
EdgeActions = Float[np.ndarray, "E A"] | Int[np.ndarray, "E"]
Policy = Int[np.ndarray, "S"]
"""the edge taken in every state, `NO_EDGE` where there is none"""


@runtime_checkable
class Reporter(Protocol):
    """Told how far a long job has come; `bats.progress` draws it, the library itself never prints."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...


def silent(stage: str, done: int, total: int) -> None:
    """The reporter that says nothing."""
