"""Calls `bats-rl validate` on logs and measures the memory it takes.

    python -m tests.memory_worker FILE... [-- OPTION...]

Every file gets a forked process of its own with a limited address space, so that one log cannot hide another one's
memory. Prints a line of JSON for each: the exit code, what was printed, and the megabytes that were added.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import resource
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

ADDRESS_BYTES = 3 * 10**9


@dataclass(frozen=True)
class Call:
    """How a call ended."""

    code: int
    printed: str
    megabytes: float
    """resident at the peak, more than before the call"""


def validate_all(files: list[Path], *options: str) -> list[Call]:
    """Validates logs in a fresh process."""
    command = [sys.executable, "-m", "tests.memory_worker", *map(str, files), "--", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return [Call(**json.loads(line)) for line in ended.stdout.splitlines()]


def resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000  # kilobytes on Linux


def measure(file: str, options: list[str]) -> dict[str, object]:
    from bats.cli.main import main

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    before, printed = resident(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        code = main(["validate", file, "--quiet", *options])
    return {"code": code, "printed": " ".join(printed.getvalue().split()), "megabytes": resident() - before}


if __name__ == "__main__":
    import numpy as np

    from bats.data.checks import validate
    from bats.data.dataset import Dataset

    importlib.import_module("pyarrow.parquet")
    os.environ["COLUMNS"] = "200"
    for actions in (np.zeros((9, 1)), np.zeros(9, dtype=int)):  # compiles, and loads what every call needs
        validate(Dataset.from_arrays(np.zeros((9, 2)), actions, np.zeros(9)))
    split = sys.argv.index("--")
    for path in sys.argv[1:split]:
        process = os.fork()
        if not process:
            print(json.dumps(measure(path, sys.argv[split + 1 :])), flush=True)
            os._exit(0)
        os.waitpid(process, 0)
