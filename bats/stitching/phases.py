"""Stitching by a metric that is learned on the way: rounds in stretches, each with a metric of its own.

    metric-0000   the log's best policy     rounds 1 … 10
    metric-0010   the policy by then        rounds 11 … 20, errors of rounds 1 … 10 measured anew
    …
    metric-0050   the last policy           no rounds: the errors that the finished graph is charged with

A stretch begins with the metric of the policy at hand. All stitches so far are measured by it from their stored plans;
those that it puts beyond the tolerance are left out for as long as it serves, and what failed may be tried again. A
stretch ends after as many rounds as were asked for, or when nothing is left to try; one without a round is the last.

Distances count steps, as those of the default metric do: a step is (1 - gamma) times the range of the log's own values,
so that a penalty of 1 step charges exactly the value that the metric speaks of.

Every stretch begins from the run's folder alone, so one that goes on after a crash is like one that was never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from bats.arrays import Metric, Progress
from bats.config import Config
from bats.graph.mdp import TabularMDP
from bats.graph.pricing import penalty_in_rewards
from bats.graph.relabel import charge, prune, stitch_errors
from bats.metric.bisimulation import BisimulationMetric
from bats.metric.bisimulation_files import load_metric, save_metric
from bats.runs.folder import RunFolder, Timing
from bats.stitching.acceptance import Learned
from bats.stitching.history import Experience
from bats.stitching.metric_refresh import errors_of_plans, in_steps, learn_metric
from bats.stitching.records import Attempts

Rounds = Callable[[TabularMDP, Learned, Experience, int], TabularMDP]
"""makes and saves the rounds up to a last one, with what was learned and tried, and returns the MDP that they grow"""


@dataclass(frozen=True, eq=False)
class Stretches:
    """One run that learns its metric; its MDP of the log is in the folder already."""

    run: RunFolder
    config: Config
    seed: int
    learned: Callable[[Metric], Learned]
    """what planning relies on, with a given metric"""
    rounds: Rounds
    progress: Progress

    def stitched(self, log: TabularMDP) -> TabularMDP:
        """The MDP after all rounds, charged with the errors by the last metric, which are saved too."""
        worth = penalty_in_rewards(log, 1.0, "step", dead_end_value=self.config.stitch.dead_end_value)
        begun = self.run.last_metric or 0
        metric = self.metric(begun, log, None)
        while True:
            learned = self.learned(in_steps(metric, worth))
            whole = self.run.load_mdp()
            error = self.errors(whole, learned, begun)
            kept = prune(whole, error < self.config.stitch.tolerance)
            charged = charge(kept, error, penalty=whole.penalty)
            grown = self.rounds(charged, learned, self.experience(begun, log.real_count), begun + self.every)
            if self.run.rounds_done == begun:
                self.run.save_errors(error)
                return charge(whole, error, penalty=whole.penalty)
            begun = self.run.rounds_done
            metric = self.metric(begun, grown, metric)

    @property
    def every(self) -> int:
        return self.config.refresh.rounds

    def metric(self, begun: int, mdp: TabularMDP, before: BisimulationMetric | None) -> BisimulationMetric:
        """The metric that was learned after so many rounds, or is now: for the best policy of the MDP."""
        file = self.run.metric(begun)
        if file.exists():
            return load_metric(file)
        began = time.perf_counter()
        metric = learn_metric(
            mdp,
            self.config.bisimulation,
            self.config.refresh,
            dead_end_value=self.config.stitch.dead_end_value,
            seed=self.seed,
            begin_from=before,
            progress=self.progress,
        )
        save_metric(metric, file)
        self.run.add_timing(Timing("learning the metric", begun, time.perf_counter() - began))
        return metric

    def errors(self, mdp: TabularMDP, learned: Learned, begun: int) -> Float[np.ndarray, "C"]:
        """Of all stitches; those that were planned with this very metric keep the errors they were accepted with."""
        error = stitch_errors(mdp)
        rounds = self.run.stitches(begun)
        measured = errors_of_plans(learned, mdp.states, rounds, quantile=self.config.stitch.planner.quantile)
        error[: len(measured)] = measured
        return error

    def experience(self, begun: int, real_count: int) -> Experience:
        """What was tried, without the failures under metrics before this one."""
        experience = Experience.none()
        for number, attempts in enumerate(self.run.attempts(Attempts), 1):
            experience = experience.and_then(attempts, real_count)
            if number == begun:
                experience = experience.forgetting_failures()
        return experience


def in_ordinary_steps(run: RunFolder, mdp: TabularMDP, learned: Learned, config: Config) -> tuple[TabularMDP, Config]:
    """A finished graph with the errors of its plans by another metric, and settings with the largest as tolerance.

    Certificates measure in ordinary steps.
    """
    rounds, quantile = run.stitches(run.rounds_done), config.stitch.planner.quantile
    error = errors_of_plans(learned, mdp.states, rounds, quantile=quantile)
    measured = charge(mdp, error, penalty=mdp.penalty)
    kept = error[np.isfinite(stitch_errors(mdp))]
    if len(kept) == 0:
        return measured, config
    largest = float(np.nextafter(kept.max(), np.inf))
    return measured, replace(config, stitch=replace(config.stitch, tolerance=largest))
