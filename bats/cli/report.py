"""`bats-rl report`: a finished run as a page, or several runs side by side."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from bats.cli.export import OR_OVERWRITE
from bats.cli.options import add_options
from bats.cli.output import Terminal, print_line
from bats.report.page import NAME, compare_reports, write_report
from bats.storage.atomic import refuse_existing

COMPARISON = Path("comparison.html")


def add_report(parser: ArgumentParser) -> None:
    table = f"""
    RUN...  folder of a finished run; several runs are shown side by side
    --out FILE  file to write; the default is {NAME} in the run's folder, or for several runs {COMPARISON} in the
        current folder
    --overwrite  replace the file if it exists
    """
    add_options(parser, table)


def run_report(arguments: Namespace, terminal: Terminal) -> None:
    alone = len(arguments.run) == 1
    target = arguments.out or (arguments.run[0] / NAME if alone else COMPARISON)
    refuse_existing(target, overwrite=arguments.overwrite, hint=OR_OVERWRITE)
    if alone:
        write_report(arguments.run[0], target, overwrite=arguments.overwrite)
    else:
        compare_reports(arguments.run, target, overwrite=arguments.overwrite)
    print_line(f"wrote {target}", terminal.out)
