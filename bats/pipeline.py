"""The whole flow, as the paper has it: learn a model of the log, stitch the log together, solve what came of it.

With a folder, every stage is kept there as soon as it is done, and loaded instead of made where it is there already.
Chance comes from the seed alone, so a run that was stopped and went on ends as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from bats.attempts import Learned
from bats.calibration import LocalError
from bats.config import Config, preset
from bats.dataset import Dataset
from bats.errors import DataError, SettingError
from bats.mdp import TabularMDP, from_dataset
from bats.metric import ScaledMetric
from bats.model import Model, fit_dynamics, load_model, save_model
from bats.pricing import finished_graph, penalty_in_rewards
from bats.records import Attempts, LogCard, RoundRecord
from bats.run_folder import Finished, Identity, RunFolder, Timing, fingerprint
from bats.solve import Solution, logged_value, policy_iteration, start_value
from bats.stitch import Experience, stitch
from bats.types import Reporter, silent

DEFAULT = preset("default")


@dataclass(frozen=True, eq=False)
class Result:
    """What became of a log."""

    log: str
    """its name"""
    config: Config
    seed: int
    model: Model
    metric: ScaledMetric
    mdp: TabularMDP
    """with all stitches that were kept, charged for their errors"""
    solution: Solution
    records: tuple[RoundRecord, ...]
    """what each round did"""
    logged_value: float
    """what the logged behaviour earned from the starts"""
    log_value: float
    """the best value that the log alone allows there"""
    value: float
    """and that with the stitches"""
    timings: tuple[Timing, ...]


def unheard(record: RoundRecord) -> None:
    """For those who do not want to hear of every round."""


def fit(
    dataset: Dataset,
    config: Config = DEFAULT,
    *,
    seed: int = 0,
    folder: Path | str | None = None,
    model: Model | None = None,
    report: Reporter = silent,
    on_record: Callable[[RoundRecord], None] = unheard,
) -> Result:
    """Learns a model of the log, stitches the log together with it and solves the result exactly.

    `folder` is made, or gone on with if it holds the same run; `on_record` hears of every round as it is done. A
    `model` that was trained before, on another machine say, is taken instead of training one; a folder keeps its own.
    """
    if seed < 0:
        raise SettingError(f"`seed` must not be negative; got {seed}.")
    run = None if folder is None else RunFolder(Path(folder))
    with nullcontext() if run is None else run.claimed(Identity(dataset.name, fingerprint(dataset), seed, config)):
        clock = _Clock(run)
        if run is not None and not run.is_finished:
            run.describe_log(LogCard.of(dataset))
        model = _model(dataset, config, seed, run, clock, report, model)
        metric = ScaledMetric.of(dataset, config.metric)
        learned = Learned(model.dynamics, metric, action_box(dataset), _local_error(model, metric, config))
        worth = config.stitch.dead_end_value
        log = from_dataset(dataset, gamma=config.gamma)
        log_value = start_value(log, policy_iteration(log, dead_end_value=worth).value)
        price = penalty_in_rewards(log, config.penalty, config.penalty_unit, dead_end_value=worth)
        mdp = replace(log, penalty=price if config.charge == "during" else 0.0)
        mdp, experience, records = _begun(mdp, run)
        clock.lap("building the MDP")
        finished = run is not None and run.is_finished
        rounds = stitch(mdp, learned, config.stitch, seed=seed, rounds_done=len(records), experience=experience)
        report("stitching", len(records), config.stitch.rounds)
        for done in () if finished else rounds:
            mdp, records = done.mdp, (*records, done.record)
            if run is not None:
                run.add_round(done.record.round, done.stitches, vars(done.attempts), records)
            clock.lap("stitching", done.record.round)
            report("stitching", done.record.round, config.stitch.rounds)
            on_record(done.record)
        mdp = finished_graph(mdp, penalty=price, tolerance=config.final_tolerance)
        solution = policy_iteration(mdp, dead_end_value=worth)
        value = start_value(mdp, solution.value)
        logged = logged_value(dataset, gamma=config.gamma, dead_end_value=worth)
        clock.lap("solving")
        if run is not None and not finished:
            run.finish(_facts(config, price, len(records), (logged, log_value, value)))
        return Result(
            dataset.name, config, seed, model, metric, mdp, solution, records, logged, log_value, value, clock.timings
        )


def action_box(dataset: Dataset) -> tuple[Float[np.ndarray, "A"], Float[np.ndarray, "A"]]:
    """The least and greatest actions of a log, as the networks take them."""
    if dataset.action_count is not None:
        return np.zeros(dataset.action_count), np.ones(dataset.action_count)
    return dataset.actions.min(axis=0), dataset.actions.max(axis=0)


def _model(
    dataset: Dataset,
    config: Config,
    seed: int,
    run: RunFolder | None,
    clock: _Clock,
    report: Reporter,
    given: Model | None,
) -> Model:
    """The model that is there already, the given one, or a new one."""
    if run is not None and run.model.exists():
        if not run.is_finished:
            run.training.unlink(missing_ok=True)  # a process may have died between saving the model and this
        return load_model(run.model)
    if run is not None and run.is_finished:
        raise DataError("the model of a finished run", "no such file", file=str(run.model))
    if given is not None:
        _check_model(given, dataset)
    checkpoint = None if run is None else run.training
    model = given or fit_dynamics(dataset, config.dynamics, seed=seed, checkpoint=checkpoint, report=report)
    if run is not None:
        save_model(model, run.model)
        run.training.unlink(missing_ok=True)
    clock.lap("training")
    return model


def _check_model(model: Model, dataset: Dataset) -> None:
    """Refuses a model of another kind of log; one of the same kind is taken at its word."""
    rows = model.held_out
    wanted = (dataset.observations.shape[1], dataset.action_count, dataset.actions[:1].size)
    if (rows.observations.shape[1], model.dynamics.action_count) != wanted[:2] or (
        dataset.action_count is None and rows.actions.shape[1] != wanted[2]
    ):
        raise SettingError(
            f"The model is of {rows.observations.shape[1]} numbers a state and {rows.actions.shape[1]} an action, "
            f"the log of {wanted[0]} and {wanted[2]}."
        )


def _local_error(model: Model, metric: ScaledMetric, config: Config) -> LocalError | None:
    if not config.stitch.calibrate:
        return None
    rows = model.held_out
    return LocalError.measured(metric, rows.observations, rows.next_observations, rows.predicted_next)


def _begun(log: TabularMDP, run: RunFolder | None) -> tuple[TabularMDP, Experience, tuple[RoundRecord, ...]]:
    """The MDP with the rounds that are done already, what they tried and what they did."""
    if run is None:
        return log, Experience.none(), ()
    if not run.has_mdp:
        run.save_mdp(log)
    experience = Experience.none()
    for attempts in run.attempts(Attempts):
        experience = experience.and_then(attempts, log.real_count)
    return run.load_mdp(), experience, run.records(RoundRecord)


def _facts(config: Config, price: float, rounds: int, values: tuple[float, float, float]) -> Finished:
    logged, log_value, value = values
    return Finished(
        rounds=rounds,
        gamma=config.gamma,
        penalty=config.penalty,
        penalty_unit=config.penalty_unit,
        price=price,
        tolerance=config.final_tolerance,
        dead_end_value=config.stitch.dead_end_value,
        logged_value=logged,
        log_value=log_value,
        value=value,
    )


class _Clock:
    """Takes the time of one stage after another, and writes it down unless the run was finished before."""

    def __init__(self, run: RunFolder | None) -> None:
        self._run = run
        self._stopped = run is not None and run.is_finished
        self._last = time.perf_counter()
        self.timings: tuple[Timing, ...] = () if run is None else run.timings()

    def lap(self, stage: str, number: int | None = None) -> None:
        if self._stopped:
            return
        now = time.perf_counter()
        timing, self._last = Timing(stage, number, now - self._last), now
        self.timings = (*self.timings, timing)
        if self._run is not None:
            self._run.add_timing(timing)
