"""`TabularMDP`: a log as a graph. States are vertices, logged actions are edges, and stitches add more of both.

    states      0 … real_count - 1 | real_count …        seen in the log | imagined along a stitch
    edges       [0: e0 e1] [1: e2] [2:] [3: e3 e4] …     sorted by source; state s owns first_edge[s]:first_edge[s+1]

The construction is fully determined:

- Equal states are one state. States are numbered in the order of their first appearance.
- Rows with equal source, action, target and termination are one edge, with the mean of their rewards.
- Different actions between the same two states are different edges, and so are different outcomes of one action: the
  method assumes a deterministic world, and `bats-rl validate` says how far a log is from it.
- A self-loop is an edge like any other.
- A state without an edge is a dead end: the log does not show what follows. It has the smallest possible value,
  unless the caller of the solver decides otherwise. If the log terminates there, the state is terminal instead and has
  value 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from bats.arrays import EdgeActions, EdgeValues, StateFlags, States, short_repr
from bats.config import READ_LOG, Fraction, NonNegative, checked
from bats.data.dataset import Dataset
from bats.data.distinct import merge_states, number_rows, row_bits
from bats.errors import SettingError
from bats.storage.schema import MAY_BE_NOT_FINITE

LOGGED = 0
"""stitch round of a logged edge; rounds of stitching count from 1"""
REUSED = -1
"""stitch round of an edge that a reused run has added"""
NO_STITCH = -1
"""stitch of a logged edge"""
PER_EDGE = ("target", "action", "reward", "discount", "stitch_round", "stitch", "planning_error")
"""fields of an MDP with one entry per edge"""
MAX_STITCHES = 1000
"""a loaded MDP may have had this many stitches per state and edge: an array is made with an entry for each"""
WEIGHT_ROUNDING = 1e-8
"""how far from 1 the sum of the start weights may be"""
LARGEST_VALUE, LARGEST_PENALTY = 1e300, 1e37
"""of a state and of a stitch, so that no sum of values overflows, and no penalty in single precision"""
OF_ONE_KIND = "every action must be finite, or one of `action_count` discrete ones"
VALUES_FIT = f"values must not exceed {LARGEST_VALUE:g}, nor penalties {LARGEST_PENALTY:g}"


@dataclass(frozen=True, eq=False)
class TabularMDP:
    """A deterministic MDP in arrays. Functions return a new one; nothing is changed in place."""

    states: States
    real_count: int
    """states before this one were seen in the log, the rest imagined by the planner"""
    gamma: float
    """discount of one step [gamma]"""
    penalty: float
    """reward lost per unit of planning error [c]"""
    first_edge: Int[np.ndarray, "S+1"]
    target: Int[np.ndarray, "E"]
    action: EdgeActions
    reward: EdgeValues
    """as logged or predicted, before any penalty"""
    discount: EdgeValues
    """gamma, or 0 where an episode terminates"""
    stitch_round: Int[np.ndarray, "E"]
    """round that added the edge, LOGGED or REUSED"""
    stitch: Int[np.ndarray, "E"]
    """number of the stitch that the edge belongs to, counted over all rounds, or NO_STITCH"""
    stitch_count: int
    """stitches added so far, including those pruned since"""
    planning_error: EdgeValues
    """how far from its target a stitch may end [d]; nonzero only on its last edge"""
    starts: Int[np.ndarray, "W"]
    start_weights: Float[np.ndarray, "W"]
    action_count: int | None
    """number of discrete actions; None for continuous ones"""

    @property
    def state_count(self) -> int:
        return len(self.states)

    @property
    def edge_count(self) -> int:
        return len(self.target)

    @cached_property
    def out_degree(self) -> Int[np.ndarray, "S"]:
        return np.diff(self.first_edge)

    @cached_property
    def source(self) -> Int[np.ndarray, "E"]:
        return np.repeat(np.arange(self.state_count, dtype=self.target.dtype), self.out_degree)

    @cached_property
    def terminal(self) -> StateFlags:
        """States where the log terminates: entered by an edge of discount 0, left by none."""
        return self._entered_by(self.discount == 0) & (self.out_degree == 0)

    @cached_property
    def always_terminal(self) -> StateFlags:
        """States that the log never enters without terminating: every logged edge from elsewhere has discount 0."""
        logged = (self.stitch_round == LOGGED) & (self.source != self.target)
        return self._entered_by(logged & (self.discount == 0)) & ~self._entered_by(logged & (self.discount > 0))

    @cached_property
    def penalized_reward(self) -> EdgeValues:
        """Reward less gamma * c * d. The global gamma: an edge's own discount of 0 would make its penalty free."""
        if self.penalty == 0:  # also of an infinite error
            return self.reward
        return self.reward - self.gamma * self.penalty * self.planning_error

    @cached_property
    def last_edge(self) -> Int[np.ndarray, "C"]:
        """The last edge of each stitch, which leads to a real state; -1 for stitches that were pruned."""
        edges = np.full(self.stitch_count, -1)
        last = np.flatnonzero((self.stitch != NO_STITCH) & (self.target < self.real_count))
        edges[self.stitch[last]] = last
        return edges

    @cached_property
    def stitch_length(self) -> Int[np.ndarray, "C"]:
        """Number of actions of each stitch; 0 for those that were pruned."""
        return np.bincount(self.stitch[self.stitch != NO_STITCH], minlength=self.stitch_count)

    @property
    def kept_stitches(self) -> int:
        """Number of stitches that were not pruned."""
        return int(np.count_nonzero(self.stitch_length))

    def _entered_by(self, edges: Bool[np.ndarray, "E"]) -> StateFlags:
        """The states that some of these edges lead to."""
        entered = np.zeros(self.state_count, dtype=bool)
        entered[self.target[edges]] = True
        return entered

    def __repr__(self) -> str:
        stitched = int(np.count_nonzero(self.stitch_round != LOGGED))
        return (
            f"TabularMDP({self.real_count:,} real and {self.state_count - self.real_count:,} imagined states, "
            f"{self.edge_count - stitched:,} logged and {stitched:,} stitched edges, {len(self.starts):,} starts, "
            f"gamma {self.gamma:g})"
        )


