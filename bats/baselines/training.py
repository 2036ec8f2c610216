"""Training a baseline on a log: the log on the device, the updates in between two snapshots, and the policy file.

Several runs of one method, with other seeds or on logs of the same kind, are trained as one program.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bats.arrays import Progress, no_progress, padded_length
from bats.baselines.config import Baseline, BCConfig
from bats.baselines.core import Log, Method, Sizes, TrainingState, advance, new_state
from bats.baselines.model import ScaledDynamics
from bats.config import READ_LOG, Function, Seed, checked
from bats.data.dataset import Dataset
from bats.errors import DataError, SettingError
from bats.model.ensemble import Dynamics
from bats.networks.inference import mean_and_std
from bats.networks.mlp import MLP
from bats.policy.demonstrations import best_episodes
from bats.policy.policy import Policy
from bats.storage.json_records import to_plain

FIRST_UPDATES = 20
"""updates in the first call of the compiled program"""
SECONDS = 1.0
"""about how long later calls take; between two calls progress is shown"""
NARROW = -20.0
"""log-odds that make the std of an action the smallest one, for policies that have none"""


@dataclass(frozen=True, eq=False)
class Scales:
    """How a method sees the states and actions of a log."""

    mean: Float[np.ndarray, "D"]
    std: Float[np.ndarray, "D"]
    low: Float[np.ndarray, "A"]
    high: Float[np.ndarray, "A"]
    """empty for discrete actions, as `low`"""

    @classmethod
    def of(cls, dataset: Dataset, config: Baseline) -> Scales:
        width = dataset.observations.shape[1]
        mean, std = np.zeros(width, np.float32), np.ones(width, np.float32)
        if config.normalize:
            mean, std = mean_and_std(dataset.observations)
        numbers = dataset.actions if dataset.action_count is None else np.empty((1, 0))
        return cls(mean, std, *(ends(axis=0).astype(np.float32) for ends in (numbers.min, numbers.max)))

    @property
    def centre(self) -> Float[np.ndarray, "A"]:
        return (self.low + self.high) / 2

    @property
    def half(self) -> Float[np.ndarray, "A"]:
        """half of each range; 1 where there is none, so that nothing is divided by 0"""
        return np.where(self.high > self.low, (self.high - self.low) / 2, np.float32(1))


def rows_used(dataset: Dataset, config: Baseline) -> Bool[np.ndarray, "N"]:
    """All rows, or for cloning those of the episodes with the largest returns.

    A next state is unknown at terminations only, where it does not count: the discount is 0.
    """
    return best_episodes(dataset, config.best_share if isinstance(config, BCConfig) else 1.0)


def table(dataset: Dataset, scales: Scales, config: Baseline) -> Float[np.ndarray, "n columns"]:
    """The rows to train on, all their numbers side by side as `Log.draw` takes them apart."""
    used = np.flatnonzero(rows_used(dataset, config))
    # differences are taken in the log's own precision, so that small steps far from 0 keep their digits
    states, next_states = (
        ((part[used] - scales.mean) / scales.std).astype(np.float32)
        for part in (dataset.observations, dataset.next_observations)
    )
    if dataset.action_count is None:
        actions = ((dataset.actions - scales.centre) / scales.half).astype(np.float32)
    else:
        actions = dataset.actions[:, None].astype(np.float32)
    following = np.minimum(np.arange(len(dataset)) + ~dataset.episode_ends, len(dataset) - 1)
    numbers = dataset.rewards[used, None], ~dataset.terminations[used, None]
    return np.hstack([states, actions[used], *numbers, next_states, actions[following[used]]], dtype=np.float32)


def joined(tables: Sequence[Float[np.ndarray, "_ columns"]], sizes: Sizes) -> Log:
    """The tables of several logs as one, filled up to the longest."""
    length = padded_length(max(map(len, tables)))
    whole = np.zeros((len(tables), length, tables[0].shape[1]), np.float32)
    for filled, rows in zip(whole, tables, strict=True):
        filled[: len(rows)] = rows
    count = np.array([len(rows) for rows in tables], np.int32)
    width = 1 if sizes.discrete else sizes.actions
    return Log(jax.device_put(whole), jax.device_put(count), sizes.states, width, sizes.discrete)


def check_log(method: Method, dataset: Dataset) -> None:
    """Refuses a log that the method cannot be trained on, before any work."""
    if dataset.action_count is not None and not method.discrete:
        expected, hint = (
            f"continuous actions, which {method.name} needs",
            "The methods bc and iql take discrete actions.",
        )
        raise DataError(expected, f"{dataset.action_count} discrete actions", file=dataset.name, hint=hint)
    # a constant cost until the task ends does say something: end it soon
    says_nothing = np.ptp(dataset.rewards) == 0 and not (dataset.rewards[0] and dataset.terminations.any())
    if method.name != "bc" and says_nothing:
        expected, found = "different rewards", f"a reward of {dataset.rewards[0]:g} in every row"
        raise DataError(expected, found, file=dataset.name, field="rewards", hint="Only bc trains without rewards.")


class Progressed(NamedTuple):
    """How far training has come."""

    states: TrainingState
    update: int
    is_snapshot: bool

    def losses(self, run: int) -> dict[str, float]:
        """Mean loss of each group of networks since the last snapshot."""
        return {name: float(loss.mean[run]) for name, loss in self.states.losses.items()}

    def divergence(self, run: int) -> str:
        """What is not finite in a run, in words; empty if all is well."""
        for name, loss in self.losses(run).items():
            if not math.isfinite(loss):
                return f"a loss of the {name} of {loss} before update {self.update:,}"
        actor = jax.tree.leaves(self.states.networks["actor"])
        finite = all(bool(jnp.isfinite(leaf[run]).all()) for leaf in actor)
        return "" if finite else f"weights of the actor that are not finite at update {self.update:,}"


def stacked(trees: Sequence[Any]) -> Any:
    """Trees of arrays as one, with a leading axis; None if there are none."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees) if trees else None


