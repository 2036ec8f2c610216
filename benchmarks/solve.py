"""The exact solver against plain value iteration, its growth with size, and what ten million rows cost in memory.

    python -m benchmarks.solve

Everything is measured side by side in this one run, on graphs shaped like a maze's log (`corridor.py`) with a tenth as
many stitches as rows. Kernels are compiled before the clock starts and policies start cold. About three minutes.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bats.data.formats.load import load_dataset, write_hdf5
from bats.graph.mdp import TabularMDP, add_stitches, from_dataset
from bats.graph.solve import policy_iteration, value_iteration
from benchmarks.corridor import corridor_log, joined_nearby

REPEATS = 5


def main() -> None:
    policy_iteration(stitched_corridor(1_000))  # compiles
    million, ten_million = stitched_corridor(1_000_000), stitched_corridor(10_000_000)
    print(f"1M:  {million}\n10M: {ten_million}")
    fast, value, rounds = best_time(million)
    fast_ten, _, rounds_ten = best_time(ten_million)
    print(f"policy iteration: 1M {fast:.3f} s in {rounds} rounds, 10M {fast_ten:.2f} s in {rounds_ten} rounds")
    del ten_million
    begun = time.perf_counter()
    reference = value_iteration(million, tolerance=1e-6)
    slow = time.perf_counter() - begun
    apart = float(np.abs(reference.value - value).max())
    print(f"value iteration to a guaranteed 1e-6: {slow:.1f} s in {reference.rounds} sweeps, at most {apart:.1e} apart")
    if apart > 1e-6:
        raise SystemExit("the two solvers disagree")

    peak, seconds = read_build_solve_in_a_fresh_process(10_000_000)
    print(f"figure policy_iteration_1m {fast:.4f} s")
    print(f"figure policy_iteration_10m {fast_ten:.3f} s")
    print(f"figure speed_over_value_iteration {slow / fast:.0f} times")
    print(f"figure growth_1m_to_10m {fast_ten / fast:.1f} times")
    print(f"figure read_build_solve_10m_peak {peak:.2f} GB")
    print(f"figure read_build_solve_10m {seconds:.1f} s")


def stitched_corridor(rows: int) -> TabularMDP:
    mdp = from_dataset(corridor_log(rows - 1), gamma=0.99)
    return add_stitches(mdp, joined_nearby(mdp, rows // 10), stitch_round=1)


def best_time(mdp: TabularMDP) -> tuple[float, np.ndarray, int]:
    """Seconds of the quickest of a few cold solves, with what they found."""
    quickest = float("inf")
    for _ in range(REPEATS):
        begun = time.perf_counter()
        solution = policy_iteration(mdp)
        quickest = min(quickest, time.perf_counter() - begun)
    return quickest, solution.value, solution.rounds


def read_build_solve_in_a_fresh_process(rows: int) -> tuple[float, float]:
    """Peak resident memory in GB, and seconds, of a process that reads, builds and solves a log of `rows` rows."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "corridor.hdf5"
        write_hdf5(corridor_log(rows), file)
        told = subprocess.run([sys.executable, "-m", "benchmarks.solve", str(file)], check=True, stdout=subprocess.PIPE)
    peak, seconds = told.stdout.split()[-2:]
    return float(peak), float(seconds)


def read_build_solve(file: str) -> None:
    """Stitches are added too: in a corridor's log alone no state has a choice, and solving it would be no work."""
    begun = time.perf_counter()
    mdp = from_dataset(load_dataset(file))
    policy_iteration(add_stitches(mdp, joined_nearby(mdp, mdp.state_count // 10), stitch_round=1))
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(kilobytes * 1024 / 1e9, time.perf_counter() - begun)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        read_build_solve(sys.argv[1])
    else:
        main()
