"""BATS and other methods on a log of one's own, without an environment: what can be known of their policies.

A tenth of the log's episodes is held out, and everything is trained on the rest. Of each policy then

    action error        its distance from the logged actions in held-out rows
    value               its discounted return in rollouts of the dynamics ensemble from the starts, and how far the
                        members disagree
    bounds              lower and upper bound on its true value, as `bats-rl certify` computes them
    leaves the support  share of the rollouts that come to states far from all logged ones

What cannot be known is `UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePath

import numpy as np

from bats.arrays import Progress, no_progress
from bats.baselines.config import Baseline
from bats.baselines.folder import BaselineFolder
from bats.baselines.runs import Run, train_runs
from bats.bounds.certificate import ModelReturn
from bats.bounds.cloned_policy import model_return
from bats.config import Config
from bats.data.dataset import Dataset
from bats.graph.solve import possible_rewards, smallest_and_largest
from bats.networks.held_out import segments, split_groups
from bats.policy.files import load_policy
from bats.policy.policy import Policy
from bats.report.html import Page, Section, Table, Tile, render
from bats.runs.pipeline import fit
from bats.runs.result import Result
from bats.runs.variants import certify_again
from bats.storage.atomic import write_text
from bats.streams import Stream, generator
from bats.studies.settings import BATS

HELD_OUT = 0.1
"""share of the episodes"""
FEW_EPISODES = 10
"""logs with fewer are split into segments of consecutive rows instead"""
STARTS = 200
"""rollouts of each policy"""
UNKNOWN = (
    "Whether a policy earns these values in the real world cannot be known from a log. The ensemble is only right "
    "where the log has rows. The bounds account for its measured errors, with the stated confidence, as long as a "
    "policy stays near the log. A small action error shows that a policy imitates the log, not that it is good. If the "
    "world is random, or changes, nothing here notices it."
)


@dataclass(frozen=True)
class Known:
    """What is known of a policy without an environment."""

    method: str
    action_error: float
    """mean over held-out rows, in halves of the action range; of discrete actions, the share that differs"""
    in_model: ModelReturn
    lower: float | None
    """bounds on the true value; None where the settings have no certificate"""
    upper: float | None


def compare_own(
    log: Dataset,
    folder: Path,
    baselines: Mapping[str, Baseline],
    *,
    config: Config,
    seed: int = 0,
    progress: Progress = no_progress,
) -> tuple[list[Known], dict[str, str]]:
    """Fits BATS, trains the baselines, given by name, and measures their policies. Called again, it continues.

    Also returns what was not finite in methods that diverged. Their last snapshot before that is measured, if any.
    """
    training, held_out = split_log(log, seed=seed)
    result = fit(training, config, seed=seed, folder=folder / BATS, progress=progress)
    policies, diverged = {BATS: result.policy}, {}
    for method, settings in baselines.items():
        run = BaselineFolder(folder / method)
        (end,) = train_runs(settings, [Run(training, seed, run, result.model)], progress=progress)
        if end.divergence:
            diverged[method] = end.divergence
        if run.policy.exists():
            policies[method] = load_policy(run.policy)
    known = []
    for number, (method, policy) in enumerate(policies.items()):
        progress("measuring", number, len(policies))
        known.append(measure(method, policy, result, training, held_out))
    progress("measuring", len(policies), len(policies))
    return known, diverged


def measure(method: str, policy: Policy, result: Result, training: Dataset, held_out: Dataset) -> Known:
    """What is known of one policy, by the model and the graph of a fit."""
    rng = generator(result.seed, Stream.STUDY_ROLLOUTS)
    starts = training.observations[rng.choice(training.starts, STARTS, p=training.start_weights)]
    gamma, settings = result.config.gamma, result.config.certificate
    limits = smallest_and_largest(*possible_rewards(result.mdp, None if settings is None else settings.reward_range))
    dynamics, metric = result.model.dynamics, result.metric
    found = model_return(policy, starts, dynamics, metric, gamma=gamma, reward_range=limits)
    lower = upper = None
    if settings is not None:
        bounds = certify_again(result.folder, settings, policy=policy).clone
        lower, upper = bounds.lower, bounds.upper
    return Known(method, action_error(policy, held_out), found, lower, upper)


HEADING = (
    "method",
    "held-out action error",
    "value in the model",
    "disagreement of the members",
    "lower bound",
    "upper bound",
    "rollouts that leave the support",
)


def known_rows(known: Sequence[Known]) -> list[tuple[str, ...]]:
    """The rows of a table under `HEADING`."""
    return [
        (
            one.method,
            f"{one.action_error:.3f}",
            f"{one.in_model.value:.4g}",
            f"{one.in_model.disagreement:.4g}",
            *("not computed" if bound is None else f"{bound:.4g}" for bound in (one.lower, one.upper)),
            f"{one.in_model.leaves_support:.1%}",
        )
        for one in known
    ]


def remarks(diverged: Mapping[str, str]) -> str:
    """What must be said beside the table."""
    return " ".join([*(f"{method} diverged: {found}." for method, found in diverged.items()), UNKNOWN])


def write_known(
    folder: Path, log: str, known: Sequence[Known], diverged: Mapping[str, str], *, gamma: float
) -> tuple[Path, Path]:
    """Writes the comparison as Markdown and as a page."""
    rows = known_rows(known)
    lines = [HEADING, ["---"] * len(HEADING), *rows]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{remarks(diverged)}\n"
    remark = f"discount {gamma:g}, from the log's starts"
    section = Section("What is known without an environment", remarks(diverged), tables=[Table(HEADING, rows)])
    page = Page(
        title=f"Methods compared on {PurePath(log).name}",
        subtitle=f"No environment was used; values have {remark}",
        tiles=[Tile(one.method, f"{one.in_model.value:.4g}", "value in the model") for one in known],
        sections=[section],
        footer=f"Written by bats-rl {version('bats-rl')}. This page makes no network requests.",
    )
    files = folder / "known.md", folder / "known.html"
    for path, content in zip(files, (text, render(page)), strict=True):
        write_text(path, content)
    return files


def action_error(policy: Policy, rows: Dataset) -> float:
    """How far a policy's actions are from the logged ones."""
    chosen = policy.predict(rows.observations)
    if policy.action_count is not None:
        return float(np.mean(chosen != rows.actions))
    half = np.where(policy.high > policy.low, (policy.high - policy.low) / 2, 1.0)
    return float(np.abs((chosen - rows.actions) / half).mean())


def split_log(log: Dataset, *, seed: int) -> tuple[Dataset, Dataset]:
    """The log without a tenth of its episodes, and these."""
    group = log.episode_numbers
    if group[-1] + 1 < FEW_EPISODES:
        group = segments(len(log))
    count = int(group[-1]) + 1
    chosen = min(max(round(HELD_OUT * count), 1), count - 1)
    held_out, training = split_groups(group, [chosen], generator(seed, Stream.CLONING_SPLIT))
    return _rows(log, training, group), _rows(log, held_out, group)


def _rows(log: Dataset, rows: np.ndarray, group: np.ndarray) -> Dataset:
    """Some rows of a log; a group that is cut out of an episode is one of its own."""
    last = np.concatenate([group[rows][1:] != group[rows][:-1], [True]]) | log.episode_ends[rows]
    return Dataset.from_arrays(
        log.observations[rows],
        log.actions[rows],
        log.rewards[rows],
        next_observations=log.next_observations[rows],
        terminations=log.terminations[rows],
        episode_ends=last,
        action_count=log.action_count,
        observation_names=log.observation_names,
        action_names=log.action_names,
        name=log.name,
    )
