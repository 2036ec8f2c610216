"""A world that is known exactly, for the tests of bounds: a position on a line, moved by every action.

The reward is the position that an action leads to, so staying at x for ever has the value x / (1 - gamma).
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bats.bounds.error_estimates import ErrorEstimator
from bats.config import CertificateConfig, Config, StitchConfig
from bats.metric.scaled import ScaledMetric
from bats.model.held_out import HeldOut, LocalErrors
from bats.planning.context import PlanningContext, Simulator
from bats.policy.policy import Policy
from bats.policy.support import Support
from tests.known_worlds import KnownWorld

GAMMA = 0.9
STEP = 0.1
VALUE_METRIC = ScaledMetric(np.full(1, 1 / (1 - GAMMA), dtype=np.float32))
"""the exact value difference of staying at two positions"""


class Conveyor(KnownWorld):
    """A model of the line whose members disagree by a constant."""

    networks: Array

    def delta(self, states: Array, actions: Array) -> tuple[Array, Array]:
        return actions + self.networks, jnp.zeros_like(actions)

    def reward(self, states: Array, actions: Array, next_states: Array) -> Array:
        return next_states[..., 0]


def conveyor(*, disagreement: float = 0.0) -> Conveyor:
    return Conveyor(jnp.array([-disagreement, 0.0, disagreement])[:, None, None])


def positions(count: int = 200, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 1, (count, 1))


def held_out(*, error: float = 0.0, segments: int = 40, steps: int = 10) -> HeldOut:
    """Segments of steps that truly go `error` farther than the middle member predicts."""
    actions = np.random.default_rng(1).uniform(-STEP, STEP, (segments, steps, 1))
    path = np.concatenate([np.zeros((segments, 1, 1)), np.cumsum(actions + error, axis=1)], axis=1)
    before, after = (part.reshape(-1, 1) for part in (path[:, :-1], path[:, 1:]))
    predicted = before + actions.reshape(-1, 1)
    ends = np.zeros(len(before), dtype=bool)
    return HeldOut(before, actions.reshape(-1, 1), after, after[:, 0], ends, predicted, predicted[:, 0], 0.0 * ends)


def planning_context(rows: HeldOut, *, disagreement: float = 0.0, local_error: bool = True) -> PlanningContext:
    metric = ScaledMetric(np.ones(1, dtype=np.float32))
    local = LocalErrors.of(rows.halves()[0], metric) if local_error else None
    simulator = Simulator(conveyor(disagreement=disagreement), metric, -jnp.ones(1), jnp.ones(1))
    return PlanningContext(simulator, rows, local)


def estimator(
    *,
    disagreement: float = 0.0,
    error: float = 0.0,
    local_error: bool = True,
    tolerance: float = 10.0,
    confidence: float = 0.95,
) -> ErrorEstimator:
    context = planning_context(held_out(error=error), disagreement=disagreement, local_error=local_error)
    config = Config(stitch=StitchConfig(tolerance=tolerance), certificate=CertificateConfig(confidence=confidence))
    return ErrorEstimator.with_metric(context, VALUE_METRIC, config, seed=0)


def staying(states: np.ndarray) -> Policy:
    """A policy that stays where it is, with support up to 0.5 from the given states."""
    support = Support(states.astype(np.float32), np.ones(1, dtype=np.float32), 0.5)
    weight, bias = np.zeros((1, 2), dtype=np.float32), np.zeros(2, dtype=np.float32)
    return Policy((weight,), (bias,), np.zeros(1), np.ones(1), -np.ones(1), np.ones(1), None, support)


def moving(states: np.ndarray, step: float = STEP) -> Policy:
    """A policy that always goes one step ahead."""
    return replace(staying(states), biases=(np.array([step, 0.0], np.float32),))
