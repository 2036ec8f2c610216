"""Gymnasium's MuJoCo robots with D4RL's reference returns, and logs of a policy that is still learning to move them.

D4RL measured its references in the second version of these environments. The fifth, which is used here, pays hopper
and walker the healthy reward only while they are healthy, and gives both feet of the walker the same friction, so
scores are not exactly comparable with D4RL's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bats.arrays import Progress
from bats.data.dataset import Dataset
from bats.tasks.common import import_mujoco, normalised

MIXED_SCORE = 33.3
"""the log of a learning policy ends when its normalised score reaches this: a third of the expert's"""
MIXED_ROWS = 1_000_000
"""or at this size"""


@dataclass(frozen=True)
class Robot:
    """A robot and what D4RL's references earn with it."""

    name: str
    environment: str
    random_return: float
    """mean return that scores 0"""
    expert_return: float
    """mean return that scores 100"""

    def normalised_score(self, returns: ArrayLike | float | int) -> Float[np.ndarray, "..."]:
        return normalised(returns, self.random_return, self.expert_return)

    @property
    def mixed_return(self) -> float:
        """The mean return that scores `MIXED_SCORE`."""
        return self.random_return + MIXED_SCORE / 100 * (self.expert_return - self.random_return)


ROBOTS = (
    Robot("hopper", "Hopper-v5", -20.272305, 3234.3),
    Robot("walker2d", "Walker2d-v5", 1.629008, 4592.3),
    Robot("halfcheetah", "HalfCheetah-v5", -280.178953, 12135.0),
)


@contextmanager
def made_quietly(environment: str) -> Iterator[None]:
    """While robots are made: MuJoCo says each time, in the terminal and in a file, that their models are outdated."""
    if environment not in [robot.environment for robot in ROBOTS] or find_spec("mujoco") is None:
        yield
        return
    mujoco = import_mujoco()
    usual = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None if "deprecated" in text else warnings.warn(text, stacklevel=2))
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(usual)


@dataclass(frozen=True)
class MixedCollector:
    """Collects what soft actor-critic sees while it learns, as in D4RL's medium-replay logs; takes hours."""

    robot: Robot
    unfinished: Path | None = None
    """file in which the collection is kept while it lasts, and from which it goes on; None: it is not kept"""

    @property
    def task(self) -> str:
        return f"{self.robot.name}-mixed"

    def __call__(self, rows: int | None, seed: int, *, progress: Progress) -> Dataset:
        import_mujoco()
        # by its name, as Gymnasium finds environments: the baselines build on the tasks
        collect: Callable[..., Dataset] = import_module("bats.baselines.online").collect_mixed
        return collect(self, rows, seed, progress=progress)
