"""What planning relies on: the model, the metric, the action bounds, and the rows that the model never saw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bats.arrays import ActionBounds, Metric, Progress, no_progress
from bats.graph.mdp import LOGGED, TabularMDP
from bats.metric.scaled import ScaledMetric
from bats.model.ensemble import Dynamics
from bats.model.fit import Model
from bats.model.held_out import HeldOut, LocalErrors

LONGEST = 25
"""most actions of a plan, however reliable the model is"""
ORDINARY = 0.75
"""share of the held-out rows that count as ordinary; plans avoid the others, such as contacts"""

# compiled programs take the metric as an argument; as a constant, every new metric would compile them again
jax.tree_util.register_dataclass(ScaledMetric, ["weight"], [])


class Simulator(eqx.Module):
    """What compiled programs need to try out actions."""

    dynamics: Dynamics
    metric: Metric
    low: Float[Array, "A"]
    """smallest actions, as the networks take them"""
    high: Float[Array, "A"]


class Problems(eqx.Module):
    """What to plan: pairs of states, the number of actions, and actions to start from. Of NumPy or of JAX."""

    source: Float[Any, "C D"]
    target: Float[Any, "C D"]
    length: Int[Any, "C"]
    actions: Float[Any, "C K A"]
    """as the networks take them; entries beyond a problem's length are ignored"""

    def __len__(self) -> int:
        return len(self.length)

    def on_device(self) -> Problems:
        source, target, actions = (jnp.asarray(part, jnp.float32) for part in (self.source, self.target, self.actions))
        return Problems(source, target, jnp.asarray(self.length, jnp.int32), actions)


@dataclass(frozen=True, eq=False)
class PlanningContext:
    """A model of a log with a metric."""

    simulator: Simulator
    held_out: HeldOut
    local_errors: LocalErrors | None
    """the model's errors on one half of the held-out rows; None: the members' agreement alone is trusted"""
    progress: Progress = no_progress
    """called while plans are made: a round of stitching may take long"""

    @classmethod
    def of(
        cls,
        model: Model,
        metric: Metric,
        mdp: TabularMDP,
        *,
        local_error: bool,
        progress: Progress = no_progress,
    ) -> PlanningContext:
        """With `local_error`, half of the held-out rows estimate the model's error; the others calibrate bounds."""
        local = LocalErrors.of(model.held_out.halves()[0], metric) if local_error else None
        low, high = (jnp.asarray(bound, jnp.float32) for bound in action_bounds(mdp))
        return cls(Simulator(model.dynamics, metric, low, high), model.held_out, local, progress)

    def local_error(
        self, source: Float[np.ndarray, "C D"], states: Float[np.ndarray, "C _ D"], length: Int[np.ndarray, "C"]
    ) -> Float[np.ndarray, "C"]:
        """The model's errors near the states that plans act in, summed; 0 where the members' agreement is trusted."""
        if self.local_errors is None:
            return np.zeros(len(source))
        acted_in = np.concatenate([source[:, None], states], axis=1)
        return self.local_errors.along(np.asarray(self.metric.embed(acted_in)), length)[..., 0].sum(axis=1)

    def reliable_length(self, tolerance: float) -> int:
        """The most actions whose model errors, as on ordinary held-out rows, add up to less than the tolerance."""
        if self.local_errors is None or len(self.local_errors.errors) == 0:
            return LONGEST
        error = float(np.quantile(self.local_errors.errors[:, 0], ORDINARY, method="higher"))
        return LONGEST if error * LONGEST < tolerance else max(1, math.ceil(tolerance / error) - 1)

    @property
    def dynamics(self) -> Dynamics:
        return self.simulator.dynamics

    @property
    def metric(self) -> Metric:
        return self.simulator.metric


def action_bounds(mdp: TabularMDP) -> ActionBounds:
    """The smallest and largest logged actions, as the networks take them."""
    if mdp.action_count is not None:
        return np.zeros(mdp.action_count), np.ones(mdp.action_count)
    logged = mdp.action[mdp.stitch_round == LOGGED]
    return logged.min(axis=0), logged.max(axis=0)
