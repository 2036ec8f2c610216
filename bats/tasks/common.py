"""What tasks share: seeded random numbers, checked sizes of logs, normalised scores, and MuJoCo, an optional extra."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bats.config import MOST, Seed, between, checked
from bats.errors import BatsError

Info = dict[str, Any]
"""what Gymnasium passes along with observations: the options of `reset`, and the infos of every step"""


def generator(seed: int) -> np.random.Generator:
    """The random generator of a seed, from which everything in a log or an evaluation is drawn."""
    return np.random.default_rng(checked("seed", Seed, seed))


def draw_seeds(rng: np.random.Generator, count: int) -> list[int]:
    """A seed for each `reset` of an environment."""
    return [int(rng.integers(2**31)) for _ in range(count)]


def check_rows(rows: int | None, usual: int) -> int:
    """The size of a log, the usual one if None; fewer than two rows, which show no state after another, are refused."""
    return usual if rows is None else checked("rows", Annotated[int, between(2, MOST)], rows)


def normalised(returns: ArrayLike | float | int, random: float, reference: float) -> Float[np.ndarray, "..."]:
    """Returns on the scale where `random`, the return of a random policy, is 0 and `reference` is 100."""
    return np.asarray(100 * (np.asarray(returns, dtype=np.float64) - random) / (reference - random))


def import_mujoco() -> Any:
    """The module `mujoco`, or an error that says how to install it."""
    try:
        import mujoco
    except ImportError as error:
        raise BatsError("This task needs MuJoCo: pip install 'bats-rl[mujoco]'") from error
    return mujoco
