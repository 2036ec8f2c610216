"""Every setting of a run, as frozen dataclasses of plain values; `presets` composes them.

Paper symbols stand in brackets. A value that breaks a rule of its type is refused when the dataclass is made, before
any work. Nothing here needs JAX: the command line, the report and run folders read settings without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf, isfinite
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from bats.errors import SettingError


class Rule(NamedTuple):
    """What a value must be, besides of its type."""

    description: str
    allows: Callable[[Any], bool]


def _at_least(minimum: int) -> Rule:
    return Rule(f"finite and at least {minimum}", lambda number: minimum <= number < inf)


MetricKind = Literal["steps", "raw", "std", "bisimulation"]
Planner = Literal["gauss-newton", "cross-entropy"]
FINITE = Rule("finite", isfinite)
Count = Annotated[int, _at_least(1)]
CountOrZero = Annotated[int, _at_least(0)]
NonNegative = Annotated[float, _at_least(0)]
Positive = Annotated[float, Rule("positive", lambda number: number > 0)]
Share = Annotated[float, Rule("a share from 0 to 1", lambda number: 0 <= number <= 1)]
Fraction = Annotated[float, Rule("strictly between 0 and 1", lambda number: 0 < number < 1)]
_SCALES = Rule("shares above 0 and up to 1", lambda scales: scales and all(0 < scale <= 1 for scale in scales))
_RANGE = Rule("two finite numbers, smallest first", lambda ends: len(ends) == 2 and -inf < ends[0] <= ends[1] < inf)


class Settings:
    """Base of the dataclasses whose values must keep the rules of their types."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            for description in _broken_rules(kind, value):
                raise SettingError(f"`{name}` must be {description}; got {value!r}.")


def _broken_rules(kind: Any, value: Any) -> Iterator[str]:
    """The descriptions of the rules that a value breaks. A word that is no choice would act as one of the others."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from (rule.description for rule in arguments[1:] if not rule.allows(value))
    elif origin is Literal and value not in arguments:
        yield f"one of {', '.join(arguments)}"
    elif origin in (Union, UnionType) and value is not None:
        yield from _broken_rules(arguments[0], value)
    elif origin is tuple:
        for entry in value:
            yield from _broken_rules(arguments[0], entry)


@dataclass(frozen=True)
class ModelConfig(Settings):
    """How the dynamics ensemble is built and trained."""

    members: Count = 7
    """networks trained"""
    elites: Count = 5
    """networks kept: those with the lowest validation error"""
    hidden: tuple[Count, ...] = (200, 200, 200, 200)
    """units of the hidden layers"""
    linear: bool = True
    """add a least-squares linear map of the inputs, so that the layers only learn what is not linear"""
    batch_size: Count = 256
    """rows each member sees in one update"""
    updates: Count = 11_000
    """updates for a short log"""
    passes: NonNegative = 2.8
    """passes over the rows for a long log, where these take more than `updates`"""
    learning_rate: Annotated[Positive, FINITE] = 2e-3
    """peak learning rate"""
    schedule: Literal["cosine", "constant"] = "cosine"
    """cosine: warm up, then decay to a hundredth over all updates"""
    variance_weight: NonNegative = 0.5
    """power of the predicted variance that weights a row's likelihood: 0 is the plain likelihood (the paper's), which
    gives up on rows that are hard to predict, such as contacts; 1 weights rows as squared error does"""
    weight_decay: NonNegative = 0.0
    """L2 penalty on the weights"""
    evaluate_every: Count | None = 500
    """updates between two evaluations on the validation rows; none: one pass over the log"""
    patience: Count = 20
    """evaluations without improvement of any member before training stops"""
    validation_measure: Literal["absolute", "squared"] = "absolute"
    """error on the validation rows; squared errors see little but the few rows that nothing predicts well"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elites > self.members:
            raise SettingError(f"`elites` must not exceed the {self.members} `members`; got {self.elites}.")


