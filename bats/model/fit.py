"""A trained ensemble together with the rows it never saw: fitted, measured, saved and loaded."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bats.arrays import Progress, no_progress
from bats.data.dataset import Dataset
from bats.errors import DataError, OutputError, SettingError
from bats.model.ensemble import Dynamics, DynamicsConfig, blank_scale, new_networks
from bats.model.training import (
    TrainingState,
    finished,
    new_state,
    optimiser_of,
    split_rows,
    train,
    untrained,
)
from bats.storage.atomic import atomic_path
from bats.storage.tensors import read_arrays, write_arrays

Tree = TypeVar("Tree")

CHECKPOINT_SECONDS = 600.0
"""training that takes longer than this saves where it stands"""
_MODEL, _TRAINING = "bats-dynamics", "bats-training"
PREDICT_ROWS = 8192
"""rows predicted at a time, so that a long log does not need memory for all at once"""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows that neither fitted nor chose anything, with what the elites predict for them."""

    observations: Float[np.ndarray, "H D"]
    actions: Float[np.ndarray, "H A"]
    """as the networks take them"""
    next_observations: Float[np.ndarray, "H D"]
    rewards: Float[np.ndarray, "H"]
    terminations: Bool[np.ndarray, "H"]
    predicted_next: Float[np.ndarray, "H D"]
    """mean over the elites"""
    predicted_reward: Float[np.ndarray, "H"]
    predicted_termination: Float[np.ndarray, "H"]

    @property
    def residual(self) -> Float[np.ndarray, "H D"]:
        return self.predicted_next - self.next_observations

    @cached_property
    def stretch(self) -> Int[np.ndarray, "H"]:
        """The number of the stretch of consecutive rows that each belongs to."""
        goes_on = np.all(self.observations[1:] == self.next_observations[:-1], axis=1) & ~self.terminations[:-1]
        return np.concatenate([[0], np.cumsum(~goes_on)])

    def halves(self) -> tuple[HeldOut, HeldOut]:
        """Every other stretch, and the rest: one half to judge stitches by, and one that only calibrates bounds."""
        first = self.stretch % 2 == 0
        return self._some(first), self._some(~first)

    def _some(self, rows: Bool[np.ndarray, "H"]) -> HeldOut:
        return HeldOut(*(getattr(self, part.name)[rows] for part in fields(self)))


@dataclass(frozen=True, eq=False)
class Model:
    """What the stitching loop and the report need of the learned dynamics."""

    dynamics: Dynamics
    held_out: HeldOut
    config: DynamicsConfig
    updates: int
    """updates made before training stopped"""


def fit_dynamics(
    dataset: Dataset,
    config: DynamicsConfig,
    *,
    seed: int,
    checkpoint: Path | None = None,
    progress: Progress = no_progress,
) -> Model:
    """Trains an ensemble on a log and measures it on the held-out rows.

    With a `checkpoint` path, training that takes long saves where it stands every ten minutes and goes on from there
    when called again. Whoever gave it removes it once the model is safe.
    """
    config = config.for_rows(len(dataset))
    split = split_rows(dataset, config, seed=seed)
    template = untrained(dataset, split, config, seed=seed)
    state = new_state(template.networks, optimiser_of(config))
    identity = {"seed": seed, "rows": len(dataset), "config": asdict(config)}
    if checkpoint is not None and checkpoint.exists():
        state = _load_state(checkpoint, state, identity)
    saved = time.monotonic()
    for reached, record in train(dataset, config, seed=seed, state=state):
        state = reached
        best = min(record.validation_error)
        progress(f"training the model (validation error {best:.2g})", record.update, record.updates)
        if checkpoint is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
            write_arrays(checkpoint, _TRAINING, named_arrays(state), identity, overwrite=True)
            saved = time.monotonic()
    dynamics = finished(state, template, config)
    held_out = predict_rows(dynamics, dataset, split.held_out)
    return Model(dynamics, held_out, config, int(state.update))


def save_model(model: Model, path: Path) -> None:
    """Writes the model as one safetensors file and, before that, a JSON card for people beside it."""
    if path.exists():
        raise OutputError(f"{path} exists already; choose another name.")
    arrays = {f"dynamics{name}": array for name, array in named_arrays(model.dynamics).items()}
    arrays |= {f"held_out.{field.name}": getattr(model.held_out, field.name) for field in fields(HeldOut)}
    dynamics = model.dynamics
    facts = {
        "config": asdict(model.config),
        "updates": model.updates,
        "binary_reward": dynamics.binary_reward,
        "action_count": dynamics.action_count,
        "terminations": dynamics.networks.termination is not None,
        "exceptional_rewards": dynamics.jumps is not None,
        "exceptional_rewards_end": dynamics.jumps_end,
    }
    card = facts | {"held_out_rows": len(model.held_out.rewards), "held_out_error": held_out_error(model.held_out)}
    with atomic_path(path.with_suffix(".json"), overwrite=True) as temporary:
        temporary.write_text(json.dumps(card, indent=2) + "\n")
    write_arrays(path, _MODEL, arrays, facts)  # last: where there is a model, all of it is there


def check_model(model: Model, dataset: Dataset) -> None:
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


