"""A log with eleven numbers a state: Gymnasium's Hopper, kept upright by a disturbed posture controller.

Springs and dampers on the three joints hold the one-legged robot still for as long as nobody disturbs it. Noise of
another strength in every episode makes it sway, hop and fall, early or late: states, lengths and returns all vary,
and falling terminates.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Float32

from bats.arrays import Progress, no_progress
from bats.data.dataset import Dataset
from bats.errors import BatsError
from bats.tasks.recording import as_dataset, check_rows, play
from bats.tasks.seeds import draw_seed, generator
from bats.tasks.simulator import import_mujoco

TASK = "hopper"
ENVIRONMENT = "Hopper-v5"
ANGLE_GAIN = 1.0
SPEED_GAIN = 0.1
STRONGEST_NOISE = 1.0


def posture_action(observation: np.ndarray) -> np.ndarray:
    """Pulls the joint angles (numbers 2 to 4) back to zero against their speeds (numbers 8 to 10)."""
    return -ANGLE_GAIN * observation[2:5] - SPEED_GAIN * observation[8:11]


def collect_hopper(rows: int, seed: int, *, progress: Progress = no_progress) -> Dataset:
    """`rows` rows of whole episodes, the last one cut. Starts are the first rows."""
    check_rows(rows)
    starting, disturbing = generator(seed).spawn(2)
    environment = _make()
    episodes, done = [], 0
    while done < rows:
        progress("collect", done, rows)
        strength = disturbing.uniform(0, STRONGEST_NOISE)

        def disturbed(observation: np.ndarray, strength: float = strength) -> Float32[np.ndarray, "3"]:
            noise = disturbing.normal(0, strength, 3)
            return np.clip(posture_action(observation) + noise, -1, 1).astype(np.float32)

        episodes.append(play(environment, disturbed, seed=draw_seed(starting), most=rows - done))
        done += len(episodes[-1])
    environment.close()
    progress("collect", rows, rows)
    return as_dataset(episodes, name=TASK)


def _make() -> gymnasium.Env[Any, Any]:
    import_mujoco()
    try:
        return gymnasium.make(ENVIRONMENT, disable_env_checker=True)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:  # Gymnasium wants `imageio` besides MuJoCo
        raise BatsError(f"This task needs more than is installed: pip install 'bats-rl[mujoco]' ({error})") from error
