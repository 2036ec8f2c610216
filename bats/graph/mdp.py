"""`TabularMDP`: a log as a graph. States are vertices, logged actions are edges, and stitches add more of both.

    states      0 … real_count - 1 | real_count …        seen in the log | imagined on the way of a stitch
    edges       [0: e0 e1] [1: e2] [2:] [3: e3 e4] …     sorted by source; state s owns first_edge[s]:first_edge[s+1]

Everything is decided, nothing is left to the order of the log:

- Equal states are one state. States are numbered in the order of their first appearance.
- Rows with equal source, action, target and termination are one edge; it pays the mean of their rewards.
- Different actions between the same two states are different edges, and so are different outcomes of one action: the
  method assumes a deterministic world, and `bats-rl validate` tells how far a log is from it.
- A self-loop is an edge like any other.
- A state without an edge is a dead end, and what it is worth is for the solver's caller to say. If the log says that
  the task ended there, it is terminal instead and worth nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from bats.arrays import EdgeActions, EdgeValues, StateFlags, States
from bats.data.dataset import Dataset
from bats.data.distinct import merge_states, number_rows, row_bits
from bats.errors import SettingError

LOGGED = 0
"""stitch round of an edge that comes from the log; rounds of stitching count from 1"""
NO_STITCH = -1
"""stitch of an edge that comes from the log"""


@dataclass(frozen=True, eq=False)
class TabularMDP:
    """A deterministic MDP in arrays. Functions return a new one; nothing is ever changed in place."""

    states: States
    real_count: int
    """states before this one were seen in the log, the rest imagined by a planner"""
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
    """gamma, or 0 where an episode truly ends"""
    stitch_round: Int[np.ndarray, "E"]
    """round that added the edge, or LOGGED"""
    stitch: Int[np.ndarray, "E"]
    """number of the stitch that the edge is part of, counted over all rounds, or NO_STITCH"""
    stitch_count: int
    """stitches added so far, those included that were pruned since"""
    planning_error: EdgeValues
    """how far from its target a stitch may end [d]; not 0 only on its last edge"""
    starts: Int[np.ndarray, "W"]
    start_weights: Float[np.ndarray, "W"]
    action_count: int | None
    """how many discrete actions there are; None where actions are numbers in a box"""

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
        """States where the log says that the task ends: entered by an edge of discount 0, left by none."""
        entered = np.zeros(self.state_count, dtype=bool)
        entered[self.target[self.discount == 0]] = True
        return entered & (self.out_degree == 0)

    @cached_property
    def only_ended_in(self) -> StateFlags:
        """States that the log never leads to without ending: every logged edge from elsewhere has discount 0."""
        logged = (self.stitch_round == LOGGED) & (self.source != self.target)
        ended, passed = np.zeros((2, self.state_count), dtype=bool)
        ended[self.target[logged & (self.discount == 0)]] = True
        passed[self.target[logged & (self.discount > 0)]] = True
        return ended & ~passed

    @cached_property
    def charged_reward(self) -> EdgeValues:
        """Reward less the penalty: gamma * c * d, with the one gamma also where the edge's own discount is 0."""
        if self.penalty == 0:
            return self.reward
        return self.reward - self.gamma * self.penalty * self.planning_error

    def __repr__(self) -> str:
        stitched = int(np.count_nonzero(self.stitch_round != LOGGED))
        return (
            f"TabularMDP({self.real_count:,} real and {self.state_count - self.real_count:,} imagined states, "
            f"{self.edge_count - stitched:,} logged and {stitched:,} stitched edges, {len(self.starts):,} starts, "
            f"gamma {self.gamma:g})"
        )


@dataclass(frozen=True, eq=False)
class Stitches:
    """C planned joins of up to K actions each; entries beyond a stitch's length are not looked at."""

    source: Int[np.ndarray, "C"]
    target: Int[np.ndarray, "C"]
    length: Int[np.ndarray, "C"]
    """number of actions, 1 to K"""
    action: Float[np.ndarray, "C K A"] | Int[np.ndarray, "C K"]
    state: Float[np.ndarray, "C K-1 D"]
    """imagined states after each action but the last"""
    reward: Float[np.ndarray, "C K"]
    planning_error: Float[np.ndarray, "C"]
    """what each is charged for [d]"""
    distance: Float[np.ndarray, "C M"]
    """from the target at the end, by each member of the ensemble"""
    model_error: Float[np.ndarray, "C"]
    """how wrong the model was on held-out rows near the plan; 0 where nobody asked"""
    reward_range: Float[np.ndarray, "C K 2"]
    """least and greatest reward that a member expects of each action"""

    @classmethod
    def judged_by_one(
        cls,
        *,
        source: Int[np.ndarray, "C"],
        target: Int[np.ndarray, "C"],
        length: Int[np.ndarray, "C"],
        action: Float[np.ndarray, "C K A"] | Int[np.ndarray, "C K"],
        state: Float[np.ndarray, "C K-1 D"],
        reward: Float[np.ndarray, "C K"],
        planning_error: Float[np.ndarray, "C"],
    ) -> Stitches:
        """Stitches of a model with one member and nothing held out: nobody disagrees with the error and the rewards."""
        return cls(
            source,
            target,
            length,
            action,
            state,
            reward,
            planning_error,
            distance=planning_error[:, None],
            model_error=np.zeros_like(planning_error),
            reward_range=np.stack([reward, reward], axis=-1),
        )

    def __len__(self) -> int:
        return len(self.source)


