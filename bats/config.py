"""Every setting of a run, as frozen dataclasses of plain values; `presets` composes them.

Symbols of the paper are in brackets. A value that breaks a rule of its type is refused when the dataclass is created,
before any work. Public functions check their arguments by the same rules, with `checked`. Nothing here needs JAX or
jaxtyping: the command line, the report and run folders read settings without JAX, and policies need neither.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from bats.errors import DataError, SettingError
from bats.storage.json_records import read_value, shown

MOST = 10**9
"""nothing that is counted needs more, and more would never end or never fit into memory"""
MOST_ROUNDS = 9_999
"""files of rounds have numbers of four digits"""
LARGEST = 1e15
"""the square of a much larger number overflows in single precision, in which networks compute"""


class Rule(NamedTuple):
    """What a value must be, besides of its type."""

    description: str
    allows: Callable[[Any], bool]


def between(low: float, high: float) -> Rule:
    """A rule for numbers of a range, ends included."""
    ends = (f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in (low, high))
    return Rule(f"between {' and '.join(ends)}", lambda number: low <= number <= high)


def _is_path(path: Path) -> bool:
    """Whether the system takes this path; otherwise it raises a ValueError, and no OSError."""
    try:
        return b"\0" not in os.fsencode(str(path))
    except UnicodeEncodeError:
        return False


MetricKind = Literal["steps", "raw", "std", "bisimulation"]
Planner = Literal["gauss-newton", "cross-entropy"]
Count = Annotated[int, between(1, MOST)]
CountOrZero = Annotated[int, between(0, MOST)]
Units = Annotated[int, between(1, 100_000)]
BatchSize = Annotated[int, between(1, 1_000_000)]
RolloutSteps = Annotated[int, between(1, 100_000)]
Seed = Annotated[int, between(0, 2**63 - 1)]
Finite = Annotated[float, between(-LARGEST, LARGEST)]
NonNegative = Annotated[float, between(0, LARGEST)]
Positive = Annotated[float, Rule(f"positive and at most {LARGEST:g}", lambda number: 0 < number <= LARGEST)]
PositiveOrInfinite = Annotated[float, Rule("positive", lambda number: number > 0)]
Share = Annotated[float, between(0, 1)]
Fraction = Annotated[float, Rule("strictly between 0 and 1", lambda number: 0 < number < 1)]
Discount = Annotated[
    Fraction, Rule("at most 0.9999 in a fit, which looks 1 / (1 - gamma) steps ahead", lambda g: g <= 0.9999)
]
Function = Callable[..., Any]
FilePath = Annotated[Path, Rule("a path without zero bytes and lone surrogates", _is_path)]
_SCALES = Rule("fractions above 0 and at most 1", lambda scales: scales and all(0 < scale <= 1 for scale in scales))
_RANGE = Rule("two numbers, the smaller one first", lambda ends: ends[0] <= ends[1])
READ_LOG = "`bats.load_dataset(path)` reads one from a file."
"""the hint for an argument that is no data set"""


def checked(name: str, kind: Any, value: Any, hint: str = "") -> Any:
    """A setting or an argument as a plain value of its type; `SettingError` if it is of another or breaks a rule.

    NumPy's numbers become Python's, integers become floats where these are expected, lists tuples and strings paths.
    """
    try:
        plain = read_value(kind, value, None, name)
    except DataError as error:
        message = f"`{error.field}` must be {error.expected}; got {error.found}."
        raise SettingError(f"{message} {hint}".strip()) from None
    for part, rule, wrong in _broken_rules(name, kind, plain):
        raise SettingError(f"`{part}` must be {rule.description}; got {shown(wrong)}.")
    return plain


def _broken_rules(name: str, kind: Any, value: Any) -> Iterator[tuple[str, Rule, Any]]:
    """The rules that a value, or an entry of it, breaks."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from _broken_rules(name, arguments[0], value)
        yield from ((name, rule, value) for rule in arguments[1:] if not rule.allows(value))
    elif origin in (Union, UnionType) and value is not None:
        yield from _broken_rules(name, arguments[0], value)
    elif origin is tuple:
        for index, entry in enumerate(value):
            yield from _broken_rules(f"{name}[{index}]", arguments[0], entry)


