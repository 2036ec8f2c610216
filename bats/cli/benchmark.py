"""`bats-rl benchmark`: the paper's experiments, each fitted, played, measured and drawn by one command."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

from bats.cli.data import QUIET
from bats.cli.options import add_options
from bats.cli.output import Terminal, print_columns, print_line, shown_progress

POLICIES = {"expert": "expert", "plain": "cloning the log", "bats": "BATS, then cloning"}


def add_benchmark(parser: ArgumentParser) -> None:
    study = """mountain-car [section 5 of the paper]: the log has 20 random episodes and 5 episodes of an expert. The
    study measures the returns of the expert, of a clone of the whole log and of BATS. It also measures how far replays
    and model predictions are from the stitched rollouts, the errors of the graph's values, and a lower bound on these
    values"""
    parser.add_argument("study", choices=("mountain-car",), metavar="STUDY", help=study)
    table = """
    --seeds N  number of fits (seeds 0 to N-1), all on the same log (default: 5)
    --episodes N  episodes per policy and seed (default: 100)
    --out FOLDER  folder for the runs, figures.json and mountain-car.svg; the default is runs/STUDY
    """
    add_options(parser, table + QUIET)
    parser.epilog = "An interrupted study continues when it is called again. With a larger --seeds, only new fits run."


def run_benchmark(arguments: Namespace, terminal: Terminal) -> None:
    # With JAX and matplotlib, which other commands do without. A missing matplotlib is noticed before any fitting.
    from bats.studies import mountain_car
    from bats.studies.car_figure import draw_findings, save_figure

    folder = arguments.out or Path("runs") / arguments.study
    config = replace(mountain_car.DEFAULT, seeds=arguments.seeds, episodes=arguments.episodes)
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
