"""A fit: its seconds and values and, in the mazes, what the true environment says of its graph, clone and bounds.

    python -m benchmarks.stitching                                   all three mazes with the default settings
    python -m benchmarks.stitching hopper grid                       other tasks: seconds and values only
    python -m benchmarks.stitching maze2d-umaze --preset paper-umaze
    python -m benchmarks.stitching maze2d-large --preset paper-large --attempts 5000
    python -m benchmarks.stitching maze2d-umaze --run runs/umaze     keeps the run, and continues it if it exists
    python -m benchmarks.stitching maze2d-umaze --quick              few rows, updates and rounds, to see that it runs

Logs are collected with seed 0 at their usual sizes. In a maze, the graph's actions are played open loop from stratified
starts, and every stitch on the policy's rollouts is played alone from its exact source state. The run's policy and the
clone of the graph's policy play from the starts that every policy is evaluated from, and the bounds are compared with
true values. The environment only measures; nothing is selected by it.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from bats.config import Config
from bats.model.fit import load_model
from bats.presets import changed, preset
from bats.runs.pipeline import fit
from bats.runs.records import POLICY_NAMES, seconds_by_stage
from bats.stitching.records import RoundRecord
from bats.tasks.maze2d import find_maze
from benchmarks.certificate_coverage import coverage
from benchmarks.common import QUICK, QUICK_ROWS, print_figures, script_parser, task_log
from benchmarks.maze_replay import compare_in_maze
from benchmarks.maze_score import evaluate_in_maze, score_figures

TASKS = ("maze2d-umaze", "maze2d-medium", "maze2d-large")


def main() -> None:
    parser = script_parser(__doc__, quick="few rows, updates and rounds")
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--attempts", type=int, help="stitches planned each round, where the preset's are too many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, help="folder to keep the run of a single task in")
    parser.add_argument("--model", type=Path, help="a model trained before on the same log, to train none")
    parser.add_argument("--logs", type=Path, help="folder with logs named after the tasks, to collect none")
    arguments = parser.parse_args()
    if arguments.run is not None and len(arguments.tasks) != 1:
        parser.error("--run keeps the run of one task; name it")
    config = QUICK if arguments.quick else preset(arguments.preset)
    if arguments.attempts is not None:
        samples = min(arguments.attempts, config.stitch.samples)
        config = changed(config, stitch={"attempts": arguments.attempts, "samples": samples})
    for task in arguments.tasks:
        measure(task, config, arguments)


def measure(task: str, config: Config, arguments: Namespace) -> None:
    """Fits the log of one task, and measures it in the environment where it is a maze."""
    file = None if arguments.logs is None else arguments.logs / f"{task}.hdf5"
    log = task_log(task, file, rows=QUICK_ROWS if arguments.quick else None)
    model = None if arguments.model is None else load_model(arguments.model)
    result = fit(log, config, seed=arguments.seed, folder=arguments.run, model=model, on_round=print_round)
    seconds = seconds_by_stage(result.timings)
    # a preset of the paper is named after its task, which is in the name already
    prefix = f"{task.removeprefix('maze2d-')}_{arguments.preset.split('-')[0]}_"
    figures = [
        *((stage.replace(" ", "_"), spent, "s") for stage, spent in seconds.items()),
        ("plans", sum(record.tried for record in result.records), "plans"),
        ("stitches", sum(record.accepted for record in result.records), "stitches"),
        ("value_of_the_log", result.log_value, "value"),
        ("value", result.value, "value"),
    ]
    print_figures(figures, prefix=prefix)
    if not task.startswith("maze2d"):
        return
    maze = find_maze(task)
    per_cell = 2 if arguments.quick else maze.starts_per_cell
    comparison = compare_in_maze(
        result.mdp,
        result.solution.policy,
        maze,
        result.metric,
        tolerance=config.final_tolerance or config.stitch.tolerance,
        per_cell=per_cell,
        seed=arguments.seed,
    )
    print_figures(comparison.figures(), prefix=prefix)
    print(f"  kept: {POLICY_NAMES[result.summary.policy]}", flush=True)
    for name, policy in {"": result.policy, "clone_": result.graph_clone}.items():
        evaluation = evaluate_in_maze(policy, maze, seed=arguments.seed, per_cell=per_cell)
        print_figures(score_figures(evaluation, maze), prefix=prefix + name)
    if result.certificate is not None:
        print_figures(coverage(result, task, seed=arguments.seed), prefix=prefix)


def print_round(record: RoundRecord) -> None:
    print(
        f"  round {record.round}: {record.sources:,} sources, {record.candidates:,} candidates, "
        f"{record.tried:,} tried, {record.accepted:,} accepted, {record.refused}, mean error {record.mean_error:.3f}, "
        f"value {record.value:.2f}, {record.stitched_share:.0%} stitched",
        flush=True,
    )


if __name__ == "__main__":
    main()
