"""Locks: one process at a time, others are refused or wait."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

import pytest

from bats.errors import OutputError
from bats.storage.lock import POLL_SECONDS, locked


def test_a_lock_that_is_held_is_refused_and_can_be_had_afterwards(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    refused = pytest.raises(OutputError, match=f"Another process is working in {tmp_path}; wait until it ends")
    with locked(lock), refused, locked(lock):
        pass
    with locked(lock):
        pass


def test_who_waits_gets_the_lock_only_after_it_was_released(tmp_path: Path) -> None:
    entered = Event()

    def enter() -> None:
        with locked(tmp_path / "lock", wait=True):
            entered.set()

    waiting = Thread(target=enter)
    with locked(tmp_path / "lock"):
        waiting.start()
        assert not entered.wait(2.5 * POLL_SECONDS)  # it has tried by now, and more than once
    waiting.join()
    assert entered.is_set()
