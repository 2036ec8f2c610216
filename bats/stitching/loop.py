"""Algorithm 1: solve, sample, find candidates, plan, add, repeat.

The loop is a generator: each round it yields the grown MDP with all that was tried, and its caller shows, saves or
stops. All chance in a round comes from the seed and the round's number, and what a round needs of earlier ones is in
what they yielded, so a loop that continues from saved rounds ends as if it had never stopped.
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
    """The solved MDP with the round's stitches, and how the round got there."""

    solution: Solution
    stitches: Stitches
    attempts: Attempts
    record: RoundRecord


def stitch(
    mdp: TabularMDP, context: PlanningContext, config: StitchConfig, *, seed: int, history: History, rounds: range
) -> Iterator[Round]:
    """Stitches the MDP of a log, yielding after each round; ends early when a round finds nothing to try.

    `rounds` are the numbers of the rounds to come. To continue from saved rounds, give the MDP they grew and their
    history.
    """
    index = NeighbourIndex(np.asarray(context.metric.embed(mdp.states[: mdp.real_count])), config.neighbours)
    # every round solves from scratch: a warm start could break ties otherwise than a run that continues
    solution = policy_iteration(mdp, dead_end_value=config.dead_end_value)
    for number in rounds:
        rng = generator(seed, Stream.STITCHING_ROUND, number)

        # sample states where the policy goes, and find pairs of states that are worth connecting
        propose = search_along_policy if number <= config.rounds else search_for_recovery
        for max_length in lengths_to_search(config, number, mdp.action_count):
            found = propose(Search(solution, context.metric, index, history, config, max_length), rng)
            if len(found.candidates):
                break
        else:
            return

        # plan the most promising ones with the model, and keep the plans that reach their target
        plan_seed = int(rng.integers(2**31))
        attempts, stitches = plan_candidates(mdp, found.candidates, context, config, seed=plan_seed)
        history = history.extended(attempts)

        # add these as new edges, and solve the grown MDP exactly
        value_before = solution.start_value
        mdp = add_stitches(mdp, stitches, stitch_round=number)
        solution = policy_iteration(mdp, dead_end_value=config.dead_end_value)
        searched = (found.sources, found.found)
        record = RoundRecord.of(number, attempts, solution, searched=searched, value_before=value_before)
        yield Round(solution, stitches, attempts, record)
