"""What the small files of a run folder hold: what it is a run of, its log, its timings, and how it ended."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
from jaxtyping import Float

from bats.arrays import field_values
from bats.data.dataset import Dataset, Names
from bats.data.episodes import Note
from bats.storage.schema import MAY_BE_NOT_FINITE
from bats.storage.tensors import checksum

VERSION = 9
"""raised when the meaning of what a folder holds changes"""


BATS = "bats"
"""name of the clone of the stitched graph's policy"""
IMPROVED = "improved"
"""name of this clone after it was improved in the model"""
BEST_TENTH = "best-tenth"
CLONED_SHARES = {"log": 1.0, BEST_TENTH: 0.1}
"""names of clones of the log that it is compared with, and the share of the log that is cloned"""
COMPARED = (BATS, IMPROVED, *CLONED_SHARES)
FROM_GRAPH = (BATS, IMPROVED)
"""those of them that come from the stitched graph; the others are clones of the log"""
POLICY_NAMES = {
    BATS: "the clone of the stitched graph's policy",
    IMPROVED: "the clone of the stitched graph's policy, improved in the model",
    "log": "the clone of the whole log",
    BEST_TENTH: "the clone of the log's best tenth",
}


@dataclass(frozen=True)
class Header:
    """What a run is a run of, besides its settings."""

    version: int
    package: str
    log: str
    transitions: str
    """checksum of the log's states, actions and episodes"""
    rewards: str
    """checksum of its rewards"""
    starts: str
    """checksum of its start states"""
    seed: int
    reused: str | None = None
    """full path of another run whose model and graph it began with"""

    @classmethod
    def of(cls, dataset: Dataset, seed: int, reused: Path | str | None = None) -> Header:
        arrays = {name: value for name, value in field_values(dataset).items() if isinstance(value, np.ndarray)}
        rewards = {"rewards": arrays.pop("rewards")}
        starts = {name: arrays.pop(name) for name in ("starts", "start_weights")}
        parts = {"transitions": arrays, "rewards": rewards, "starts": starts}
        # neither the name of a log nor the way it is stored matters
        sums = {part: checksum(of_part, str(dataset.action_count)) for part, of_part in parts.items()}
        reused = None if reused is None else os.path.realpath(reused)  # however it is spelt
        return cls(VERSION, version("bats-rl"), dataset.name, **sums, seed=seed, reused=reused)

    def differences(self, other: Header, *parts: str) -> list[str]:
        """How some parts of another run differ from this one's, in words."""
        found = []
        for part in parts:
            own, others = getattr(self, part), getattr(other, part)
            if own == others:
                continue
            if part == "seed":
                found.append(f"its seed is {own}, not {others}")
            elif part == "reused":
                began, begins = ("without --reuse" if run is None else f"with --reuse {run}" for run in (own, others))
                found.append(f"it was started {began}, not {begins}")
            else:
                found.append(f"it was started with other {part} (its log: {self.log}; the log given now: {other.log})")
        return found


@dataclass(frozen=True)
class LogCard:
    """What the MDP of a log does not hold."""

    rows: int
    episodes: int
    observation_names: Names
    """empty where the log has no names"""
    action_names: Names
    notes: tuple[Note, ...]

    @classmethod
    def of(cls, dataset: Dataset) -> LogCard:
        names = dataset.observation_names or (), dataset.action_names or ()
        return cls(len(dataset), dataset.episode_count, *names, dataset.notes)

    def names(self) -> dict[str, list[str]]:
        """The names that the log has, for the card of a policy."""
        named = {"observation_names": self.observation_names, "action_names": self.action_names}
        return {kind: list(names) for kind, names in named.items() if names}


@dataclass(frozen=True)
class Timing:
    """How long a stage or a round took."""

    stage: str
    round: int | None
    seconds: float


def seconds_by_stage(timings: Iterable[Timing]) -> dict[str, float]:
    """The time that each stage took in all its rounds, in the order of the stages."""
    seconds: dict[str, float] = {}
    for timing in timings:
        seconds[timing.stage] = seconds.get(timing.stage, 0.0) + timing.seconds
    return seconds


@dataclass(frozen=True)
class Summary:
    """How a run ended, and what solving it again needs."""

    rounds: int
    gamma: float
    penalty: float
    """in reward per unit of error"""
    penalty_steps: float | None
    """the same in steps, where it was given in steps"""
    tolerance: float | None
    dead_end_value: float | None
    """None: the smallest possible one"""
    logged_value: float
    """discounted return of the logged behaviour from the starts, with this value of dead ends; `value_of_log` is
    what is shown"""
    logged_dead_end_weight: float
    """how much that changes with the value of a dead end"""
    log_value: float
    """optimal value of the log alone at the starts"""
    value: float
    """and with the stitches"""
    metric: tuple[float, ...]
    """weight of each component of a state; of ordinary steps where the metric was learned"""
    policy: str
    """which of the compared policies is the run's policy"""


@dataclass(frozen=True, eq=False)
class StitchErrors:
    """The errors of all stitches by the last learned metric."""

    error: Float[np.ndarray, "C"] = field(metadata=MAY_BE_NOT_FINITE)
