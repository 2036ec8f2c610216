"""Starts fits that are killed: python -m tests.runs.kill_worker, one order per line, one answer per line.

The worker imports everything once and forks for every order, so that a fit does not have to import anything. JAX does
no work before the fork, and each fork is a process of its own in every way that matters: memory, files, locks.

An order is a JSON object:

    folder      of the run
    choosing    whether the run compares several penalties
    checkpoints whether training saves its state at every evaluation, not only after ten minutes
    kill_at     moves to be killed at, "all", or none: a move is [file, when], and the process is killed just before or
                just after the file takes its place in the folder
    spared      moves not to be killed at
    stage       one of STAGES that has to begin, and
    seconds     the time from then to the kill

An answer is a JSON object with `killed` and `moves`, all that were made.
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
from bats.model import fit as model_fit
from bats.runs import pipeline
from bats.stitching import loop
from tests.small_runs import SMALL, small_log

CHOOSING = replace(SMALL, choice=ChoiceConfig(penalties=(30.0,)))
STAGES = {
    "fit_model": pipeline,
    "from_dataset": pipeline,
    "plan_candidates": loop,
    "add_stitches": loop,
    "rank_options": pipeline,
    "final_graph": pipeline,
    "demonstrate": pipeline,
    "certify": pipeline,
}
"""functions that a stage begins with, and the modules that call them"""
PATIENCE = 300.0
"""seconds after which a process counts as hung"""


def announced(name: str, function: Callable[..., Any], notes: Path) -> Callable[..., Any]:
    """The same function, which leaves a note when it is called."""

    def call(*arguments: Any, **named: Any) -> Any:
        (notes / name).touch()
        return function(*arguments, **named)

    return call


def run(order: dict[str, Any], notes: Path) -> None:
    """One fit, killed at the first move that the order names."""
    folder = Path(order["folder"])
    move = Path.replace
    if order["checkpoints"]:
        model_fit.CHECKPOINT_SECONDS = 0.0
    for name, module in STAGES.items():
        setattr(module, name, announced(name, getattr(module, name), notes))

    def watched_move(source: Path, target: Path) -> Path:
        name = str(target.relative_to(folder))
        for when in ("before", "after"):
            with (notes / "moves").open("a") as stream:
                stream.write(json.dumps([name, when]) + "\n")
            named = order["kill_at"] == "all" or [name, when] in order["kill_at"]
            if named and [name, when] not in order["spared"]:
                os.kill(os.getpid(), signal.SIGKILL)
            if when == "before":
                move(source, target)
        return target

    Path.replace = watched_move  # type: ignore[method-assign, assignment]
    pipeline.fit(small_log(), CHOOSING if order["choosing"] else SMALL, folder=folder)


def wait_or_kill(process: int, order: dict[str, Any], notes: Path) -> int:
    """Waits for the end of a process, or kills it when its time has come; returns its exit status."""
    started = time.monotonic()
    stage_began = None
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status
        now = time.monotonic()
        if stage_began is None and order["stage"] is not None and (notes / order["stage"]).exists():
            stage_began = now
        hung = now - started > PATIENCE
        if hung or (stage_began is not None and now - stage_began >= order["seconds"]):
            os.kill(process, signal.SIGKILL)
            status = os.waitpid(process, 0)[1]
            return -1 if hung else status
        time.sleep(0.001)


def main() -> None:
    warnings.simplefilter("ignore")  # JAX warns of forks, rightly, but it has not begun to work here
    for line in sys.stdin:
        order = json.loads(line)
        with tempfile.TemporaryDirectory() as aside:
            notes = Path(aside)
            (notes / "moves").touch()
            process = os.fork()
            if process == 0:
                try:
                    run(order, notes)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            status = wait_or_kill(process, order, notes)
            if status != 0 and not (status > 0 and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
                raise SystemExit(f"the fit ended with status {status}")
            moves = [json.loads(each) for each in (notes / "moves").read_text().splitlines()]
        print(json.dumps({"killed": status != 0, "moves": moves}), flush=True)


if __name__ == "__main__":
    main()
