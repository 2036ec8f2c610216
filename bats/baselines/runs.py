"""Training baselines into run folders: several runs as one program, each with snapshots and a state of its own.

The environment is not needed. `curve.learning_curve` evaluates the snapshots of a finished run afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby

import jax

from bats.arrays import Progress, no_progress
from bats.baselines.catalogue import METHODS
from bats.baselines.config import Baseline, method_name
from bats.baselines.core import TrainingState
from bats.baselines.folder import BaselineFolder, BaselineHeader, Finished, Snapshot
from bats.baselines.training import Trainer, check_log, stacked
from bats.config import ModelConfig, Seed, checked
from bats.data.dataset import Dataset
from bats.metric.scaled import ScaledMetric
from bats.model.fit import Model, fit_model, load_model, save_model
from bats.networks.files import fill_tree, tree_arrays
from bats.policy.support import Support
from bats.runs.interrupts import noted_interrupts, stoppable
from bats.runs.records import LogCard, Timing
from bats.storage.tensors import read_tensors, write_tensors
from bats.streams import Stream, generator

CHECKPOINT_SECONDS = 300.0
"""training that takes longer between two snapshots saves its state this often"""
_TRAINING = "bats-baseline-training"


@dataclass(frozen=True, eq=False)
class Run:
    """What one run is trained on, with which seed, and where it is kept."""

    dataset: Dataset
    seed: int
    folder: BaselineFolder
    model: Model | None = None
    """given instead of trained, for methods that need one"""


def train_runs(config: Baseline, runs: Sequence[Run], *, progress: Progress = no_progress) -> list[Finished]:
    """Trains the runs of one method that are not finished yet; those that are equally far as one program.

    All logs must have states and actions of the same sizes.
    """
    method = METHODS[method_name(config)]
    for run in runs:
        checked("seed", Seed, run.seed)
        check_log(method, run.dataset)
    with noted_interrupts(), ExitStack() as claims:
        for run in runs:
            header = BaselineHeader.of_method(method.name, run.dataset, run.seed)
            claims.enter_context(run.folder.claimed(header, config, run.dataset))
        progress = stoppable(progress)
        open_runs = [run for run in runs if not run.folder.is_finished]
        for _, group in groupby(sorted(open_runs, key=_updates_done), key=_updates_done):
            _train_together(method.name, config, list(group), progress)
    return [run.folder.finished() for run in runs]


def _updates_done(run: Run) -> int:
    """The update from which a run continues."""
    path = run.folder.training
    return int(read_tensors(path, _TRAINING)[1]["update"]) if path.exists() else 0


def _train_together(name: str, config: Baseline, runs: list[Run], progress: Progress) -> None:
    """Trains runs that are equally far. One that diverges keeps its snapshots, and the others go on."""
    method = METHODS[name]
    models = [_model(run, progress).dynamics for run in runs] if method.extend is not None else []
    logs = list({id(run.dataset): run.dataset for run in runs}.values())
    numbers = [next(n for n, log in enumerate(logs) if log is run.dataset) for run in runs]
    trainer = Trainer.of(method, config, logs, [*zip(numbers, (run.seed for run in runs), strict=True)], models)
    states, began = _load_states(trainer, runs), time.monotonic()
    saved, running = began, dict(enumerate(runs))
    try:
        for reached in trainer.train(states, progress=progress):
            states, due = reached.states, time.monotonic() - saved > CHECKPOINT_SECONDS
            for number, found in [(number, reached.divergence(number)) for number in running]:
                if found:  # the others go on; its state is of no use to anybody
                    _finish(running.pop(number), found, len(runs))
            if not running:
                return
            if reached.is_snapshot:
                timing = Timing("training", reached.update, time.monotonic() - began)
                for number, run in running.items():
                    log = LogCard.of(run.dataset)
                    policy = trainer.policy(states, number)
                    policy = replace(policy, card={"log": run.dataset.name, **policy.card, **log.names()})
                    run.folder.add_snapshot(Snapshot(reached.update, reached.losses(number)), policy)
                    run.folder.add_timing(timing)
                began = time.monotonic()
            if reached.is_snapshot or due:
                _save_states(states, running)
                saved = time.monotonic()
    except KeyboardInterrupt:
        _save_states(states, running)
        raise
    for run in running.values():
        _finish(run, "", len(runs))


def _finish(run: Run, divergence: str, together: int) -> None:
    made = run.folder.snapshots()
    run.folder.finish(Finished(made[-1].update if made else 0, divergence, together), _support(run))


def _load_states(trainer: Trainer, runs: Sequence[Run]) -> TrainingState:
    """The states that were saved, or those before the first update."""
    states = []
    for run in runs:
        state, path = trainer.new_state(run.seed), run.folder.training
        states.append(fill_tree(state, read_tensors(path, _TRAINING)[0], file=str(path)) if path.exists() else state)
    return stacked(states)


def _save_states(states: TrainingState, runs: Mapping[int, Run]) -> None:
    """Saves the states of some runs, which are given by their numbers."""
    for number, run in runs.items():
        arrays = tree_arrays(jax.tree.map(lambda leaf, number=number: leaf[number], states))
        write_tensors(run.folder.training, _TRAINING, arrays, {"update": int(states.update[number])}, overwrite=True)


def _model(run: Run, progress: Progress) -> Model:
    """The model of a run: saved, given or trained."""
    path = run.folder.model
    if path.exists():
        return load_model(path)
    model = run.model or fit_model(run.dataset, ModelConfig(), seed=run.seed, progress=progress)
    save_model(model, path)
    return model


def _support(run: Run) -> Support:
    weight = ScaledMetric.of(run.dataset).weight
    return Support.of(run.dataset.observations, weight, generator(run.seed, Stream.SUPPORT_SAMPLE))