def from_dataset(dataset: Dataset, *, gamma: float = 0.99, penalty: float = 0.0) -> TabularMDP:
    """The MDP of a log alone [M_0]: its states, its actions, its outcomes."""
    if not 0 < gamma < 1:
        raise SettingError(f"`gamma` must lie strictly between 0 and 1; got {gamma}.")
    states, source, target = merge_states(dataset.observations, dataset.next_observations)
    ends = dataset.terminations.astype(np.int32)  # ending and going on are not the same outcome
    edge_of_row, row_of_edge = number_rows(np.column_stack([source, target, ends, row_bits(dataset.actions)]))
    order = np.argsort(source[row_of_edge], kind="stable")
    row = row_of_edge[order]
    starts, weights = _merged_starts(source[dataset.starts], dataset.start_weights)
    return TabularMDP(
        states=states,
        real_count=len(states),
        gamma=gamma,
        penalty=penalty,
        first_edge=_first_edges(source[row], len(states)),
        target=target[row],
        action=dataset.actions[row],
        reward=_mean_reward(dataset.rewards, edge_of_row, row_of_edge)[order],
        discount=np.where(dataset.terminations[row], 0.0, gamma),
        stitch_round=np.full(len(row), LOGGED, dtype=np.int16),
        stitch=np.full(len(row), NO_STITCH, dtype=np.int32),
        stitch_count=0,
        planning_error=np.zeros(len(row), dtype=np.float32),
        starts=starts,
        start_weights=weights,
        action_count=dataset.action_count,
    )


