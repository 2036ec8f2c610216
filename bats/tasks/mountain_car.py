"""The paper's small log of MountainCarContinuous: random actions, and five episodes that show how it is done.

An under-powered car must swing up a hill; the goal pays 100, every action costs a tenth of its square. Random
actions never get there, and a clone of the log is mostly a clone of them. The expert pushes in the direction of
motion, so that every push adds energy, at 0.6 of full force: full force arrives sooner but costs more (mean return
of 100 starts: 89.4 at full force, 95.6 at 0.6, with 122 steps; weaker is dearer in time only).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Float32

from bats.arrays import Progress, no_progress
from bats.data.dataset import Dataset
from bats.errors import BatsError, SettingError
from bats.tasks.recording import as_dataset, check_rows, play
from bats.tasks.seeds import draw_seed, generator

TASK = "mountain-car"
ENVIRONMENT = "MountainCarContinuous-v0"
EXPERT_FORCE = 0.6
EXPERT_EPISODES = 5
RANDOM_EPISODES = 20
EPISODE_STEPS = 999
"""Gymnasium's own time limit"""


class PlacedCar(gymnasium.Wrapper[np.ndarray, np.ndarray, np.ndarray, np.ndarray]):
    """Gymnasium's car, which begins in `options["state"]` where that is given: its position and its velocity.

    A log holds single precision and so does the car, but for the first state of an episode, which it draws in double:
    from any later row on, the same actions lead through the very states of the log.
    """

    def __init__(self) -> None:
        super().__init__(gymnasium.make(ENVIRONMENT, disable_env_checker=True))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins where the car does, or in the state that was asked for."""
        if not options or "state" not in options:
            return self.env.reset(seed=seed, options=options)
        wanted = np.asarray(options["state"], dtype=np.float32)
        if not self.observation_space.contains(wanted):
            raise SettingError(f"`state` must be a position and a velocity of the car; got {options['state']}.")
        self.env.reset(seed=seed)
        self.env.unwrapped.state = wanted.copy()  # type: ignore[attr-defined]
        return wanted, {}


def expert_action(observation: np.ndarray) -> Float32[np.ndarray, "1"]:
    """Pushes the way the car is moving."""
    return np.array([EXPERT_FORCE if observation[1] >= 0 else -EXPERT_FORCE], dtype=np.float32)


def collect_mountain_car(
    rows: int | None, seed: int, *, expert_episodes: int = EXPERT_EPISODES, progress: Progress = no_progress
) -> Dataset:
    """Random episodes, then the expert's. Starts are the first rows.

    `rows` counts both; left out, 20 full random episodes come before the expert's. The last random episode is cut
    where the rows run out.
    """
    starting, acting = generator(seed).spawn(2)
    environment = gymnasium.make(ENVIRONMENT, disable_env_checker=True)
    shown = [play(environment, expert_action, seed=draw_seed(starting)) for _ in range(expert_episodes)]
    expert_rows = sum(len(episode) for episode in shown)
    wanted = RANDOM_EPISODES * EPISODE_STEPS if rows is None else rows - expert_rows
    if rows is not None:
        check_rows(rows)
    if wanted < 0:
        raise BatsError(f"The expert's {expert_episodes} episodes alone take {expert_rows} rows; {rows} are too few.")

    def random_action(observation: np.ndarray) -> Float32[np.ndarray, "1"]:
        return acting.uniform(-1, 1, 1).astype(np.float32)

    wandering, done = [], 0
    while done < wanted:
        progress("collect", expert_rows + done, expert_rows + wanted)
        wandering.append(play(environment, random_action, seed=draw_seed(starting), most=wanted - done))
        done += len(wandering[-1])
    environment.close()
    progress("collect", expert_rows + done, expert_rows + wanted)
    return as_dataset(wandering + shown, name=TASK)