@dataclass(frozen=True, eq=False)
class Stitches:
    """C planned stitches of up to K actions each; entries beyond a stitch's length are ignored."""

    source: Int[np.ndarray, "C"]
    target: Int[np.ndarray, "C"]
    length: Int[np.ndarray, "C"]
    """number of actions, 1 to K"""
    action: Float[np.ndarray, "C K A"] | Int[np.ndarray, "C K"] = field(metadata=MAY_BE_NOT_FINITE)
    state: Float[np.ndarray, "C K-1 D"]
    """imagined states after each action but the last"""
    reward: Float[np.ndarray, "C K"]
    planning_error: Float[np.ndarray, "C"]

    __repr__ = short_repr

    def __len__(self) -> int:
        return len(self.source)


def from_dataset(dataset: Dataset, *, gamma: float = 0.99, penalty: float = 0.0) -> TabularMDP:
    """The MDP of a log alone [M_0]: its states, its actions, its outcomes."""
    dataset = checked("dataset", Dataset, dataset, READ_LOG)
    gamma, penalty = checked("gamma", Fraction, gamma), checked("penalty", NonNegative, penalty)
    states, source, target = merge_states(dataset.observations, dataset.next_observations)
    # terminating and continuing are two different outcomes
    outcome = np.column_stack([source, target, dataset.terminations.astype(np.int32), row_bits(dataset.actions)])
    edge_of_row, row_of_edge = number_rows(outcome)
    order = np.argsort(source[row_of_edge], kind="stable")
    row = row_of_edge[order]
    # the first row's reward plus the mean difference from it: equal rewards stay exact
    first_reward = dataset.rewards[row_of_edge].astype(np.float64)
    difference = np.bincount(edge_of_row, weights=dataset.rewards - first_reward[edge_of_row])
    reward = first_reward + difference / np.bincount(edge_of_row)
    starts, which = np.unique(source[dataset.starts], return_inverse=True)
    return TabularMDP(
        states=states,
        real_count=len(states),
        gamma=gamma,
        penalty=penalty,
        first_edge=_first_edges(source[row], len(states)),
        target=target[row],
        action=dataset.actions[row],
        reward=reward[order],
        discount=np.where(dataset.terminations[row], 0.0, gamma),
        stitch_round=np.full(len(row), LOGGED, dtype=np.int16),
        stitch=np.full(len(row), NO_STITCH, dtype=np.int32),
        stitch_count=0,
        planning_error=np.zeros(len(row), dtype=np.float32),
        starts=starts,
        start_weights=np.bincount(which, weights=dataset.start_weights),  # rows in the same state are one start
        action_count=dataset.action_count,
    )


