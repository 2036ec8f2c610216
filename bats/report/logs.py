"""A comparison log by log: what each log earned itself, and how far every method comes from there to the reference.

Whatever has scores is a column, in the order of the scores: another policy of the same runs only needs a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bats.report.benchmark import RunScore, mean_and_error, of_seeds
from bats.report.html import Table


@dataclass(frozen=True)
class LogScore:
    """What a log earned, in a task with reference scores."""

    task: str
    rows: int
    mean: float
    """mean score of its episodes"""


def log_tables(logs: Sequence[LogScore], scores: Sequence[RunScore]) -> tuple[Table, ...]:
    """Scores, how far they are on the way to the reference, and verdicts with certified bounds."""
    methods = list(dict.fromkeys(score.method for score in scores))
    earned, shares = [], []
    for log in logs:
        of_log = [[one.last for one in scores if (one.method, one.task) == (name, log.task)] for name in methods]
        earned.append([log.task, f"{log.rows:,}", f"{log.mean:.1f}", *map(of_seeds, of_log), "100"])
        shares.append([log.task, *(share_of_the_way(log, values) for values in of_log)])
    certified = [
        (one.task, one.method, f"{one.seed}", one.certified[0], *(f"{value:.5g}" for value in one.certified[1:]))
        for one in scores
        if one.certified is not None
    ]
    return (
        Table(
            ["log", "rows", "mean of the log", *methods, "reference"],
            earned,
            "scores of the last policies: mean over the seeds ± standard error (every seed)",
        ),
        Table(["log", *methods], shares, "share of the way from the mean of the log to the reference"),
        Table(
            ["log", "method", "seed", "verdict", "lower bound", "upper bound", "value of the log"],
            certified,
            "verdicts and certified bounds on the discounted value at the starts",
        ),
    )


def share_of_the_way(log: LogScore, values: Sequence[float | None]) -> str:
    """Where the mean of the seeds lies between the mean of the log, 0%, and the reference, 100%."""
    known = [value for value in values if value is not None]
    return f"{(mean_and_error(known)[0] - log.mean) / (100 - log.mean):.0%}" if known else ""
