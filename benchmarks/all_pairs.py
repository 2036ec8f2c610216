"""BATS against stitching every pair of states, in a world small enough for that.

    python -m benchmarks.all_pairs
    python -m benchmarks.all_pairs --quick       one world of few states, to see that it runs

A point moves in a plane, and a disc has reward 1. The log wanders about in short episodes. With one learned model and
one tolerance, every ordered pair of states is planned with 1 to K actions, several times where a plan ends near its
target, and every accepted plan is added. BATS searches only where its policy goes, and nearby. Both graphs are solved
exactly, and their values at the starts compared.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Int

from bats.config import CandidateConfig, ModelConfig, StitchConfig
from bats.data.dataset import Dataset
from bats.graph.mdp import TabularMDP, add_stitches, from_dataset
from bats.graph.solve import policy_iteration
from bats.metric.scaled import ScaledMetric
from bats.model.fit import fit_model
from bats.planning.context import PlanningContext
from bats.stitching.acceptance import plan_candidates
from bats.stitching.candidates import Candidates
from bats.stitching.history import History
from bats.stitching.loop import stitch
from benchmarks.common import print_figures, script_parser

MAX_LENGTH = 4
STITCH = StitchConfig(
    rounds=150,
    samples=2000,
    attempts=500,
    max_length=MAX_LENGTH,
    tolerance=0.2,
    local_error=False,
    candidates=CandidateConfig(branching=3, lengths="all"),
)
MODEL = ModelConfig(members=5, elites=5, hidden=(64, 64), updates=3000)
REACH = 0.05
"""how far an action moves in each direction"""
GOAL, RADIUS = (0.8, 0.8), 0.2
EPISODE_STEPS = 25
NEAR = 3.0
"""tolerances from its target within which a plan must end for the pair to be planned again"""
REPEATS = 8
"""further plans of such a pair"""
BLOCK = 65_536
"""pairs planned at a time"""


def main() -> None:
    parser = script_parser(__doc__, quick="one world of few states")
    parser.add_argument("--episodes", type=int, default=24, help="of 25 steps, in the log (default: 24)")
    parser.add_argument("--seeds", type=int, default=3, help="worlds (default: 3)")
    arguments = parser.parse_args()
    episodes, seeds = (10, 1) if arguments.quick else (arguments.episodes, arguments.seeds)
    shares, fractions = [], []
    for seed in range(seeds):
        log = wandering_log(episodes, seed=seed)
        mdp = from_dataset(log, penalty=0.1)
        model = fit_model(log, replace(MODEL, updates=500) if arguments.quick else MODEL, seed=seed)
        context = PlanningContext.of(model, ScaledMetric.of(log), mdp, local_error=False)
        complete, all_plans = stitch_all_pairs(mdp, context)
        best = policy_iteration(complete).start_value
        history, numbers = History.empty(mdp.real_count), range(1, STITCH.rounds + STITCH.recovery_rounds + 1)
        rounds = list(stitch(mdp, context, STITCH, seed=seed, history=history, rounds=numbers))
        logged = policy_iteration(mdp).start_value
        value = rounds[-1].record.value if rounds else logged
        plans = sum(one.record.tried for one in rounds)
        print(
            f"seed {seed}: {mdp.state_count} states, value {logged:.2f} in the log, {best:.2f} with {all_plans:,} "
            f"plans of all pairs, {value:.2f} with {plans:,} plans of BATS in {len(rounds)} rounds",
            flush=True,
        )
        shares.append(value / best)
        fractions.append(plans / all_plans)
    print_figures(
        [("value_share", min(shares), "share"), ("plan_fraction", max(fractions), "share")], prefix="all_pairs_"
    )


def wandering_log(episodes: int, *, seed: int) -> Dataset:
    """Trajectories in the unit square that keep their direction for a while; starts are in the lower left quarter."""
    rng = np.random.default_rng(seed)
    # every fourth episode begins among the starts, the others anywhere
    starting = np.arange(episodes)[:, None] % 4 == 0
    position = np.where(starting, 0.25 * rng.random((episodes, 2)), rng.random((episodes, 2)))
    heading = rng.uniform(0, 2 * np.pi, episodes)
    rows = []
    for _ in range(EPISODE_STEPS):
        heading += rng.normal(0, 0.3, episodes)
        action = 0.6 * np.stack([np.cos(heading), np.sin(heading)], axis=1)
        rows.append((position, action, position + REACH * action))
        position = rows[-1][2]
    states, actions, next_states = (np.stack([row[part] for row in rows], axis=1).reshape(-1, 2) for part in range(3))
    log = Dataset.from_arrays(
        states.astype(np.float32),
        actions.astype(np.float32),
        (np.linalg.norm(next_states - GOAL, axis=1) < RADIUS).astype(np.float32),
        next_observations=next_states.astype(np.float32),
        timeouts=np.arange(len(states)) % EPISODE_STEPS == EPISODE_STEPS - 1,
        name="wandering",
    )
    return log.with_starts(np.flatnonzero(np.arange(len(log)) % (4 * EPISODE_STEPS) == 0))


def stitch_all_pairs(mdp: TabularMDP, context: PlanningContext) -> tuple[TabularMDP, int]:
    """The MDP with stitches of all pairs and lengths, and the number of plans.

    Plans start from logged actions drawn at random. Pairs whose plan ends near its target are planned again from other
    actions, and all accepted plans are added: neither the best plan of a pair nor one that barely reaches its target
    should depend on the luck of a start.
    """
    states, rng = mdp.real_count, np.random.default_rng(0)
    all_pairs = np.arange(states * states)
    complete, plans = mdp, 0
    for length in range(1, MAX_LENGTH + 1):
        for first in range(0, len(all_pairs), BLOCK):
            pairs = all_pairs[first : first + BLOCK]
            for _ in range(1 + REPEATS):
                candidates = _random_candidates(pairs // states, pairs % states, length, mdp.edge_count, rng)
                attempts, stitches = plan_candidates(mdp, candidates, context, STITCH, seed=0)
                complete, plans = add_stitches(complete, stitches, stitch_round=1), plans + len(attempts)
                pairs = pairs[attempts.error < NEAR * STITCH.tolerance]
    return complete, plans


def _random_candidates(
    source: Int[np.ndarray, "C"], target: Int[np.ndarray, "C"], length: int, edges: int, rng: np.random.Generator
) -> Candidates:
    """Pairs to connect with `length` actions, starting from any of the log's."""
    count = len(source)
    return Candidates(
        source=source,
        target=target,
        length=np.full(count, length),
        edge=rng.integers(0, edges, (count, MAX_LENGTH)),
        gain=np.ones(count),
        distance=np.zeros(count),
    )


if __name__ == "__main__":
    main()
