"""Playing episodes of a Gymnasium environment and keeping them as a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Float

from bats.arrays import Actions, RowNumbers
from bats.data.dataset import Dataset
from bats.errors import BatsError

Law = Callable[[np.ndarray], Any]
"""chooses an action for an observation"""


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode: a row per step, and one observation more than there are rows."""

    observations: Float[np.ndarray, "M D"]
    actions: Actions
    rewards: RowNumbers
    terminated: bool
    """the task ended in the last row; otherwise time ran out, or enough rows were there"""

    def __len__(self) -> int:
        return len(self.rewards)


def play(environment: gymnasium.Env[Any, Any], law: Law, *, seed: int, most: int | None = None) -> Episode:
    """Plays until the environment ends the episode, or for `most` steps."""
    observation, _ = environment.reset(seed=seed)
    observations: list[np.ndarray] = [np.array(observation)]
    actions: list[Any] = []
    rewards: list[float] = []
    terminated = truncated = False
    while not (terminated or truncated) and (most is None or len(rewards) < most):
        action = law(observation)
        observation, reward, terminated, truncated, _ = environment.step(action)
        observations.append(np.array(observation))
        actions.append(action)
        rewards.append(float(reward))
    return Episode(np.array(observations), np.array(actions), np.array(rewards), bool(terminated))


def as_dataset(episodes: Sequence[Episode], *, name: str, action_count: int | None = None) -> Dataset:
    """The episodes one after another, each row with the state that truly followed."""
    last = [len(episode) - 1 for episode in episodes]
    ended = [np.arange(len(episode)) == end for episode, end in zip(episodes, last, strict=True)]
    terminations = [flags & episode.terminated for flags, episode in zip(ended, episodes, strict=True)]
    timeouts = [flags & (not episode.terminated) for flags, episode in zip(ended, episodes, strict=True)]
    return Dataset.from_arrays(
        np.concatenate([episode.observations[:-1] for episode in episodes]),
        np.concatenate([episode.actions for episode in episodes]),
        np.concatenate([episode.rewards for episode in episodes]),
        next_observations=np.concatenate([episode.observations[1:] for episode in episodes]),
        terminations=np.concatenate(terminations),
        timeouts=np.concatenate(timeouts),
        timeout_rule="trust",  # known here, even where an episode happens to begin where the one before it ended
        action_count=action_count,
        name=name,
    )


def check_rows(rows: int) -> None:
    """A log of fewer than two rows says nothing about what follows what."""
    if rows < 2:
        raise BatsError(f"A log needs at least 2 rows; {rows} were asked for.")
