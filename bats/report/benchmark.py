"""Methods, tasks and seeds side by side: as Markdown, as CSV and as one HTML page.

Two figures of a method must never be confused: the score of its last policy, which is its result, and the score of the
best of its snapshots, which somebody picked who could look at the environment. They have columns and tables of their
own, and the second one says what it is wherever it is shown.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import cycle

import numpy as np

from bats.bounds.certificate import Certificate
from bats.report import plots
from bats.report.baseline import curve_trace
from bats.report.html import Figure, Page, Section, Table, Tile

LAST = "last policy"
PICKED = "best snapshot, picked by its score in the environment"


@dataclass(frozen=True)
class RunScore:
    """What one run of a method earned; scores are mean returns where a task has no reference scores."""

    method: str
    task: str
    seed: int
    updates: int
    last: float | None
    """score of the last policy; None where training diverged before there was one"""
    low: float | None
    """95% interval over the episodes of its evaluation"""
    high: float | None
    picked: float | None
    """largest score of all snapshots; None where there is only one policy"""
    picked_update: int | None
    episodes: int
    seconds: float
    """training of all runs that were trained together"""
    together: int
    divergence: str
    """what was not finite, where training diverged"""
    curve: tuple[tuple[int, float, float, float], ...] = ()
    """update, score, and its interval, of every snapshot"""
    certificate: Certificate | None = None
    """of the policy, where one was made"""

    @property
    def certified(self) -> tuple[str, float, float, float] | None:
        """The verdict in a word, the bounds of the policy, and the value of the log."""
        one = self.certificate
        if one is None:
            return None
        return "deploy" if one.deploy else "hold", one.clone.lower, one.clone.upper, one.logged_value


@dataclass(frozen=True)
class Published:
    """A figure from a paper or a repository."""

    method: str
    task: str
    score: float
    source: str
    error: float | None = None
    """its own plus or minus, where it has one"""

    def __str__(self) -> str:
        return f"{self.score:.1f}" + ("" if self.error is None else f" ± {self.error:.1f}") + f" {self.source}"


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error; 0 for a single value."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else 0.0


def of_seeds(values: Sequence[float | None]) -> str:
    """The mean with its standard error, and the value of every seed; empty where no seed has one."""
    known = [number for number in values if number is not None]
    if not known:
        return ""
    mean, error = mean_and_error(known)
    seeds = ", ".join("none" if number is None else f"{number:.1f}" for number in values)
    return f"{mean:.1f} ± {error:.1f} ({seeds})"


def score_table(
    scores: Sequence[RunScore], published: Sequence[Published], value: Callable[[RunScore], float | None]
) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: a method per row, its mean over the seeds and every seed per task, published figures beside."""
    tasks, methods = (list(dict.fromkeys(getattr(score, name) for score in scores)) for name in ("task", "method"))
    known_tasks, rows = {one.task for one in published}, []
    for method in methods:
        row = [method]
        for task in tasks:
            values = [value(one) for one in scores if (one.method, one.task) == (method, task)]
            row.append(of_seeds(values))
            if task in known_tasks:
                others = [one for one in published if (one.method, one.task) == (method, task)]
                row.append("; ".join(map(str, others)))
        rows.append(row)
    columns = [(task, f"{task}, published") if task in known_tasks else (task,) for task in tasks]
    return ["method", *(name for column in columns for name in column)], rows


def time_table(scores: Sequence[RunScore]) -> tuple[list[str], list[list[str]]]:
    """How long each method trained, and how often it diverged."""
    rows = []
    for method in dict.fromkeys(score.method for score in scores):
        runs = [score for score in scores if score.method == method]
        updates = sorted({score.updates for score in runs})
        seconds = sorted({(score.seconds, score.together) for score in runs})
        times = "; ".join(f"{time:.0f} s" + (f" for {count} runs" if count > 1 else "") for time, count in seconds)
        diverged = sum(bool(score.divergence) for score in runs)
        rows.append([method, " or ".join(f"{number:,}" for number in updates), times, f"{diverged} of {len(runs)}"])
    return ["method", "updates", "training", "diverged"], rows


def as_markdown(scores: Sequence[RunScore], published: Sequence[Published], tables: Sequence[Table] = ()) -> str:
    """The comparison as text; `tables` of a study's own come first."""
    parts: list[tuple[str, tuple[Sequence[str], Sequence[Sequence[str]]]]] = [
        *((table.title, (table.heading, table.rows)) for table in tables),
        (f"{LAST}: mean over the seeds ± standard error (every seed)", score_table(scores, published, _last)),
        (
            f"{PICKED}: not a result, because nobody can pick it without the environment",
            score_table(scores, (), _picked),
        ),
        ("time", time_table(scores)),
    ]
    text = ""
    for title, (heading, rows) in parts:
        lines = [heading, ["---"] * len(heading), *rows]
        text += f"### {title[0].upper()}{title[1:]}\n\n"
        text += "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines) + "\n"
    return text


