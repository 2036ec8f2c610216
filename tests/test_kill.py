"""A run that is killed again and again ends, byte for byte, as one that was left alone."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
LEAST_KILLS = 30
ITS_OWN = ("timings.jsonl", "lock")
"""files that no two runs share"""
RANDOM_KILLS = (
    *[("fit_dynamics", 2.0)] * 4,
    *[("from_dataset", 0.3)] * 3,
    *[("find_candidates", 1.0)] * 4,
    *[("add_stitches", 0.05)] * 4,
    *[("judged_options", 1.0)] * 2,
    *[("finished_graph", 0.02)] * 3,
    *[("demonstrate", 1.0)] * 4,
    *[("certified", 2.0)] * 3,
)
"""the function that a stage begins with, and for how many seconds from then a kill may come"""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks and kills")


class Worker:
    """Has fits started and killed, and counts the kills."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.kills = 0

    def fit(
        self, folder: Path, *, spared: list[Any] | None = None, stage: str | None = None, seconds: float | None = None
    ) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"folder": str(folder), "spared": spared, "stage": stage, "seconds": seconds}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        self.kills += answer["killed"]
        return answer


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tests.kill_worker"],
        cwd=ROOT,
        env=os.environ | cache,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Worker(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def undisturbed(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    assert not worker.fit(folder)["killed"]
    return folder


def checksums(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ITS_OWN
    }


def test_a_run_killed_at_every_file_and_at_random_moments_ends_as_one_left_alone(
    worker: Worker, undisturbed: Path, tmp_path: Path
) -> None:
    expected = checksums(undisturbed)
    rounds = [f"{kind}/round-{number:04d}.safetensors" for kind in ("attempts", "mdp") for number in (1, 2, 3)]
    fixed = [
        "bounds.safetensors",
        "certificate.json",
        "finished.json",
        "log.json",
        "mdp/base.safetensors",
        "model.json",
        "model.safetensors",
        "options.jsonl",
        "policy.json",
        "policy.safetensors",
        "records.jsonl",
        "run.json",
        "walks.safetensors",
    ]
    assert sorted(expected) == sorted(rounds + fixed)

    # at every file, just before and just after it takes its place
    killed_at: list[Any] = []
    while (answer := worker.fit(tmp_path / "files", spared=killed_at))["killed"]:
        killed_at.append(answer["moves"][-1])
    assert checksums(tmp_path / "files") == expected
    written = {*expected, "training.safetensors", "timings.jsonl"}
    assert {(name, when) for name in written for when in ("before", "after")} <= {tuple(each) for each in killed_at}

    # at random moments of every stage; a run that ends first is followed by another
    rng, run = np.random.default_rng(0), 0
    for stage, longest in RANDOM_KILLS:
        answer = worker.fit(tmp_path / f"random-{run}", stage=stage, seconds=longest * rng.random())
        if not answer["killed"]:
            assert checksums(tmp_path / f"random-{run}") == expected
            run += 1
    if (tmp_path / f"random-{run}").exists():
        assert not worker.fit(tmp_path / f"random-{run}")["killed"]
        assert checksums(tmp_path / f"random-{run}") == expected
    assert worker.kills >= LEAST_KILLS


def test_starting_a_finished_run_again_writes_nothing(worker: Worker, undisturbed: Path) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in undisturbed.rglob("*") if path.is_file()}
    assert worker.fit(undisturbed)["moves"] == []
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in undisturbed.rglob("*") if path.is_file()}
    assert after == before