@dataclass(frozen=True)
class CandidateConfig(Settings):
    """Which pairs of states are candidates for a stitch."""

    branching: Count | None = 1
    """edges followed in each state, best first; none: all of them [the paper]"""
    lengths: Literal["longest", "all"] = "longest"
    """longest: follow each neighbour edge as far as a path may go, which leaves the planner most room; all: every
    target on the way [the paper]"""
    impact: Literal["advantage", "value"] = "advantage"
    """advantage: rewards along the path count; value: V(target) > V(where the policy is by then) [the paper]"""
    skip: CountOrZero = 3
    """also treat the next states on the policy's own rollout as neighbours, up to this many, to shortcut slow data;
    0: none [the paper]"""
    per_source: Count | None = 6
    """most candidates of one source, best first; none: all"""


@dataclass(frozen=True)
class NeighbourConfig(Settings):
    """Which states are neighbours [the graph G_epsilon]."""

    count: Count | None = 8
    """nearest states taken at each scale; none: all within the radius"""
    radius: Positive | None = None
    """largest distance of a neighbour [epsilon]; none: no limit"""
    scales: Annotated[tuple[float, ...], _SCALES] = (1.0, 0.1, 0.02, 0.005)
    """shares of the states that are searched: a thinned search finds neighbours farther away"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count is None and self.radius is None:
            raise SettingError("Neighbours need a `count` or a `radius`; got neither.")


@dataclass(frozen=True)
class StitchConfig(Settings):
    """How the log is stitched."""

    rounds: Count = 40
    """rounds of solving, searching and planning [n]"""
    recovery_rounds: CountOrZero = 10
    """further rounds that stitch states near the policy's rollouts back to them, for a clone that drifts off"""
    samples: Count = 4000
    """states sampled from the policy's occupancy each round [m]"""
    attempts: Count = 4000
    """most candidates planned each round, the most promising ones"""
    max_length: Count = 25
    """most actions in a stitch [K]"""
    half_length_every: Count | None = 4
    """every n-th round halves the maximum length, because near contacts the model is reliable for a few steps only;
    none: never"""
    tolerance: Positive = 0.4
    """largest error of an accepted stitch, in units of the metric [delta]"""
    local_error: bool = True
    """add the model's error on held-out rows near the plan to a stitch's error"""
    temperature: Positive = 0.25
    """of the Boltzmann policy that samples states, in reward [T]"""
    neighbour_share: Share = 0.25
    """where sampled states have fewer candidates than this share of the attempts, their neighbours are searched too:
    two stitches may gain where neither does alone; 0: never [the paper]"""
    dead_end_value: Annotated[float, FINITE] = 0.0
    """value of a state whose future the log does not show"""
    planner: Planner = "gauss-newton"
    """cross-entropy: the paper's"""
    every_length: bool = False
    """plan with 1, 2, … actions until one plan is accepted [Algorithm 2]; False: with the candidate's own length"""
    candidates: CandidateConfig = field(default_factory=CandidateConfig)
    neighbours: NeighbourConfig = field(default_factory=NeighbourConfig)