def as_csv(scores: Sequence[RunScore]) -> str:
    """One line per run."""
    columns = ["method", "task", "seed", "updates", "last_policy", "low", "high"]
    columns += ["picked_by_environment", "picked_update", "episodes", "seconds", "trained_together", "divergence"]
    columns += ["verdict", "lower_bound", "upper_bound", "value_of_the_log"]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for one in scores:
        numbers = (one.updates, one.last, one.low, one.high, one.picked, one.picked_update, one.episodes)
        training = (one.seconds, one.together, one.divergence)
        writer.writerow([one.method, one.task, one.seed, *numbers, *training, *(one.certified or (None,) * 4)])
    return stream.getvalue()


def benchmark_page(
    title: str, scores: Sequence[RunScore], published: Sequence[Published], tables: Sequence[Table] = ()
) -> Page:
    """The comparison as a page, with learning curves; `tables` of a study's own come first."""
    heading, rows = score_table(scores, published, _last)
    picked_heading, picked_rows = score_table(scores, (), _picked)
    time_heading, time_rows = time_table(scores)
    tasks = list(dict.fromkeys(score.task for score in scores))
    sections = [
        *([Section("Log by log", tables=tables)] if tables else []),
        Section(
            f"Result: the {LAST}",
            "Mean over the seeds ± standard error (every seed). Nothing was selected.",
            tables=[Table(heading, rows)],
            figures=[_bars(task, scores) for task in tasks],
        ),
        Section(
            "Learning curves",
            "Every line is one run. Error bars are 95% intervals over the episodes.",
            figures=[_curves(task, scores) for task in tasks if any(one.curve for one in scores if one.task == task)],
        ),
        Section(
            f"Not a result: the {PICKED}",
            "What a method would have earned if somebody had evaluated every snapshot in the environment and kept the "
            "best one. Many published figures are of this kind. Do not compare them with the table above.",
            tables=[Table(picked_heading, picked_rows)],
        ),
        Section("Times", tables=[Table(time_heading, time_rows)]),
    ]
    return Page(
        title=title,
        subtitle="Baselines and BATS on the same logs",
        tiles=[Tile(f"Best in {task}", *_best_method(task, scores)) for task in tasks],
        sections=sections,
        footer=f"Written by bats-rl {version('bats-rl')}. This page makes no network requests.",
    )


def _last(score: RunScore) -> float | None:
    return score.last


def _picked(score: RunScore) -> float | None:
    return score.picked


def _lasts(scores: Sequence[RunScore], method: str, task: str) -> list[float]:
    """The scores of a method's last policies, of those runs that have one."""
    return [one.last for one in scores if (one.method, one.task) == (method, task) and one.last is not None]


def _best_method(task: str, scores: Sequence[RunScore]) -> tuple[str, str]:
    """The method with the largest mean score of its last policies, and that score."""
    methods = dict.fromkeys(score.method for score in scores if score.task == task)
    means = {
        method: mean_and_error(_lasts(scores, method, task))[0] for method in methods if _lasts(scores, method, task)
    }
    if not means:
        return "none", "every run has diverged"
    best = max(means, key=lambda method: means[method])
    return best, f"{means[best]:.1f}, {LAST}"


def _bars(task: str, scores: Sequence[RunScore]) -> Figure:
    of_task = [score for score in scores if score.task == task]
    methods = list(dict.fromkeys(score.method for score in of_task))
    methods = [method for method in methods if _lasts(scores, method, task)]
    means = [mean_and_error(_lasts(scores, method, task)) for method in methods]
    ends = {"type": "data", "array": [error for _, error in means], "thickness": 1.5}
    hover = "%{x}: %{y:.1f}<extra></extra>"
    trace = plots.bars(LAST, methods, [mean for mean, _ in means], plots.ORANGE, hover, error_y=ends)
    seeds = plots.scatter(
        "a seed", [one.method for one in of_task], [one.last for one in of_task], hover, marker={"color": plots.GREY}
    )
    caption = f"Scores of the {LAST}: mean over the seeds with its standard error, and every seed."
    return Figure(f"bars-{_letters(task)}", task, caption, [trace, seeds], plots.axes("", "score"))


def _curves(task: str, scores: Sequence[RunScore]) -> Figure:
    of_task = [score for score in scores if score.task == task and score.curve]
    colours = dict(zip(dict.fromkeys(score.method for score in of_task), cycle(plots.PALETTE)))
    traces = []
    for score in of_task:
        updates = [update for update, *_ in score.curve]
        values = [(mean, low, high) for _, mean, low, high in score.curve]
        trace = curve_trace(score.method, updates, values, colours[score.method])
        traces.append(trace | {"legendgroup": score.method, "showlegend": score.seed == 0})
    layout = plots.axes("update", "score") | plots.LEGEND
    return Figure(f"curves-{_letters(task)}", task, "Scores of the snapshots.", traces, layout)


def _letters(task: str) -> str:
    """A task's name as letters and hyphens."""
    return "".join(letter if letter.isalpha() else "-" for letter in task)
