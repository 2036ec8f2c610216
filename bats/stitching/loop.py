"""Algorithm 1 of the paper: solve, sample, find candidates, plan, add, repeat.

A candidate is a pair of states that may be worth connecting, an attempt is a plan made for it, and a stitch is a plan
that reaches its target. The loop is a generator: each round it yields the grown MDP with all that was tried, and its
caller shows, saves or stops. All randomness in a round comes from the seed and the round's number, and the round needs
nothing of earlier ones but the MDP and the history. So a loop that continues from saved rounds ends as if it had never
stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bats.config import StitchConfig
from bats.graph.mdp import Stitches, TabularMDP, add_stitches
from bats.graph.solve import Solution, policy_iteration
from bats.metric.neighbours import NeighbourIndex
from bats.planning.context import PlanningContext
from bats.stitching.acceptance import plan_candidates
from bats.stitching.candidates import Search
from bats.stitching.history import History
from bats.stitching.records import Attempts, RoundRecord
from bats.stitching.sources import lengths_to_search, search_along_policy, search_for_recovery
from bats.streams import Stream, generator


@dataclass(frozen=True, eq=False)
class Round:
    """What a round has added, and how it got there."""

    solution: Solution
    """of the grown MDP, `solution.mdp`"""
    stitches: Stitches
    attempts: Attempts
    record: RoundRecord


def stitch(
    mdp: TabularMDP, context: PlanningContext, config: StitchConfig, *, seed: int, history: History, rounds: range
) -> Iterator[Round]:
    """Adds stitches to the MDP round by round. Ends early when a round finds no candidate or no plan ever succeeds.

    `rounds` are the numbers of the rounds to make, from 1. The last `config.recovery_rounds` lead back to the policy's
    rollouts from states beside them. To continue, give the MDP that the saved rounds have grown and their history.
    """
    # only logged states are sources or targets, so the index stays as it is
    index = NeighbourIndex(np.asarray(context.metric.embed(mdp.states[: mdp.real_count])), config.neighbours)
    longest = config.max_length or context.reliable_length(config.tolerance)
    # always from scratch: after a warm start, ties could be broken in another way than in a run that continues
    solution = policy_iteration(mdp, dead_end_value=config.dead_end_value)
    for number in rounds:
        if history.is_hopeless:
            return
        rng = generator(seed, Stream.STITCHING_ROUND, number)

        # sample states where the policy goes, or beside, and find the most promising candidates from there
        propose = search_along_policy if number <= config.rounds else search_for_recovery
        for max_length in lengths_to_search(longest, config.half_length_every, number, mdp.action_count):
            proposal = propose(Search(solution, context.metric, index, history, config, max_length), rng)
            if len(proposal.candidates):
                break
        else:
            return  # no length has a candidate

        # plan these with the model, and keep the plans that reach their target
        plan_seed = int(rng.integers(2**31))
        attempts, stitches = plan_candidates(mdp, proposal.candidates, context, config, seed=plan_seed)
        history = history.extended(attempts)

        # add their states and edges, and solve the grown MDP
        value_before = solution.start_value
        mdp = add_stitches(mdp, stitches, stitch_round=number)
        solution = policy_iteration(mdp, dead_end_value=config.dead_end_value)
        counts = max_length, proposal.source_count, proposal.candidate_count
        record = RoundRecord.of(number, *counts, attempts, solution, value_before=value_before)
        yield Round(solution, stitches, attempts, record)