@dataclass(frozen=True)
class RolloutConfig(Settings):
    """Which rollouts of the solved graph are cloned, and how their states are weighted."""

    steps: Count = 1000
    """longest rollout"""
    min_share: Share | None = None
    """clone rollouts that return at least this share of the best one starting nearby; none: found from all shares"""
    min_return: Annotated[float, FINITE] | None = None
    """clone rollouts by this return instead, wherever they start [the paper]"""
    recovery_share: Share = 0.5
    """share of the weight for rollouts that begin in stitched states instead of starts"""
    uniform_share: Share = 0.5
    """share of the weight spread evenly over all visited states; the rest follows the number of rollouts through each
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_share is not None and self.min_return is not None:
            raise SettingError("Give `min_share` or `min_return`, not both.")


@dataclass(frozen=True)
class CloningConfig(Settings):
    """How the policy network is built and trained."""

    hidden: tuple[Count, ...] = (256, 256, 256)
    """units of the hidden layers"""
    updates: Count = 20_000
    """a quarter is enough for a few thousand states, not for hundreds of thousands"""
    batch_size: Count = 512
    """demonstrations drawn for an update"""
    censored: bool = True
    """an action at its bound counts as that or beyond (censored Gaussian likelihood); False: plain likelihood"""


@dataclass(frozen=True)
class BisimulationConfig(Settings):
    """How the bisimulation metric is learned: for the bounds, and for stitching where `metric` is bisimulation."""

    hidden: tuple[Count, ...] = (256, 128, 64)
    """units of the encoder's hidden layers [the paper]"""
    horizon: Count = 100
    """steps of a rollout that a target sums before the metric's own distance stands in; 1: [the paper]"""
    caution: Annotated[float, _at_least(1)] = 30.0
    """weight of a distance that falls short of its target, relative to one that exceeds it"""
    updates: Count = 5000
    """updates of the encoder when it is learned from scratch"""
    batch_size: Annotated[int, _at_least(2)] = 128
    """states drawn for an update; all their pairs are fitted"""
    refresh_rounds: Count = 10
    """metric bisimulation: rounds of stitching between two refreshes of the metric"""
    refresh_updates: Count = 1000
    """metric bisimulation: updates of a refresh"""


@dataclass(frozen=True)
class CertificateConfig(Settings):
    """How the policy is bounded before the verdict."""

    confidence: Fraction = 0.95
    """share of rollouts whose summed errors the bounds must cover"""
    reward_range: Annotated[tuple[float, float], _RANGE] | None = None
    """smallest and largest possible reward; none: the log's own"""


@dataclass(frozen=True)
class ChoiceConfig(Settings):
    """Other settings to solve the finished graph with; the one with the best lower bound is taken."""

    penalties: tuple[NonNegative, ...] = ()
    """penalties to try besides the run's own, in its unit"""
    tolerances: tuple[Positive, ...] = ()
    """tolerances to try besides `final_tolerance`"""


@dataclass(frozen=True)
class Config(Settings):
    """Everything that decides what becomes of a log, except the seed."""

    gamma: Fraction = 0.99
    """discount of one step"""
    metric: MetricKind = "steps"
    """unit of distances: ordinary steps of the log, raw numbers, standard deviations (std), or bisimulation, a learned
    distance that bounds value differences"""
    penalty_steps: NonNegative = 3.0
    """penalty on a unit of a stitch's error, in steps of delay: one step costs (1 - gamma) times the range of the
    log's own values, so that one number fits every task"""
    penalty: NonNegative | None = None
    """penalty on a unit of a stitch's error in reward [c], instead of `penalty_steps`"""
    penalize_rounds: bool = True
    """penalize stitches in every round; False: only in the finished graph [the paper]"""
    final_tolerance: Positive | None = None
    """drop stitches with a larger error from the finished graph; none: keep all that were accepted"""
    model: ModelConfig = field(default_factory=ModelConfig)
    stitch: StitchConfig = field(default_factory=StitchConfig)
    rollouts: RolloutConfig = field(default_factory=RolloutConfig)
    cloning: CloningConfig = field(default_factory=CloningConfig)
    bisimulation: BisimulationConfig = field(default_factory=BisimulationConfig)
    certificate: CertificateConfig | None = field(default_factory=CertificateConfig)
    """none: no bounds and no verdict"""
    choice: ChoiceConfig = field(default_factory=ChoiceConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric == "bisimulation" and (self.choice.penalties or self.choice.tolerances):
            raise SettingError("With the metric bisimulation there is nothing to choose: a penalty of 1 step is right.")

    @property
    def kept_tolerance(self) -> float | None:
        """Largest error of a stitch in the finished graph; none: any."""
        if self.metric == "bisimulation" and self.final_tolerance is None:
            # errors are measured anew by the last metric, so the tolerance of stitching has to be applied again
            return self.stitch.tolerance
        return self.final_tolerance
