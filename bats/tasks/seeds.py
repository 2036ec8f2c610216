"""Random numbers of the tasks: one seed decides everything."""

from __future__ import annotations

import numpy as np

from bats.errors import SettingError


def generator(seed: int) -> np.random.Generator:
    """The generator that a seed stands for."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise SettingError(f"A seed is a whole number from 0; got {seed!r}.")
    return np.random.default_rng(int(seed))


def draw_seed(rng: np.random.Generator) -> int:
    """A seed for an environment."""
    return int(rng.integers(2**31))