def sizes_of(dataset: Dataset) -> Sizes:
    discrete = dataset.action_count is not None
    return Sizes(dataset.observations.shape[1], dataset.action_count or dataset.actions.shape[1], discrete)


@dataclass(frozen=True, eq=False)
class Trainer:
    """Runs of one method that are trained together."""

    method: Method
    config: Baseline
    log: Log
    scales: tuple[Scales, ...]
    """of each log"""
    sizes: Sizes
    run_logs: tuple[int, ...]
    """the log of each run, by its number"""
    seeds: tuple[int, ...]
    """of each run"""
    models: Any
    """of each run, stacked; None where the method needs none"""

    @classmethod
    def of(
        cls,
        method: Method,
        config: Baseline,
        datasets: Sequence[Dataset],
        runs: Sequence[tuple[int, int]],
        models: Sequence[Dynamics] = (),
    ) -> Trainer:
        """`runs` are pairs of a log's number and a seed; `models` are those of the runs, if the method needs them."""
        for dataset in datasets:
            check_log(method, dataset)
        sizes = sizes_of(datasets[0])
        scales = tuple(Scales.of(dataset, config) for dataset in datasets)
        tables = [table(dataset, part, config) for dataset, part in zip(datasets, scales, strict=True)]
        run_logs, seeds = (tuple(column) for column in zip(*runs, strict=True))
        scaled = [
            ScaledDynamics(model, *map(jnp.asarray, (of_log.mean, of_log.std, of_log.centre, of_log.half)))
            for model, of_log in zip(models, (scales[number] for number in run_logs), strict=False)
        ]
        return cls(method, config, joined(tables, sizes), scales, sizes, run_logs, seeds, stacked(scaled))

    def initial(self) -> TrainingState:
        """The states before the first update, one for each run."""
        return stacked([self.new_state(seed) for seed in self.seeds])

    def new_state(self, seed: int) -> TrainingState:
        return new_state(self.method, self.sizes, self.config, jax.random.key(seed))

    def train(self, states: TrainingState, *, progress: Progress = no_progress) -> Iterator[Progressed]:
        """Yields how far training has come about every second, and at every snapshot."""
        config, done = self.config, int(states.update[0])
        numbers = jnp.asarray(self.run_logs, jnp.int32)
        keys = jnp.stack([jax.random.key(seed) for seed in self.seeds])
        snapshots = [config.updates * part // config.snapshots for part in range(1, config.snapshots + 1)]
        count = FIRST_UPDATES
        while done < config.updates:
            began = time.monotonic()
            if done in snapshots:
                states = replace(states, losses=jax.tree.map(jnp.zeros_like, states.losses))
            # results do not depend on how many updates are made at a time
            count = min(count, min(end for end in snapshots if end > done) - done)
            states = advance((self.log, self.method, config), jnp.int32(count), states, keys, numbers, self.models)
            done = int(states.update[0])
            yield Progressed(states, done, done in snapshots)
            progress(f"training {self.method.name}", done, config.updates)
            count = min(max(int(count * SECONDS / (time.monotonic() - began)), 1), 10 * count)

    def policy(self, states: TrainingState, run: int) -> Policy:
        """The policy of one run as it is now."""
        actor = jax.tree.map(lambda leaf: np.asarray(leaf[run]), states.networks["actor"])
        network: MLP = getattr(actor, "network", actor)
        weights, biases = list(network.weights), list(network.biases)
        scales, sizes = self.scales[self.run_logs[run]], self.sizes
        if not sizes.discrete and len(biases[-1]) == sizes.actions:  # no std, or one for all states
            raw_std = getattr(actor, "raw_std", np.full_like(biases[-1], NARROW))
            weights[-1] = np.hstack([weights[-1], np.zeros_like(weights[-1])])
            biases[-1] = np.concatenate([biases[-1], raw_std])
        card = {"method": self.method.name, "settings": to_plain(self.config), "seed": self.seeds[run]}
        return Policy(
            weights=tuple(map(np.asarray, weights)),
            biases=tuple(map(np.asarray, biases)),
            mean=scales.mean,
            std=scales.std,
            low=scales.low,
            high=scales.high,
            action_count=sizes.actions if sizes.discrete else None,
            activation="relu",
            squashed=self.method.squashed and not sizes.discrete,
            card={**card, "updates": int(states.update[run])},
        )


def train(
    method: Method,
    dataset: Dataset,
    config: Baseline,
    *,
    seed: int,
    model: Dynamics | None = None,
    progress: Progress = no_progress,
) -> Policy:
    """The policy that a method learns from a log; `model` is for methods that need one."""
    dataset, seed = checked("dataset", Dataset, dataset, READ_LOG), checked("seed", Seed, seed)
    config, progress = checked("config", method.config, config), checked("progress", Function, progress)
    if method.extend is not None and model is None:
        raise SettingError(f"{method.name} needs a `model` of the log; `bats.model.fit.fit_model` trains one.")
    trainer = Trainer.of(method, config, [dataset], [(0, seed)], [] if model is None else [model])
    states = trainer.initial()
    for reached in trainer.train(states, progress=progress):
        states = reached.states
        if found := reached.divergence(0):
            raise divergence_error(found, dataset)
    return trainer.policy(states, 0)


def divergence_error(found: str, dataset: Dataset) -> DataError:
    hint = "Training has diverged; try a smaller learning rate."
    return DataError("finite losses", found, file=dataset.name, hint=hint)
