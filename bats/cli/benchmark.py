"""`bats-rl benchmark`: the paper's experiments, and BATS beside other methods, each by one command."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

from bats.cli.data import QUIET
from bats.cli.options import add_options
from bats.cli.output import Terminal, print_columns, print_line, shown_progress

POLICIES = {"expert": "expert", "plain": "cloning the log", "bats": "BATS, then cloning"}


TASKS = {
    "maze2d": ("maze2d-umaze", "maze2d-medium", "maze2d-large"),
}
"""the studies that compare methods, and the tasks of each"""


def add_benchmark(parser: ArgumentParser) -> None:
    study = """mountain-car [section 5 of the paper]: the log has 20 random episodes and 5 episodes of an expert. The
    study measures the returns of the expert, of a clone of the whole log and of BATS. It also measures how far replays
    and model predictions are from the stitched rollouts, the errors of the graph's values, and a lower bound on these
    values. maze2d [Table 1]: ten baselines and BATS on three mazes, the score of every snapshot of every run"""
    parser.add_argument("study", choices=("mountain-car", *TASKS), metavar="STUDY", help=study)
    table = """
    --seeds N  number of fits (seeds 0 to N-1), all on the same log; the default is 5, and 3 where methods are compared
    --episodes N  episodes per policy and seed; the default is 100, and in mazes a fixed number of starts per cell
    --out FOLDER  folder for the runs and the results; the default is runs/STUDY
    --methods NAMES  only where methods are compared: some of them, separated by commas; the default is all
    --updates N  only where methods are compared: updates of every baseline; the default is each method's own
    --workers N  only where methods are compared: processes that evaluate snapshots (default: 1)
    """
    add_options(parser, table + QUIET)
    parser.epilog = "An interrupted study continues when it is called again. With a larger --seeds, only new fits run."


def run_benchmark(arguments: Namespace, terminal: Terminal) -> None:
    (_run_mountain_car if arguments.study == "mountain-car" else _run_comparison)(arguments, terminal)


def _run_comparison(arguments: Namespace, terminal: Terminal) -> None:
    from bats.studies.comparison import ComparisonConfig, read_scores, run_comparison, write_results

    folder = arguments.out or Path("runs") / arguments.study
    config = ComparisonConfig(
        tasks=TASKS[arguments.study],
        methods=ComparisonConfig().methods if arguments.methods is None else tuple(arguments.methods.split(",")),
        seeds=arguments.seeds or 3,
        episodes=arguments.episodes,
        updates=arguments.updates,
    )
    with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
        run_comparison(folder, config, workers=arguments.workers, progress=progress)
    scores = read_scores(folder, config)
    for path in write_results(folder, f"Methods compared: {arguments.study}", scores):
        print_line(f"wrote {path}", terminal.out)
    for method in config.methods:
        for task in config.tasks:
            last = [score.last for score in scores if (score.method, score.task) == (method, task)]
            if last:
                print_line(f"figure {method}_{task}_last_policy {sum(last) / len(last):.6g} score", terminal.out)


def _run_mountain_car(arguments: Namespace, terminal: Terminal) -> None:
    # With JAX and matplotlib, which other commands do without. A missing matplotlib is noticed before any fitting.
    from bats.studies import mountain_car
    from bats.studies.car_figure import draw_findings, save_figure

    folder = arguments.out or Path("runs") / arguments.study
    config = replace(mountain_car.DEFAULT, seeds=arguments.seeds or 5, episodes=arguments.episodes or 100)
    with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
        findings = mountain_car.run_study(folder, config, progress=progress)
    numbers, figure = folder / "figures.json", folder / "mountain-car.svg"
    findings.save(numbers)
    save_figure(draw_findings(findings), figure)
    columns = {}
    for policy, returns in findings.returns.items():
        of_seeds = returns.mean(axis=1)
        columns[POLICIES[policy]] = {
            "mean return": f"{returns.mean():.2f}",
            "range over the seeds": f"{of_seeds.min():.2f} to {of_seeds.max():.2f}",
            "worst episode": f"{returns.min():.2f}",
            "episodes": f"{returns.size:,}",
        }
    print_columns(columns, terminal.out)
    print_line(f"wrote {numbers} and {figure}", terminal.out)
    for name, (value, unit) in findings.figures().items():
        print_line(f"figure {name} {value:.6g} {unit}", terminal.out)