def add_stitches(mdp: TabularMDP, stitches: Stitches, *, stitch_round: int) -> TabularMDP:
    """The MDP with every stitch added: k actions become k edges through k - 1 new imagined states.

    The edges a state had keep their order and the new ones follow them, so an old policy carries over. A stitch into a
    state that the log only ever ends in ends the episode too.
    """
    amiss = amiss_in_stitches(stitches, mdp)
    if amiss:
        raise SettingError(f"Stitches must have {amiss}.")
    steps = np.arange(stitches.reward.shape[1])
    used = steps < stitches.length[:, None]
    last = steps == stitches.length[:, None] - 1
    passed = used & ~last
    here = np.full(used.shape, -1, dtype=mdp.target.dtype)
    here[passed] = mdp.state_count + np.arange(np.count_nonzero(passed))  # the state each step leads to
    there = np.where(last, stitches.target[:, None], here)
    come_from = np.concatenate([stitches.source[:, None].astype(here.dtype), here[:, :-1]], axis=1)
    ends = last & mdp.only_ended_in[stitches.target][:, None]
    count = int(np.count_nonzero(used))

    states = np.concatenate([mdp.states, stitches.state[passed[:, :-1]].astype(mdp.states.dtype)])
    source = np.concatenate([mdp.source, come_from[used]])
    order = np.argsort(source, kind="stable")

    def grown(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        return np.concatenate([old, new.astype(old.dtype)])[order]

    return replace(
        mdp,
        states=states,
        first_edge=_first_edges(source, len(states)),
        target=grown(mdp.target, there[used]),
        action=grown(mdp.action, stitches.action[used]),
        reward=grown(mdp.reward, stitches.reward[used]),
        discount=grown(mdp.discount, np.where(ends, 0.0, mdp.gamma)[used]),
        stitch_round=grown(mdp.stitch_round, np.full(count, stitch_round)),
        stitch=grown(mdp.stitch, np.repeat(mdp.stitch_count + np.arange(len(stitches)), stitches.length)),
        stitch_count=mdp.stitch_count + len(stitches),
        planning_error=grown(mdp.planning_error, np.where(last, stitches.planning_error[:, None], 0.0)[used]),
    )


def amiss_in_mdp(mdp: TabularMDP) -> str | None:
    """What an MDP of unknown origin ought to have and has not; compiled kernels rely on all of it."""
    states, edges, offsets = len(mdp.states), len(mdp.target), mdp.first_edge
    per_edge = (mdp.action, mdp.reward, mdp.discount, mdp.stitch_round, mdp.stitch, mdp.planning_error)
    signed = offsets.dtype.kind == "i" and offsets.ndim == 1 and len(offsets) == states + 1
    demands = {
        "one signed offset a state and one more": signed,
        "edges sorted by source": signed
        and bool(offsets[0] == 0 and offsets[-1] == edges and np.all(np.diff(offsets) >= 0)),
        "one entry of each kind an edge": all(len(each) == edges for each in per_edge),
        "targets that exist": _within(mdp.target, states),
        "starts that exist, and at least one": len(mdp.starts) > 0 and _within(mdp.starts, states),
        "a weight from 0 for each start": mdp.start_weights.shape == mdp.starts.shape
        and _at_least_0(mdp.start_weights),
        "gamma strictly between 0 and 1": 0 < mdp.gamma < 1,
        "stitches that were counted": bool(np.all((mdp.stitch >= NO_STITCH) & (mdp.stitch < mdp.stitch_count))),
        "no more real states than states": 0 <= mdp.real_count <= states,
        "finite rewards and errors": bool(np.isfinite(mdp.reward).all()) and _at_least_0(mdp.planning_error),
        "discounts from 0 to gamma": _at_least_0(mdp.discount) and bool(np.all(mdp.discount <= mdp.gamma)),
    }
    return next((demand for demand, met in demands.items() if not met), None)


def amiss_in_stitches(stitches: Stitches, mdp: TabularMDP) -> str | None:
    """What stitches ought to have to be added to an MDP and have not."""
    count, longest = len(stitches), stitches.reward.shape[-1]
    shapes = {
        stitches.reward.shape == (count, longest),
        stitches.action.shape[:2] == (count, longest),
        stitches.state.shape == (count, longest - 1, mdp.states.shape[1]),
        stitches.target.shape == stitches.length.shape == stitches.planning_error.shape == (count,),
        stitches.action.shape[2:] == mdp.action.shape[1:],
        stitches.distance.shape[:1] == stitches.model_error.shape == (count,),
        stitches.reward_range.shape == (count, longest, 2),
    }
    demands = {
        "one entry of each kind a stitch and a step": all(shapes),
        "sources that exist": _within(stitches.source, mdp.state_count),
        "real targets that exist": _within(stitches.target, mdp.real_count),
        f"lengths from 1 to {longest}": _within(stitches.length - 1, longest),
        "finite rewards, states and errors": bool(
            np.isfinite(stitches.reward).all() and np.isfinite(stitches.state).all()
        )
        and _at_least_0(stitches.planning_error)
        and _at_least_0(stitches.model_error),
    }
    return next((demand for demand, met in demands.items() if not met), None)


def _within(indices: np.ndarray, count: int) -> bool:
    return bool(indices.ndim == 1 and indices.dtype.kind in "iu" and np.all((indices >= 0) & (indices < count)))


def _at_least_0(numbers: np.ndarray) -> bool:
    return bool(np.isfinite(numbers).all() and np.all(numbers >= 0))


def _mean_reward(
    rewards: Float[np.ndarray, "N"], edge_of_row: Int[np.ndarray, "N"], row_of_edge: Int[np.ndarray, "E"]
) -> Float[np.ndarray, "E"]:
    """Mean reward of the rows of each edge, as the first row's plus the mean difference: equal rewards stay exact."""
    first = rewards[row_of_edge].astype(np.float64)
    if len(row_of_edge) == len(edge_of_row):
        return first
    difference = rewards - first[edge_of_row]
    return first + np.bincount(edge_of_row, weights=difference) / np.bincount(edge_of_row)


def _first_edges(source: Int[np.ndarray, "E"], states: int) -> Int[np.ndarray, "offsets"]:
    first = np.zeros(states + 1, dtype=np.int64)
    np.cumsum(np.bincount(source, minlength=states), out=first[1:])
    return first


def _merged_starts(
    states: Int[np.ndarray, "R"], weights: Float[np.ndarray, "R"]
) -> tuple[Int[np.ndarray, "W"], Float[np.ndarray, "W"]]:
    """Start rows in the same state become one start with their weights together."""
    merged, which = np.unique(states, return_inverse=True)
    return merged, np.bincount(which, weights=weights)
