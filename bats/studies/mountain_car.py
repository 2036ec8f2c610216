"""The paper's mountain car [section 5]: returns after stitching, errors of rollouts and values, and a lower bound.

One log, 20 random episodes and 5 of an expert, is fitted with several configurations. The first one is fitted with
every seed, and its policies are played. The others are fitted once, and their values and rollouts are compared with
the first one's. The true car only measures; nothing is selected by it.

Every fit has a folder of its own and every plain clone a file, so a study that was stopped continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from jaxtyping import Float

from bats.arrays import Progress, no_progress
from bats.config import CloningConfig, Config, Count, Seed, Settings
from bats.data.dataset import Dataset
from bats.errors import OutputError, SettingError
from bats.evaluation.episodes import Actor, evaluate
from bats.policy.cloning import clone
from bats.policy.demonstrations import logged_rows
from bats.policy.files import load_policy, save_policy
from bats.policy.policy import Policy
from bats.presets import changed, preset
from bats.runs.pipeline import fit
from bats.runs.records import Header
from bats.runs.result import Result
from bats.storage.json_records import read_json, to_plain, write_record
from bats.studies.car_findings import Findings, VariantFindings
from bats.studies.car_rollouts import example_rollout, failed_rows, measure_rollouts
from bats.studies.car_values import measure_bound, measure_values
from bats.tasks.mountain_car import ENVIRONMENT, TASK, collect_mountain_car, expert_action

STUDY = "study.json"
"""marks the folder of a study, and says of which log"""
LOG_STATES = 4000
"""about the number of states of the log that are drawn"""


@dataclass(frozen=True)
class Variant:
    """A configuration that the log is fitted with."""

    name: str
    """letters and underscores, for files and figures"""
    label: str
    """for legends"""
    config: Config


def car_config(config: Config) -> Config:
    """The same configuration with networks as small as the paper's for this task [appendix D.1].

    A state is two numbers, and a few thousand states are cloned: networks of the usual size are no better here and
    take four times as long.
    """
    return changed(config, model={"hidden": (64, 64, 64)}, cloning={"hidden": (256, 256), "updates": 5_000})


_DEFAULT = car_config(preset("default"))
VARIANTS = (
    Variant("steps", "Euclidean, ordinary steps", _DEFAULT),
    # the paper's metric, with the tolerance of its authors
    Variant("raw", "Euclidean, raw numbers", changed(_DEFAULT, metric="raw", stitch={"tolerance": 0.1})),
    Variant("bisimulation", "bisimulation, learned", car_config(preset("bisimulation"))),
)


@dataclass(frozen=True)
class StudyConfig(Settings):
    """What is fitted and how much is measured."""

    variants: tuple[Variant, ...] = VARIANTS
    """at least one; the first one is fitted with every seed, the others with seed 0"""
    seeds: Count = 5
    episodes: Count = 100
    """played by each policy of each seed"""
    rows: Count | None = None
    """of the log; None: the task's usual number"""
    log_seed: Seed = 0
    value_states: Count = 200
    """states whose values are measured"""
    rollouts: Count = 200
    """logged states whose rollouts are replayed"""


DEFAULT = StudyConfig()
"""what `bats-rl benchmark` runs"""


class Expert:
    """The controller of the log's last episodes."""

    def predict(self, observation: np.ndarray, /) -> np.ndarray:
        return np.stack([expert_action(row) for row in observation])


def run_study(folder: Path, config: StudyConfig = DEFAULT, *, progress: Progress = no_progress) -> Findings:
    """Fits, plays and measures. `folder` is made, or continued if it holds a study of the same log."""
    log = collect_mountain_car(config.rows, config.log_seed, progress=progress)
    if len(failed_rows(log)) == 0:
        raise SettingError("Every episode of the log reaches the goal; the study needs an episode that does not.")
    _claim(folder, log)
    step, steps = count(), 2 * (config.seeds + len(config.variants))

    def begin(task: str) -> Progress:
        """Reports the next step of the study; returns the progress of the step itself."""
        progress(f"study ({task})", next(step), steps)
        return lambda stage, done, total: progress(f"{task}: {stage}", done, total)

    first, *others = config.variants
    results: list[Result] = []
    returns: dict[str, list[Float[np.ndarray, "episodes"]]] = {"expert": [], "plain": [], "bats": []}
    for seed in range(config.seeds):
        of_fit, run = begin(f"{first.name}, seed {seed}"), folder / f"{first.name}-{seed}"
        result = fit(log, first.config, seed=seed, folder=run, progress=of_fit)
        plain = _clone_log(folder, log, first.config.cloning, seed, begin(f"whole log, seed {seed}"))
        # the same seed gives the same start states to all three
        actors: dict[str, Actor] = {"expert": Expert(), "plain": plain, "bats": result.graph_clone}
        for name, actor in actors.items():
            returns[name].append(evaluate(actor, ENVIRONMENT, episodes=config.episodes, seed=seed).returns)
        results = results or [result]
    for variant in others:
        of_fit, run = begin(f"{variant.name}, seed 0"), folder / f"{variant.name}-0"
        # a model does not depend on the metric: with the same settings and seed it would be the same one again
        model = results[0].model if variant.config.model == first.config.model else None
        results.append(fit(log, variant.config, seed=0, folder=run, model=model, progress=of_fit))
    measured = []
    for variant, result in zip(config.variants, results, strict=True):
        of_measuring = begin(f"{variant.name}, measuring")
        values = measure_values(result, config.value_states, progress=of_measuring)
        rollouts = measure_rollouts(result, log, config.rollouts, progress=of_measuring)
        measured.append(VariantFindings(variant.name, variant.label, values, rollouts))
    failed_episode, rollout = example_rollout(results[0], log)
    # of the first variant only, as in the paper: bounding takes a value metric that has to be learned
    bound = measure_bound(results[0], measured[0].values, progress=begin("lower bound"))
    progress("study", steps, steps)
    return Findings(
        settings={"log_rows": len(log), **to_plain(config)},
        returns={name: np.stack(of_seeds) for name, of_seeds in returns.items()},
        variants=tuple(measured),
        log_states=log.observations[:: max(len(log) // LOG_STATES, 1)],
        failed_episode=failed_episode,
        rollout=rollout,
        bound=bound,
    )


def _claim(folder: Path, log: Dataset) -> None:
    """Marks the folder as this study's; refuses one that holds anything else."""
    mark = {"study": TASK, "log": Header.of(log, 0).transitions}
    if (folder / STUDY).exists():
        if read_json(folder / STUDY) != mark:
            raise OutputError(f"{folder} contains another study or a study of another log; choose another folder.")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} already exists and does not contain a study; choose another folder.")
    write_record(folder / STUDY, mark)


def _clone_log(folder: Path, log: Dataset, config: CloningConfig, seed: int, progress: Progress) -> Policy:
    """A plain clone of the whole log, loaded where it was made before. Whole episodes are held out."""
    path = folder / f"plain-{seed}.safetensors"
    settings = {"cloning": to_plain(config), "seed": seed, "rows": len(log)}
    if path.exists():  # its card says how it was cloned
        policy = load_policy(path)
        if {name: policy.card.get(name) for name in settings} != settings:
            raise OutputError(f"{path} was cloned with other settings; choose another folder.")
        return policy
    episode = np.cumsum(log.episode_ends) - log.episode_ends
    policy = clone(logged_rows(log, np.arange(len(log)), episode), config, seed=seed, progress=progress)
    save_policy(policy, path)
    return policy
