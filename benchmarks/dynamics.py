"""The learned model per task: training time, held-out error in every number, at contacts apart, and over ten steps.

    python -m benchmarks.dynamics                          all tasks with the default settings
    python -m benchmarks.dynamics maze2d-umaze --paper     one task with the paper's, which end by early stopping
    python -m benchmarks.dynamics maze2d-umaze --model m   a model that was trained before, on the same log

Logs are collected with seed 0 at their usual sizes. Nothing here chooses anything: the rows that are measured were
held out from training and from stopping.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bats.data.dataset import Dataset
from bats.metric.scaled import ScaledMetric
from bats.model.ensemble import PAPER, DynamicsConfig, unroll
from bats.model.fit import Model, fit_dynamics, held_out_error, load_model
from bats.model.training import split_rows

TASKS = ("maze2d-umaze", "maze2d-medium", "maze2d-large", "mountain-car", "hopper")
STEPS = 10
DRIFT, PUSH = 0.23873241 / 100, 0.23873241
"""a ball in free flight: its damping and push in one step"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("--paper", action="store_true")
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    from bats.tasks import collect

    for task in options.tasks:
        log = collect(task, seed=0)
        begun = time.perf_counter()
        config = PAPER if options.paper else DynamicsConfig()
        model = fit_dynamics(log, config, seed=0) if options.model is None else load_model(options.model)
        measure(task, log, model, time.perf_counter() - begun, paper=options.paper)


def measure(task: str, log: Dataset, model: Model, seconds: float, *, paper: bool) -> None:
    """Prints what came of training on a log."""
    error = held_out_error(model.held_out)
    name = task.replace("maze2d-", "") + ("_paper" if paper else "")
    print(f"{name}: {len(log):,} rows, {model.updates:,} updates, trained or read in {seconds:.0f} s")
    print("  held-out mean absolute error:", " ".join(f"{one:.2e}" for one in error["mean_absolute"]))
    print("  root mean square:            ", " ".join(f"{one:.2e}" for one in error["root_mean_square"]))
    figures = [("training", seconds, "s")]
    if task.startswith("maze2d"):
        hit = at_contact(model)
        apart = np.abs(model.held_out.residual)
        print(f"  at contacts ({hit.sum()} rows):", " ".join(f"{one:.2e}" for one in apart[hit].mean(axis=0)))
        print("  in free flight:", " ".join(f"{one:.2e}" for one in apart[~hit].mean(axis=0)))
        position, velocity = np.mean(error["mean_absolute"][:2]), np.mean(error["mean_absolute"][2:])
        figures += [("position_error", float(position), "m"), ("velocity_error", float(velocity), "m/s")]
        figures += [("contact_velocity_error", float(apart[hit][:, 2:].mean()), "m/s")]
    for number, one in enumerate(error["mean_absolute"]):
        figures.append((f"error_{number}", one, "mean_absolute"))
    for told in ("reward_precision", "reward_recall", "termination_precision", "termination_recall"):
        if told in error:
            figures.append((told, error[told], "share"))
    figures.append(("reward_error", error["reward_mean_absolute"], "mean_absolute"))
    distance, covered = open_loop(model, log)
    figures += [(f"open_loop_{STEPS}_median", float(np.median(distance)), "ordinary_steps")]
    figures += [(f"open_loop_{STEPS}_mean", float(distance.mean()), "ordinary_steps")]
    figures += [(f"open_loop_{STEPS}_within_spread", covered, "share")]
    for told, value, unit in figures:
        print(f"figure {name}_{told} {value:.4g} {unit}", flush=True)


def at_contact(model: Model) -> Bool[np.ndarray, "H"]:
    """Held-out rows of a maze in which the ball did not fly freely: it touched a wall."""
    rows = model.held_out
    free = (np.clip(rows.observations[:, 2:], -5, 5) + PUSH * rows.actions) / (1 + DRIFT)
    return np.any(np.abs(rows.next_observations[:, 2:] - free) > 1e-3, axis=1)


def open_loop(model: Model, log: Dataset) -> tuple[Float[np.ndarray, "n"], float]:
    """Ten steps ahead on held-out stretches: how far the elites' mean ends from the truth, in ordinary steps, and the
    share of ends that lie within the elites' spread in every number (between their least and their greatest)."""
    held_out = split_rows(log, model.config, seed=0).held_out
    whole = held_out[: len(held_out) - STEPS + 1]
    unbroken = held_out[STEPS - 1 :] == whole + STEPS - 1
    inside = np.cumsum(np.append(0, log.episode_ends))
    starts = np.array([row for row in whole[unbroken] if inside[row + STEPS - 1] == inside[row]])
    actions = log.actions[starts[:, None] + np.arange(STEPS)]
    encoded = (
        np.asarray(model.dynamics.encode_actions(actions.reshape(len(starts) * STEPS, -1)))
        if (log.action_count is None)
        else np.asarray(model.dynamics.encode_actions(actions.reshape(-1)))
    )
    visited, _ = unroll(
        model.dynamics,
        jnp.asarray(log.observations[starts], jnp.float32),
        jnp.asarray(encoded.reshape(len(starts), STEPS, -1)),
    )
    ends = np.asarray(visited[:, :, -1])
    truth = log.next_observations[starts + STEPS - 1]
    metric = ScaledMetric.of(log)
    distance = np.linalg.norm(metric.embed(ends.mean(axis=0)) - metric.embed(truth), axis=1)
    covered = np.all((ends.min(axis=0) <= truth) & (truth <= ends.max(axis=0)), axis=1)
    return distance, float(covered.mean())


if __name__ == "__main__":
    main()
