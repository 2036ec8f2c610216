"""The exact solver against plain value iteration, its growth with size, and what ten million rows take in memory.

    python -m benchmarks.solve
    python -m benchmarks.solve --quick       a hundredth of the rows, to see that it runs

Everything is measured side by side in one run, on graphs shaped like a maze's log (`corridor.py`) with a stitch for
every ten rows. Kernels are compiled before the clock starts, and every solve starts from scratch. About three minutes.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bats.data.formats.hdf5 import write_hdf5
from bats.data.formats.load import load_dataset
from bats.graph.mdp import TabularMDP, add_stitches, from_dataset
from bats.graph.solve import policy_iteration
from benchmarks.common import print_figures, script_parser
from benchmarks.corridor import corridor_log, nearby_stitches
from tests.oracles.value_iteration import value_iteration

REPEATS = 5
TOLERANCE = 1e-6
"""guaranteed error of value iteration"""


def main() -> None:
    parser = script_parser(__doc__, quick="a hundredth of the rows")
    parser.add_argument("--alone", help="read, build and solve this file in a process of its own")
    arguments = parser.parse_args()
    if arguments.alone:
        read_build_solve(arguments.alone)
        return
    rows = 10_000 if arguments.quick else 1_000_000
    policy_iteration(stitched_corridor(1_000))  # compiles
    small, large = stitched_corridor(rows), stitched_corridor(10 * rows)
    seconds, value, iterations = best_time(small)
    seconds_large, _, iterations_large = best_time(large)
    print(f"{rows:,} rows: {small}, solved in {seconds:.3f} s and {iterations} iterations")
    print(f"{10 * rows:,} rows: {large}, solved in {seconds_large:.3f} s and {iterations_large} iterations")
    del large  # before the memory of another process is measured
    began = time.perf_counter()
    reference, sweeps = value_iteration(small, tolerance=TOLERANCE)
    seconds_reference = time.perf_counter() - began
    difference = float(np.abs(reference - value).max())
    print(f"value iteration: {seconds_reference:.1f} s and {sweeps} sweeps; values differ by at most {difference:.1e}")
    if difference > TOLERANCE:
        raise SystemExit("the two solvers disagree")
    peak, seconds_file = measure_file(10 * rows)
    figures = [
        ("policy_iteration_1m", seconds, "s"),
        ("policy_iteration_10m", seconds_large, "s"),
        ("speed_over_value_iteration", seconds_reference / seconds, "times"),
        ("growth_1m_to_10m", seconds_large / seconds, "times"),
        ("read_build_solve_10m_peak", peak, "GB"),
        ("read_build_solve_10m", seconds_file, "s"),
    ]
    print_figures(figures)


def stitched_corridor(rows: int) -> TabularMDP:
    mdp = from_dataset(corridor_log(rows - 1), gamma=0.99)
    return add_stitches(mdp, nearby_stitches(mdp, rows // 10), stitch_round=1)


def best_time(mdp: TabularMDP) -> tuple[float, np.ndarray, int]:
    """Seconds of the fastest of a few solves, the values and the iterations."""
    fastest = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        solution = policy_iteration(mdp)
        fastest = min(fastest, time.perf_counter() - began)
    return fastest, solution.value, solution.iterations


def measure_file(rows: int) -> tuple[float, float]:
    """Peak memory in GB, and seconds, of a fresh process that reads, builds and solves a log of `rows` rows."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "corridor.hdf5"
        write_hdf5(corridor_log(rows), file)
        command = [sys.executable, "-m", "benchmarks.solve", "--alone", str(file)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    peak, seconds = output.split()[-2:]
    return float(peak), float(seconds)


def read_build_solve(file: str) -> None:
    began = time.perf_counter()
    mdp = from_dataset(load_dataset(file))
    # no state of the log alone has a choice, so without stitches there would be nothing to solve
    policy_iteration(add_stitches(mdp, nearby_stitches(mdp, mdp.state_count // 10), stitch_round=1))
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(kilobytes * 1024 / 1e9, time.perf_counter() - began)


if __name__ == "__main__":
    main()