class Settings:
    """Base of the dataclasses whose values must be of their types and keep the rules of these."""

    def __post_init__(self) -> None:
        group = _group_names().get(type(self), "")
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            object.__setattr__(self, name, checked(group + name, kind, getattr(self, name)))


@cache
def _group_names() -> dict[type, str]:
    """What comes before the names of a group's settings, such as `stitch.` before `rounds`."""

    def groups(kind: Any, name: str) -> Iterator[tuple[type, str]]:
        yield kind, name
        for part, hint in get_type_hints(kind).items():
            for choice in get_args(hint) or (hint,):
                if is_dataclass(choice):
                    yield from groups(choice, f"{name}{part}.")

    return dict(groups(Config, ""))


@dataclass(frozen=True)
class ModelConfig(Settings):
    """How the dynamics ensemble is built and trained."""

    members: Annotated[int, between(1, 1000)] = 7
    """number of networks to train"""
    elites: Count = 5
    """number of networks to keep, those with the lowest validation error"""
    hidden: tuple[Units, ...] = (200, 200, 200, 200)
    """units of the hidden layers"""
    linear: bool = True
    """add a least-squares linear map of the inputs, so that the layers learn only the nonlinear part"""
    batch_size: BatchSize = 256
    """rows per update and network"""
    updates: Count = 11_000
    """training updates; a log of more than a million rows gets more, see `--model.passes`"""
    passes: Annotated[float, between(0, 1000)] = 2.8
    """minimum number of passes over the log; if `updates` is too small for them, training makes more updates"""
    learning_rate: Annotated[float, Rule("positive and at most 1", lambda number: 0 < number <= 1)] = 2e-3
    """peak learning rate"""
    schedule: Literal["cosine", "constant"] = "cosine"
    """learning rate schedule; cosine: warm-up, then decay to a hundredth of the peak over all updates"""
    variance_weight: Share = 0.5
    """the likelihood of a row is weighted by its predicted variance to this power. 0: plain likelihood [the paper],
    in which rows that are hard to predict, such as contacts, hardly count. 1: all rows have the same weight, as with a
    squared error"""
    weight_decay: NonNegative = 0.0
    """L2 penalty on the weights"""
    evaluate_every: Count | None = 500
    """updates between two evaluations on the validation rows; none: one pass over the log"""
    patience: Count = 20
    """training stops after this many evaluations in a row in which no network improved"""
    validation_measure: Literal["absolute", "squared"] = "absolute"
    """absolute or squared error on the validation rows; rows that are hard to predict dominate squared errors"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elites > self.members:
            raise SettingError(
                f"`model.elites` must not be larger than `model.members` ({self.members}); got {self.elites}."
            )


@dataclass(frozen=True)
class CandidateConfig(Settings):
    """Which pairs of states are candidates for a stitch."""

    branching: Count | None = 1
    """maximum number of edges that the search for candidates follows from each state, best first; none: all edges
    [the paper]"""
    lengths: Literal["longest", "all"] = "longest"
    """which states of a path become targets. A path follows edges from the source, steps to a neighbour and follows
    edges from there. longest: only its last state, so that the planner has as many actions as possible; all: each of
    its states [the paper]"""
    impact: Literal["advantage", "value"] = "advantage"
    """when a candidate counts as a gain. advantage: if the discounted rewards along its path + the discounted
    V(target) > V(source) + the expected penalty; value: if V(target) > V(state that the policy reaches in the same
    number of steps) [the paper]"""
    skip: CountOrZero = 3
    """number of next states on the policy's own rollout that also count as neighbours, to find shortcuts in slow data;
    0: none [the paper]"""
    per_source: Count | None = 6
    """maximum number of candidates per source state, best first; none: all"""


@dataclass(frozen=True)
class NeighbourConfig(Settings):
    """Which states are neighbours [the graph G_epsilon]."""

    count: Count | None = 8
    """number of nearest states for each of the `scales`; none: all states within the `radius`"""
    radius: PositiveOrInfinite | None = None
    """maximum distance of a neighbour [epsilon]; none: no limit"""
    scales: Annotated[tuple[float, ...], _SCALES] = (1.0, 0.1, 0.02, 0.005)
    """fractions of the states that are searched, one search for each; a search among fewer states finds more distant
    neighbours"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count is None and self.radius in (None, math.inf):
            message = "Give `stitch.neighbours.count` or a finite `stitch.neighbours.radius`"
            raise SettingError(f"{message}; otherwise all states would be neighbours.")


