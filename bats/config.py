"""One frozen configuration for the whole flow, and the presets: ours, the paper's, a quick and a learned one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Literal

from bats.bounds.graph_policy import CertificateConfig
from bats.errors import SettingError
from bats.graph.pricing import PenaltyUnit
from bats.metric.bisimulation import BisimulationConfig
from bats.metric.neighbours import NeighbourConfig
from bats.metric.scaled import MetricKind, RunMetric
from bats.model.ensemble import PAPER, DynamicsConfig
from bats.planning.cross_entropy import CrossEntropyConfig
from bats.planning.planner import PlannerConfig
from bats.policy.cloning import CloningConfig
from bats.policy.demonstrations import RolloutConfig
from bats.stitching.candidates import CandidateConfig
from bats.stitching.loop import StitchConfig
from bats.stitching.metric_refresh import RefreshConfig


@dataclass(frozen=True)
class ChoiceConfig:
    """Other settings that the finished graph is solved with, to take the ones with the greatest lower bound."""

    penalties: tuple[float, ...] = ()
    """penalties to try besides the one that stitching goes by, in the same unit"""
    tolerances: tuple[float, ...] = ()
    """largest errors of stitches to try besides the final tolerance"""

    def __post_init__(self) -> None:
        if not all(penalty >= 0 and isfinite(penalty) for penalty in self.penalties):
            raise SettingError(f"`penalties` must be finite and not negative; got {self.penalties}.")
        if not all(tolerance > 0 for tolerance in self.tolerances):
            raise SettingError(f"`tolerances` must be positive; got {self.tolerances}.")


@dataclass(frozen=True)
class Config:
    """Everything that decides what becomes of a log, but for the seed."""

    gamma: float = 0.99
    """discount of one step"""
    metric: RunMetric = "steps"
    """unit of distances between states: ordinary steps, the log's own numbers (raw), or their deviations; bisimulation:
    a learned distance that bounds differences of value and counts steps by what one is worth, so that a penalty of 1
    step is what the theorem asks for"""
    penalty: float = 3.0
    """what a unit of a stitch's error costs [c], in the unit of the next setting"""
    penalty_unit: PenaltyUnit = "step"
    """step: the penalty counts steps of time, each worth (1 - gamma) times the range of the log's own values, so that
    one number does for every task; reward: it is a reward as it stands"""
    charge: Literal["during", "afterwards"] = "during"
    """afterwards: stitch without a penalty and charge it on the finished graph, as the paper does"""
    final_tolerance: float | None = None
    """drop stitches with a larger error from the finished graph; None: none, or with the learned metric those that
    have come to lie beyond the tolerance of stitching"""
    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    stitch: StitchConfig = field(default_factory=StitchConfig)
    refresh: RefreshConfig = field(default_factory=RefreshConfig)
    rollouts: RolloutConfig = field(default_factory=RolloutConfig)
    cloning: CloningConfig = field(default_factory=CloningConfig)
    certificate: CertificateConfig | None = field(default_factory=CertificateConfig)
    """how the policy is bounded before it is said whether to deploy it; None: it is not"""
    choice: ChoiceConfig = field(default_factory=ChoiceConfig)
    """what else the penalty and the tolerance of the finished graph may be, if its policy is sure to be worth more"""
    bisimulation: BisimulationConfig = field(default_factory=BisimulationConfig)
    """the metric of value that these bounds rest on, and that a run with the metric bisimulation learns on the way"""

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1:
            raise SettingError(f"`gamma` must lie strictly between 0 and 1; got {self.gamma}.")
        if not (self.penalty >= 0 and isfinite(self.penalty)):
            raise SettingError(f"`penalty` must be finite and not negative; got {self.penalty}.")
        if self.metric == "bisimulation" and (self.choice.penalties or self.choice.tolerances):
            raise SettingError("With the metric bisimulation there is nothing to choose: a penalty of 1 is right.")

    @property
    def kept_within(self) -> float | None:
        """Largest error of a stitch of the finished graph; None: any that was accepted."""
        if self.metric == "bisimulation" and self.final_tolerance is None:
            return self.stitch.tolerance
        return self.final_tolerance


