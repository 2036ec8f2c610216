"""The learned bisimulation metric against the exact one on three small worlds, on states that it was not fitted to.

    python -m benchmarks.bisimulation
    python -m benchmarks.bisimulation --settings     other horizons and cautions, on the first two worlds and one seed
    python -m benchmarks.bisimulation --quick        one seed and few updates, to see that it runs

Discount 0.99, the optimal policy, default settings, three seeds of learning; the random world is another one for each
seed. A tenth of the states calibrates and a tenth tests, and all figures are of pairs of test states. About four
minutes on two cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.stats import spearmanr

from bats.config import BisimulationConfig
from bats.graph.mdp import TabularMDP
from bats.graph.solve import policy_iteration
from bats.metric.bisimulation import learn_bisimulation
from bats.metric.calibration import calibrate, held_out_pairs, pair_distances, value_differences
from bats.metric.policy_steps import PolicySteps
from benchmarks.common import QUICK, print_figures, script_parser
from benchmarks.small_worlds import gridded_mountain_car, random_places, walled_grid
from tests.oracles.exact_bisimulation import bisimulation_distances

WORLDS: dict[str, Callable[[int], TabularMDP]] = {
    "grid": lambda seed: walled_grid(),
    "mountain_car": lambda seed: gridded_mountain_car(),
    "random": random_places,
}
DEFAULT = BisimulationConfig()
SETTINGS = {
    **{f"horizon {steps}": replace(DEFAULT, horizon=steps) for steps in (1, 10, 30, 100, 300)},
    **{f"caution {caution:g}": replace(DEFAULT, caution=caution) for caution in (1.0, 10.0)},
}


@dataclass(frozen=True)
class Measurements:
    """A learned metric d on pairs of test states."""

    bounded: float
    """share of random pairs with |V(s) - V(t)| <= d(s, t)"""
    ratio: float
    """median d / |V(s) - V(t)| of random pairs with different values"""
    rank: float
    """Spearman's correlation of d with the exact metric, random pairs"""
    near_bounded: float
    near_ratio: float
    near_rank: float
    exact_ratio: float
    """`ratio` of the exact metric"""
    margin: float
    """factor of the calibration"""
    seconds: float


def main() -> None:
    parser = script_parser(__doc__, quick="one seed and few updates")
    parser.add_argument("--settings", action="store_true", help="compare settings instead")
    arguments = parser.parse_args()
    names = [field.name for field in fields(Measurements)]
    print(f"{'world':<13}{'setting':>14}{'seed':>6}" + "".join(f"{name:>14}" for name in names))

    def measured(world: str, setting: str, config: BisimulationConfig, seed: int) -> Measurements:
        result = measure(WORLDS[world](seed), config, seed)
        numbers = "".join(f"{getattr(result, name):>14.4g}" for name in names)
        print(f"{world:<13}{setting:>14}{seed:>6}{numbers}", flush=True)
        return result

    if arguments.settings:
        figures = []
        for world in ("grid", "mountain_car"):
            for setting, config in SETTINGS.items():
                quick = replace(config, updates=QUICK.bisimulation.updates)
                result = measured(world, setting, quick if arguments.quick else config, 0)
                name = f"{world}_{setting.replace(' ', '_')}"
                figures += [(f"{name}_bounded", 100 * result.bounded, "%"), (f"{name}_ratio", result.ratio, "times")]
        print_figures(figures, prefix="bisimulation_")
        return
    config, seeds = (QUICK.bisimulation, 1) if arguments.quick else (DEFAULT, 3)
    results = {world: [measured(world, "default", config, seed) for seed in range(seeds)] for world in WORLDS}
    for world, of_seeds in results.items():
        figures = [
            ("bounded", 100 * min(result.bounded for result in of_seeds), "%"),
            ("ratio", max(result.ratio for result in of_seeds), "times"),
            ("rank", min(result.rank for result in of_seeds), "correlation"),
            ("near_bounded", 100 * min(result.near_bounded for result in of_seeds), "%"),
            ("near_ratio", max(result.near_ratio for result in of_seeds), "times"),
            ("learning", float(np.mean([result.seconds for result in of_seeds])), "s"),
        ]
        print_figures(figures, prefix=f"bisimulation_{world}_")


def measure(mdp: TabularMDP, config: BisimulationConfig, seed: int) -> Measurements:
    """Learns and calibrates a metric of the optimal policy, and compares it with the exact one."""
    solution = policy_iteration(mdp)
    steps = PolicySteps.of(mdp, solution.policy)
    began = time.perf_counter()
    learned = learn_bisimulation(steps, config, seed=seed)
    seconds = time.perf_counter() - began
    metric = calibrate(learned, steps, seed=seed)
    exact = bisimulation_distances(mdp, solution.policy)
    by_kind = {}
    for kind, pairs in held_out_pairs(metric, steps, "test", seed=seed).items():
        distance, difference = pair_distances(metric, steps, pairs), value_differences(solution.value, pairs)
        exact_distance, differs = exact[tuple(pairs.T)], difference > 0
        by_kind[kind] = (
            float(np.mean(difference <= distance)),
            float(np.median(distance[differs] / difference[differs])),
            float(spearmanr(distance, exact_distance)[0]),
            float(np.median(exact_distance[differs] / difference[differs])),
        )
    return Measurements(
        *by_kind["random"][:3],
        *by_kind["near"][:3],
        exact_ratio=by_kind["random"][3],
        margin=float(metric.margin),
        seconds=seconds,
    )


if __name__ == "__main__":
    main()
