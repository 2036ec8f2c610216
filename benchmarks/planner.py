"""Gauss-Newton against the cross-entropy method: plans per second, accepted share and end error, on equal problems.

    python -m benchmarks.planner --log umaze.hdf5 --model umaze.safetensors
    python -m benchmarks.planner --quick         few rows and problems, to see that it runs

    warm_start          the logged actions that both methods start from
    gauss_newton        ours
    cem_leaving         the cross-entropy method as it is used: a problem is left at its first acceptable plan
    cem                 the same with all iterations for every problem

Without a log it collects D4RL's umaze, without a model it trains one first (and saves it where --model says). The
problems are real: from a state of the log to where one of its nearest others was 1, 4 or 8 steps later. The tolerance
is the default preset's. Programs are compiled before the clock starts.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.spatial import cKDTree

from bats.arrays import take
from bats.data.dataset import Dataset
from bats.graph.mdp import from_dataset
from bats.metric.scaled import ScaledMetric
from bats.model.fit import Model, fit_model, load_model, save_model
from bats.planning.context import PlanningContext, Problems
from bats.planning.cross_entropy import BATCH, end_distances
from bats.planning.planner import end_error, plan
from bats.presets import preset
from benchmarks.common import QUICK, QUICK_ROWS, print_figures, script_parser, task_log

LENGTHS = (1, 4, 8)
TOLERANCE = preset("default").stitch.tolerance
NEIGHBOURS = 10
METHODS = {
    "gauss_newton": partial(plan, method="gauss-newton", tolerance=TOLERANCE, seed=0),
    "cem_leaving": partial(plan, method="cross-entropy", tolerance=TOLERANCE, seed=0),
    "cem": partial(plan, method="cross-entropy", tolerance=0.0, seed=0),  # no plan is within this tolerance
}


def main() -> None:
    parser = script_parser(__doc__, quick="few rows and problems")
    parser.add_argument("--log", type=Path, help="the log, to collect none")
    parser.add_argument("--model", type=Path, help="a trained model of it, or where to save the one that is trained")
    parser.add_argument("--problems", type=int, default=2000, help="of each length (default: 2000)")
    arguments = parser.parse_args()
    log = task_log("maze2d-umaze", arguments.log, rows=QUICK_ROWS if arguments.quick else None)
    model = trained_model(log, arguments.model, quick=arguments.quick)
    context = PlanningContext.of(model, ScaledMetric.of(log), from_dataset(log), local_error=False)
    figures = []
    for length in LENGTHS:
        problems = problems_of(log, context, length, 100 if arguments.quick else arguments.problems)
        errors, speeds = {"warm_start": warm_start_error(context, problems)}, {}
        for name, method in METHODS.items():
            method(context, take(problems, np.arange(BATCH)) if "cem" in name else problems)  # compiles
            began = time.perf_counter()
            errors[name] = end_error(method(context, problems).distance)
            speeds[name] = len(problems) / (time.perf_counter() - began)
        # errors are compared on the problems that every method solves
        solved = np.all([errors[name] < TOLERANCE for name in METHODS], axis=0)
        print(f"length {length}: {solved.sum()} of {len(solved)} problems solved by every method", flush=True)
        for name, error in errors.items():
            figures += [(f"{name}_k{length}_speed", speeds[name], "plans/s")] if name in speeds else []
            figures.append((f"{name}_k{length}_accepted", float(np.mean(error < TOLERANCE)), "share"))
            figures.append((f"{name}_k{length}_end_error", float(error[solved].mean()), "ordinary_steps"))
        figures.append((f"gauss_newton_over_cem_k{length}", speeds["gauss_newton"] / speeds["cem"], "times"))
    print_figures(figures)


def trained_model(log: Dataset, file: Path | None, *, quick: bool) -> Model:
    if file is not None and file.exists():
        return load_model(file)
    model = fit_model(log, QUICK.model if quick else preset("default").model, seed=0)
    if file is not None:
        save_model(model, file)
    return model


def problems_of(log: Dataset, context: PlanningContext, length: int, count: int) -> Problems:
    """Pairs of states that one neighbour edge and `length` logged edges connect."""
    rng = np.random.default_rng([0, length])
    ends = np.flatnonzero(log.episode_ends)
    steps_left = ends[np.searchsorted(ends, np.arange(len(log)))] - np.arange(len(log))
    usable = np.flatnonzero(steps_left >= length)
    source = rng.choice(len(log), count, replace=False)
    points = np.asarray(context.metric.embed(log.observations))
    _, nearest = cKDTree(points[usable]).query(points[source], k=NEIGHBOURS + 1, workers=-1)
    # any but the nearest, which is the state itself
    neighbour = usable[nearest[np.arange(count), rng.integers(1, NEIGHBOURS + 1, count)]]
    rows = neighbour[:, None] + np.arange(length)
    return Problems(
        source=log.observations[source],
        target=log.next_observations[rows[:, -1]],
        length=np.full(count, length),
        actions=log.actions[rows].astype(np.float32),
    )


def warm_start_error(context: PlanningContext, problems: Problems) -> Float[np.ndarray, "C"]:
    placed = problems.on_device()
    distance = end_distances(context.simulator, placed, jnp.expand_dims(placed.actions, 1))
    return end_error(np.asarray(distance[:, 0]))


if __name__ == "__main__":
    main()