def _paper(
    *,
    attempts: int,
    rounds: int,
    tolerance: float,
    penalty: float,
    metric: MetricKind,
    neighbours: NeighbourConfig,
    longest: int = 1,
    final_tolerance: float | None = None,
    temperature: float = 0.25,
    hidden: tuple[int, ...] = PAPER.hidden,
    steps: int = 1000,
    least_return: float,
    policy: tuple[int, ...] = (256, 256),
    updates: int = 10_000,
) -> Config:
    """The paper's way (appendix D.1): cross-entropy planning that leaves at the first success, penalties afterwards."""
    return Config(
        metric=metric,
        penalty=penalty,
        penalty_unit="reward",
        charge="afterwards",
        final_tolerance=final_tolerance,
        dynamics=replace(PAPER, hidden=hidden),
        stitch=StitchConfig(
            rounds=rounds,
            rounds_beside=0,
            short_every=None,
            off_walks=0.0,
            samples=attempts,
            attempts=attempts,
            temperature=temperature,
            tolerance=tolerance,
            shortest=True,
            calibrate=False,
            candidates=CandidateConfig(
                longest=longest, branches=None, lengths="all", impact="value", hurry=0, per_source=6
            ),
            neighbours=neighbours,
            planner=PlannerConfig(
                method="cross-entropy", cross_entropy=CrossEntropyConfig(leave_at_success=True), fallback=False
            ),
        ),
        rollouts=RolloutConfig(steps=steps, threshold=least_return, beside=0.0, even=0.0),
        cloning=CloningConfig(hidden=policy, updates=updates, batch_size=256, cut_off=False),
    )


def _paper_maze(
    *,
    radius: float,
    penalty: float,
    rounds: int = 10,
    steps: int,
    least_return: float,
    policy: tuple[int, ...],
    updates: int,
) -> Config:
    return _paper(
        attempts=50_000,
        rounds=rounds,
        tolerance=0.425,
        penalty=penalty,
        metric="raw",
        neighbours=NeighbourConfig(count=None, radius=radius, scales=(1.0,)),
        steps=steps,
        least_return=least_return,
        policy=policy,
        updates=updates,
    )


def _paper_walker(*, penalty: float, final_tolerance: float, longest: int = 1, least_return: float) -> Config:
    near = NeighbourConfig(count=25, radius=None, scales=(1.0,))
    return _paper(
        attempts=5_000,
        rounds=40,
        tolerance=10.0,
        penalty=penalty,
        metric="deviations",
        neighbours=near,
        longest=longest,
        final_tolerance=final_tolerance,
        least_return=least_return,
    )


PRESETS: dict[str, Config] = {
    "default": Config(),
    "demo": Config(
        dynamics=DynamicsConfig(updates=4_000, members=5, elites=3),
        stitch=StitchConfig(rounds=10, rounds_beside=2, samples=3000, attempts=3000),
        cloning=CloningConfig(hidden=(256, 256), updates=5_000),
        bisimulation=BisimulationConfig(updates=1_500, batch_size=64),
    ),
    "bisimulation": Config(metric="bisimulation", penalty=1.0, stitch=StitchConfig(tolerance=5.0)),
    "paper-umaze": _paper_maze(
        radius=0.225, penalty=20.0, steps=300, least_return=100.0, policy=(64, 64), updates=10_000
    ),
    "paper-medium": _paper_maze(
        radius=0.225, penalty=20.0, steps=600, least_return=200.0, policy=(256, 256), updates=20_000
    ),
    "paper-large": _paper_maze(
        radius=0.15, penalty=10.0, rounds=20, steps=800, least_return=300.0, policy=(256, 256, 256), updates=20_000
    ),
    "paper-hopper": _paper_walker(penalty=10.0, final_tolerance=2.25, least_return=1_000.0),
    "paper-walker2d": _paper_walker(penalty=50.0, final_tolerance=0.5, least_return=1_000.0),
    "paper-halfcheetah": _paper_walker(penalty=50.0, final_tolerance=2.0, longest=5, least_return=4_000.0),
    "paper-mountain-car": _paper(
        attempts=100,
        rounds=20,
        tolerance=0.1,
        penalty=1.0,
        metric="raw",
        neighbours=NeighbourConfig(count=25, radius=None, scales=(1.0,)),
        longest=5,
        temperature=0.1,
        hidden=(64, 64, 64),
        least_return=0.0,
    ),
}


def preset(name: str) -> Config:
    """The configuration of this name."""
    if name not in PRESETS:
        raise SettingError(f"There is no preset called '{name}'; known are {', '.join(PRESETS)}.")
    return PRESETS[name]