@dataclass(frozen=True)
class StitchConfig(Settings):
    """How the log is stitched."""

    rounds: Count = 40
    """number of rounds [n]; each round solves the graph, searches for candidates and plans stitches. Recovery rounds
    follow"""
    recovery_rounds: CountOrZero = 10
    """additional rounds that stitch states near the policy's rollouts back to these rollouts, for a cloned policy that
    drifts away from them"""
    samples: Count = 4000
    """number of states that are sampled from the policy's occupancy in each round [m]"""
    attempts: Count = 4000
    """maximum number of candidates that are planned in each round, most promising first"""
    max_length: Annotated[int, between(1, 1000)] | None = None
    """maximum number of actions in a stitch [K]; none: the largest number, up to 25, for which the one-step errors of
    the model add up to less than the tolerance (without `local_error`: 25)"""
    half_length_every: Count | None = 4
    """in every n-th round the maximum length is halved, because near contacts the model is reliable for only a few
    steps; none: never"""
    tolerance: Positive = 0.4
    """maximum error of an accepted stitch, in units of the metric [delta]"""
    local_error: bool = True
    """add the model's error on held-out rows near the plan to the error of a stitch"""
    temperature: PositiveOrInfinite = 0.25
    """temperature of the Boltzmann policy that samples states, in units of reward [T]"""
    neighbour_share: Share = 0.25
    """if there are fewer candidates than this fraction of `attempts`, stitches may also start at neighbours of the
    sampled states, because two stitches may help together where neither helps alone; 0: never [the paper]"""
    dead_end_value: Finite | None = None
    """value of a dead end, which is a non-terminal state without a logged action; none: the smallest possible value.
    This is r / (1 - gamma), where r is the smallest reward of a step that does not terminate. If the log
    has terminations, it is the smallest of this number, 0 and the smallest reward of a step that terminates"""
    planner: Planner = "gauss-newton"
    """method that plans the actions of a stitch: gauss-newton or cross-entropy [the paper]"""
    every_length: bool = False
    """plan with 1, 2, … actions in turn until a plan is accepted [Algorithm 2]; false: plan once, with as many actions
    as the candidate's path has"""
    candidates: CandidateConfig = field(default_factory=CandidateConfig)
    neighbours: NeighbourConfig = field(default_factory=NeighbourConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds + self.recovery_rounds > MOST_ROUNDS:
            limit = f"`stitch.rounds` and `stitch.recovery_rounds` must be at most {MOST_ROUNDS:,} together"
            raise SettingError(f"{limit}; got {self.rounds:,} and {self.recovery_rounds:,}.")


@dataclass(frozen=True)
class RolloutConfig(Settings):
    """Which rollouts of the solved graph are cloned, and how their states are weighted."""

    steps: RolloutSteps = 1000
    """maximum length of a rollout"""
    min_share: Share | None = None
    """clone rollouts whose return is at least this fraction of the best return from nearby starts; none: chosen
    automatically from the distribution of these fractions"""
    min_return: Finite | None = None
    """instead of `min_share`: clone all rollouts with at least this return [the paper]"""
    recovery_share: Share = 0.5
    """fraction of the training weight for rollouts that begin where a stitch starts, instead of in a start state"""
    uniform_share: Share = 0.5
    """fraction of the training weight that is spread evenly over all visited states; the rest is proportional to the
    number of rollouts through a state"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_share is not None and self.min_return is not None:
            raise SettingError("Give either `rollouts.min_share` or `rollouts.min_return`, not both.")


@dataclass(frozen=True)
class CloningConfig(Settings):
    """How the policy network is built and trained."""

    hidden: tuple[Units, ...] = (256, 256, 256)
    """units of the hidden layers"""
    updates: Count = 20_000
    """training updates; 5,000 are enough for a few thousand states"""
    batch_size: BatchSize = 512
    """states per update"""
    censored: bool = True
    """treat an action at its bound as "at or beyond the bound" (censored Gaussian likelihood); false: plain Gaussian
    likelihood"""


@dataclass(frozen=True)
class ImprovementConfig(Settings):
    """How the clone of the graph's policy is improved in the model."""

    turns: CountOrZero = 10
    """maximum number of turns; in each, actions are varied in 5,000 states, and the policy learns from the variations
    that return more in the model; 0: the clone is not improved [the paper]"""
    anchor: NonNegative = 0.1
    """weight of the actions of the graph's clone beside the better ones; the lower it is, the farther the policy may
    move from the clone"""


@dataclass(frozen=True)
class BisimulationConfig(Settings):
    """How the bisimulation metric is learned: for the bounds, and for stitching if `metric` is bisimulation."""

    hidden: tuple[Units, ...] = (256, 128, 64)
    """units of the encoder's hidden layers [the paper]"""
    horizon: Annotated[int, between(1, 10_000)] = 100
    """number of exact rollout steps in a training target, before it bootstraps from the metric; 1: [the paper]"""
    caution: Annotated[float, between(1, LARGEST)] = 30.0
    """loss weight of distances below their target, relative to distances above it"""
    updates: Count = 4000
    """training updates if the metric is learned from scratch"""
    batch_size: Annotated[int, between(2, 10_000)] = 128
    """states per update; all pairs of these states are fitted"""
    refresh_rounds: Count = 10
    """only if `metric` is bisimulation: rounds of stitching between two refreshes of the metric"""
    refresh_updates: Count = 1000
    """only if `metric` is bisimulation: training updates per refresh"""


@dataclass(frozen=True)
class CertificateConfig(Settings):
    """How the bounds on the policy are computed."""

    confidence: Fraction = 0.95
    """confidence of the bounds: fraction of rollouts whose total model error they must cover"""
    reward_range: Annotated[tuple[Finite, Finite], _RANGE] | None = None
    """smallest and largest possible reward; none: the smallest and largest reward in the log"""


@dataclass(frozen=True)
class ChoiceConfig(Settings):
    """Other settings to solve the finished graph with; those with the best lower bound are used."""

    penalties: tuple[NonNegative, ...] = ()
    """other penalties to solve the finished graph with, in the unit of the run's own penalty; the best lower bound
    decides"""
    tolerances: tuple[PositiveOrInfinite, ...] = ()
    """other values of `final_tolerance` to compare in the same way"""


@dataclass(frozen=True)
class Config(Settings):
    """All settings that determine the result of a run, except the seed."""

    gamma: Discount = 0.99
    """discount per step"""
    metric: MetricKind = "steps"
    """how distances between states are measured. steps: each component divided by its typical change in one step; raw:
    as in the log; std: each component divided by its standard deviation; bisimulation: by a learned distance that
    bounds value differences"""
    penalty_steps: NonNegative = 3.0
    """penalty for a stitch error of 1, given as a number of lost steps. A lost step costs (1 - gamma) x (largest -
    smallest value in the log's MDP). The smallest value is raised to r / (1 - gamma) if it is lower, where r is the
    1st percentile of the rewards"""
    penalty: NonNegative | None = None
    """penalty for a stitch error of 1, in units of reward [c]; replaces `penalty_steps`"""
    penalize_rounds: bool = True
    """penalise stitches in every round; false: only in the finished graph [the paper]"""
    final_tolerance: PositiveOrInfinite | None = None
    """maximum error of a stitch in the finished graph; none: all accepted stitches are kept"""
    model: ModelConfig = field(default_factory=ModelConfig)
    stitch: StitchConfig = field(default_factory=StitchConfig)
    rollouts: RolloutConfig = field(default_factory=RolloutConfig)
    cloning: CloningConfig = field(default_factory=CloningConfig)
    improvement: ImprovementConfig = field(default_factory=ImprovementConfig)
    bisimulation: BisimulationConfig = field(default_factory=BisimulationConfig)
    certificate: CertificateConfig | None = field(default_factory=CertificateConfig)
    """none: no bounds and no verdict"""
    choice: ChoiceConfig = field(default_factory=ChoiceConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric == "bisimulation" and (self.choice.penalties or self.choice.tolerances):
            names = "`choice.penalties` and `choice.tolerances`"
            reason = "a penalty of 1 step is the right one"
            raise SettingError(f"{names} cannot be used with metric bisimulation ({reason}); remove them.")

    @property
    def kept_tolerance(self) -> float | None:
        """Maximum error of a stitch in the finished graph; none: any."""
        if self.metric == "bisimulation" and self.final_tolerance is None:
            # errors are measured again with the last metric, so the tolerance of stitching has to be applied again
            return self.stitch.tolerance
        return self.final_tolerance
