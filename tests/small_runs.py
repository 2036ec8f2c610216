"""A log and a configuration that are fitted in seconds, for the tests of runs."""

from __future__ import annotations

import numpy as np

from bats.config import Config
from bats.data.dataset import Dataset
from bats.metric.bisimulation import BisimulationConfig
from bats.model.ensemble import DynamicsConfig
from bats.planning.planner import PlannerConfig
from bats.policy.cloning import CloningConfig
from bats.stitching.candidates import CandidateConfig
from bats.stitching.loop import StitchConfig

SMALL = Config(
    gamma=0.95,
    dynamics=DynamicsConfig(
        members=2,
        elites=2,
        hidden=(8,),
        reward_hidden=(8,),
        batch_size=32,
        updates=60,
        evaluate_every=15,
        validation_rows=50,
        held_out_rows=50,
    ),
    stitch=StitchConfig(
        rounds=2,
        rounds_beside=1,
        samples=60,
        attempts=20,
        tolerance=2.0,
        candidates=CandidateConfig(longest=3),
        planner=PlannerConfig(fallback=False, more_iterations=0, batch=32),
    ),
    cloning=CloningConfig(hidden=(8,), batch_size=32, updates=60, evaluate_every=20),
    bisimulation=BisimulationConfig(hidden=(8,), horizon=20, updates=60, batch_size=16),
)


def walks(episodes: int = 20, steps: int = 20, *, seed: int = 0) -> Dataset:
    """A point in the unit square that is pushed about; being in the upper right corner pays 1."""
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-0.1, 0.1, (episodes, steps, 2))
    places = np.zeros((episodes, steps + 1, 2))
    places[:, 0] = rng.random((episodes, 2))
    for step in range(steps):
        places[:, step + 1] = np.clip(places[:, step] + actions[:, step], 0.0, 1.0)
    after = places[:, 1:].reshape(-1, 2)
    return Dataset.from_arrays(
        places[:, :-1].reshape(-1, 2),
        actions.reshape(-1, 2),
        np.all(after > 0.7, axis=1),
        next_observations=after,
        timeouts=np.arange(episodes * steps) % steps == steps - 1,
        name="walks",
    )
