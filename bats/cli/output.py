"""What the command shows: tables of facts, notes, lines and progress.

Names of files and text from files are never taken as markup, and never control the terminal.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bats.arrays import Progress, no_progress
from bats.data.dataset import Dataset
from bats.data.episodes import Note, plural
from bats.errors import printable
from bats.runs.interrupts import stoppable

PATIENCE = 0.5
"""seconds that a stage may take before it is worth showing"""
LINE_EVERY = 5.0
"""seconds between two lines of progress where there is no terminal"""
MARKS = {"problem": ("!", "bold red"), "decision": ("·", "cyan"), "fact": ("·", "dim")}


@dataclass(frozen=True)
class Terminal:
    """Where results go, and where progress and errors go."""

    out: Console
    err: Console


def shown_text(text: str | Text) -> Text:
    """Text without control characters, such as a file's name may have; styles stay where they are."""
    if isinstance(text, str):
        return Text(printable(text))
    shown = text.copy()
    shown.plain = printable(shown.plain)
    return shown


def shell_word(path: Path | str) -> str:
    """A path as a command that is shown has to have it."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def print_facts(title: str, facts: dict[str, str], out: Console) -> None:
    """A table of names and values."""
    table = Table(title=shown_text(title), title_justify="left", show_header=False)
    for name, fact in facts.items():
        table.add_row(name, shown_text(fact))
    out.print(table)


def print_columns(columns: dict[str, dict[str, str]], out: Console) -> None:
    """Columns of the same facts side by side; a missing fact is left empty."""
    table = Table("", *columns)
    for name in dict.fromkeys(name for facts in columns.values() for name in facts):
        table.add_row(name, *(shown_text(facts.get(name, "")) for facts in columns.values()))
    out.print(table)


def print_notes(dataset: Dataset, out: Console) -> None:
    """The problems found while reading a log, and the number of decisions made."""
    for note in dataset.notes:
        if note.kind == "problem":
            print_note(note, out)
    decisions = sum(note.kind == "decision" for note in dataset.notes)
    if decisions:
        print_line(f"{plural(decisions, 'decision')} made while reading the log; `bats-rl validate` shows them", out)


def print_note(note: Note, out: Console) -> None:
    mark, style = MARKS[note.kind]
    print_line(Text.assemble((f"{mark} {note.kind}: ", style), printable(note.text)), out)


def print_line(line: str | Text, out: Console) -> None:
    # lines that go into a file are not wrapped, so that they can be searched
    out.print(shown_text(line), soft_wrap=not out.is_terminal)


def print_error(message: str, err: Console) -> None:
    print_line(Text.assemble(("error: ", "bold red"), message), err)


@contextmanager
def shown_progress(console: Console, *, quiet: bool = False) -> Iterator[Progress]:
    """A progress display on `console`, which is removed when the block ends."""
    if quiet:
        yield stoppable(no_progress)
    elif console.is_terminal:
        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with rich.progress.Progress(*columns, console=console, transient=True) as bars:
            yield stoppable(_Bars(bars))
    else:
        yield stoppable(_Lines(console))


def _without_detail(stage: str) -> str:
    """The name of a stage; what it adds in brackets changes as it goes on."""
    return stage.split(" (")[0]


class _Bars:
    """One bar per stage, from the moment it proves slow."""

    def __init__(self, bars: rich.progress.Progress) -> None:
        self._bars = bars
        self._since: dict[str, float] = {}
        self._bar: dict[str, TaskID] = {}
        self._done: dict[str, int] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        name, stage = _without_detail(stage), shown_text(stage).plain
        if done < self._done.get(name, 0) and name in self._bar:  # the same work begins again, for another policy say
            self._bars.reset(self._bar[name])
        self._done[name] = done
        since = self._since.setdefault(name, time.monotonic())
        if name not in self._bar and time.monotonic() - since > PATIENCE and done < total:
            self._bar[name] = self._bars.add_task(stage, total=total)
        if name in self._bar:
            self._bars.update(self._bar[name], description=stage, completed=done, total=total)


class _Lines:
    """Now and then a line, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._since: dict[str, tuple[float, int]] = {}
        self._last: dict[str, float] = {}
        self._done: dict[str, int] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        now, name = time.monotonic(), _without_detail(stage)
        if done < self._done.get(name, 0):  # the same work begins again, for another policy say
            self._since.pop(name)
            self._last.pop(name, None)
        self._done[name] = done
        since, before = self._since.setdefault(name, (now, done))  # what was done before was not done in this time
        if done >= total or now - self._last.setdefault(name, since) < LINE_EVERY:
            return
        self._last[name] = now
        left = (now - since) * (total - done) / max(done - before, 1)
        print_line(f"{stage}: {done:,} of {total:,}, about {left:.0f} s left", self._console)
