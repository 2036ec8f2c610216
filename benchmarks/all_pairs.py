"""BATS against stitching every pair of states, in a world so small that this can be done.

    python -m benchmarks.all_pairs

A point moves in a plane and is paid 1 in a disc. The log wanders about in short episodes. With one learned model and
one tolerance, every ordered pair of states is planned with 1 to K actions, several times where it comes near, and
everything that arrives is added; BATS looks only where its policy goes, and next to it. Values are those at the starts,
both solved exactly.
"""

from __future__ import annotations

import argparse

import numpy as np
from jaxtyping import Int

from bats.data.dataset import Dataset
from bats.graph.mdp import TabularMDP, add_stitches, from_dataset
from bats.graph.solve import policy_iteration, start_value
from bats.metric.scaled import ScaledMetric
from bats.model.ensemble import DynamicsConfig
from bats.model.fit import fit_dynamics
from bats.planning.planner import PlannerConfig
from bats.stitching.acceptance import Learned, action_box, attempt
from bats.stitching.candidates import CandidateConfig, Candidates
from bats.stitching.loop import StitchConfig, stitch

LONGEST = 4
TOLERANCE = 0.2
REACH = 0.05
"""how far an action moves in each direction"""
GOAL = (0.8, 0.8)
RADIUS = 0.2
STEPS = 25
"""of an episode"""
NEAR = 3.0
"""a pair whose plan ends within so many tolerances of its target is planned again"""
TRIES = 8
"""more plans of such a pair"""
CHUNK = 65_536
"""pairs planned at a time"""

MODEL = DynamicsConfig(members=5, elites=5, hidden=(64, 64), updates=3000, validation_rows=50, held_out_rows=50)


def wandering(episodes: int, *, seed: int) -> Dataset:
    """Walks in the unit square that keep their direction for a while; the start is the lower left quarter's."""
    rng = np.random.default_rng(seed)
    place = np.where(np.arange(episodes)[:, None] % 4 == 0, 0.25 * rng.random((episodes, 2)), rng.random((episodes, 2)))
    heading = rng.uniform(0, 2 * np.pi, episodes)
    rows = []
    for _ in range(STEPS):
        heading += rng.normal(0, 0.3, episodes)
        action = 0.6 * np.stack([np.cos(heading), np.sin(heading)], axis=1)
        after = place + REACH * action
        rows.append((place, action, after))
        place = after
    states, actions, after = (np.stack([row[part] for row in rows], axis=1).reshape(-1, 2) for part in range(3))
    ends = np.zeros((episodes, STEPS), dtype=bool)
    ends[:, -1] = True
    log = Dataset.from_arrays(
        states.astype(np.float32),
        actions.astype(np.float32),
        (np.linalg.norm(after - GOAL, axis=1) < RADIUS).astype(np.float32),
        next_observations=after.astype(np.float32),
        timeouts=ends.ravel(),
        name="wandering",
    )
    return log.with_starts(np.flatnonzero(np.arange(len(log)) % (4 * STEPS) == 0))


def stitched_everywhere(mdp: TabularMDP, learned: Learned, planner: PlannerConfig) -> tuple[TabularMDP, int]:
    """Every pair with every number of actions; the MDP and how many plans it took.

    Plans start from logged actions drawn at random. What comes near its target is planned again from other ones, and
    all that arrive are added: which of the plans of a pair earns more, and whether one is found at the very edge of
    what can be reached, must not hang on the luck of a start.
    """
    states = mdp.real_count
    pair = np.arange(states * states)
    rng = np.random.default_rng(0)
    grown, plans = mdp, 0
    for length in range(1, LONGEST + 1):
        for first in range(0, len(pair), CHUNK):
            left = pair[first : first + CHUNK]
            for _ in range(1 + TRIES):
                candidates = _drawn(left // states, left % states, length, mdp.edge_count, rng)
                tried, found = attempt(mdp, candidates, learned, planner, tolerance=TOLERANCE, shortest=False, seed=0)
                grown, plans = add_stitches(grown, found, stitch_round=1), plans + len(tried)
                left = left[tried.error < NEAR * TOLERANCE]
    return grown, plans


def _drawn(
    source: Int[np.ndarray, "C"], target: Int[np.ndarray, "C"], length: int, edges: int, rng: np.random.Generator
) -> Candidates:
    """Pairs to be joined with some number of actions, starting from any of the log's."""
    count = len(source)
    return Candidates(
        source=source,
        target=target,
        length=np.full(count, length),
        edge=rng.integers(0, edges, (count, LONGEST)),
        gain=np.ones(count),
        gap=np.zeros(count),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    shares, fractions = [], []
    for seed in range(options.seeds):
        log = wandering(options.episodes, seed=seed)
        model = fit_dynamics(log, MODEL, seed=seed)
        learned = Learned(model.dynamics, ScaledMetric.of(log), action_box(log), None)
        planner = PlannerConfig(fallback=False)
        mdp = from_dataset(log, penalty=0.1)
        everywhere, all_plans = stitched_everywhere(mdp, learned, planner)
        best = start_value(everywhere, policy_iteration(everywhere).value)
        settings = StitchConfig(
            rounds=150,
            samples=2000,
            attempts=500,
            tolerance=TOLERANCE,
            calibrate=False,
            candidates=CandidateConfig(longest=LONGEST, branches=3, lengths="all"),
            planner=planner,
        )
        rounds = list(stitch(mdp, learned, settings, seed=seed))
        plans = sum(each.record.tried for each in rounds)
        shares.append(rounds[-1].record.value / best)
        fractions.append(plans / all_plans)
        logged = start_value(mdp, policy_iteration(mdp).value)
        print(
            f"seed {seed}: {mdp.state_count} states, value {logged:.2f} in the log, {best:.2f} with {all_plans:,} "
            f"plans of all pairs, {rounds[-1].record.value:.2f} with {plans:,} plans of BATS in {len(rounds)} rounds",
            flush=True,
        )
    print(f"figure all_pairs_value_share {min(shares):.4f} share")
    print(f"figure all_pairs_plan_fraction {max(fractions):.5f} share")


if __name__ == "__main__":
    main()
