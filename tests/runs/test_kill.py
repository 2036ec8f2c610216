"""A run that is killed again and again ends, byte for byte, as one that was left alone."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tests.small_runs import COMPARED

ROOT = Path(__file__).parents[2]
MIN_KILLS = 30
OWN_FILES = ("timings.jsonl", "lock")
"""files that differ between equal runs"""
A_FEW_MOVES = [
    ("training.safetensors", "after"),
    ("mdp/round-0002.safetensors", "before"),
    ("certificate.json", "before"),
]
RANDOM_KILLS = (
    *[("fit_model", 2.0)] * 4,
    *[("from_dataset", 0.3)] * 3,
    *[("plan_candidates", 1.0)] * 4,
    *[("add_stitches", 0.05)] * 4,
    *[("rank_options", 1.0)] * 2,
    *[("final_graph", 0.02)] * 3,
    *[("demonstrate", 1.0)] * 4,
    *[("certify", 2.0)] * 3,
)
"""the function that a stage begins with, and the most seconds from then to the kill"""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks and kills")


class Worker:
    """Has fits started and killed, and counts the kills."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.kills = 0

    def fit(
        self,
        folder: Path,
        *,
        choosing: bool = True,
        checkpoints: bool = True,
        kill_at: Literal["all"] | list[Any] | None = None,
        spared: list[Any] | None = None,
        stage: str | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"folder": str(folder), "choosing": choosing, "checkpoints": checkpoints, "kill_at": kill_at or []}
        order |= {"spared": spared or [], "stage": stage, "seconds": seconds}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.kills += answer["killed"]
        return answer

    def fit_until_finished(
        self, folder: Path, *, kill_at: Literal["all"] | list[Any], **options: bool
    ) -> list[tuple[str, str]]:
        """Starts a fit again after every kill; returns the moves it was killed at, each once."""
        killed_at: list[Any] = []
        while (answer := self.fit(folder, kill_at=kill_at, spared=killed_at, **options))["killed"]:
            killed_at.append(answer["moves"][-1])
        return [tuple(move) for move in killed_at]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.runs.kill_worker"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Worker(process)
        assert process.stdin is not None
        process.stdin.close()


def checksums(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in OWN_FILES
    }


def test_a_run_killed_at_a_few_files_ends_as_one_left_alone(worker: Worker, finished_run: Path, tmp_path: Path) -> None:
    killed_at = worker.fit_until_finished(tmp_path / "run", kill_at=A_FEW_MOVES, choosing=False)
    assert killed_at == A_FEW_MOVES
    assert checksums(tmp_path / "run") == checksums(finished_run)


@pytest.mark.slow
def test_a_run_killed_before_its_model_is_listed_and_without_a_checkpoint_begins_again(
    worker: Worker, finished_run: Path, tmp_path: Path
) -> None:
    moves = [("log.json", "after"), ("model.json", "after"), ("model.safetensors", "after")]
    assert worker.fit_until_finished(tmp_path / "run", kill_at=moves, choosing=False, checkpoints=False) == moves
    assert checksums(tmp_path / "run") == checksums(finished_run)


@pytest.mark.slow
def test_a_run_killed_at_every_file_and_at_random_moments_ends_as_one_left_alone(
    worker: Worker, tmp_path: Path
) -> None:
    undisturbed = tmp_path / "undisturbed"
    assert not worker.fit(undisturbed)["killed"]
    expected = checksums(undisturbed)
    rounds = [f"{kind}/round-{number:04d}.safetensors" for kind in ("attempts", "mdp") for number in (1, 2, 3)]
    others = [
        "bounds.safetensors",
        "certificate.json",
        "files.json",
        "finished.json",
        "log.json",
        "mdp/base.safetensors",
        "model.json",
        "model.safetensors",
        "options.jsonl",
        "policy.json",
        "policy.safetensors",
        "records.jsonl",
        "rollouts.safetensors",
        "run.json",
        "settings.json",
        *(f"policies/{name}.{kind}" for name in COMPARED for kind in ("json", "safetensors")),
        *(f"certificates/{name}/{file}" for name in COMPARED for file in ("bounds.safetensors", "certificate.json")),
    ]
    assert sorted(expected) == sorted(rounds + others)

    # at every file, just before and just after it takes its place
    killed_at = worker.fit_until_finished(tmp_path / "files", kill_at="all")
    assert checksums(tmp_path / "files") == expected
    written = {*expected, "training.safetensors", "timings.jsonl"}
    assert {(name, when) for name in written for when in ("before", "after")} <= set(killed_at)

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
    assert worker.kills >= MIN_KILLS


def test_starting_a_finished_run_again_writes_nothing(worker: Worker, run_copy: Path) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run_copy.rglob("*") if path.is_file()}
    assert worker.fit(run_copy, choosing=False)["moves"] == []
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run_copy.rglob("*") if path.is_file()}
    assert after == before
