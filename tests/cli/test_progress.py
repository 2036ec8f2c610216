"""Progress is drawn for what is slow, as bars on a terminal and as lines elsewhere."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from bats.cli.output import PATIENCE, shown_progress


def test_slow_stages_get_a_bar_on_a_terminal_and_quick_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0, 100, PATIENCE * 0.8))
    monkeypatch.setattr("bats.cli.output.time.monotonic", lambda: float(next(clock)))
    screen = io.StringIO()
    with shown_progress(Console(file=screen, force_terminal=True, width=100)) as progress:
        progress("quick", 1, 1)
        for done in range(4):
            progress(f"slow (error {done})", done, 4)
    assert "slow" in screen.getvalue()
    assert "quick" not in screen.getvalue()


def test_without_a_terminal_there_is_a_line_now_and_then_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 6.0, 7.0])
    monkeypatch.setattr("bats.cli.output.time.monotonic", lambda: next(clock))
    screen = io.StringIO()
    with shown_progress(Console(file=screen, width=100)) as progress:
        for done in (0, 1, 3, 4):
            progress("reading", done, 9)
    assert screen.getvalue() == "reading: 3 of 9, about 12 s left\n"  # 6 s for 3, so 12 s for the other 6


def test_the_time_left_of_continued_work_does_not_count_what_was_done_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 6.0])
    monkeypatch.setattr("bats.cli.output.time.monotonic", lambda: next(clock))
    screen = io.StringIO()
    with shown_progress(Console(file=screen, width=100)) as progress:
        for done in (50, 53):
            progress("collecting", done, 59)
    assert screen.getvalue() == "collecting: 53 of 59, about 12 s left\n"  # 6 s for 3, so 12 s for the other 6


def test_the_time_left_of_work_that_begins_again_does_not_count_the_time_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 100.0, 200.0, 206.0])
    monkeypatch.setattr("bats.cli.output.time.monotonic", lambda: next(clock))
    screen = io.StringIO()
    with shown_progress(Console(file=screen, width=100)) as progress:
        for done in (0, 9, 0, 3):
            progress("cloning", done, 9)
    assert screen.getvalue() == "cloning: 3 of 9, about 12 s left\n"


def test_a_bar_begins_again_with_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0.0, 1000.0, 10.0))
    monkeypatch.setattr("bats.cli.output.time.monotonic", lambda: float(next(clock)))
    screen = io.StringIO()
    with shown_progress(Console(file=screen, force_terminal=True, width=100)) as progress:
        for done in (0, 8, 9, 0, 1):
            progress("cloning", done, 9)
    last = screen.getvalue().rsplit("cloning", 1)[1]
    assert "1/9" in last
    assert "0:00:00" not in last  # the time left of finished work


def test_the_name_of_a_stage_cannot_control_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        clock = iter(np.arange(0.0, 100.0, 10.0))
        monkeypatch.setattr("bats.cli.output.time.monotonic", lambda clock=clock: float(next(clock)))
        screen = io.StringIO()
        with shown_progress(Console(file=screen, force_terminal=terminal, width=100)) as progress:
            for done in (1, 2):
                progress("reading \x1b]0;title\x07.csv", done, 9)
        assert r"reading \x1b]0;title" in screen.getvalue()
        assert "\x1b]0" not in screen.getvalue()
        assert "\x07" not in screen.getvalue()


def test_quiet_draws_nothing() -> None:
    screen = io.StringIO()
    with shown_progress(Console(file=screen, force_terminal=True), quiet=True) as progress:
        progress("reading", 1, 9)
    assert screen.getvalue() == ""