def add_stitches(mdp: TabularMDP, stitches: Stitches, *, stitch_round: int) -> TabularMDP:
    """The MDP with every stitch added: k actions become k edges through k - 1 new imagined states.

    The edges that a state had keep their order and the new ones follow them. A stitch into a state that the log always
    terminates in terminates too.
    """
    defect = stitches_defect(stitches, mdp)
    if defect:
        raise SettingError(f"The stitches are invalid: {defect}.")
    steps = np.arange(stitches.reward.shape[1])
    used = steps < stitches.length[:, None]
    last = steps == stitches.length[:, None] - 1
    imagined = used & ~last
    # the state that each step leads to, and the one it comes from
    target = np.full(used.shape, -1, dtype=mdp.target.dtype)
    target[imagined] = mdp.state_count + np.arange(np.count_nonzero(imagined))
    source = np.concatenate([stitches.source[:, None].astype(target.dtype), target[:, :-1]], axis=1)
    target = np.where(last, stitches.target[:, None], target)
    terminates = last & mdp.always_terminal[stitches.target][:, None]

    states = np.concatenate([mdp.states, stitches.state[imagined[:, :-1]].astype(mdp.states.dtype)])
    all_sources = np.concatenate([mdp.source, source[used]])
    order = np.argsort(all_sources, kind="stable")

    def grown(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        return np.concatenate([old, new.astype(old.dtype)])[order]

    return replace(
        mdp,
        states=states,
        first_edge=_first_edges(all_sources, len(states)),
        target=grown(mdp.target, target[used]),
        action=grown(mdp.action, stitches.action[used]),
        reward=grown(mdp.reward, stitches.reward[used]),
        discount=grown(mdp.discount, np.where(terminates, 0.0, mdp.gamma)[used]),
        stitch_round=grown(mdp.stitch_round, np.full(int(np.count_nonzero(used)), stitch_round)),
        stitch=grown(mdp.stitch, np.repeat(mdp.stitch_count + np.arange(len(stitches)), stitches.length)),
        stitch_count=mdp.stitch_count + len(stitches),
        planning_error=grown(mdp.planning_error, np.where(last, stitches.planning_error[:, None], 0.0)[used]),
    )


def mdp_defect(mdp: TabularMDP) -> str | None:
    """The first rule that an MDP of unknown origin violates; compiled kernels rely on all of them.

    Its arrays are already of the annotated types and shapes, and finite (`storage.schema`).
    """
    states, edges, offsets, logged = len(mdp.states), len(mdp.target), mdp.first_edge, mdp.stitch_round == LOGGED
    weight = float(mdp.start_weights.sum(dtype=np.float64))
    # integers are compared, not subtracted: a difference of small ones can wrap around
    rules = {
        "edges must be sorted by source": offsets[0] == 0
        and offsets[-1] == edges
        and np.all(offsets[1:] >= offsets[:-1]),
        "every edge must lead to an existing state": _are_indices(mdp.target, states),
        "`target` and `stitch` must have at least 32 bits": min(mdp.target.itemsize, mdp.stitch.itemsize) >= 4,
        "a state must have at least one number": mdp.states.shape[1] > 0,
        "there cannot be more real states than states": 0 <= mdp.real_count <= states,
        "starts must be existing real states, at least one": len(mdp.starts) > 0
        and _are_indices(mdp.starts, mdp.real_count),
        "each start must have a non-negative weight, and these must sum to 1": np.all(mdp.start_weights >= 0)
        and abs(weight - 1) <= WEIGHT_ROUNDING,
        "gamma must be strictly between 0 and 1": 0 < mdp.gamma < 1,
        "the penalty must not be negative": mdp.penalty >= 0,
        "`action_count` must be positive": mdp.action_count is None or mdp.action_count > 0,
        OF_ONE_KIND: _are_actions(mdp.action, mdp),
        "at least one edge must be logged": np.any(logged),
        "logged edges must belong to no stitch, and all others to an existing one": np.all(
            np.where(logged, mdp.stitch == NO_STITCH, (mdp.stitch >= 0) & (mdp.stitch < mdp.stitch_count))
        ),
        f"there must be 0 to {MAX_STITCHES} stitches per state and edge": 0
        <= mdp.stitch_count
        <= MAX_STITCHES * (states + edges),
        "planning errors must not be negative": np.all(mdp.planning_error >= 0),
        "discounts must be between 0 and gamma": np.all((mdp.discount >= 0) & (mdp.discount <= mdp.gamma)),
        # in single precision, gamma could be 1
        "discounts must be in double precision": mdp.discount.dtype == np.float64,
        VALUES_FIT: _values_fit(mdp.reward, mdp.planning_error, mdp),
    }
    return next((rule for rule, holds in rules.items() if not holds), None)


def stitches_defect(stitches: Stitches, mdp: TabularMDP) -> str | None:
    """The first rule that stitches violate which are to be added to an MDP."""
    count, longest = len(stitches), stitches.reward.shape[-1]
    shapes = (
        stitches.reward.shape == (count, longest),
        stitches.action.shape[:2] == (count, longest),
        stitches.state.shape == (count, longest - 1, mdp.states.shape[1]),
        stitches.target.shape == stitches.length.shape == stitches.planning_error.shape == (count,),
        stitches.action.shape[2:] == mdp.action.shape[1:],
    )
    if not all(shapes):
        return "every array must have one entry per stitch and step"
    used = np.arange(longest) < stitches.length[:, None]
    finite = all(
        _fit_into(getattr(stitches, name), old)
        for name, old in (("reward", mdp.reward), ("state", mdp.states), ("planning_error", mdp.planning_error))
    )
    rules = {
        "every source must be an existing state": _are_indices(stitches.source, mdp.state_count),
        "every target must be an existing real state": _are_indices(stitches.target, mdp.real_count),
        f"lengths must be between 1 and {longest}": np.all((stitches.length >= 1) & (stitches.length <= longest)),
        OF_ONE_KIND: _are_actions(stitches.action[used] if mdp.action_count is None else stitches.action, mdp),
        "rewards, states and errors must be finite": finite and np.all(stitches.planning_error >= 0),
        VALUES_FIT: _values_fit(stitches.reward, stitches.planning_error, mdp),
    }
    return next((rule for rule, holds in rules.items() if not holds), None)


def _are_indices(indices: np.ndarray, count: int) -> bool:
    return bool(indices.ndim == 1 and indices.dtype.kind in "iu" and np.all((indices >= 0) & (indices < count)))


def _are_actions(actions: np.ndarray, mdp: TabularMDP) -> bool:
    """Whether actions are of the MDP's kind."""
    if mdp.action_count is None:
        return actions.dtype.kind == "f" and _fit_into(actions, mdp.action)
    return _are_indices(actions.ravel(), mdp.action_count)


def _values_fit(reward: np.ndarray, planning_error: np.ndarray, mdp: TabularMDP) -> bool:
    largest = float(np.abs(reward).max(initial=0.0)), mdp.penalty * float(planning_error.max(initial=1.0))
    return largest[0] <= LARGEST_VALUE * (1 - mdp.gamma) and largest[1] <= LARGEST_PENALTY


def _fit_into(numbers: np.ndarray, others: np.ndarray) -> bool:
    """Whether numbers are finite, and stay so in the precision of others."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(numbers.astype(others.dtype)).all())


def _first_edges(source: Int[np.ndarray, "E"], states: int) -> Int[np.ndarray, "offsets"]:
    return np.append(0, np.cumsum(np.bincount(source, minlength=states)))
