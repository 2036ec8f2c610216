"""A fit: seconds, what the graph promises, and for the mazes what the true environment says of it and of its clone.

    python -m benchmarks.stitching                                   all three mazes with the default settings
    python -m benchmarks.stitching hopper grid                       other tasks: the values alone
    python -m benchmarks.stitching maze2d-umaze --preset paper-umaze
    python -m benchmarks.stitching maze2d-large --preset paper-large --attempts 5000
    python -m benchmarks.stitching maze2d-umaze --run runs/umaze     keeps the run, and goes on with it if it is there

Logs are collected with seed 0 at their usual sizes. The environment judges what came out and chooses nothing: the
graph's actions are played open loop from stratified starts, every stitch on the policy's walks is played alone from its
exact source state, the cloned policy plays the episodes that everybody is judged on, and the certificate's bounds are
held against what both truly earn.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from bats.config import Config, preset
from bats.data.formats.load import load_dataset
from bats.model.fit import load_model
from bats.runs.pipeline import fit
from bats.stitching.records import RoundRecord
from bats.tasks import collect
from bats.tasks.maze2d import find_maze
from benchmarks.maze_replay import compare_in_maze
from benchmarks.maze_score import evaluate_in_maze, score_lines
from benchmarks.true_values import coverage_lines

TASKS = ("maze2d-umaze", "maze2d-medium", "maze2d-large")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--attempts", type=int, help="joins planned each round, where the preset's are too many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, help="folder to keep the run of a single task in")
    parser.add_argument("--model", type=Path, help="a model trained before on the same log, to train none")
    parser.add_argument("--logs", type=Path, help="folder with logs named after the tasks, to collect none")
    options = parser.parse_args()
    if options.run is not None and len(options.tasks) != 1:
        parser.error("--run keeps the run of one task; name it")
    config = preset(options.preset)
    if options.attempts is not None:
        few = replace(config.stitch, attempts=options.attempts, samples=min(options.attempts, config.stitch.samples))
        config = replace(config, stitch=few)
    for task in options.tasks:
        name = f"{task.removeprefix('maze2d-')}_{options.preset.split('-')[0]}"
        measure(task, config, name, options)


def measure(task: str, config: Config, name: str, options: argparse.Namespace) -> None:
    """Fits one task's log, and where it is a maze lets the environment judge."""
    held = None if options.logs is None else options.logs / f"{task}.hdf5"
    log = collect(task, seed=0) if held is None else load_dataset(held)
    model = None if options.model is None else load_model(options.model)
    result = fit(log, config, seed=options.seed, folder=options.run, model=model, on_record=tell)
    spent = {
        stage: sum(timing.seconds for timing in result.timings if timing.stage == stage)
        for stage in dict.fromkeys(timing.stage for timing in result.timings)
    }
    tried = sum(record.tried for record in result.records)
    accepted = sum(record.accepted for record in result.records)
    print(f"{name}: {len(log):,} rows, {tried:,} plans, {accepted:,} stitches")
    for stage, seconds in spent.items():
        print(f"figure {name}_{stage.replace(' ', '_')} {seconds:.1f} s")
    print(f"figure {name}_plans {tried} plans")
    print(f"figure {name}_stitches {accepted} stitches")
    print(f"figure {name}_value_of_the_log {result.log_value:.6g} value")
    print(f"figure {name}_value {result.value:.6g} value", flush=True)
    if not task.startswith("maze2d"):
        return
    maze = find_maze(task)
    comparison = compare_in_maze(
        result.mdp,
        result.solution.policy,
        maze,
        result.metric,
        tolerance=config.final_tolerance or config.stitch.tolerance,
        per_cell=maze.starts_per_cell,
        seed=options.seed,
    )
    for line in comparison.lines(name):
        print(line, flush=True)
    for line in score_lines(evaluate_in_maze(result.policy, maze, seed=options.seed), maze, name):
        print(line, flush=True)
    if result.certificate is not None:
        for line in coverage_lines(name, result, task, seed=options.seed):
            print(line, flush=True)


def tell(record: RoundRecord) -> None:
    print(
        f"  round {record.round}: {record.sources:,} sources, {record.candidates:,} candidates, "
        f"{record.tried:,} tried, {record.accepted:,} accepted, {record.refused}, mean error {record.mean_error:.3f}, "
        f"value {record.value:.2f}, {record.stitched_share:.0%} stitched",
        flush=True,
    )


if __name__ == "__main__":
    main()
