"""Fitting the dynamics model of a log, and the model on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bats.arrays import Progress, no_progress, padded_length
from bats.config import READ_LOG, Function, ModelConfig, Seed, checked
from bats.data.dataset import MAX_NUMBER, Dataset
from bats.errors import DataError, SettingError
from bats.model.ensemble import Dynamics, Kind, new_dynamics
from bats.model.held_out import HeldOut, error_summary, predict_rows
from bats.model.training import RewardNetworks, split_rows, training_problem, untrained
from bats.networks.files import fill_tree, tree_arrays
from bats.networks.training import TrainingState, new_state, train
from bats.storage.atomic import refuse_existing
from bats.storage.json_records import read_value, to_plain, write_record
from bats.storage.schema import build
from bats.storage.tensors import read_tensors, write_tensors

CHECKPOINT_SECONDS = 600.0
"""training that takes longer saves its state this often"""
_MODEL, _TRAINING = "bats-dynamics", "bats-training"


@dataclass(frozen=True, eq=False)
class Model:
    """The trained dynamics with the rows they never saw."""

    dynamics: Dynamics
    held_out: HeldOut
    config: ModelConfig
    updates: int
    """updates made before training stopped"""


def fit_model(
    dataset: Dataset,
    config: ModelConfig,
    *,
    seed: int,
    checkpoint: Path | None = None,
    progress: Progress = no_progress,
) -> Model:
    """Trains an ensemble on a log and predicts the held-out rows.

    With a `checkpoint` path, long training saves its state every ten minutes and continues from there when called
    again. The caller removes the file once the model is saved.
    """
    dataset, config = checked("dataset", Dataset, dataset, READ_LOG), checked("config", ModelConfig, config)
    seed, progress = checked("seed", Seed, seed), checked("progress", Function, progress)
    needed = round(config.passes * len(dataset) / config.batch_size)
    # a program is compiled for every number of updates, so logs of similar size get the same number
    updates = config.updates if needed <= config.updates else padded_length(needed)
    config = replace(config, updates=updates)
    split = split_rows(dataset, seed=seed)
    model, rows = untrained(dataset, split, config, seed=seed)
    problem, draw = training_problem(model, split, config, seed=seed)
    initial = new_state(model.networks, problem, members=config.members)
    identity = {"seed": seed, "rows": len(dataset), "config": asdict(config)}
    if checkpoint is not None and checkpoint.exists():
        initial = _load_checkpoint(checkpoint, initial, identity)
    state = initial
    saved = time.monotonic()
    for state, _, error in train(problem, initial, rows, draw):
        if not np.isfinite(error).all():
            hint = "Check the log for extreme values."
            raise DataError("a finite training error", "an error that is not finite", file=dataset.name, hint=hint)
        due = time.monotonic() - saved > CHECKPOINT_SECONDS
        try:
            progress(f"training the model (validation error {error.min():.2g})", int(state.update), updates)
        except KeyboardInterrupt:
            due = True
            raise
        finally:
            if checkpoint is not None and due:
                write_tensors(checkpoint, _TRAINING, tree_arrays(state), identity, overwrite=True)
                saved = time.monotonic()
    elites = np.argsort(np.asarray(state.best_error), kind="stable")[: config.elites]
    networks = jax.tree.map(lambda stacked: jnp.asarray(np.asarray(stacked)[elites]), state.best)
    dynamics = eqx.tree_at(lambda whole: whole.networks, model, networks)
    return Model(dynamics, predict_rows(dynamics, dataset, split.held_out), config, int(state.update))


def fit_rewards(model: Model, dataset: Dataset, *, seed: int, progress: Progress = no_progress) -> Model:
    """The same dynamics with the rewards of another log, whose transitions are the same: only rewards are learned."""
    config = replace(model.config, members=model.config.elites, updates=model.updates)
    split = split_rows(dataset, seed=seed)
    fresh, rows = untrained(dataset, split, config, seed=seed)
    problem, draw = training_problem(fresh, split, config, seed=seed, rewards_only=True)
    state = initial = new_state(RewardNetworks(fresh.networks.reward, fresh.networks.rare), problem)
    for state, loss, _ in train(problem, initial, rows, draw):
        if not np.isfinite(loss):
            raise DataError("rewards that can be learned", "a loss that is not finite")
        progress("training the reward networks", int(state.update), config.updates)
    networks = replace(model.dynamics.networks, reward=state.params.reward, rare=state.params.rare)
    dynamics = replace(fresh, networks=networks)
    return Model(dynamics, predict_rows(dynamics, dataset, split.held_out), model.config, model.updates)


def check_model(model: Model, dataset: Dataset) -> None:
    """Refuses a model whose states or actions have other shapes than the log's."""
    rows = model.held_out
    of_model = (rows.observations.shape[1], rows.actions.shape[1], model.dynamics.kind.action_count)
    action_width = dataset.actions.shape[1] if dataset.action_count is None else dataset.action_count
    of_log = (dataset.observations.shape[1], action_width, dataset.action_count)
    if of_model != of_log:
        sizes = []
        for width, size, count in (of_model, of_log):
            actions = f"continuous actions of size {size}" if count is None else f"{count} discrete actions"
            sizes.append(f"states of size {width} and {actions}")
        raise SettingError(f"The model does not fit the log: the model has {sizes[0]}, the log has {sizes[1]}.")


