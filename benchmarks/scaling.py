"""How a fit grows with the log: seconds per stage and peak memory at a quarter of, one and four million rows.

    python -m benchmarks.scaling                     maze2d-large, default settings
    python -m benchmarks.scaling --rows 250000       one size only
    python -m benchmarks.scaling --updates 2000      as many updates for every size, to see the other stages sooner

Every size runs in a process of its own, whose peak memory the system tells.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

SIZES = (250_000, 1_000_000, 4_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="maze2d-large")
    parser.add_argument("--rows", type=int, nargs="*", default=SIZES)
    parser.add_argument("--updates", type=int, help="updates of the model, whatever the size; by default its own rule")
    parser.add_argument("--runs", type=Path, help="folder to keep the runs in, named after task and rows")
    parser.add_argument("--alone", action="store_true", help="measure one size in this process")
    options = parser.parse_args()
    if options.alone:
        folder = None if options.runs is None else options.runs / f"{options.task}-{options.rows[0]}"
        print(json.dumps(measured(options.task, options.rows[0], folder, options.updates)))
        return
    found: dict[int, dict[str, float]] = {}
    for rows in options.rows:
        command = [sys.executable, "-m", "benchmarks.scaling", "--alone", "--task", options.task, "--rows", str(rows)]
        command += [] if options.runs is None else ["--runs", str(options.runs)]
        command += [] if options.updates is None else ["--updates", str(options.updates)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[rows] = json.loads(told.splitlines()[-1])
        print(f"{rows:,} rows:", ", ".join(f"{stage} {value:.1f}" for stage, value in found[rows].items()), flush=True)
    for rows, stages in found.items():
        for stage, value in stages.items():
            unit = "GB" if stage == "memory" else "value" if stage == "value" else "s"
            print(f"figure scaling_{rows}_{stage.replace(' ', '_')} {value:.4g} {unit}")
    if len(found) > 1:
        least, most = min(found), max(found)
        for stage in found[least]:
            if stage not in ("memory", "value"):
                growth = found[most][stage] / found[least][stage]
                share = growth * least / most
                print(f"figure scaling_growth_{stage.replace(' ', '_')} {share:.3g} of_linear")


def measured(task: str, rows: int, folder: Path | None, updates: int | None) -> dict[str, float]:
    """Seconds per stage and peak memory in GB of one fit."""
    from bats.config import preset
    from bats.runs.pipeline import fit
    from bats.tasks import collect

    begun = time.perf_counter()
    log = collect(task, rows, 0)
    stages = {"collecting": time.perf_counter() - begun}
    config = preset("default")
    if updates is not None:
        config = replace(config, dynamics=replace(config.dynamics, updates=updates, passes=0.0))
    result = fit(log, config, seed=0, folder=folder)
    for timing in result.timings:
        stages[timing.stage] = stages.get(timing.stage, 0.0) + timing.seconds
    stages["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    stages["value"] = result.value
    return stages


if __name__ == "__main__":
    main()
