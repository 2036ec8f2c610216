"""The paper's small log of MountainCarContinuous: episodes of random actions, and five of an expert.

An under-powered car has to swing up a hill. The goal is rewarded with 100; every action costs a tenth of its square.
Random actions never reach the goal, so a clone of the whole log mostly imitates failures. The expert pushes in the
direction of motion, so that every push adds energy, at 0.6 of full force: full force reaches the goal sooner but costs
more (mean return over 100 starts: 89.4 at full force, 95.6 at 0.6, which takes 122 steps).
"""

from __future__ import annotations

import gymnasium
import numpy as np
from jaxtyping import Float32

from bats.arrays import Progress, no_progress
from bats.data.dataset import Dataset
from bats.errors import BatsError
from bats.tasks.common import check_rows, draw_seeds, generator
from bats.tasks.episodes import as_dataset, closed_loop, play, play_rows

TASK = "mountain-car"
ENVIRONMENT = "MountainCarContinuous-v0"
SUMMARY = "20 random episodes and 5 episodes of an expert, about 20,600 rows"
EXPERT_FORCE = 0.6
EXPERT_EPISODES, RANDOM_EPISODES = 5, 20
EPISODE_STEPS = 999
"""Gymnasium's own time limit"""


def expert_action(observation: np.ndarray) -> Float32[np.ndarray, "1"]:
    """Pushes in the direction in which the car is moving."""
    return np.array([EXPERT_FORCE if observation[1] >= 0 else -EXPERT_FORCE], dtype=np.float32)


def collect_mountain_car(
    rows: int | None, seed: int, *, expert_episodes: int = EXPERT_EPISODES, progress: Progress = no_progress
) -> Dataset:
    """Random episodes, then the expert's; the last random one is truncated so that there are `rows` rows in all.

    If `rows` is None there are 20 full random episodes. Starts are the first rows of episodes.
    """
    usual_rows = RANDOM_EPISODES * EPISODE_STEPS
    check_rows(rows, usual_rows)
    start_rng, action_rng = generator(seed).spawn(2)
    environment = gymnasium.make(ENVIRONMENT, disable_env_checker=True)
    # The expert plays first although its rows come last: its episodes decide how many rows are left for random ones.
    expert = play([environment], closed_loop(expert_action), seeds=draw_seeds(start_rng, expert_episodes))
    expert_rows = sum(len(episode) for episode in expert)
    random_rows = usual_rows if rows is None else rows - expert_rows
    if random_rows < 0:
        raise BatsError(f"The {expert_episodes} expert episodes need {expert_rows} rows; a log of {rows} is too short.")

    def random_action(observation: np.ndarray) -> Float32[np.ndarray, "1"]:
        return action_rng.uniform(-1, 1, 1).astype(np.float32)

    def after_expert(stage: str, done: int, total: int) -> None:
        progress(stage, expert_rows + done, expert_rows + total)

    episodes = play_rows(environment, lambda: random_action, random_rows, start_rng, after_expert)
    environment.close()
    return as_dataset(episodes + expert, name=TASK)
