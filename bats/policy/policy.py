"""A policy: a network in plain NumPy that takes observations as they are and returns actions.

    observation -> standardised -> hidden layers -> mean and log-std of each action dimension -> tanh, or clipped
                                                 -> or the logit of each discrete action

A policy cloned from a graph has smooth hidden layers (SiLU) and clips. Baselines have ReLU, and tanh where their papers
do.

The standardisation and the action bounds are part of it, so that nothing else is needed to act. With a sample of the
logged states it also measures how far an observation lies from the log. Needs NumPy alone.

Every answer is an action within the bounds. An observation that is not finite, or so far from the mean that a number in
the network could overflow, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from bats.errors import SettingError, check_rules, printable
from bats.networks.inference import (
    LARGEST,
    Activation,
    Layers,
    forward,
    input_limit,
    sigmoid,
    single_floats,
    single_layers,
)
from bats.policy.support import Support

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from numpy.typing import ArrayLike

    Choices = Float[np.ndarray, "*some A"] | Int[np.ndarray, "*some"]
    """continuous actions, or the indices of discrete ones"""

MAX_LISTED = 500
"""letters of the names of an observation's numbers, in a message"""
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
    activation: Activation = "silu"
    """of the hidden layers"""
    squashed: bool = False
    """an action is the tanh of a Gaussian number; otherwise the number itself, clipped"""

    def __post_init__(self) -> None:
        for name in ("mean", "std", "low", "high"):
            object.__setattr__(self, name, single_floats(name, getattr(self, name), 1))
        count, numbers, actions = self.action_count, len(self.mean), len(self.low)
        if not (len(self.std) == numbers > 0 and len(self.high) == actions):
            raise SettingError("`mean` and `std` must have the same length, and so must `low` and `high`.")
        support_fits = isinstance(self.support, Support) and len(self.support.weight) == numbers
        check_rules(
            {
                "`std` must be positive": np.all(self.std > 0),
                "`low` must not exceed `high`": np.all(self.low <= self.high),
                f"`low` and `high` must be at most {LARGEST:g} in size": np.all(
                    np.abs([self.low, self.high]) <= LARGEST
                ),
                "`action_count` must be a positive integer or None": count is None
                or (type(count) is int and count > 0),
                "`low` and `high` are for continuous actions, `action_count` is for discrete ones": (count is None)
                == (actions > 0),
                f"`support` must be of observations of {numbers} numbers": self.support is None or support_fits,
                "`activation` must be 'silu' or 'relu'": self.activation in ("silu", "relu"),
                "`squashed` must be true or false": isinstance(self.squashed, bool),
                "`card` must be a mapping": isinstance(self.card, Mapping),
            }
        )
        layers = single_layers(self.weights, self.biases, inputs=numbers, outputs=count or 2 * actions)
        for name, arrays in zip(("weights", "biases"), zip(*layers, strict=True), strict=True):
            object.__setattr__(self, name, arrays)
        _ = self.input_limit  # refuses weights that are too large

    def __repr__(self) -> str:
        hidden = ", ".join(str(len(bias)) for bias in self.biases[:-1]) or "none"
        discrete = f"one of {self.action_count} discrete actions"
        actions = f"{len(self.low)} continuous actions" if self.action_count is None else discrete
        support = "no known support" if self.support is None else f"support of {len(self.support.sample):,} states"
        return f"Policy({len(self.mean)} numbers in, hidden layers: {hidden}, {actions}, {support})"

    def predict(
        self, observation: ArrayLike, *, deterministic: bool = True, rng: np.random.Generator | None = None
    ) -> Choices:
        """The action for one observation, or for each row of many, within the bounds.

        It is the mean or the likeliest action, or one sampled with `rng`. `SettingError` where `valid` is false.
        """
        table, many = self._table(observation)
        actions = self._best(table) if deterministic else self._sample(table, rng)
        return actions if many else actions[0, ...]

    def valid(self, observation: ArrayLike) -> Bool[np.ndarray, "*some"]:
        """Whether an observation gets an answer: its numbers are finite and no more than `input_limit` std off."""
        table, many = self._table(observation)
        answered = np.all(self._standardised(table)[1], axis=1)
        return answered if many else answered[0, ...]

    def support_distance(self, observation: ArrayLike) -> Float[np.ndarray, "*some"]:
        """How far from the logged states an observation lies; above 1, farther than 99% of the log: out of support."""
        table, many = self._table(observation)
        self._refuse(~np.isfinite(table), "Observations must be finite", table)
        distance = self._known_support.distance(table) / self._known_support.limit
        return distance if many else distance[0, ...]

    @property
    def support_limit(self) -> float:
        """The distance from the sample that 99% of the log's states keep, in units of the metric."""
        return self._known_support.limit

    @cached_property
    def input_limit(self) -> np.float32:
        """How many std from its mean a number may be; farther off, the network could overflow."""
        return input_limit(self._layers, scale=float(self._half.max(initial=0.0)))

    def distribution(
        self, observations: Float[np.ndarray, "n D"]
    ) -> tuple[Float[np.ndarray, "n A"], Float[np.ndarray, "n A"]]:
        """Mean and std of each action dimension before the tanh, if there is one, and before clipping."""
        if self.action_count is not None:
            raise SettingError("Discrete actions have no mean; use `probabilities`.")
        mean, std = self._gaussian(observations)
        return self._centre + self._half * mean, self._half * std

    def probabilities(self, observations: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n count"]:
        """The probability of each discrete action."""
        if self.action_count is None:
            raise SettingError("Only discrete actions have probabilities; use `distribution`.")
        logits = self._outputs(observations)
        weight = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weight / weight.sum(axis=1, keepdims=True)

    @property
    def _layers(self) -> Layers:
        return tuple(zip(self.weights, self.biases, strict=True))

    @property
    def _centre(self) -> Float[np.ndarray, "A"]:
        return (self.high + self.low) / 2

    @property
    def _half(self) -> Float[np.ndarray, "A"]:
        """half of the range of each action dimension"""
        return (self.high - self.low) / 2

    @property
    def _known_support(self) -> Support:
        if self.support is None:
            raise SettingError("This policy was saved without a sample of the log, so its support is not known.")
        return self.support

    def _best(self, table: Float[np.ndarray, "n D"]) -> Choices:
        if self.action_count is not None:
            return self._outputs(table).argmax(axis=1)
        return self._action(self._gaussian(table)[0])

    def _sample(self, table: Float[np.ndarray, "n D"], rng: np.random.Generator | None) -> Choices:
        if rng is None:
            raise SettingError("Sampling actions needs a random generator; pass it as `rng`.")
        if self.action_count is not None:
            cumulative = np.cumsum(self.probabilities(table), axis=1)
            index = (rng.random((len(table), 1)) * cumulative[:, -1:] >= cumulative).sum(axis=1)
            return np.minimum(index, self.action_count - 1)
        mean, std = self._gaussian(table)
        return self._action(mean + std * rng.standard_normal(mean.shape, dtype=np.float32))

    def _gaussian(self, observations: ArrayLike) -> tuple[Float[np.ndarray, "n A"], Float[np.ndarray, "n A"]]:
        """Mean and std of each action dimension in halves of its range, 0 being the middle."""
        mean, raw = np.split(self._outputs(observations), 2, axis=1)
        return mean, np.exp(MIN_LOG_STD + (MAX_LOG_STD - MIN_LOG_STD) * sigmoid(raw))

    def _action(self, halves: Float[np.ndarray, "n A"]) -> Float[np.ndarray, "n A"]:
        """Numbers in halves of the range as actions within the bounds."""
        share = np.tanh(halves) if self.squashed else halves
        return np.clip(self._centre + self._half * share, self.low, self.high)

    def _outputs(self, observations: ArrayLike) -> Float[np.ndarray, "n _"]:
        table, _ = self._table(observations)
        standardised, answered = self._standardised(table)
        rule = f"Observations must be finite and within {self.input_limit:.3g} std of the mean"
        self._refuse(~answered, rule, table)
        return forward(self._layers, standardised, self.activation)

    def _standardised(
        self, table: Float[np.ndarray, "n D"]
    ) -> tuple[Float[np.ndarray, "n D"], Bool[np.ndarray, "n D"]]:
        """The inputs of the network, and which of them it answers."""
        # standardised in the precision they came in: large numbers with small differences keep their digits
        with np.errstate(over="ignore", invalid="ignore"):
            inputs = ((table - self.mean) / self.std).astype(np.float32)
        return inputs, np.abs(inputs) <= self.input_limit

    def _table(self, observation: ArrayLike) -> tuple[Float[np.ndarray, "n D"], bool]:
        """Observations as rows, and whether there were many."""
        try:
            numbers = np.asarray(observation)
        except ValueError as error:  # rows of different lengths
            raise SettingError(f"Expected observations of {len(self.mean)} numbers: {error}.") from error
        if numbers.dtype.kind not in "biuf" or numbers.ndim not in (1, 2) or numbers.shape[-1] != len(self.mean):
            size, found = len(self.mean), f"{numbers.dtype} of shape {numbers.shape}"
            named = "" if self._names is None else f" ({printable(', '.join(self._names), MAX_LISTED)})"
            expected = f"one observation of {size} numbers{named} or an array of shape (n, {size})"
            raise SettingError(f"Expected {expected}; got {found}.")
        with np.errstate(over="ignore"):  # a long double may not fit
            table = np.atleast_2d(numbers if numbers.dtype == np.float32 else numbers.astype(np.float64))
        return table, numbers.ndim == 2

    @property
    def _names(self) -> list[str] | None:
        """Names of the numbers of an observation; None where the card has none that fit."""
        names = self.card.get("observation_names")  # a file may hold anything there
        if not isinstance(names, list | tuple) or len(names) != len(self.mean):
            return None
        return [str(name) for name in names]

    def _refuse(self, wrong: Bool[np.ndarray, "n D"], rule: str, table: Float[np.ndarray, "n D"]) -> None:
        """Refuses the first wrong row, if any."""
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            found, many = table[row].tolist(), len(table) > 1
            if self._names is None:
                raise SettingError(f"{rule}; {f'row {row} is ' if many else ''}{found}.")
            place = f"in row {row}, " if many else ""
            raise SettingError(f"{rule}; {place}{self._names[column]} is {found[column]}.")
