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
    study = """mountain-car [section 5 of the paper]: 20 random episodes and 5 of an expert. Measured are the returns of
    the expert, of a clone of the whole log and of BATS, the distances of replays and of the model to the stitched
    rollouts, the errors of the graph's values, and a lower bound on them"""
    parser.add_argument("study", choices=("mountain-car",), metavar="STUDY", help=study)
    table = """
    --seeds N  fits, all of the same log (default: 5)
    --episodes N  played by each policy of each seed (default: 100)
    --out FOLDER  folder for the runs, figures.json and mountain-car.svg; by default runs/STUDY
    """
    add_options(parser, table + QUIET)
    parser.epilog = "Called again, it continues where it was stopped; more seeds only add their own fits."


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
            "seeds": f"{of_seeds.min():.2f} to {of_seeds.max():.2f}",
            "worst episode": f"{returns.min():.2f}",
            "episodes": f"{returns.size:,}",
        }
    print_columns(columns, terminal.out)
    print_line(f"wrote {numbers} and {figure}", terminal.out)
    for name, (value, unit) in findings.figures().items():
        print_line(f"figure {name} {value:.6g} {unit}", terminal.out)
