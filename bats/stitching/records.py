"""What a run writes down of itself: its attempts, its rounds, and what only the log knew."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from jaxtyping import Bool, Float, Int

from bats.data.dataset import Dataset

WALKED = 300
"""steps of the policy's walk from each start over which the share of stitched ones is told"""
LOG_CARD = "log.json"
"""file of a run folder that holds its `LogCard`"""


class Outcome(IntEnum):
    """What became of an attempt."""

    ACCEPTED = 0
    MISSED = 1
    """the plan ends too far from its target"""
    DOUBTED = 2
    """near enough by the ensemble, but the model was too wrong on held-out rows near the plan"""
    ENDED = 3
    """the task would end on the way, or in a target where it goes on"""
    RAN_AWAY = 4
    """what the model predicts is not finite"""


@dataclass(frozen=True, eq=False)
class Attempts:
    """Pairs that were planned, and what became of them."""

    source: Int[np.ndarray, "C"]
    target: Int[np.ndarray, "C"]
    length: Int[np.ndarray, "C"]
    """actions of the plan that was kept"""
    fewest: Int[np.ndarray, "C"]
    """actions of the first plan; from there every number up to the length was tried, one after the other"""
    gap: Float[np.ndarray, "C"]
    """length of the neighbour edge that had to be closed"""
    error: Float[np.ndarray, "C"]
    """the plan's, with the model's share in it"""
    outcome: Int[np.ndarray, "C"]

    def __len__(self) -> int:
        return len(self.source)

    @property
    def accepted(self) -> Bool[np.ndarray, "C"]:
        return self.outcome == Outcome.ACCEPTED


@dataclass(frozen=True)
class RoundRecord:
    """What a round did, in numbers."""

    round: int
    sources: int
    """distinct states looked at"""
    candidates: int
    tried: int
    accepted: int
    refused: dict[str, int]
    """by reason"""
    mean_error: float
    """of the accepted stitches"""
    value_before: float
    """mean value of the starts when the round began"""
    value: float
    """and with the round's stitches"""
    stitched_share: float
    """of the steps of the policy's walks from the starts"""
    states: int
    edges: int


@dataclass(frozen=True)
class Option:
    """A penalty and a tolerance that the finished graph can be solved with, and how good the policy is then."""

    penalty: float
    """in the run's unit"""
    tolerance: float | None
    stitches: int
    """within the tolerance"""
    lower: float
    """what the policy is worth at least at the starts, by a yardstick that is the same for all options"""


@dataclass(frozen=True)
class NoteCard:
    """A note made in reading a log."""

    kind: str
    text: str


@dataclass(frozen=True)
class LogCard:
    """What only the log itself knows: its MDP has neither its rows nor the names of its columns."""

    rows: int
    episodes: int
    observation_names: tuple[str, ...]
    """of the numbers of a state; empty where the log has no names for them"""
    action_names: tuple[str, ...]
    notes: tuple[NoteCard, ...]

    @classmethod
    def of(cls, dataset: Dataset) -> LogCard:
        return cls(
            rows=len(dataset),
            episodes=dataset.episode_count,
            observation_names=dataset.observation_names or (),
            action_names=dataset.action_names or (),
            notes=tuple(NoteCard(note.kind, note.text) for note in dataset.notes),
        )
