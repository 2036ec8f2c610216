"""Bars with the time left for whatever takes long; plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import rich.progress
from rich.console import Console
from rich.text import Text

from bats.arrays import Progress, no_progress

PATIENCE = 0.5
"""seconds a stage may take before it is worth showing"""
LINE_EVERY = 5.0
"""seconds between two lines where there is no terminal"""


@contextmanager
def shown_progress(console: Console, *, quiet: bool = False) -> Iterator[Progress]:
    """A reporter that draws what it is told on `console`, and clears up when the block ends."""
    if quiet:
        yield no_progress
    elif console.is_terminal:
        with rich.progress.Progress(
            rich.progress.TextColumn("{task.description}", markup=False),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            console=console,
            transient=True,
        ) as bars:
            yield _Bars(bars)
    else:
        yield _Lines(console)


def _without_detail(stage: str) -> str:
    """The name of a stage; what it adds in brackets changes as it goes on."""
    return stage.split(" (")[0]


class _Bars:
    """One bar per stage, from the moment it proves slow."""

    def __init__(self, bars: rich.progress.Progress) -> None:
        self._bars = bars
        self._since: dict[str, float] = {}
        self._bar: dict[str, rich.progress.TaskID] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        name = _without_detail(stage)
        since = self._since.setdefault(name, time.monotonic())
        if name not in self._bar and time.monotonic() - since > PATIENCE and done < total:
            self._bar[name] = self._bars.add_task(stage, total=total)
        if name in self._bar:
            self._bars.update(self._bar[name], description=stage, completed=done, total=total)


class _Lines:
    """Now and then a line, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._since: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        now, name = time.monotonic(), _without_detail(stage)
        since = self._since.setdefault(name, now)
        if done >= total or now - self._last.setdefault(name, since) < LINE_EVERY:
            return
        self._last[name] = now
        left = (now - since) * (total - done) / max(done, 1)
        self._console.print(Text(f"{stage}: {done:,} of {total:,}, about {left:.0f} s left"))
