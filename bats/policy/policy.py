"""The cloned policy: a network in plain NumPy that takes observations as they are and answers with actions.

    observation -> standardised -> hidden layers (silu) -> mean and log-deviation of each action number -> clipped
                                                        -> or the log-odds of each discrete action

The standardisation and the action limits are part of it, so nothing else is needed to act. With a sample of the logged
states it also tells how far an observation lies from all that was logged. Using it needs neither JAX nor the log.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, overload

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from bats.errors import SettingError
from bats.metric.scaled import ScaledMetric

LEAST_LOG_DEVIATION, GREATEST_LOG_DEVIATION = -5.0, 1.0
"""of an action number, in halves of the range between its limits"""
SAMPLE = 10_000
"""logged states kept to tell the familiar from the strange, and as many more to find out how far apart states are"""
USUAL_SHARE = 0.99
"""so many logged states lie nearer to the sample than the limit of what is familiar"""

Choices = Float[np.ndarray, "*some A"] | Int[np.ndarray, "*some"]
"""numbers in a box, or the numbers of discrete actions"""


@dataclass(frozen=True, eq=False)
class Familiar:
    """Where the log has been: a sample of its states, and how far from it other logged states usually lie."""

    sample: Float[np.ndarray, "K m"]
    """embedded by the metric"""
    weight: Float[np.ndarray, "m"]
    """of each number of a state in the metric"""
    limit: float
    """distance to the sample that all but a hundredth of other logged states keep"""

    @classmethod
    def measured(cls, states: Float[np.ndarray, "S m"], metric: ScaledMetric, *, seed: int) -> Familiar:
        """Draws the sample from logged states, and measures with others of them how far from it the log goes."""
        if len(states) < 2:
            raise SettingError(f"Telling the familiar from the strange takes 2 logged states; got {len(states)}.")
        drawn = np.random.default_rng([seed, 3]).permutation(len(states))[: 2 * SAMPLE]
        sample, others = (np.asarray(metric.embed(states[half]), np.float32) for half in np.array_split(drawn, 2))
        found = cls(sample, metric.weight, 1.0)
        limit = float(np.quantile(found.distance(states[np.array_split(drawn, 2)[1]]), USUAL_SHARE))
        # where every state was met many times, as in small discrete worlds, the least distance between two must do
        rounding = 10 * float(np.finfo(np.float32).eps * np.abs(sample).max())
        return cls(sample, metric.weight, limit if limit > rounding else _least_gap(np.concatenate([sample, others])))

    def distance(self, observations: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "n"]:
        """From each observation to the nearest state of the sample."""
        return np.asarray(self._tree.query(observations * self.weight, workers=1)[0], dtype=np.float64)

    @cached_property
    def _tree(self):  # type: ignore[no-untyped-def]  # SciPy has no types, and is imported by those who ask
        from scipy.spatial import cKDTree

        return cKDTree(self.sample)


@dataclass(frozen=True, eq=False)
class Policy:
    """A network that acts. `predict` is all that is needed to use it."""

    weights: tuple[Float[np.ndarray, "_ _"], ...]
    """of each layer, inputs by outputs"""
    biases: tuple[Float[np.ndarray, "_"], ...]
    mean: Float[np.ndarray, "D"]
    """of the observations that it was cloned from"""
    deviation: Float[np.ndarray, "D"]
    low: Float[np.ndarray, "A"]
    """least actions; without a number where actions are discrete"""
    high: Float[np.ndarray, "A"]
    action_count: int | None = None
    """number of discrete actions; None where actions are numbers in a box"""
    familiar: Familiar | None = None
    card: Mapping[str, object] = field(default_factory=dict)
    """where it comes from, in plain values, for people"""

    def __post_init__(self) -> None:
        outward = self.action_count or 2 * len(self.low)
        sizes = [len(self.mean), *(len(bias) for bias in self.biases)]
        shapes = list(itertools.pairwise(sizes))
        if [weight.shape for weight in self.weights] != shapes or sizes[-1] != outward:
            raise SettingError(f"Layers must lead from {len(self.mean)} numbers to {outward}, each into the next.")
        if not (len(self.deviation) == len(self.mean) and len(self.low) == len(self.high)):
            raise SettingError("Mean and deviation, and low and high, must be of the same length.")

    @overload
    def predict(
        self,
        observation: ArrayLike,
        *,
        deterministic: bool = True,
        rng: np.random.Generator | None = None,
        with_strangeness: Literal[False] = False,
    ) -> Choices: ...

    @overload
    def predict(
        self,
        observation: ArrayLike,
        *,
        deterministic: bool = True,
        rng: np.random.Generator | None = None,
        with_strangeness: Literal[True],
    ) -> tuple[Choices, Float[np.ndarray, "*some"]]: ...

    def predict(
        self,
        observation: ArrayLike,
        *,
        deterministic: bool = True,
        rng: np.random.Generator | None = None,
        with_strangeness: bool = False,
    ) -> Choices | tuple[Choices, Float[np.ndarray, "*some"]]:
        """The action for one observation, or for each of many, within the limits.

        The mean or likeliest action; otherwise one drawn with `rng`. With `with_strangeness` also how strange each
        observation is (see `strangeness`).
        """
        table, many = self._table(observation)
        actions = self._best(table) if deterministic else self._drawn(table, rng)
        answer = actions if many else actions[0, ...]
        return (answer, self.strangeness(observation)) if with_strangeness else answer

    def strangeness(self, observation: ArrayLike) -> Float[np.ndarray, "*some"]:
        """How far from the logged states an observation lies: above 1, farther than all but 1% of the log itself."""
        if self.familiar is None:
            raise SettingError("This policy was saved without a sample of the log, so nothing is strange to it.")
        table, many = self._table(observation)
        share = self.familiar.distance(table) / self.familiar.limit
        return share if many else share[0, ...]

    @property
    def usual_distance(self) -> float:
        """How far from a sample of the log all but 1% of the log's states lie, in the metric's units."""
        if self.familiar is None:
            raise SettingError("This policy was saved without a sample of the log, so nothing is strange to it.")
        return self.familiar.limit

    def distribution(
        self, observations: Float[np.ndarray, "n D"]
    ) -> tuple[Float[np.ndarray, "n A"], Float[np.ndarray, "n A"]]:
        """Mean, not yet clipped, and deviation of each action number."""
        if self.action_count is not None:
            raise SettingError("Discrete actions have no mean; ask for their `probabilities`.")
        centre, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        mean, raw = np.split(self._outputs(observations), 2, axis=1)
        span = GREATEST_LOG_DEVIATION - LEAST_LOG_DEVIATION
        return centre + half * mean, half * np.exp(LEAST_LOG_DEVIATION + span * _sigmoid(raw))

    def probabilities(self, observations: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n count"]:
        """Of each discrete action."""
        if self.action_count is None:
            raise SettingError("Only discrete actions have probabilities; ask for their `distribution`.")
        odds = self._outputs(observations)
        share = np.exp(odds - odds.max(axis=1, keepdims=True))
        return share / share.sum(axis=1, keepdims=True)

    def _best(self, table: Float[np.ndarray, "n D"]) -> Choices:
        if self.action_count is not None:
            return self._outputs(table).argmax(axis=1)
        return np.clip(self.distribution(table)[0], self.low, self.high)

    def _drawn(self, table: Float[np.ndarray, "n D"], rng: np.random.Generator | None) -> Choices:
        if rng is None:
            raise SettingError("Actions are drawn with a random generator; give one as `rng`.")
        if self.action_count is not None:
            below = np.cumsum(self.probabilities(table), axis=1)
            drawn = (rng.random((len(table), 1)) * below[:, -1:] >= below).sum(axis=1)
            return np.minimum(drawn, self.action_count - 1)
        mean, deviation = self.distribution(table)
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        return np.clip(mean + deviation * noise, self.low, self.high)

    def _outputs(self, table: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n _"]:
        # standardised in the precision they came in: large numbers with small differences keep their digits
        standardised = ((table - self.mean) / self.deviation).astype(np.float32)
        return through_layers(self.weights, self.biases, standardised)

    def _table(self, observation: ArrayLike) -> tuple[Float[np.ndarray, "n D"], bool]:
        """Observations as rows, and whether there were many."""
        numbers = np.asarray(observation)
        if numbers.dtype.kind not in "biuf" or numbers.ndim not in (1, 2) or numbers.shape[-1] != len(self.mean):
            found = f"{numbers.dtype} of shape {numbers.shape}"
            raise SettingError(f"An observation is {len(self.mean)} numbers, and many are rows of them; got {found}.")
        table = np.atleast_2d(numbers if numbers.dtype == np.float32 else numbers.astype(np.float64))
        if not np.isfinite(table).all():
            raise SettingError("Observations must be finite.")
        return table, numbers.ndim == 2


def through_layers(
    weights: tuple[Float[np.ndarray, "_ _"], ...],
    biases: tuple[Float[np.ndarray, "_"], ...],
    inputs: Float[np.ndarray, "n D"],
) -> Float[np.ndarray, "n _"]:
    """What a network of fully connected layers with smooth activations makes of its inputs, in plain NumPy."""
    hidden = inputs
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        hidden = hidden @ weight + bias
        hidden *= _sigmoid(hidden)
    return hidden @ weights[-1] + biases[-1]


def _sigmoid(values: Float[np.ndarray, "n h"]) -> Float[np.ndarray, "n h"]:
    """By way of tanh, which overflows nowhere."""
    return np.float32(0.5) * np.tanh(np.float32(0.5) * values) + np.float32(0.5)


def _least_gap(points: Float[np.ndarray, "n m"]) -> float:
    """The least distance between two different points; 1 where all are the same."""
    from scipy.spatial import cKDTree

    distinct = np.unique(points, axis=0)
    if len(distinct) < 2:
        return 1.0
    return float(cKDTree(distinct).query(distinct, k=2)[0][:, 1].min())
