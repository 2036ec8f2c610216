"""Runs that learn their metric on the way, and their folders; tests/stitching has the tests of the phases alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bats.config import BisimulationConfig
from bats.errors import DataError
from bats.graph.mdp import from_dataset
from bats.graph.relabel import stitch_errors, value_of_a_step
from bats.graph.solve import policy_iteration
from bats.planning.context import PlanningContext
from bats.runs.folder import RunFolder
from bats.runs.pipeline import fit
from bats.runs.result import Changes, Result, load_result, solve_again
from bats.stitching import metric_refresh
from bats.stitching.metric_refresh import in_steps, remeasured_errors
from bats.stitching.records import RoundRecord
from tests.logs import folder_bytes
from tests.mdps import mdp_from_edges
from tests.small_runs import SMALL, small_log

TOLERANCE = 30.0
CONFIG = replace(
    SMALL,
    metric="bisimulation",
    penalty_steps=1.0,
    stitch=replace(SMALL.stitch, tolerance=TOLERANCE, rounds=3),
    bisimulation=BisimulationConfig(
        hidden=(16, 16), horizon=20, updates=200, batch_size=32, refresh_rounds=2, refresh_updates=50
    ),
)
NOT_OF_THE_RUN_ALONE = ("timings.jsonl", "lock")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return fit(small_log(), CONFIG, folder=tmp_path_factory.mktemp("runs") / "run")


def errors_by_the_last_metric(result: Result) -> np.ndarray:
    """The errors of all stitches, measured without anything that the run has saved of errors."""
    run, log = RunFolder(result.folder), from_dataset(small_log(), gamma=CONFIG.gamma)
    step_value = value_of_a_step(log, policy_iteration(log).value)
    assert result.value_metric is not None
    context = PlanningContext.of(result.model, in_steps(result.value_metric, step_value), log, local_error=True)
    return remeasured_errors(context, run.load_graph().states, run.stitches())


@pytest.mark.slow
def test_the_saved_errors_are_those_by_the_last_metric_alone(result: Result) -> None:
    run = RunFolder(result.folder)
    files = sorted(path.name for path in result.folder.glob("metric-*"))
    assert files[:2] == ["metric-0000.safetensors", "metric-0002.safetensors"]
    assert run.last_metric == run.rounds_done == len(result.records)
    errors = errors_by_the_last_metric(result)
    assert stitch_errors(run.load_graph()) == pytest.approx(errors, rel=1e-5)
    as_planned = np.concatenate([stitches.planning_error for stitches in run.stitches()])
    assert as_planned != pytest.approx(errors, rel=1e-2)


@pytest.mark.slow
def test_the_finished_graph_has_the_stitches_within_the_tolerance_by_the_last_metric(result: Result) -> None:
    assert sum(record.accepted for record in result.records) > 0
    errors, kept = errors_by_the_last_metric(result), np.isfinite(stitch_errors(result.mdp))
    assert np.array_equal(kept, errors < TOLERANCE)
    assert kept.any()
    assert result.value == policy_iteration(result.mdp).start_value
    assert result.mdp.penalty == pytest.approx(result.summary.penalty)


@pytest.mark.slow
def test_a_run_with_a_learned_metric_is_certified(result: Result) -> None:
    certificate = result.certificate
    assert certificate is not None
    assert certificate.clone.lower <= certificate.clone.upper
    assert certificate.graph.lower <= certificate.graph.upper


class StoppedError(Exception):
    """Ends a run early."""


@pytest.mark.slow
def test_a_run_that_is_stopped_after_every_round_ends_as_one_that_is_not(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, learn = tmp_path / "run", metric_refresh.learn_bisimulation
    learned: list[int] = []

    def counted(*arguments: object, **settings: object) -> object:
        learned.append(1)
        return learn(*arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(metric_refresh, "learn_bisimulation", counted)
    for number in range(1, len(result.records) + 1):

        def stop(record: RoundRecord, number: int = number) -> None:
            if record.round == number:
                raise StoppedError

        with pytest.raises(StoppedError):
            fit(small_log(), CONFIG, folder=folder, model=result.model, on_round=stop)
    fit(small_log(), CONFIG, folder=folder, model=result.model)
    assert len(learned) == len(list(result.folder.glob("metric-*")))  # none was learned twice
    one, other = (
        {name: content for name, content in folder_bytes(path).items() if name not in NOT_OF_THE_RUN_ALONE}
        for path in (folder, result.folder)
    )
    assert one == other


@pytest.mark.slow
def test_solving_again_needs_no_networks(result: Result) -> None:
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "from bats.runs.result import solve_again\n"
        f"print(solve_again({str(result.folder)!r}).start_value)"
    )
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert float(printed) == result.value
    assert solve_again(result.folder, Changes(tolerance=1e-9)).mdp.kept_stitches == 0
    assert load_result(result.folder).value == result.value


def test_errors_of_another_graph_are_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.save_base(mdp_from_edges(2, [(0, 1, 0.0), (1, 0, 0.0)]))
    run.save_errors(np.zeros(1))
    with pytest.raises(DataError, match="must have 0 numbers, one per stitch"):
        run.load_graph()
