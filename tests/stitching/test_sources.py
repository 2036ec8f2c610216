"""Where a round searches, how long its stitches may be, and which candidates it plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bats.config import StitchConfig
from bats.data.dataset import Dataset
from bats.graph.mdp import add_stitches, from_dataset
from bats.graph.solve import policy_iteration
from bats.stitching.candidates import Candidates
from bats.stitching.history import History
from bats.stitching.records import Attempts, Outcome
from bats.stitching.sources import MAX_STITCH_SEQUENCES, lengths_to_search, most_promising, sample_sources
from tests.mdps import mdp_from_edges, stitches_between

CONFIG = StitchConfig(samples=200)


def test_states_where_the_log_always_terminates_are_no_sources() -> None:
    # every rollout ends in state 2, by the log or through a stitch of two actions
    states, after = np.array([[0.0], [0.06]]), np.array([[0.06], [0.12]])
    log = Dataset.from_arrays(
        states, after - states, np.array([0.0, 1.0]), next_observations=after, terminations=np.array([False, True])
    )
    stitch = stitches_between([0], [2], reward=[[5.0, 5.0]])
    solution = policy_iteration(add_stitches(from_dataset(log, gamma=0.9), stitch, stitch_round=1))
    sources, visits = sample_sources(solution, CONFIG, np.random.default_rng(0))
    assert sources.tolist() == [0]  # the stitch is worth so much more that the logged edge is never drawn
    assert visits[0] <= CONFIG.samples


def test_rollouts_that_stop_on_a_stitch_continue_to_its_end() -> None:
    """Sources are real states, and each is drawn as often as the occupancy of itself and the stitches before it."""
    mdp = add_stitches(
        mdp_from_edges(2, [(1, 1, 0.0)], gamma=0.9), stitches_between([0], [1], reward=[[0.0] * 3]), stitch_round=1
    )
    sources, visits = sample_sources(policy_iteration(mdp), replace(CONFIG, samples=5000), np.random.default_rng(0))
    assert sources.tolist() == [0, 1]
    # the start holds 1 - gamma of the discounted visits
    assert visits / 5000 == pytest.approx([0.1, 0.9], abs=0.03)


def test_every_few_rounds_stitches_are_half_as_long_if_that_gives_candidates() -> None:
    assert [lengths_to_search(25, 4, number, None) for number in (1, 3, 4, 8)] == [(25,), (25,), (12, 25), (12, 25)]
    assert lengths_to_search(25, None, 4, None) == (25,)
    assert lengths_to_search(1, 4, 4, None) == (1,)


@pytest.mark.parametrize("action_count", [2, 4, 5, 32, 2000])
def test_stitches_of_discrete_actions_are_as_long_as_all_sequences_can_be_searched(action_count: int) -> None:
    (longest,) = lengths_to_search(25, None, 1, action_count)
    assert longest == 1 or action_count**longest <= MAX_STITCH_SEQUENCES
    assert action_count ** (longest + 1) > MAX_STITCH_SEQUENCES


def test_the_most_promising_candidates_are_those_with_most_visits_gain_and_success() -> None:
    candidates = Candidates(
        source=np.array([3, 3, 7, 7]),
        target=np.array([0, 1, 2, 3]),
        length=np.ones(4, dtype=np.int64),
        edge=np.zeros((4, 1), dtype=np.int64),
        gain=np.array([1.0, 2.0, 0.5, 3.0]),
        distance=np.array([0.1, 0.1, 0.1, 6.0]),
    )
    sources, visits = np.array([3, 7]), np.array([1, 10])
    # scores 1, 2, 5 and 30
    kept = most_promising(candidates, sources, visits, History.empty(10), 2)
    assert kept.target.tolist() == [2, 3]
    # distances of about 6 have failed ten times: 30 / 11 remains, after 5
    nothing = np.zeros(10)
    failed = Attempts(
        source=np.arange(10),
        target=np.full(10, 5),
        length=np.ones(10, dtype=np.int64),
        first_length=np.ones(10, dtype=np.int64),
        distance=np.full(10, 6.0),
        error=nothing,
        outcome=np.full(10, Outcome.TOO_FAR),
    )
    history = History.of([failed], 10)
    assert most_promising(candidates, sources, visits, history, 1).target.tolist() == [2]
    assert most_promising(candidates, sources, visits, history, 2).target.tolist() == [2, 3]
    assert most_promising(candidates, sources, visits, history, 4) is candidates
