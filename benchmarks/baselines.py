"""Updates per second of the baselines, several runs as one program.

    python -m benchmarks.baselines                       # one run each, on maze2d-umaze
    python -m benchmarks.baselines --mazes 3 --seeds 3   # nine runs each, as in docs/results.md

Compilation is not counted.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp

from bats.baselines.catalogue import METHODS
from bats.baselines.config import BRACConfig
from bats.baselines.core import advance
from bats.baselines.training import Trainer
from bats.config import ModelConfig
from bats.data.dataset import Dataset
from bats.model.ensemble import Dynamics
from bats.model.training import split_rows, untrained
from bats.tasks.catalogue import collect
from benchmarks.common import print_figures, script_parser

MAZES = ("maze2d-umaze", "maze2d-medium", "maze2d-large")


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--mazes", type=int, default=1, help="logs of the first so many mazes")
    parser.add_argument("--seeds", type=int, default=1, help="runs on each log")
    parser.add_argument("--rows", type=int, help="of each log; the default is the task's usual number")
    parser.add_argument("--updates", type=int, default=500, help="that are timed")
    arguments = parser.parse_args()
    logs = [collect(maze, arguments.rows) for maze in MAZES[: arguments.mazes]]
    runs = [(log, seed) for log in range(len(logs)) for seed in range(arguments.seeds)]
    figures = []
    for method in arguments.methods:
        rate = updates_per_second(method, logs, runs, arguments.updates)
        figures.append((f"{method}_x{len(runs)}", rate, "updates/s"))
        print(f"{method}: {rate:,.0f} updates per second of {len(runs)} runs")
    print_figures(figures, prefix="baselines_")


def updates_per_second(name: str, logs: list[Dataset], runs: list[tuple[int, int]], updates: int) -> float:
    """How many updates all runs make in a second, each of them."""
    method = METHODS[name]
    # what comes first in BRAC-v is only cloning
    config = BRACConfig(behaviour_updates=1, warm_start=1) if name == "brac-v" else method.config()
    models = [_untrained_model(log) for log in logs] if method.extend is not None else []
    trainer = Trainer.of(method, config, logs, runs, [models[log] for log, _ in runs] if models else [])
    numbers, keys = jnp.asarray(trainer.run_logs), jnp.stack([jax.random.key(seed) for seed in trainer.seeds])
    states = trainer.initial()
    for count in (10, updates):
        began = time.perf_counter()
        states = advance((trainer.log, method, config), jnp.int32(count), states, keys, numbers, trainer.models)
        states.update.block_until_ready()
    return updates / (time.perf_counter() - began)


def _untrained_model(log: Dataset) -> Dynamics:
    """A model of the usual size: how well it predicts does not change how fast it does."""
    return untrained(log, split_rows(log, seed=0), ModelConfig(members=ModelConfig().elites), seed=0)[0]


if __name__ == "__main__":
    main()
