"""Gauss-Newton against the cross-entropy method: plans a second, acceptance and miss, on the same candidates.

    python -m benchmarks.planner --log umaze.hdf5 --model umaze.safetensors
    python -m benchmarks.planner --candidates 200        a quick look

Without a log it collects D4RL's umaze, without a model it trains one first (and keeps it where --model says).
Candidates are real: a state of the log, one of its nearest others, and the state that one went on to in as many steps,
whose actions are the warm start. The tolerance is that of the default preset. All planners see the same ensemble and
candidates; kernels are compiled before the clock starts.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from bats.config import preset
from bats.data.dataset import Dataset
from bats.metric.scaled import ScaledMetric
from bats.model.ensemble import Dynamics, DynamicsConfig
from bats.model.fit import fit_dynamics, load_model, save_model
from bats.planning.cross_entropy import CrossEntropyConfig
from bats.planning.planner import PlannerConfig, Plans, Problems, plan

LENGTHS = (1, 4, 8)
TOLERANCE = preset("default").stitch.tolerance
QUANTILE = 0.8
NEIGHBOURS = 10


def planners(batch: int, sampled_batch: int) -> dict[str, PlannerConfig]:
    """What is compared; batches as suit the device."""
    sampling = CrossEntropyConfig(batch=sampled_batch)
    plain = PlannerConfig(batch=batch, cross_entropy=sampling)
    return {
        "warm_start": replace(plain, iterations=0, more_iterations=0, fallback=False),
        "gauss_newton": replace(plain, fallback=False),
        "gauss_newton_with_fallback": plain,
        "cem_leaving": replace(plain, method="cross-entropy", cross_entropy=replace(sampling, leave_at_success=True)),
        "cem": replace(plain, method="cross-entropy"),
    }


def candidates(log: Dataset, metric: ScaledMetric, length: int, count: int, *, seed: int) -> Problems:
    """Pairs of states that a path of `length` logged edges and one neighbour edge joins."""
    from scipy.spatial import cKDTree

    rng = np.random.default_rng([seed, length])
    ends = np.flatnonzero(log.episode_ends)
    to_go = ends[np.searchsorted(ends, np.arange(len(log)))] - np.arange(len(log))
    usable = np.flatnonzero(to_go >= length)
    tree = cKDTree(metric.embed(log.observations[usable]))
    source = rng.choice(len(log), count, replace=False)
    near = np.asarray(tree.query(metric.embed(log.observations[source]), k=NEIGHBOURS + 1, workers=-1)[1])
    neighbour = usable[
        near[np.arange(count), rng.integers(1, NEIGHBOURS + 1, count)]
    ]  # the nearest is the state itself
    rows = neighbour[:, None] + np.arange(length)
    return Problems(
        log.observations[source],
        log.next_observations[rows[:, -1]],
        np.full(count, length),
        log.actions[rows].astype(np.float32),
    )


def timed(dynamics: Dynamics, metric: ScaledMetric, problems: Problems, config: PlannerConfig) -> tuple[Plans, float]:
    """The plans, and plans a second without compilation."""
    box = (np.full(problems.actions.shape[2], -1.0), np.full(problems.actions.shape[2], 1.0))
    sampled = config.method == "cross-entropy"  # one size of batch whatever there is to plan, so a few will compile it
    few = problems.some(np.arange(config.cross_entropy.batch), problems.actions.shape[1]) if sampled else problems
    plan(dynamics, metric.embed, few, config, box=box, tolerance=TOLERANCE, seed=0)
    begun = time.perf_counter()
    plans = plan(dynamics, metric.embed, problems, config, box=box, tolerance=TOLERANCE, seed=0)
    return plans, len(problems) / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--candidates", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=1024, help="problems at once, Gauss-Newton")
    parser.add_argument("--sampled-batch", type=int, default=8, help="problems at once, cross-entropy method")
    parser.add_argument("--problems", type=Path, help="candidates saved before, for a machine without the log")
    options = parser.parse_args()
    problems, metric, dynamics = prepared(options)
    figures = []
    for length in LENGTHS:
        configs = planners(options.batch, options.sampled_batch)
        found = {name: timed(dynamics, metric, problems[length], config) for name, config in configs.items()}
        errors = {name: plans.error(QUANTILE) for name, (plans, _) in found.items()}
        judged = [name for name in configs if name != "warm_start"]
        everyone = np.all([errors[name] < TOLERANCE for name in judged], axis=0)
        print(f"length {length}: {everyone.sum()} of {len(everyone)} accepted by all planners")
        for name, (_, speed) in found.items():
            accepted = float(np.mean(errors[name] < TOLERANCE))
            miss = float(errors[name][everyone].mean())
            print(f"  {name:28} {speed:12,.0f} plans/s   {accepted:6.1%} accepted   mean miss {miss:.4f}", flush=True)
            figures += [
                (f"{name}_k{length}_speed", speed, "plans/s"),
                (f"{name}_k{length}_accepted", accepted, "share"),
            ]
            figures.append((f"{name}_k{length}_miss", miss, "steps"))
        ratio = found["gauss_newton_with_fallback"][1] / found["cem"][1]
        figures.append((f"gauss_newton_over_cem_k{length}", ratio, "times"))
    for name, value, unit in figures:
        print(f"figure {name} {value:.5g} {unit}")


def prepared(options: argparse.Namespace) -> tuple[dict[int, Problems], ScaledMetric, Dynamics]:
    """Candidates of every length, the metric and the model, made or read."""
    if options.problems is not None:
        held = np.load(options.problems)
        problems = {
            length: Problems(*(held[f"{name}_{length}"] for name in ("source", "target", "length", "actions")))
            for length in LENGTHS
        }
        return problems, ScaledMetric(held["weight"]), load_model(options.model).dynamics
    from bats.data.formats.load import load_dataset
    from bats.tasks import collect

    log = load_dataset(options.log) if options.log else collect("maze2d-umaze", seed=0)
    metric = ScaledMetric.of(log)
    problems = {length: candidates(log, metric, length, options.candidates, seed=0) for length in LENGTHS}
    if options.model is not None and options.model.exists():
        return problems, metric, load_model(options.model).dynamics
    model = fit_dynamics(log, DynamicsConfig(), seed=0)
    if options.model is not None:
        save_model(model, options.model)
    return problems, metric, model.dynamics


if __name__ == "__main__":
    main()
