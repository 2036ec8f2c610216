"""Feeds damaged files to a reader, in a process of its own that may be killed, starved or crash.

    python -m tests.fuzz_worker FOLDER TARGET FIRST LAST

Input number N of a target is always the same. Before an input is read, a line names it and its damaged file, so that
the caller knows which one brought the process down; after it, a line says how that ended. All lines are JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

from bats.errors import BatsError
from tests.fuzz_targets import TARGETS, Base, Target

MEMORY_BYTES = 2 * 2**30
MAX_MESSAGE = 10_000
"""letters of an error that can still be read"""
READY = "{}"
"""the first line"""
PROPER = ("refused", "read")
"""outcomes that are as they should be"""


@dataclass(frozen=True)
class Attempt:
    """How the reading of an input ended."""

    outcome: str
    """`refused` with an error of ours, `read`, `traceback`, `warning`, or `silent`: changed despite a checksum"""
    detail: str = ""


def attempt(target: Target, base: Base, sound: object, rng: random.Random) -> Attempt:
    """Reads an input."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = target.read(base.source, rng)
        except BatsError as error:
            message = str(error)
            message.encode()  # it must be possible to print it
            if len(message) > MAX_MESSAGE or not message.isprintable():
                return Attempt("traceback", f"a message of {len(message)} letters: {message[:500]!r}")
            if not warned:
                return Attempt("refused", message)
        except BaseException:
            return Attempt("traceback", traceback.format_exc())
        else:
            if target.same is not None and not target.same(result, sound):
                return Attempt("silent", "the damaged file was read as another result")
    if warned:
        first = warned[0]
        return Attempt("warning", f"{first.filename}:{first.lineno}: {first.category.__name__}: {first.message}")
    return Attempt("read")


def run(folder: Path, name: str, numbers: range) -> None:
    target = TARGETS[name]
    bases: list[tuple[Base, bytes, object]] = []
    for layout in target.layouts:
        (folder / layout).mkdir(parents=True)
        base = target.make(layout, folder / layout)
        bases.append((base, base.victim.read_bytes(), target.read(base.source, None)))
    print(READY, flush=True)  # the sound ones are fine, or the rest would mean nothing
    for number in numbers:
        rng = random.Random(f"{name} {number}")
        base, content, sound = bases[number % len(bases)]
        base.victim.write_bytes(rng.choice(target.faults)(content, rng))
        print(json.dumps({"number": number, "file": str(base.victim)}), flush=True)
        ended = attempt(target, base, sound, rng)
        print(json.dumps({"outcome": ended.outcome, "detail": ended.detail}), flush=True)


def starve() -> None:
    """Whatever sets memory aside for a false claim fails here instead of taking the machine."""
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    starve()
    run(Path(sys.argv[1]), sys.argv[2], range(int(sys.argv[3]), int(sys.argv[4])))
