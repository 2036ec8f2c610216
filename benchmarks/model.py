"""The learned model by task: training time, error on held-out rows, at contacts apart, and over ten steps.

    python -m benchmarks.model                                  all tasks with the default settings
    python -m benchmarks.model maze2d-umaze --paper             one task with the paper's, which end by early stopping
    python -m benchmarks.model maze2d-umaze --model FILE        a model that was trained before, on the same log
    python -m benchmarks.model maze2d-umaze --quick             few rows and updates, to see that it runs

Logs are collected with seed 0 at their usual sizes. The rows that are measured were held out from training and from
early stopping.
"""

from __future__ import annotations

import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bats.data.dataset import Dataset
from bats.metric.scaled import ScaledMetric
from bats.model.ensemble import one_hot, unroll_states
from bats.model.fit import Model, fit_model, load_model
from bats.model.held_out import error_summary
from bats.model.training import split_rows
from bats.presets import PAPER, preset
from benchmarks.common import QUICK, QUICK_ROWS, print_figures, script_parser, task_log

TASKS = ("maze2d-umaze", "maze2d-medium", "maze2d-large", "mountain-car", "hopper")
STEPS = 10
DAMPING, PUSH = 0.23873241 / 100, 0.23873241
"""of a maze's ball in free flight, in one step"""
CONTACT = 1e-3
"""a velocity farther than this from free flight shows that the ball touched a wall"""


def main() -> None:
    parser = script_parser(__doc__, quick="few rows and updates")
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("--paper", action="store_true", help="the settings of the paper")
    parser.add_argument("--model", type=Path, help="a trained model, to train none")
    arguments = parser.parse_args()
    config = QUICK.model if arguments.quick else PAPER.model if arguments.paper else preset("default").model
    for task in arguments.tasks:
        log = task_log(task, rows=QUICK_ROWS if arguments.quick else None)
        began = time.perf_counter()
        model = fit_model(log, config, seed=0) if arguments.model is None else load_model(arguments.model)
        seconds = time.perf_counter() - began
        name = task.removeprefix("maze2d-") + ("_paper" if arguments.paper else "")
        print(f"{name}: {len(log):,} rows, {model.updates:,} updates, trained or read in {seconds:.0f} s")
        measure(name, log, model, seconds, maze=task.startswith("maze2d"))


def measure(name: str, log: Dataset, model: Model, seconds: float, *, maze: bool) -> None:
    """Prints the errors of a model."""
    summary = error_summary(model.held_out)
    figures = [("training", seconds, "s")]
    if maze:
        contact = at_contact(model)
        error = np.abs(model.held_out.predicted_next - model.held_out.next_observations)
        for rows, label in ((contact, f"at contacts ({contact.sum()} rows)"), (~contact, "in free flight")):
            print(f"  mean absolute error {label}:", " ".join(f"{one:.2e}" for one in error[rows].mean(axis=0)))
        figures += [("position_error", error[:, :2].mean(), "m"), ("velocity_error", error[:, 2:].mean(), "m/s")]
        figures += [("contact_velocity_error", error[contact][:, 2:].mean(), "m/s")]
    for kind, label in (("mean_absolute", "error"), ("root_mean_square", "rms_error")):
        figures += [(f"{label}_{number}", one, kind) for number, one in enumerate(summary[kind])]
    for kind in ("reward_precision", "reward_recall", "termination_precision", "termination_recall"):
        figures += [(kind, summary[kind], "share")] if kind in summary else []
    figures.append(("reward_error", summary["reward_mean_absolute"], "mean_absolute"))
    distance, covered = errors_ahead(model, log)
    figures += [
        (f"open_loop_{STEPS}_median", float(np.median(distance)), "ordinary_steps"),
        (f"open_loop_{STEPS}_mean", float(distance.mean()), "ordinary_steps"),
        (f"open_loop_{STEPS}_within_spread", covered, "share"),
    ]
    print_figures(figures, prefix=f"{name}_")


def at_contact(model: Model) -> Bool[np.ndarray, "H"]:
    """Held-out rows of a maze in which the ball touched a wall."""
    rows = model.held_out
    # the physics limits speeds to 5 before it adds the push
    free = (np.clip(rows.observations[:, 2:], -5, 5) + PUSH * rows.actions) / (1 + DAMPING)
    return np.any(np.abs(rows.next_observations[:, 2:] - free) > CONTACT, axis=1)


def errors_ahead(model: Model, log: Dataset) -> tuple[Float[np.ndarray, "n"], float]:
    """Ten steps ahead on held-out rows: how far the elites' mean ends from the true state, in ordinary steps, and the
    share of true states that lie between the elites' smallest and largest prediction in every number."""
    held_out = split_rows(log, seed=0).held_out
    first = held_out[: len(held_out) - STEPS + 1]
    episode = np.cumsum(np.append(0, log.episode_ends))
    # windows of consecutive rows within one episode
    first = first[held_out[STEPS - 1 :] == first + STEPS - 1]
    first = first[episode[first + STEPS - 1] == episode[first]]
    window = (first[:, None] + np.arange(STEPS)).ravel()
    actions = jnp.asarray(one_hot(log.actions[window], log.action_count), jnp.float32).reshape(len(first), STEPS, -1)
    source, length = jnp.asarray(log.observations[first], jnp.float32), jnp.full(len(first), STEPS)
    visited = unroll_states(model.dynamics, source, actions, length)
    ends, truth = np.asarray(visited[:, :, -1]), log.next_observations[first + STEPS - 1]
    metric = ScaledMetric.of(log)
    distance = np.linalg.norm(metric.embed(ends.mean(axis=0)) - metric.embed(truth), axis=1)
    covered = np.all((ends.min(axis=0) <= truth) & (truth <= ends.max(axis=0)), axis=1)
    return distance, float(covered.mean())


if __name__ == "__main__":
    main()
