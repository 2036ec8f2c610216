"""The learned bisimulation metric against the exact one on three small worlds, on states that it never fitted to.

    python -m benchmarks.bisimulation [--settings]

Discount 0.99, the best policy, default settings, three seeds of learning; the random world is another one for each. A
tenth of the states calibrates and a tenth tests: no number here is of pairs with any other state in them. About four
minutes on two cores. With `--settings`, other settings than the defaults instead, on the first two worlds and one seed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.stats import spearmanr

from bats.graph.mdp import TabularMDP
from bats.graph.solve import policy_iteration
from bats.metric.bisimulation import PAPER, BisimulationConfig, learn_bisimulation
from bats.metric.bisimulation_exact import bisimulation_distances
from bats.metric.calibration import calibrated, held_out_pairs, pair_distances, pair_gaps
from bats.metric.policy_steps import Transitions
from benchmarks.small_worlds import GAMMA, gridded_mountain_car, random_places, walled_grid

SEEDS = (0, 1, 2)
WORLDS: dict[str, Callable[[int], TabularMDP]] = {
    "grid": lambda seed: walled_grid(),
    "mountain-car": lambda seed: gridded_mountain_car(),
    "random": random_places,
}
DEFAULT = BisimulationConfig()
SETTINGS = {
    **{f"horizon {steps}": replace(DEFAULT, horizon=steps) for steps in (1, 10, 30, 100, 300)},
    "horizon 1, no copy": replace(DEFAULT, horizon=1, following_rate=1.0),
    "horizon 30, no copy": replace(DEFAULT, horizon=30, following_rate=1.0),
    "caution 1": replace(DEFAULT, caution=1.0),
    "2 members": replace(DEFAULT, members=2),
    "paper's loss, 2 members": replace(PAPER, members=2, updates=DEFAULT.updates),
}


@dataclass(frozen=True)
class Measured:
    """What one learned metric does on the pairs that test it."""

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
    """what the exact metric has for `ratio`"""
    margin: float
    """what calibration stretched by"""
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description="The learned bisimulation metric against the exact one.")
    parser.add_argument("--settings", action="store_true", help="compare settings instead")
    if parser.parse_args().settings:
        compare_settings()
        return
    tell_heading("seed")
    found: dict[str, list[Measured]] = {name: [] for name in WORLDS}
    for name, world in WORLDS.items():
        for seed in SEEDS:
            found[name].append(measure(world(seed), DEFAULT, seed))
            tell(name, str(seed), found[name][-1])
    for name, several in found.items():
        plain = name.replace("-", "_")
        print(f"figure bisimulation_{plain}_bounded {100 * min(each.bounded for each in several):.2f} %")
        print(f"figure bisimulation_{plain}_ratio {max(each.ratio for each in several):.2f} times")
        print(f"figure bisimulation_{plain}_rank {min(each.rank for each in several):.3f} correlation")
        print(f"figure bisimulation_{plain}_near_bounded {100 * min(each.near_bounded for each in several):.2f} %")
        print(f"figure bisimulation_{plain}_near_ratio {max(each.near_ratio for each in several):.2f} times")
        print(f"figure bisimulation_{plain}_learning {np.mean([each.seconds for each in several]):.1f} s")


def compare_settings() -> None:
    """What the horizon, the copy, caution and the latent ensemble do, all else being equal."""
    tell_heading("settings")
    for name in ("grid", "mountain-car"):
        mdp = WORLDS[name](0)
        for settings, config in SETTINGS.items():
            tell(name, settings, measure(mdp, config, 0))


def tell_heading(what: str) -> None:
    print(f"{'world':<13}{what:>25}" + "".join(f"{one.name:>14}" for one in fields(Measured)))


def tell(name: str, what: str, measured: Measured) -> None:
    numbers = "".join(f"{getattr(measured, one.name):>14.4g}" for one in fields(Measured))
    print(f"{name:<13}{what:>25}{numbers}", flush=True)


def measure(mdp: TabularMDP, config: BisimulationConfig, seed: int) -> Measured:
    """Learns and calibrates a metric of the best policy, and compares it with the exact one."""
    solution = policy_iteration(mdp)
    transitions = Transitions.of(mdp, solution.policy)
    begun = time.perf_counter()
    learned = learn_bisimulation(transitions, config, gamma=GAMMA, seed=seed)
    seconds = time.perf_counter() - begun
    metric = calibrated(learned, transitions, solution.value, seed=seed)
    exact = bisimulation_distances(mdp, solution.policy)
    kinds = held_out_pairs(metric, transitions, "test", seed=seed)
    told = {}
    for kind, pairs in kinds.items():
        distance, gap = pair_distances(metric, transitions, pairs), pair_gaps(solution.value, pairs)
        truth, differ = exact[tuple(pairs.T)], gap > 0
        told[kind] = (
            float(np.mean(gap <= distance)),
            float(np.median(distance[differ] / gap[differ])),
            float(spearmanr(distance, truth)[0]),
            float(np.median(truth[differ] / gap[differ])),
        )
    return Measured(
        *told["random"][:3],
        *told["near"][:3],
        exact_ratio=told["random"][3],
        margin=float(metric.margin),
        seconds=seconds,
    )


if __name__ == "__main__":
    main()
