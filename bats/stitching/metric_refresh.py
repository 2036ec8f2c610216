"""A metric that is learned again while the log is stitched: for the policy at hand, and what it makes of old stitches.

An on-policy metric is that of one policy, and stitching changes the policy. So every few rounds the metric goes on
learning from the walks of the policy as it is by then. A stitch is a plan, and what a plan does has not changed: its
error by the new metric is measured on the stored actions, played again in the ensemble, and takes the place of the old
one. Nothing of an old error is left in a new one, however often this is done.

The metric is of what the world pays, without penalties: those are made of its own distances.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bats.arrays import Progress, States, no_progress
from bats.errors import SettingError
from bats.graph.mdp import Stitches, TabularMDP
from bats.graph.solve import policy_iteration
from bats.metric.bisimulation import BisimulationConfig, BisimulationMetric, learn_bisimulation
from bats.metric.calibration import calibrated
from bats.metric.policy_steps import Transitions
from bats.model.ensemble import Predictor, one_hot, states_along
from bats.planning.planner import error_of
from bats.stitching.acceptance import Learned

AT_ONCE = 1024
"""plans that are played again together"""


@dataclass(frozen=True)
class RefreshConfig:
    """How often a learned metric is learned again while the log is stitched."""

    rounds: int = 10
    """of stitching before the metric goes on learning; it always does at the end"""
    updates: int = 1000
    """when it goes on: policies change little at a time; the first time is by the settings of the metric itself"""

    def __post_init__(self) -> None:
        for name in ("rounds", "updates"):
            if getattr(self, name) < 1:
                raise SettingError(f"`{name}` must be at least 1; got {getattr(self, name)}.")


def learn_metric(
    mdp: TabularMDP,
    config: BisimulationConfig,
    refresh: RefreshConfig,
    *,
    dead_end_value: float,
    seed: int,
    begin_from: BisimulationMetric | None,
    progress: Progress = no_progress,
) -> BisimulationMetric:
    """The calibrated metric of the best policy of the MDP, in units of value.

    It is learned from the real states and those that the policy comes through from them.
    """
    policy = policy_iteration(mdp, dead_end_value=dead_end_value).policy
    real = np.arange(mdp.real_count)
    steps = Transitions.of(replace(mdp, penalty=0.0), policy, from_states=real, dead_end_value=dead_end_value)
    if begin_from is not None:
        config = replace(config, updates=refresh.updates)
    learned = learn_bisimulation(steps, config, gamma=mdp.gamma, seed=seed, begin_from=begin_from, progress=progress)
    return calibrated(learned, steps, steps.values(), seed=seed)


def in_steps(metric: BisimulationMetric, worth: float) -> BisimulationMetric:
    """The metric with distances that count steps, where one step of delay is worth so much value."""
    margin = np.asarray(metric.margin / worth, dtype=np.float32)
    return eqx.tree_at(lambda whole: whole.margin, metric, margin)


def errors_of_plans(
    learned: Learned, states: States, rounds: Iterable[Stitches], *, quantile: float
) -> Float[np.ndarray, "C"]:
    """What the plans of some rounds miss their targets by, as if they had been made and judged with this metric.

    `states` are those of the MDP that the rounds' sources and targets are numbers of.
    """
    found = [_errors(learned, states, stitches, quantile) for stitches in rounds]
    return np.concatenate([np.zeros(0), *found])


def _errors(learned: Learned, states: States, stitches: Stitches, quantile: float) -> Float[np.ndarray, "C"]:
    source, target = (states[ends].astype(np.float32) for ends in (stitches.source, stitches.target))
    actions = one_hot(stitches.action, learned.dynamics.action_count).astype(np.float32)
    ends = _played(learned.dynamics, source, actions, stitches.length)
    calm = np.where(np.isfinite(ends), ends, 0.0)
    miss = np.asarray(learned.metric.embed(calm)) - np.asarray(learned.metric.embed(target))[:, None]
    fine = np.isfinite(ends).all(axis=2)
    error = error_of(np.where(fine, np.linalg.norm(miss, axis=2), np.inf), quantile)
    if learned.local_error is None:
        return error
    acted_in = np.concatenate([source[:, None], stitches.state.astype(np.float32)], axis=1)
    return error + learned.local_error.along(np.asarray(learned.metric.embed(acted_in)), stitches.length)


def _played(
    dynamics: Predictor,
    source: Float[np.ndarray, "C D"],
    actions: Float[np.ndarray, "C K A"],
    length: Int[np.ndarray, "C"],
) -> Float[np.ndarray, "C M D"]:
    """Where each member of the ensemble ends up."""
    found = np.zeros((len(source), dynamics.member_count, source.shape[1]), dtype=np.float32)
    for first in range(0, len(source), AT_ONCE):
        rows = np.arange(first, min(first + AT_ONCE, len(source)))
        alike = np.resize(rows, AT_ONCE)  # the last ones are filled up with repeats: every size is compiled anew
        ends = _ends(dynamics, *(jnp.asarray(part[alike]) for part in (source, actions, length)))
        found[rows] = np.asarray(ends)[: len(rows)]
    return found


@eqx.filter_jit
def _ends(
    dynamics: Predictor, source: Float[Array, "B D"], actions: Float[Array, "B K A"], length: Int[Array, "B"]
) -> Float[Array, "B M D"]:
    return jnp.moveaxis(states_along(dynamics, source, actions, length)[:, :, -1], 0, 1)
