"""Attempts at stitches: candidates are planned, judged and become stitches, or are refused for a reason.

A stitch's error is what the judging share of the elites stays within, plus how wrong the model was on held-out rows
near the plan. It must be below the tolerance, and it is what the stitch is charged for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bats.arrays import Metric
from bats.data.dataset import Dataset
from bats.graph.mdp import Stitches, TabularMDP
from bats.model.ensemble import Dynamics, Predictor, one_hot
from bats.model.fit import Model
from bats.model.local_error import LocalError
from bats.planning.planner import PlannerConfig, Plans, Problems, plan
from bats.stitching.candidates import Candidates
from bats.stitching.records import Attempts, Outcome

LIKELY = 0.5
"""probability of an ending from which a plan counts as ended on the way"""


@dataclass(frozen=True, eq=False)
class Learned:
    """What was learned from the log and planning relies on."""

    dynamics: Predictor
    metric: Metric
    box: tuple[Float[np.ndarray, "A"], Float[np.ndarray, "A"]]
    """least and greatest actions"""
    local_error: LocalError | None
    """how wrong the model is where; None: the ensemble's agreement is trusted"""

    @classmethod
    def of(cls, model: Model, metric: Metric, dataset: Dataset, *, calibrate: bool) -> Learned:
        """A model of a log with a metric. Calibrated, one half of its held-out rows says how wrong it is where."""
        local = None
        if calibrate:
            rows = model.held_out.halves()[0]
            local = LocalError.measured(metric, rows.observations, rows.next_observations, rows.predicted_next)
        return cls(model.dynamics, metric, action_box(dataset), local)


def action_box(dataset: Dataset) -> tuple[Float[np.ndarray, "A"], Float[np.ndarray, "A"]]:
    """The least and greatest actions of a log, as the networks take them."""
    if dataset.action_count is not None:
        return np.zeros(dataset.action_count), np.ones(dataset.action_count)
    return dataset.actions.min(axis=0), dataset.actions.max(axis=0)


def attempt(
    mdp: TabularMDP,
    candidates: Candidates,
    learned: Learned,
    config: PlannerConfig,
    *,
    tolerance: float,
    shortest: bool,
    seed: int,
) -> tuple[Attempts, Stitches]:
    """Plans the candidates and sorts them: all that was tried, and the stitches among it.

    With `shortest`, every candidate is tried with 1, 2, … actions up to its length, until one is accepted
    [Algorithm 2]; otherwise with its own length only. Discrete actions are always tried so: two of them may lead to a
    place exactly, and three not even near it.
    """
    problems = _problems(mdp, candidates, learned.dynamics.action_count)
    judge = _Judge(learned, config, tolerance, mdp.only_ended_in[candidates.target])
    shortest = shortest or learned.dynamics.action_count is not None
    fewest = np.ones_like(problems.length) if shortest else problems.length
    length = fewest.copy()
    plans = _plan(problems.with_length(length), learned, config, tolerance=tolerance, seed=seed)
    verdict = judge.verdict(problems, plans, length)
    while shortest and len(rows := np.flatnonzero(~verdict.accepted & (length < problems.length))):
        length[rows] += 1
        again = _plan(problems.with_length(length).some(rows), learned, config, tolerance=tolerance, seed=seed)
        plans = plans.replaced(rows, again)
        verdict = judge.verdict(problems, plans, length)
    plans = judge.paid_as_they_end(problems, plans, length)
    tried = Attempts(
        candidates.source, candidates.target, length, fewest, candidates.gap, verdict.error, verdict.outcome
    )
    return tried, _stitches(tried, plans, verdict.model_error, mdp)


@dataclass(frozen=True, eq=False)
class _Verdict:
    """What is thought of plans."""

    error: Float[np.ndarray, "C"]
    model_error: Float[np.ndarray, "C"]
    outcome: Int[np.ndarray, "C"]

    @property
    def accepted(self) -> Bool[np.ndarray, "C"]:
        return self.outcome == Outcome.ACCEPTED


