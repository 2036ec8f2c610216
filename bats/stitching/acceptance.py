"""From candidates to stitches: each is planned, and its plan accepted or refused for a stated reason.

A stitch's error is the end error that most elites stay within, plus the model's error on held-out rows near the plan.
It must be below the tolerance, and it is what the stitch is penalized for.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Int

from bats.arrays import put, take
from bats.config import StitchConfig
from bats.graph.mdp import Stitches, TabularMDP
from bats.model.ensemble import one_hot, predict_transitions
from bats.planning.context import PlanningContext, Problems
from bats.planning.planner import Plans, end_error, plan
from bats.stitching.candidates import Candidates
from bats.stitching.records import Attempts, Outcome

LIKELY = 0.5
"""probability of termination from which a step counts as terminating"""

StepFlags = Bool[np.ndarray, "C K"]


def plan_candidates(
    mdp: TabularMDP, candidates: Candidates, context: PlanningContext, config: StitchConfig, *, seed: int
) -> tuple[Attempts, Stitches]:
    """Plans the candidates; returns all attempts, and the stitches among them.

    With `every_length` each candidate is planned with 1, 2, … actions up to its length, until one plan is accepted
    [Algorithm 2]; otherwise with its own length only. Discrete actions are always planned so: two of them may lead to a
    state exactly, and three not even near it.
    """
    action_count = context.dynamics.kind.action_count
    path = np.maximum(candidates.edge, 0)  # entries beyond a path's length are ignored
    problems = Problems(
        source=mdp.states[candidates.source].astype(np.float32),
        target=mdp.states[candidates.target].astype(np.float32),
        length=candidates.length,
        actions=one_hot(mdp.action[path], action_count).astype(np.float32),
    )
    every_length = config.every_length or action_count is not None
    first_length = np.ones_like(problems.length) if every_length else problems.length

    length, rows, plans = first_length.copy(), np.arange(len(problems)), None
    while plans is None or len(rows):
        tried = replace(problems, length=length)
        new_plans = plan(context, take(tried, rows), config.planner, tolerance=config.tolerance, seed=seed)
        plans = new_plans if plans is None else put(plans, rows, new_plans)
        # all steps of a plan must continue, but for the last into a target that the log always terminates in
        must_continue = np.arange(path.shape[1]) < (length - mdp.always_terminal[candidates.target])[:, None]
        error, outcome = _assess(context, tried, plans, must_continue, config.tolerance)
        rows = np.flatnonzero((outcome != Outcome.ACCEPTED) & (length < problems.length))
        length[rows] += 1

    plans = _with_continuing_rewards(context, tried, plans, must_continue)
    attempts = Attempts(candidates.source, candidates.target, length, first_length, candidates.distance, error, outcome)
    return attempts, _stitches(attempts, plans, mdp)


def _assess(
    context: PlanningContext, problems: Problems, plans: Plans, must_continue: StepFlags, tolerance: float
) -> tuple[Float[np.ndarray, "C"], Int[np.ndarray, "C"]]:
    """The error and the outcome of each plan."""
    end_errors = end_error(plans.distance)
    error = end_errors + context.local_error(problems.source, plans.state[:, :-1], problems.length)
    outcome = np.full(len(error), Outcome.ACCEPTED, dtype=np.int8)
    outcome[error >= tolerance] = Outcome.UNRELIABLE
    outcome[end_errors >= tolerance] = Outcome.TOO_FAR
    if context.dynamics.kind.terminations:
        # one elite that expects a termination is enough
        _, _, probability = predict_transitions(context.dynamics, *_transitions(problems, plans))
        likely = probability.max(axis=0).reshape(must_continue.shape) > LIKELY
        outcome[np.any(likely & must_continue, axis=1)] = Outcome.TERMINATES
    outcome[~np.isfinite(plans.distance).all(axis=1)] = Outcome.DIVERGES
    return error, outcome


def _with_continuing_rewards(
    context: PlanningContext, problems: Problems, plans: Plans, must_continue: StepFlags
) -> Plans:
    """The plans, with the rewards of steps that continue: a termination's reward is not earned in part before it."""
    if not context.dynamics.kind.rare_rewards_terminate:
        return plans
    _, continuing, _ = predict_transitions(context.dynamics, *_transitions(problems, plans))
    continuing = np.moveaxis(continuing, 0, 1).reshape(plans.reward.shape)
    return replace(plans, reward=np.where(must_continue[:, :, None], continuing, plans.reward))


def _transitions(problems: Problems, plans: Plans) -> tuple[Float[np.ndarray, "CK _"], ...]:
    """State, action and next state of every step, by the plans' mean states; the last step leads to the target."""
    last = np.arange(plans.action.shape[1]) == problems.length[:, None] - 1
    states = np.concatenate([problems.source[:, None], plans.state[:, :-1]], axis=1)
    next_states = np.where(last[:, :, None], problems.target[:, None], plans.state)
    return tuple(part.reshape(last.size, -1) for part in (states, plans.action, next_states))


def _stitches(attempts: Attempts, plans: Plans, mdp: TabularMDP) -> Stitches:
    """The accepted attempts as what is added to an MDP."""
    rows = np.flatnonzero(attempts.accepted)
    action, length = plans.action[rows], attempts.length[rows]
    used = np.arange(action.shape[1]) < length[:, None]
    return Stitches(
        source=attempts.source[rows],
        target=attempts.target[rows],
        length=length,
        action=action if mdp.action_count is None else action.argmax(axis=2).astype(mdp.action.dtype),
        state=np.where(used[:, :-1, None], plans.state[rows, :-1], 0.0),
        reward=np.where(used, plans.reward[rows].astype(np.float64).mean(axis=2), 0.0),
        planning_error=attempts.error[rows].astype(np.float32),
    )
