"""A log with eleven numbers per state: Gymnasium's Hopper, held upright by a disturbed posture controller.

Springs and dampers on the three joints keep the one-legged robot standing. Noise of a different strength in every
episode makes it sway, hop and fall, early or late, so that states, lengths and returns all vary. A fall terminates.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32

from bats.arrays import Progress, no_progress
from bats.data.dataset import Dataset
from bats.tasks.common import check_rows, generator
from bats.tasks.episodes import Controller, as_dataset, make_environment, play_rows

TASK = "hopper"
ENVIRONMENT = "Hopper-v5"
SUMMARY = "a posture controller with action noise, states of size 11, 100,000 rows"
LOG_ROWS = 100_000
ANGLE_GAIN, SPEED_GAIN = 1.0, 0.1
MAX_NOISE = 1.0


def posture_action(observation: np.ndarray) -> np.ndarray:
    """Pulls the joint angles (numbers 2 to 4) back to zero and damps their speeds (numbers 8 to 10)."""
    return -ANGLE_GAIN * observation[2:5] - SPEED_GAIN * observation[8:11]


def collect_hopper(rows: int | None, seed: int, *, progress: Progress = no_progress) -> Dataset:
    """Whole episodes, the last one truncated; 100,000 rows if `rows` is None. Starts are the first rows."""
    rows = check_rows(rows, LOG_ROWS)
    start_rng, noise_rng = generator(seed).spawn(2)
    environment = make_environment(ENVIRONMENT)

    def new_controller() -> Controller:
        # a strength per episode, so that the log has steady episodes as well as early falls
        strength = noise_rng.uniform(0, MAX_NOISE)

        def act(observation: np.ndarray) -> Float32[np.ndarray, "3"]:
            noise = noise_rng.normal(0, strength, 3)
            return np.clip(posture_action(observation) + noise, -1, 1).astype(np.float32)

        return act

    episodes = play_rows(environment, new_controller, rows, start_rng, progress)
    environment.close()
    return as_dataset(episodes, name=TASK)
