"""How a fit grows with the log: seconds per stage and peak memory at a quarter of, one and four million rows.

    python -m benchmarks.scaling                        maze2d-large, default settings
    python -m benchmarks.scaling --rows 250000          one size only
    python -m benchmarks.scaling --updates 2000         the same number of updates for every size
    python -m benchmarks.scaling --quick                10,000 and 20,000 rows and a small fit, to see that it runs

Every size runs in a process of its own, so that its peak memory is known.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common import QUICK, QUICK_ROWS, print_figures, script_parser

SIZES = (250_000, 1_000_000, 4_000_000)
UNITS = {"memory": "GB", "value": "value"}
"""other figures are seconds"""


def main() -> None:
    parser = script_parser(__doc__, quick="10,000 and 20,000 rows, and a small fit")
    parser.add_argument("--task", default="maze2d-large")
    parser.add_argument("--rows", type=int, nargs="*")
    parser.add_argument("--updates", type=int, help="updates of the model, whatever the size; by default its own rule")
    parser.add_argument("--runs", type=Path, help="folder to keep the runs in, named after task and rows")
    parser.add_argument("--alone", type=int, metavar="ROWS", help="measure this size in this process")
    arguments = parser.parse_args()
    if arguments.alone is not None:
        folder = None if arguments.runs is None else arguments.runs / f"{arguments.task}-{arguments.alone}"
        print(json.dumps(measure(arguments.task, arguments.alone, folder, arguments.updates, quick=arguments.quick)))
        return
    measured: dict[int, dict[str, float]] = {}
    for rows in arguments.rows or ((QUICK_ROWS // 2, QUICK_ROWS) if arguments.quick else SIZES):
        command = [sys.executable, "-m", "benchmarks.scaling", *sys.argv[1:], "--alone", str(rows)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        measured[rows] = json.loads(output.splitlines()[-1])
        print(f"{rows:,} rows:", ", ".join(f"{name} {value:.1f}" for name, value in measured[rows].items()), flush=True)
    for rows, values in measured.items():
        figures = [(name.replace(" ", "_"), value, UNITS.get(name, "s")) for name, value in values.items()]
        print_figures(figures, prefix=f"scaling_{rows}_")
    if len(measured) > 1:
        small, large = min(measured), max(measured)
        stages = [name for name in measured[small] if name not in UNITS]
        # 1 means that time grows as the rows do
        growth = {name: measured[large][name] / measured[small][name] * small / large for name in stages}
        figures = [(name.replace(" ", "_"), share, "of_linear") for name, share in growth.items()]
        print_figures(figures, prefix="scaling_growth_")


def measure(task: str, rows: int, folder: Path | None, updates: int | None, *, quick: bool) -> dict[str, float]:
    """Seconds per stage, peak memory in GB and value of one fit."""
    from bats.presets import changed, preset
    from bats.runs.pipeline import fit
    from bats.runs.records import seconds_by_stage
    from bats.tasks import collect

    began = time.perf_counter()
    log = collect(task, rows, 0)
    collecting = time.perf_counter() - began
    config = QUICK if quick else preset("default")
    if updates is not None:
        config = changed(config, model={"updates": updates, "passes": 0.0})
    result = fit(log, config, seed=0, folder=folder)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"collecting": collecting} | seconds_by_stage(result.timings) | {"memory": memory, "value": result.value}


if __name__ == "__main__":
    main()
