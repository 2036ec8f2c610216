"""The cloned policy: a network in plain NumPy that takes observations as they are and returns actions.

    observation -> standardised -> hidden layers (SiLU) -> mean and log-std of each action dimension -> clipped
                                                        -> or the logit of each discrete action

The standardisation and the action bounds are part of it, so that nothing else is needed to act. With a sample of the
logged states it also measures how far an observation lies from the log. Needs NumPy alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bats.errors import SettingError
from bats.networks.inference import forward, sigmoid
from bats.policy.support import Support

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from numpy.typing import ArrayLike

    Choices = Float[np.ndarray, "*some A"] | Int[np.ndarray, "*some"]
    """continuous actions, or the indices of discrete ones"""

MIN_LOG_STD, MAX_LOG_STD = -5.0, 1.0
"""of an action dimension, in halves of the range between its bounds"""


@dataclass(frozen=True, eq=False)
class Policy:
    """A network that acts; `predict` is all that is needed to use it."""

    weights: tuple[Float[np.ndarray, "_ _"], ...]
    """of each layer, inputs by outputs"""
    biases: tuple[Float[np.ndarray, "_"], ...]
    mean: Float[np.ndarray, "D"]
    """of the observations that it was cloned from"""
    std: Float[np.ndarray, "D"]
    low: Float[np.ndarray, "A"]
    """smallest actions; empty for discrete ones"""
    high: Float[np.ndarray, "A"]
    action_count: int | None = None
    """number of discrete actions; None for continuous ones"""
    support: Support | None = None
    card: Mapping[str, object] = field(default_factory=dict)
    """where it comes from, in plain values, for people"""

    def __post_init__(self) -> None:
        outputs = self.action_count or 2 * len(self.low)
        sizes = [len(self.mean), *(len(bias) for bias in self.biases)]
        if [weight.shape for weight in self.weights] != list(itertools.pairwise(sizes)) or sizes[-1] != outputs:
            ends = f"the first must take {len(self.mean)} inputs, the last must give {outputs} outputs"
            raise SettingError(f"Layer shapes do not match: {ends}, and each output size must be the next input size.")
        if not (len(self.std) == len(self.mean) and len(self.low) == len(self.high)):
            raise SettingError("`mean` and `std` must have the same length, and so must `low` and `high`.")

    def predict(
        self, observation: ArrayLike, *, deterministic: bool = True, rng: np.random.Generator | None = None
    ) -> Choices:
        """The action for one observation, or for each row of many, within the bounds.

        It is the mean or the likeliest action, or one sampled with `rng`.
        """
        table, many = self._table(observation)
        actions = self._best(table) if deterministic else self._sample(table, rng)
        return actions if many else actions[0, ...]

    def support_distance(self, observation: ArrayLike) -> Float[np.ndarray, "*some"]:
        """How far from the logged states an observation lies; above 1, farther than 99% of the log: out of support."""
        table, many = self._table(observation)
        distance = self._known_support.distance(table) / self._known_support.limit
        return distance if many else distance[0, ...]

    @property
    def support_limit(self) -> float:
        """The distance from the sample that 99% of the log's states keep, in units of the metric."""
        return self._known_support.limit

    def distribution(
        self, observations: Float[np.ndarray, "n D"]
    ) -> tuple[Float[np.ndarray, "n A"], Float[np.ndarray, "n A"]]:
        """Mean, not yet clipped, and std of each action dimension."""
        if self.action_count is not None:
            raise SettingError("Discrete actions have no mean; use `probabilities`.")
        centre, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        mean, raw = np.split(self._outputs(observations), 2, axis=1)
        return centre + half * mean, half * np.exp(MIN_LOG_STD + (MAX_LOG_STD - MIN_LOG_STD) * sigmoid(raw))

    def probabilities(self, observations: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n count"]:
        """The probability of each discrete action."""
        if self.action_count is None:
            raise SettingError("Only discrete actions have probabilities; use `distribution`.")
        logits = self._outputs(observations)
        weight = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weight / weight.sum(axis=1, keepdims=True)

    @property
    def _known_support(self) -> Support:
        if self.support is None:
            raise SettingError("This policy was saved without a sample of the log, so its support is not known.")
        return self.support

    def _best(self, table: Float[np.ndarray, "n D"]) -> Choices:
        if self.action_count is not None:
            return self._outputs(table).argmax(axis=1)
        return np.clip(self.distribution(table)[0], self.low, self.high)

    def _sample(self, table: Float[np.ndarray, "n D"], rng: np.random.Generator | None) -> Choices:
        if rng is None:
            raise SettingError("Sampling actions needs a random generator; pass it as `rng`.")
        if self.action_count is not None:
            cumulative = np.cumsum(self.probabilities(table), axis=1)
            index = (rng.random((len(table), 1)) * cumulative[:, -1:] >= cumulative).sum(axis=1)
            return np.minimum(index, self.action_count - 1)
        mean, std = self.distribution(table)
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        return np.clip(mean + std * noise, self.low, self.high)

    def _outputs(self, table: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n _"]:
        # standardised in the precision they came in: large numbers with small differences keep their digits
        standardised = ((table - self.mean) / self.std).astype(np.float32)
        return forward(tuple(zip(self.weights, self.biases, strict=True)), standardised)

    def _table(self, observation: ArrayLike) -> tuple[Float[np.ndarray, "n D"], bool]:
        """Observations as rows, and whether there were many."""
        numbers = np.asarray(observation)
        if numbers.dtype.kind not in "biuf" or numbers.ndim not in (1, 2) or numbers.shape[-1] != len(self.mean):
            size, found = len(self.mean), f"{numbers.dtype} of shape {numbers.shape}"
            expected = f"one observation of {size} numbers or an array of shape (n, {size})"
            raise SettingError(f"Expected {expected}; got {found}.")
        table = np.atleast_2d(numbers if numbers.dtype == np.float32 else numbers.astype(np.float64))
        if not np.isfinite(table).all():
            raise SettingError("Observations must be finite.")
        return table, numbers.ndim == 2
