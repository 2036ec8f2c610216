"""Ctrl-C: never lost, never in the middle of foreign code, and a run that was interrupted ends as one left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import bats
from bats.arrays import no_progress
from bats.data.formats.hdf5 import write_hdf5
from bats.runs.interrupts import noted_interrupts, stoppable
from bats.storage.json_records import write_record
from tests.runs.test_kill import checksums
from tests.small_runs import SMALL, small_log

INTERRUPTS = 100
PATIENCE = 10.0
"""most seconds from Ctrl-C to the end"""

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sends signals")


@pytest.fixture(autouse=True)
def python_handler() -> Iterator[None]:
    """Python's own handler; a shell ignores the signal in what it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def is_interrupted(work: Callable[[], object]) -> bool:
    """Whether some work in a block that notes interrupts ends with one."""
    try:
        with noted_interrupts():
            work()
    except KeyboardInterrupt:
        return True
    return False


def test_an_interrupt_is_raised_by_the_next_report_of_progress() -> None:
    reports = []

    def work() -> None:
        progress = stoppable(lambda stage, done, total: reports.append(done))
        progress("work", 1, 3)
        interrupt()
        reports.append(0)  # the work goes on until it reports
        progress("work", 2, 3)

    assert is_interrupted(work)
    assert reports == [1, 0]


def test_an_interrupt_without_a_further_report_is_raised_at_the_end_and_only_once() -> None:
    ended = []
    assert is_interrupted(lambda: (interrupt(), ended.append(True)))
    assert ended
    assert not is_interrupted(lambda: stoppable(no_progress)("work", 1, 1))


def test_a_second_interrupt_does_not_wait() -> None:
    ended = []
    assert is_interrupted(lambda: (interrupt(), interrupt(), ended.append(True)))
    assert not ended


def test_the_outer_block_decides_what_a_second_interrupt_does() -> None:
    ended, seconds = [], []
    with pytest.raises(KeyboardInterrupt), noted_interrupts(second=lambda *_: seconds.append(True)):
        is_interrupted(lambda: (interrupt(), interrupt(), ended.append(True)))
    assert ended == seconds == [True]


def test_another_thread_and_a_handler_of_somebody_else_are_left_alone() -> None:
    def other(number: int, frame: object) -> None:
        handled.append(number)

    handled: list[int] = []
    signal.signal(signal.SIGINT, other)
    with noted_interrupts():
        assert signal.getsignal(signal.SIGINT) is other
        interrupt()
    assert handled == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def work() -> None:
        with noted_interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    found: list[object] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_an_interrupted_fit_continues_where_it_was(finished_run: Path, tmp_path: Path) -> None:
    def interrupt_in_stitching(stage: str, done: int, total: int) -> None:
        if stage == "stitching" and done == 2:
            interrupt()

    with pytest.raises(KeyboardInterrupt):
        bats.fit(small_log(), SMALL, folder=tmp_path / "run", progress=interrupt_in_stitching)
    assert (tmp_path / "run" / "mdp" / "round-0002.safetensors").exists()
    assert not (tmp_path / "run" / "finished.json").exists()
    bats.fit(small_log(), SMALL, folder=tmp_path / "run")
    assert checksums(tmp_path / "run") == checksums(finished_run)


@pytest.mark.long
@pytest.mark.slow
def test_a_hundred_interrupts_at_random_moments_end_soon_and_lose_nothing(tmp_path: Path) -> None:
    write_hdf5(small_log(), tmp_path / "log.hdf5")
    write_record(tmp_path / "settings.json", SMALL)
    rng = np.random.default_rng(0)

    def start(folder: Path) -> subprocess.Popen[str]:
        arguments = ["fit", "log.hdf5", "--config", "settings.json", "--out", str(folder)]
        program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        program += "from bats.cli import command; command()"
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def left_alone(folder: Path) -> float:
        began = time.monotonic()
        with start(folder) as process:
            assert process.communicate()[1].count("Traceback") == 0
        assert process.returncode == 0
        return time.monotonic() - began

    left_alone(tmp_path / "compiled")  # later processes find their programs compiled
    duration = left_alone(tmp_path / "undisturbed")
    expected, interrupts, fits, longest = checksums(tmp_path / "undisturbed"), 0, 0, 0.0
    while interrupts < INTERRUPTS:
        folder = tmp_path / f"run-{fits}"
        while True:
            with start(folder) as process:
                time.sleep(rng.uniform(0.3, duration))
                sent = time.monotonic()
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=60)
            assert process.returncode in (130, 0), (process.returncode, errors)
            assert "Traceback" not in errors
            assert "ignored" not in errors
            if process.returncode == 0:
                break
            longest = max(longest, time.monotonic() - sent)
            interrupts += 1
        assert checksums(folder) == expected
        fits += 1
        print(f"{interrupts} interrupts, {fits} fits, at most {longest:.1f} s")
    assert longest < PATIENCE
