"""A finished run: what it came to, and solving its graph again under other settings."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from bats.bounds.certificate import Certificate, Option, load_certificate
from bats.config import (
    CertificateConfig,
    Config,
    FilePath,
    Finite,
    Fraction,
    NonNegative,
    PositiveOrInfinite,
    Settings,
    checked,
)
from bats.errors import OutputError, SettingError
from bats.graph.mdp import TabularMDP
from bats.graph.relabel import RewardFunction, final_graph, prune, value_of_a_step, with_gamma, with_reward
from bats.graph.solve import Solution, policy_iteration, possible_values, value_of_dead_ends
from bats.metric.scaled import ScaledMetric
from bats.policy.files import load_policy
from bats.policy.policy import Policy
from bats.runs.folder import RunFolder
from bats.runs.records import BATS, Summary, Timing
from bats.stitching.records import RoundRecord
from bats.storage.atomic import output_errors, refuse_existing

if TYPE_CHECKING:
    from bats.metric.bisimulation import BisimulationMetric
    from bats.model.fit import Model


@dataclass(frozen=True, eq=False)
class Result:
    """What became of a log."""

    folder: Path
    """where all of it lies; a temporary folder, removed with the result, where none was given"""
    log: str
    """its name"""
    config: Config
    seed: int
    model: Model
    metric: ScaledMetric
    """unit of the stitches' errors; ordinary steps where the metric was learned"""
    value_metric: BisimulationMetric | None
    """the last learned metric, in units of value, where the run learned one"""
    solution: Solution
    """of the graph with all stitches that were kept, penalized for their errors"""
    policy: Policy
    """the network that was kept: cloned from it, or from the log"""
    records: tuple[RoundRecord, ...]
    """one per round"""
    options: tuple[Option, ...]
    """penalties and tolerances that were compared, best first; empty where nothing was to be chosen"""
    summary: Summary
    timings: tuple[Timing, ...]
    certificate: Certificate | None
    """bounds and verdict; None where the settings have no certificate"""

    @property
    def mdp(self) -> TabularMDP:
        """The graph with all stitches that were kept, penalized for their errors."""
        return self.solution.mdp

    @property
    def graph_clone(self) -> Policy:
        """The clone of the graph's policy, also where another policy was kept."""
        return self.policy if self.summary.policy == BATS else load_policy(RunFolder(self.folder).compared(BATS))

    @property
    def value(self) -> float:
        """The optimal value of the stitched graph at the starts."""
        return self.summary.value

    @property
    def log_value(self) -> float:
        """The optimal value of the log alone at the starts."""
        return self.summary.log_value

    @property
    def logged_value(self) -> float:
        """The discounted return of the logged behaviour from the starts, as the verdict compares it."""
        return value_of_log(self.summary, self.mdp, self.config.certificate)

    @property
    def verdict(self) -> str | None:
        """Deploy, or hold and why; None where the settings have no certificate."""
        return None if self.certificate is None else self.certificate.verdict

    def save(self, folder: Path | str) -> None:
        """Copies all of it to a new folder; `load_result` and every command read it from there."""
        folder = Path(checked("folder", FilePath, folder))
        refuse_existing(folder)
        if Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(self.folder)):
            raise OutputError(f"{folder} lies within the folder to be copied; choose another one.")
        RunFolder(self.folder).header()  # refuses a result whose own folder is gone
        parent, prefix = folder.parent, f".{folder.name}."
        with output_errors(folder):
            parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as unfinished:
                shutil.copytree(self.folder, Path(unfinished) / "run").replace(folder)


@dataclass(frozen=True)
class Changes(Settings):
    """Settings to solve a run's graph again with; None: as in the run."""

    gamma: Fraction | None = None
    penalty_steps: NonNegative | None = None
    penalty: NonNegative | None = None
    """in reward, instead of steps"""
    tolerance: PositiveOrInfinite | None = None
    """drop stitches with a larger error"""
    dead_end_value: Finite | None = None
    reward: RewardFunction | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty is not None and self.penalty_steps is not None:
            raise SettingError("Give the penalty either in reward or in steps, not both.")

    def given(self) -> dict[str, object]:
        """The settings that were given, as plain values; a reward by the name of its function."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return given | ({"reward": getattr(self.reward, "__name__", str(self.reward))} if self.reward else {})


def solve_again(run: RunFolder | Path | str, changes: Changes | None = None) -> Solution:
    """Solves a finished run, under other settings if given. A penalty in steps follows the rewards and the discount."""
    run = RunFolder.of(checked("run", FilePath | RunFolder, run))
    changes = checked("changes", Changes | None, changes) or Changes()
    given = changes.given()
    numbers: dict[str, Any] = {name: value for name, value in given.items() if name != "reward"}
    settings, mdp = replace(run.summary(), **numbers), run.load_graph()
    if changes.gamma is not None:
        mdp = with_gamma(mdp, changes.gamma)
    if changes.reward is not None:
        mdp = with_reward(mdp, changes.reward)
    penalty = settings.penalty
    # what a step is worth depends on everything but the tolerance
    if settings.penalty_steps is not None and changes.penalty is None and given.keys() - {"tolerance"}:
        log = prune(mdp, np.zeros(mdp.stitch_count, dtype=bool))
        value = policy_iteration(log, dead_end_value=settings.dead_end_value).value
        penalty = settings.penalty_steps * value_of_a_step(log, value)
    mdp = final_graph(mdp, penalty=penalty, tolerance=settings.tolerance)
    return policy_iteration(mdp, dead_end_value=settings.dead_end_value)


def value_of_log(summary: Summary, mdp: TabularMDP, certificate: CertificateConfig | None) -> float:
    """The discounted return of the logged behaviour from the starts; truncations lead to the smallest possible value.

    That is what a policy's lower bound is compared with, whatever value of dead ends the run was solved with.
    """
    floor, _ = possible_values(mdp, None if certificate is None else certificate.reward_range)
    assumed = value_of_dead_ends(mdp, summary.dead_end_value)
    return summary.logged_value + summary.logged_dead_end_weight * (floor - assumed)


def run_metric(summary: Summary) -> ScaledMetric:
    """The metric of a run, or ordinary steps where it was learned."""
    return ScaledMetric(np.array(summary.metric, dtype=np.float32))


def load_result(folder: Path | str) -> Result:
    """What a finished run came to, from its folder; `DataError` where there is none."""
    from bats.metric.bisimulation import load_metric  # with JAX, which the rest of this module does without
    from bats.model.fit import load_model

    run = RunFolder(checked("folder", FilePath, folder))
    summary, header = run.summary(), run.header()
    return Result(
        folder=run.path,
        log=header.log,
        config=run.settings(),
        seed=header.seed,
        model=load_model(run.model),
        metric=run_metric(summary),
        value_metric=None if run.last_metric is None else load_metric(run.metric(run.last_metric)),
        solution=solve_again(run),
        policy=load_policy(run.policy),
        records=run.records(),
        options=run.options(),
        summary=summary,
        timings=run.timings(),
        certificate=load_certificate(run.path),
    )
