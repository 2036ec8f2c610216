"""Ctrl-C during long work: noted at once, raised where the work can be left.

Python raises KeyboardInterrupt wherever it happens to be. Inside a callback of a compiler or of the garbage collector,
the exception is printed and lost, and foreign code that is left halfway may crash. So the signal only sets a flag, and
`KeyboardInterrupt` is raised by the next report of progress.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from bats.arrays import Progress

_noted = threading.Event()


@contextmanager
def noted_interrupts(
    second: Callable[[int, FrameType | None], object] = signal.default_int_handler,
) -> Iterator[None]:
    """Notes Ctrl-C within the block, and raises it at the block's end at the latest; `second` handles another one.

    Nothing changes outside of the main thread, and where the signal is handled already.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        if _noted.is_set():
            second(number, frame)
        _noted.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield
        raise_if_interrupted()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _noted.clear()


def raise_if_interrupted() -> None:
    """Raises the interrupt that was noted, if any."""
    if _noted.is_set():
        raise KeyboardInterrupt


def stoppable(progress: Progress) -> Progress:
    """The same progress, which raises an interrupt that was noted."""

    def report(stage: str, done: int, total: int) -> None:
        raise_if_interrupted()
        progress(stage, done, total)

    return report
