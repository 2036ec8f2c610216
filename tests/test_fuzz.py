"""However a file is damaged, a reader either reads it or complains with a `BatsError`; it never crashes or hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz_worker import KINDS

WORKER = Path(__file__).with_name("fuzz_worker.py")
SEEDS = 400
SECONDS = 120
"""for all seeds of a kind; they take about three"""


def campaign(kind: str, first: int, last: int, folder: Path, *, seconds: float = SECONDS) -> str:
    """Tries the seeds in a process of their own; returns what went wrong, or nothing."""
    command = [sys.executable, str(WORKER), str(folder), kind, str(first), str(last)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode()
        return f"{kind}: still running after {seconds:g} s, at seed {output.split()[-1:]}"
    if ended.returncode:
        return f"{kind}: ended with {ended.returncode} at seed {ended.stdout.split()[-1:]}: {ended.stderr[-2000:]}"
    escaped = [line for line in ended.stdout.splitlines() if line.startswith("ESCAPED")]
    tried = ended.stdout.count("\n") - len(escaped)
    return f"{kind}: {escaped[0]}" if escaped else "" if tried == last - first else f"{kind}: only {tried} seeds tried"


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_only_ever_raise_our_own_errors(kind: str, tmp_path: Path) -> None:
    assert campaign(kind, 0, SEEDS, tmp_path) == ""
