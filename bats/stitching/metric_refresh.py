"""Stitching with a metric that is learned on the way [section 4]: rounds in phases, each with a metric of its own.

    metric 0      of the log's best policy     rounds 1 … 10
    metric 10     of the policy by then        rounds 11 … 20; errors of rounds 1 … 10 are measured anew
    …
    metric 50     of the last policy           no rounds: its errors are those of the finished graph

An on-policy metric belongs to one policy, and stitching changes the policy, so every few rounds the metric continues
learning from rollouts of the current one. A stitch is a plan, and what a plan does has not changed: its error by the
new metric is measured by unrolling the stored actions again. Stitches beyond the tolerance are left out while that
metric is in use, and pairs that failed may be tried again.

The metric is of the world's own rewards, without penalties, which are made of its distances. Distances count steps, as
those of the default metric do: dividing by the value of a step makes a penalty of 1 step equal to the value difference
that the metric bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import equinox as eqx
import numpy as np
from jaxtyping import Float

from bats.arrays import Metric, Progress, States, no_progress
from bats.config import Config
from bats.graph.mdp import Stitches, TabularMDP, add_stitches
from bats.graph.relabel import prune, stitch_errors, with_errors
from bats.graph.solve import policy_iteration
from bats.metric.bisimulation import BisimulationMetric, learn_bisimulation
from bats.metric.calibration import calibrate
from bats.metric.policy_steps import PolicySteps
from bats.model.ensemble import one_hot, unroll_batches
from bats.planning.context import PlanningContext
from bats.planning.planner import QUANTILE, end_error
from bats.stitching.history import History
from bats.stitching.loop import Round, stitch
from bats.stitching.records import Attempts


@dataclass(frozen=True, eq=False)
class Refresh:
    """A metric that was learned after some rounds, in units of value."""

    rounds: int
    metric: BisimulationMetric


@dataclass(frozen=True, eq=False)
class Finished:
    """The graph of all rounds, with its stitches' errors by the last metric."""

    mdp: TabularMDP
    error: Float[np.ndarray, "C"]


def stitch_with_refresh(
    log: TabularMDP,
    context_of: Callable[[Metric], PlanningContext],
    config: Config,
    *,
    seed: int,
    step_value: float,
    saved_rounds: Sequence[tuple[Stitches, Attempts]] = (),
    saved_metric: Refresh | None = None,
    progress: Progress = no_progress,
) -> Iterator[Refresh | Round | Finished]:
    """Yields every metric that is learned and every round, and last the finished graph.

    To continue, give the saved rounds and the last saved metric; the rest follows as if it had never stopped.
    """
    last_round = config.stitch.rounds + config.stitch.recovery_rounds
    added, tried = [stitches for stitches, _ in saved_rounds], [attempts for _, attempts in saved_rounds]
    whole = log
    for number, stitches in enumerate(added, 1):
        whole = add_stitches(whole, stitches, stitch_round=number)
    refresh = saved_metric
    if refresh is None:
        refresh = Refresh(0, _learn_metric(log, config, None, seed=seed, progress=progress))
        yield refresh
    while True:
        context = context_of(in_steps(refresh.metric, step_value))
        error = stitch_errors(whole)
        measured = remeasured_errors(context, whole.states, added[: refresh.rounds])
        error[: len(measured)] = measured  # later stitches were planned with this metric and keep their errors
        graph = with_errors(prune(whole, error < config.stitch.tolerance), error, penalty=whole.penalty)
        history = History.of(tried[: refresh.rounds], log.real_count).without_failures()
        history = reduce(History.extended, tried[refresh.rounds :], history)
        phase_end = min(refresh.rounds + config.bisimulation.refresh_rounds, last_round)
        rounds = range(len(added) + 1, phase_end + 1)
        for done in stitch(graph, context, config.stitch, seed=seed, history=history, rounds=rounds):
            graph, whole = done.solution.mdp, add_stitches(whole, done.stitches, stitch_round=done.record.round)
            added.append(done.stitches)
            tried.append(done.attempts)
            yield done
        # a phase without a round is the last, and so is one in which no plan has ever succeeded
        if len(added) == refresh.rounds or History.of(tried, log.real_count).is_hopeless:
            yield Finished(with_errors(whole, error, penalty=whole.penalty), error)
            return
        metric = _learn_metric(graph, config, refresh.metric, seed=seed, progress=progress)
        refresh = Refresh(len(added), metric)
        yield refresh


def _learn_metric(
    mdp: TabularMDP, config: Config, begin_from: BisimulationMetric | None, *, seed: int, progress: Progress
) -> BisimulationMetric:
    """The calibrated metric of the MDP's best policy, in units of value, from all states that it reaches in the log."""
    dead_end_value = config.stitch.dead_end_value
    policy = policy_iteration(mdp, dead_end_value=dead_end_value).policy
    real = np.arange(mdp.real_count)
    steps = PolicySteps.of(replace(mdp, penalty=0.0), policy, from_states=real, dead_end_value=dead_end_value)
    settings = config.bisimulation
    if begin_from is not None:  # policies change little at a time
        settings = replace(settings, updates=settings.refresh_updates)
    metric = learn_bisimulation(steps, settings, seed=seed, begin_from=begin_from, progress=progress)
    return calibrate(metric, steps, seed=seed)


def in_steps(metric: BisimulationMetric, step_value: float) -> BisimulationMetric:
    """The metric with distances that count steps, where one step of delay costs `step_value`."""
    margin = np.asarray(metric.margin / step_value, dtype=np.float32)
    return eqx.tree_at(lambda whole: whole.margin, metric, margin)


def remeasured_errors(
    context: PlanningContext, states: States, rounds: Sequence[Stitches], *, quantile: float = QUANTILE
) -> Float[np.ndarray, "C"]:
    """The errors of the rounds' plans, as if they had been made and measured with this context's metric.

    `states` are those of the MDP that the rounds' sources and targets belong to.
    """
    errors = [np.zeros(0)]
    for stitches in (one for one in rounds if len(one.length)):
        source, target = (states[ends].astype(np.float32) for ends in (stitches.source, stitches.target))
        actions = one_hot(stitches.action, context.dynamics.kind.action_count).astype(np.float32)
        visited, _ = unroll_batches(context.dynamics, source, actions, stitches.length)
        ends = np.moveaxis(visited[:, :, -1], 0, 1)
        finite = np.isfinite(ends).all(axis=2)
        embedded = np.asarray(context.metric.embed(np.where(np.isfinite(ends), ends, 0.0)))
        distance = np.linalg.norm(embedded - np.asarray(context.metric.embed(target))[:, None], axis=2)
        local_error = context.local_error(source, stitches.state.astype(np.float32), stitches.length)
        errors.append(end_error(np.where(finite, distance, np.inf), quantile) + local_error)
    return np.concatenate(errors)
