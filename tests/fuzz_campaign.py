"""Feeds very many damaged files to every reader and collects what goes wrong. pytest does not collect it.

    python -m tests.fuzz_campaign --count 20000 --out findings
    python -m tests.fuzz_campaign --target parquet --seed 1234 --count 1        one input again

Every input is read in a process with 2 GB of address space and 60 seconds. It is to be refused with an error of this
package, or read. Anything else is a finding: a traceback, a warning, a process that is killed or does not end, and for
formats with a checksum another result. Each finding goes to a folder of its own, with the damaged file and what
happened. The inputs of a target are numbered; --seed is the number of the first. `tests/fuzz_targets.py` lists the
targets.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bats.runs.pipeline import fit
from tests.fuzz_targets import RUN, TARGETS
from tests.fuzz_worker import PROPER
from tests.small_runs import SMALL, small_log

SECONDS = 60.0
"""for one input"""
BATCH = 500
"""inputs in one process, so that what one of them leaves behind does not spoil thousands"""
REPORT_EVERY = 5.0
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Attempt:
    """One input and how it ended: as a worker says, or `killed` or `hung`."""

    target: str
    number: int
    outcome: str
    detail: str

    @property
    def is_finding(self) -> bool:
        return self.outcome not in PROPER


def attempts(
    target: str, first: int, last: int, out: Path | None = None, seconds: float = SECONDS
) -> Iterator[Attempt]:
    """Tries the inputs of a target, in as many processes as it takes; findings are written to `out`."""
    while first < last:
        with TemporaryDirectory(prefix="bats-fuzz-") as folder:
            for attempt, file in _attempts_of_one_process(target, first, last, Path(folder), seconds):
                first = attempt.number + 1
                if attempt.is_finding and out is not None:
                    save(attempt, file, out)
                yield attempt


def _attempts_of_one_process(
    target: str, first: int, last: int, folder: Path, seconds: float
) -> Iterator[tuple[Attempt, Path]]:
    """The inputs up to the last, or up to one that ends the process."""
    command = [sys.executable, "-m", "tests.fuzz_worker", str(folder / "inputs"), target, str(first), str(last)]
    lines: queue.Queue[str] = queue.Queue()
    number, file, ready = first, folder / "errors", False
    with (
        file.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT) as process,
    ):
        reader = threading.Thread(target=_put_lines, args=(process.stdout, lines))
        reader.start()
        try:
            while line := lines.get(timeout=seconds):
                answer, ready = json.loads(line), True
                if "number" in answer:
                    number, file = answer["number"], Path(answer["file"])
                elif "outcome" in answer:
                    yield Attempt(target, number, **answer), file
                    number += 1
            code, told = process.wait(), (folder / "errors").read_text()[-5000:]
            if not ready:
                raise RuntimeError(f"{target}: a sound input could not be made or read: {told}")
            if number < last:
                yield Attempt(target, number, "killed", f"the process ended with {code}: {told}"), file
        except queue.Empty:
            yield Attempt(target, number, "hung", f"still running after {seconds:g} seconds"), file
        finally:
            process.kill()
            reader.join()


def _put_lines(stream: Iterable[str], lines: queue.Queue[str]) -> None:
    """Passes on what a process prints, and an empty line when it ends."""
    for line in stream:
        lines.put(line)
    lines.put("")


def save(attempt: Attempt, file: Path, out: Path) -> None:
    """Writes a finding with all that is needed to look into it."""
    folder = out / f"{attempt.target}-{attempt.number}-{attempt.outcome}"
    folder.mkdir(parents=True, exist_ok=True)
    if file.exists():
        shutil.copy(file, folder)
    again = f"python -m tests.fuzz_campaign --target {attempt.target} --seed {attempt.number} --count 1"
    (folder / "finding.txt").write_text(f"{again}\n\n{attempt.outcome}\n{attempt.detail}\n", errors="replace")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="inputs in all (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first input of each target (default: 0)")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--target", choices=TARGETS, action="append", help="one of the targets; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("findings"), help="folder for findings (default: findings)")
    arguments = parser.parse_args()
    targets = arguments.target or list(TARGETS)
    if RUN not in os.environ and any(name.startswith("run_") for name in targets):
        with TemporaryDirectory(prefix="bats-fuzz-run-") as made:
            os.environ[RUN] = str(Path(made) / "run")
            fit(small_log(), SMALL, folder=os.environ[RUN])
            return main()
    jobs = list(_jobs(targets, arguments.seed, arguments.count))
    outcomes: Counter[tuple[str, str]] = Counter()
    began = told = time.monotonic()
    lock = threading.Lock()

    def work(job: tuple[str, int, int]) -> None:
        nonlocal told
        for attempt in attempts(*job, out=arguments.out):
            with lock:
                outcomes[attempt.target, attempt.outcome] += 1
                if attempt.is_finding:
                    print(
                        f"{attempt.target} {attempt.number}: {attempt.outcome}: {_last_line(attempt.detail)}",
                        flush=True,
                    )
                done, now = outcomes.total(), time.monotonic()
                if now - told > REPORT_EVERY:
                    told = now
                    left = (now - began) * (arguments.count - done) / done
                    print(f"{done:,} of {arguments.count:,} inputs, about {left:.0f} s left", flush=True)

    with ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(work, jobs))
    print(f"{outcomes.total():,} inputs in {time.monotonic() - began:.0f} s")
    for (target, outcome), count in sorted(outcomes.items()):
        print(f"{target:20}{outcome:12}{count:>8,}")
    findings = sum(count for (_, outcome), count in outcomes.items() if outcome not in PROPER)
    print(f"findings: {findings:,}" + (f", in {arguments.out}" if findings else ""))
    return 1 if findings else 0


def _jobs(targets: list[str], seed: int, count: int) -> Iterator[tuple[str, int, int]]:
    """Batches of inputs, equally many of each target, the targets in turn."""
    shares = {name: count // len(targets) + (place < count % len(targets)) for place, name in enumerate(targets)}
    for first in range(0, max(shares.values()), BATCH):
        for name, share in shares.items():
            if first < share:
                yield name, seed + first, seed + min(first + BATCH, share)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:200]


if __name__ == "__main__":
    sys.exit(main())
