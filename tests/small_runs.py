"""A log and a configuration that are fitted in seconds, for the tests of runs."""

from __future__ import annotations

import numpy as np

from bats.config import BisimulationConfig, CloningConfig, Config, ImprovementConfig, ModelConfig, StitchConfig
from bats.data.dataset import Dataset
from bats.runs.policy_selection import policies_to_compare

SMALL = Config(
    gamma=0.95,
    model=ModelConfig(members=2, elites=2, hidden=(8,), batch_size=32, updates=60, evaluate_every=15),
    stitch=StitchConfig(rounds=2, recovery_rounds=1, samples=60, attempts=20, tolerance=2.0, max_length=3),
    cloning=CloningConfig(hidden=(8,), batch_size=32, updates=60),
    improvement=ImprovementConfig(turns=0),
    bisimulation=BisimulationConfig(hidden=(8,), horizon=20, updates=60, batch_size=16),
)


def small_log(episodes: int = 20, steps: int = 20, *, seed: int = 0) -> Dataset:
    """A point in the unit square that is pushed about; the upper right corner has reward 1."""
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-0.1, 0.1, (episodes, steps, 2))
    states = np.zeros((episodes, steps + 1, 2))
    states[:, 0] = rng.random((episodes, 2))
    for step in range(steps):
        states[:, step + 1] = np.clip(states[:, step] + actions[:, step], 0.0, 1.0)
    after = states[:, 1:].reshape(-1, 2)
    return Dataset.from_arrays(
        states[:, :-1].reshape(-1, 2),
        actions.reshape(-1, 2),
        np.all(after > 0.7, axis=1),
        next_observations=after,
        timeouts=np.arange(episodes * steps) % steps == steps - 1,
        name="small log",
    )


COMPARED = policies_to_compare(small_log(), SMALL)
"""the policies of a small run"""