@dataclass(frozen=True, eq=False)
class _Judge:
    """Sorts plans by what became of them."""

    learned: Learned
    config: PlannerConfig
    tolerance: float
    may_end: Bool[np.ndarray, "C"]
    """whether a target is a state that the log only ever ends in"""

    def verdict(self, problems: Problems, plans: Plans, length: Int[np.ndarray, "C"]) -> _Verdict:
        acted_in = np.concatenate([problems.source[:, None], plans.state[:, :-1]], axis=1)
        missed = plans.error(self.config.quantile)
        model_error = np.zeros(len(missed))
        if self.learned.local_error is not None:
            calm = np.where(np.isfinite(acted_in), acted_in, 0.0)
            model_error = self.learned.local_error.along(np.asarray(self.learned.metric.embed(calm)), length)
        outcome = np.full(len(missed), Outcome.ACCEPTED, dtype=np.int8)
        outcome[missed + model_error >= self.tolerance] = Outcome.DOUBTED
        outcome[missed >= self.tolerance] = Outcome.MISSED
        outcome[self._ends(problems, plans, length)] = Outcome.ENDED
        outcome[~np.isfinite(plans.distance).all(axis=1)] = Outcome.RAN_AWAY
        return _Verdict(missed + model_error, model_error, outcome)

    def _ends(self, problems: Problems, plans: Plans, length: Int[np.ndarray, "C"]) -> Bool[np.ndarray, "C"]:
        """Whether any elite expects the task to end before the target, or in a target that goes on."""
        dynamics = self.learned.dynamics
        if not isinstance(dynamics, Dynamics) or dynamics.networks.termination is None:
            return np.zeros(len(length), dtype=bool)
        steps = _everyone(dynamics, problems, plans, length)
        likely = np.asarray(dynamics.termination(*steps).max(axis=0)).reshape(plans.action.shape[:2]) > LIKELY
        asked = np.arange(plans.action.shape[1]) < length[:, None]
        return np.any(likely & asked & ~self._last_that_ends(plans, length), axis=1)

    def paid_as_they_end(self, problems: Problems, plans: Plans, length: Int[np.ndarray, "C"]) -> Plans:
        """The plans, paid for their steps that go on as such: what only an end pays is not paid in part before it."""
        dynamics = self.learned.dynamics
        if not isinstance(dynamics, Dynamics) or not dynamics.jumps_end:
            return plans
        steps = _everyone(dynamics, problems, plans, length)
        going_on = np.moveaxis(np.asarray(dynamics.reward_going_on(*steps)), 0, 1).reshape(plans.reward.shape)
        ends = self._last_that_ends(plans, length)
        return replace(plans, reward=np.where(ends[:, :, None], plans.reward, going_on))

    def _last_that_ends(self, plans: Plans, length: Int[np.ndarray, "C"]) -> Bool[np.ndarray, "C K"]:
        last = np.arange(plans.action.shape[1]) == length[:, None] - 1
        return last & self.may_end[:, None]


def _everyone(
    dynamics: Dynamics, problems: Problems, plans: Plans, length: Int[np.ndarray, "C"]
) -> tuple[Float[Array, "M CK D"], Float[Array, "M CK A"], Float[Array, "M CK D"]]:
    """Every step of the plans by its mean states, once for each elite; the last one leads to the target."""
    count, longest = plans.action.shape[:2]
    last = np.arange(longest) == length[:, None] - 1
    acted_in = np.concatenate([problems.source[:, None], plans.state[:, :-1]], axis=1)
    arrived = np.where(last[:, :, None], problems.target[:, None], plans.state)
    states, actions, after = (
        jnp.broadcast_to(flat, (dynamics.member_count, *flat.shape))
        for flat in (
            jnp.asarray(part.reshape(count * longest, -1), jnp.float32) for part in (acted_in, plans.action, arrived)
        )
    )
    return states, actions, after


def _problems(mdp: TabularMDP, candidates: Candidates, action_count: int | None) -> Problems:
    path = np.maximum(candidates.edge, 0)  # entries beyond a path's length are not looked at
    actions = mdp.action[path]
    if action_count is not None:
        actions = one_hot(actions, action_count)
    return Problems(
        source=mdp.states[candidates.source].astype(np.float32),
        target=mdp.states[candidates.target].astype(np.float32),
        length=candidates.length,
        actions=actions.astype(np.float32),
    )


def _plan(problems: Problems, learned: Learned, config: PlannerConfig, *, tolerance: float, seed: int) -> Plans:
    return plan(
        learned.dynamics,
        learned.metric.embed,
        problems,
        config,
        box=learned.box,
        tolerance=tolerance,
        seed=seed,
    )


def _stitches(tried: Attempts, plans: Plans, model_error: Float[np.ndarray, "C"], mdp: TabularMDP) -> Stitches:
    """The accepted attempts as what is added to an MDP."""
    rows = np.flatnonzero(tried.accepted)
    action = plans.action[rows]
    reward = plans.reward[rows].astype(np.float64)
    used = np.arange(reward.shape[1]) < tried.length[rows][:, None]
    reward = np.where(used[:, :, None], reward, 0.0)
    return Stitches(
        source=tried.source[rows],
        target=tried.target[rows],
        length=tried.length[rows],
        action=action if mdp.action_count is None else action.argmax(axis=2).astype(mdp.action.dtype),
        state=np.where(used[:, :-1, None], plans.state[rows, :-1], 0.0),
        reward=reward.mean(axis=2),
        planning_error=tried.error[rows].astype(np.float32),
        distance=plans.distance[rows],
        model_error=model_error[rows].astype(np.float32),
        reward_range=np.stack([reward.min(axis=2), reward.max(axis=2)], axis=-1).astype(np.float32),
    )
