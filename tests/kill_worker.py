"""Starts fits that are killed: python -m tests.kill_worker, one order a line, one answer a line.

The worker imports everything once and forks for every order, so that a start costs no import. Nothing of JAX is at work
before the fork, and each fork is a process of its own in every way that matters: memory, files, locks.

An order is JSON: `folder`; `spared`, moves that are not killed at (see below), or null for none at all; `stage`, one of
STAGES that has to begin, and `seconds`, how long to wait from then before killing. A move is [file, when]: a file takes
its place in the folder, and the process is killed just before or just after it did.

An answer is JSON: `killed`, and `moves`, all that were seen.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bats.config import ChoiceConfig
from bats.model import fit as model
from bats.runs import pipeline
from bats.stitching import loop as stitch
from tests.small_runs import SMALL, walks

model.CHECKPOINT_SECONDS = 0.0  # at every look, not every ten minutes
CHOOSING = replace(SMALL, choice=ChoiceConfig(penalties=(30.0,)))
STAGES = {
    "fit_dynamics": pipeline,
    "from_dataset": pipeline,
    "find_candidates": stitch,
    "add_stitches": stitch,
    "judged_options": pipeline,
    "finished_graph": pipeline,
    "demonstrate": pipeline,
    "certified": pipeline,
}
"""functions that a stage begins with, and where they are called"""
PATIENCE = 120.0
"""seconds after which a process counts as hung"""


def noted(name: str, called: Callable[..., Any], trace: Path) -> Callable[..., Any]:
    """The same function, which leaves a note when it is called."""

    def calling(*given: Any, **named: Any) -> Any:
        (trace.parent / name).touch()
        return called(*given, **named)

    return calling


def run(order: dict[str, Any], trace: Path) -> None:
    """One fit, killed at the first move that is not spared."""
    folder, spared = Path(order["folder"]), order["spared"]
    move = Path.replace
    for name, module in STAGES.items():
        setattr(module, name, noted(name, getattr(module, name), trace))

    def moved(source: Path, target: Path) -> Path:
        name = str(target.relative_to(folder))
        for when in ("before", "after"):
            with trace.open("a") as stream:
                stream.write(json.dumps([name, when]) + "\n")
            if spared is not None and [name, when] not in spared:
                os.kill(os.getpid(), signal.SIGKILL)
            if when == "before":
                move(source, target)
        return target

    Path.replace = moved  # type: ignore[method-assign, assignment]
    pipeline.fit(walks(), CHOOSING, folder=folder)


def watch(process: int, order: dict[str, Any], notes: Path) -> int:
    """Waits for the end of a process, or brings it about; returns how it ended."""
    begun = time.monotonic()
    there = None
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status
        now = time.monotonic()
        if there is None and order["stage"] is not None and (notes / order["stage"]).exists():
            there = now
        too_long = now - begun > PATIENCE
        if too_long or (there is not None and now - there >= order["seconds"]):
            os.kill(process, signal.SIGKILL)
            status = os.waitpid(process, 0)[1]
            return -1 if too_long else status
        time.sleep(0.001)


def main() -> None:
    warnings.simplefilter("ignore")  # JAX warns of forks, rightly: but it has not begun to work here
    for line in sys.stdin:
        order = json.loads(line)
        with tempfile.TemporaryDirectory() as aside:
            trace = Path(aside, "trace")
            trace.touch()
            process = os.fork()
            if process == 0:
                try:
                    run(order, trace)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            status = watch(process, order, trace.parent)
            if status != 0 and not (status > 0 and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
                raise SystemExit(f"the fit ended with status {status}")
            moves = [json.loads(each) for each in trace.read_text().splitlines()]
        print(json.dumps({"killed": status != 0, "moves": moves}), flush=True)


if __name__ == "__main__":
    main()