def load_model(path: Path) -> Model:
    """The model saved at `path`, with identical predictions."""
    arrays, facts = read_arrays(path, _MODEL)
    try:
        config = DynamicsConfig(
            **{**facts["config"], **{k: tuple(facts["config"][k]) for k in ("hidden", "reward_hidden")}}
        )
        held_out = HeldOut(**{field.name: arrays[f"held_out.{field.name}"] for field in fields(HeldOut)})
        state_width, action_width = held_out.observations.shape[1], held_out.actions.shape[1]
        jumps = bool(facts.get("exceptional_rewards", False))  # files made before there were any do not tell
        networks = new_networks(
            replace(config, members=config.elites),
            state_width=state_width,
            action_width=action_width,
            ends=bool(facts["terminations"]),
            key=jax.random.key(0),
            jumps=jumps,
        )
        template = Dynamics(
            networks,
            states=blank_scale(state_width),
            actions=blank_scale(action_width),
            changes=blank_scale(state_width),
            rewards=blank_scale(1),
            binary_reward=bool(facts["binary_reward"]),
            action_count=facts["action_count"],
            jumps=blank_scale(1) if jumps else None,
            jumps_end=bool(facts.get("exceptional_rewards_end", False)),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DataError("a saved model", f"one that lacks or misnames something ({error})", file=str(path)) from error
    mine = {name.removeprefix("dynamics"): array for name, array in arrays.items() if name.startswith("dynamics")}
    return Model(filled(template, mine, file=str(path)), held_out, config, int(facts["updates"]))


def held_out_error(rows: HeldOut) -> dict[str, Any]:
    """How wrong the elites are together on rows they never saw: by number of the state, in the log's own units."""
    absolute = np.abs(rows.residual)
    amounts = np.unique(rows.rewards)
    told: dict[str, Any] = {
        "mean_absolute": absolute.mean(axis=0).tolist(),
        "root_mean_square": np.sqrt((absolute**2).mean(axis=0)).tolist(),
        "largest": absolute.max(axis=0).tolist(),
        "reward_mean_absolute": float(np.abs(rows.predicted_reward - rows.rewards).mean()),
    }
    if len(amounts) == 2:
        told |= _precision_recall("reward", rows.predicted_reward > amounts.mean(), rows.rewards == amounts[1])
    if rows.terminations.any():
        told |= _precision_recall("termination", rows.predicted_termination > 0.5, rows.terminations)
    return told


def _precision_recall(name: str, predicted: Bool[np.ndarray, "H"], true: Bool[np.ndarray, "H"]) -> dict[str, float]:
    both = int(np.count_nonzero(predicted & true))
    return {
        f"{name}_precision": both / max(int(np.count_nonzero(predicted)), 1),
        f"{name}_recall": both / max(int(np.count_nonzero(true)), 1),
    }


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree by their place in it."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_array))
    return {jax.tree_util.keystr(place): np.asarray(leaf) for place, leaf in leaves}


def filled(template: Tree, arrays: Mapping[str, np.ndarray], *, file: str) -> Tree:
    """A tree of the template's form with the given arrays, which must be the same ones in the same shapes."""
    wanted = named_arrays(template)
    odd = [name for name in wanted if name not in arrays or arrays[name].shape != wanted[name].shape]
    if odd:
        found = f"shape {arrays[odd[0]].shape}" if odd[0] in arrays else "none"
        raise DataError(f"an array {odd[0]} of shape {wanted[odd[0]].shape}", found, file=file)
    changing, fixed = eqx.partition(template, eqx.is_array)
    places, form = jax.tree_util.tree_flatten_with_path(changing)
    held = [jnp.asarray(arrays[jax.tree_util.keystr(place)], leaf.dtype) for place, leaf in places]
    return eqx.combine(jax.tree_util.tree_unflatten(form, held), fixed)


def _load_state(path: Path, template: TrainingState, identity: Mapping[str, Any]) -> TrainingState:
    arrays, facts = read_arrays(path, _TRAINING)
    for name, value in json.loads(json.dumps(identity)).items():
        if facts.get(name) != value:
            raise DataError(f"training with {name} {value}", f"{facts.get(name)}", file=str(path))
    return filled(template, arrays, file=str(path))


def predict_rows(dynamics: Dynamics, dataset: Dataset, rows: np.ndarray) -> HeldOut:
    """What the elites together predict for some rows of a log."""
    states = np.asarray(dataset.observations[rows], np.float32)
    actions = np.asarray(dynamics.encode_actions(dataset.actions[rows]))
    parts = [
        _predict(
            dynamics,
            jnp.asarray(states[first : first + PREDICT_ROWS]),
            jnp.asarray(actions[first : first + PREDICT_ROWS]),
        )
        for first in range(0, len(rows), PREDICT_ROWS)
    ]
    change, reward, ended = (np.concatenate([np.asarray(part[i]) for part in parts]) for i in range(3))
    return HeldOut(
        observations=dataset.observations[rows],
        actions=actions,
        next_observations=dataset.next_observations[rows],
        rewards=dataset.rewards[rows],
        terminations=dataset.terminations[rows],
        predicted_next=dataset.observations[rows] + change.astype(dataset.observations.dtype),
        predicted_reward=reward,
        predicted_termination=ended,
    )


@eqx.filter_jit
def _predict(
    dynamics: Dynamics, states: Float[Array, "B D"], actions: Float[Array, "B A"]
) -> tuple[Array, Array, Array]:
    everyone = (dynamics.member_count, *states.shape[:1])
    here = jnp.broadcast_to(states, (*everyone, states.shape[1]))
    acted = jnp.broadcast_to(actions, (*everyone, actions.shape[1]))
    change, _ = dynamics.change(here, acted)
    there = here + change
    return (
        change.mean(axis=0),
        dynamics.reward(here, acted, there).mean(axis=0),
        dynamics.termination(here, acted, there).mean(axis=0),
    )