def save_model(model: Model, path: Path) -> None:
    """Writes a human-readable summary (JSON), and then the model as one safetensors file."""
    refuse_existing(path)
    dynamics = model.dynamics
    arrays = {f"dynamics{name}": array for name, array in tree_arrays(dynamics).items()}
    arrays |= {f"held_out.{field.name}": getattr(model.held_out, field.name) for field in fields(HeldOut)}
    facts = {"config": to_plain(model.config), "kind": to_plain(dynamics.kind), "updates": model.updates}
    card = facts | {"held_out_rows": len(model.held_out.rewards), "held_out_error": error_summary(model.held_out)}
    write_record(path.with_suffix(".json"), card)
    write_tensors(path, _MODEL, arrays, facts)


def load_model(path: Path) -> Model:
    """The model saved at `path`, with identical predictions."""
    arrays, facts = read_tensors(path, _MODEL)
    file = str(path)
    config, kind, updates = (
        read_value(of, facts.get(name), file, name)
        for name, of in (("config", ModelConfig), ("kind", Kind), ("updates", int))
    )
    rows = {name.removeprefix("held_out."): array for name, array in arrays.items() if name.startswith("held_out.")}
    held_out = build(HeldOut, rows, file=file)
    if any(np.abs(array).max(initial=0.0) > MAX_NUMBER for array in rows.values() if array.dtype.kind == "f"):
        raise DataError(f"held-out rows of numbers up to {MAX_NUMBER:g}", "larger numbers", file=file)
    dynamics = {name.removeprefix("dynamics"): array for name, array in arrays.items() if name.startswith("dynamics")}
    _check_sizes(config, kind, held_out, dynamics, file)
    for name, array in dynamics.items():
        if name.endswith(".std") and not np.all(array > 0):
            raise DataError(f"positive numbers in the array {name}", "other numbers", file=file)
    if not 1 <= updates <= config.updates:
        raise DataError(f"1 to {config.updates} updates", f"{updates}", file=file)
    template = new_dynamics(replace(config, members=config.elites), kind, jax.random.key(0))
    return Model(fill_tree(template, dynamics, file=file), held_out, config, updates)


def _check_sizes(config: ModelConfig, kind: Kind, rows: HeldOut, dynamics: Mapping[str, np.ndarray], file: str) -> None:
    """Refuses sizes that are only claimed, before memory is taken for networks of these sizes."""
    state_width, action_width = rows.observations.shape[1], rows.actions.shape[1]
    claimed = (kind.state_width, kind.action_width, kind.action_count or action_width)
    if claimed != (state_width, action_width, action_width) or rows.observations.size * rows.actions.size == 0:
        raise DataError("held-out rows of the sizes that the networks take", "none, or of other sizes", file=file)
    sizes = (state_width + action_width, *config.hidden, 2 * state_width)
    for layer, shape in enumerate(pairwise(sizes)):
        weight = dynamics.get(f".networks.delta.weights[{layer}]", np.zeros(0))
        if weight.shape != (config.elites, *shape):
            expected = f"weights of shape {(config.elites, *shape)} in layer {layer}"
            raise DataError(expected, f"weights of shape {weight.shape}", file=file)


def _load_checkpoint(path: Path, template: TrainingState, identity: Mapping[str, Any]) -> TrainingState:
    arrays, facts = read_tensors(path, _TRAINING)
    for name, value in json.loads(json.dumps(identity)).items():
        if facts.get(name) != value:
            hint = "Delete this file to train from the start."
            raise DataError(
                f"a checkpoint of training with {name} {value}", f"{facts.get(name)}", file=str(path), hint=hint
            )
    state = fill_tree(template, arrays, file=str(path))
    if not (0 <= int(state.update) <= identity["config"]["updates"] and int(state.stale) >= 0):
        raise DataError("a number of updates within the settings", f"{int(state.update)}", file=str(path))
    return state
