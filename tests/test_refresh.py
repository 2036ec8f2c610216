"""A run that learns its metric: old plans measured by a new metric, by hand; and stretches that can be stopped."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from bats.errors import DataError, SettingError
from bats.graph.mdp import Stitches
from bats.graph.pricing import penalty_in_rewards
from bats.graph.relabel import prune, stitch_errors
from bats.graph.solve import policy_iteration
from bats.metric.bisimulation import BisimulationConfig, BisimulationMetric
from bats.metric.scaled import ScaledMetric
from bats.model.local_error import LocalError
from bats.runs.folder import RunFolder
from bats.runs.pipeline import Result, fit, load_result
from bats.runs.solve_again import Changes, resolve
from bats.stitching import phases as stretches
from bats.stitching.acceptance import Learned, action_box
from bats.stitching.metric_refresh import RefreshConfig, errors_of_plans, in_steps
from bats.stitching.records import RoundRecord
from tests.small_runs import SMALL, walks
from tests.test_kill import checksums
from tests.test_stitch import Plane

TOLERANCE = 30.0
CONFIG = replace(
    SMALL,
    metric="bisimulation",
    penalty=1.0,
    stitch=replace(SMALL.stitch, tolerance=TOLERANCE, rounds=3),
    bisimulation=BisimulationConfig(hidden=(16, 16), latent=2, horizon=20, updates=200, batch_size=32),
    refresh=RefreshConfig(rounds=2, updates=50),
)
BOX = (np.full(2, -1.0), np.full(2, 1.0))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return fit(walks(), CONFIG, folder=tmp_path_factory.mktemp("runs") / "run")


def two_plans() -> Stitches:
    """From (0, 0) to (1, 0): in two actions, which end in (0.9, 0.2), and in one, which ends in (1, 0)."""
    return Stitches.judged_by_one(
        source=np.array([0, 0]),
        target=np.array([1, 1]),
        length=np.array([2, 1]),
        action=np.array([[[0.5, 0.1], [0.4, 0.1]], [[1.0, 0.0], [7.0, 7.0]]], dtype=np.float32),
        state=np.array([[[0.5, 0.1]], [[0.0, 0.0]]]),
        reward=np.zeros((2, 2)),
        planning_error=np.array([5.0, 6.0], dtype=np.float32),  # by another metric, and forgotten
    )


def test_errors_by_a_new_metric_are_those_of_the_stored_plans_and_nothing_else() -> None:
    states = np.array([[0.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    # three members, off by -0.1, 0 and 0.1 along the first number in every step; the second number counts twice
    plane = Plane(jnp.array([-0.1, 0.0, 0.1])[:, None, None] * jnp.array([1.0, 0.0]))
    metric = ScaledMetric(np.array([1.0, 2.0], dtype=np.float32))
    # two steps: ends (0.7, 0.2), (0.9, 0.2), (1.1, 0.2), which lie 0.5, √0.17 and √0.17 away; one step: 0.1, 0, 0.1
    plain = Learned(plane, metric, BOX, None)
    assert errors_of_plans(plain, states, [two_plans()], quantile=1.0) == pytest.approx([0.5, 0.1], abs=1e-6)
    assert errors_of_plans(plain, states, [two_plans()], quantile=0.5) == pytest.approx([0.17**0.5, 0.1], abs=1e-6)
    # the model is wrong by 0.3 near (0, 0) and by 0.02 near (0.5, 0.1), each row alone in its place
    far = np.array([[0.0, 0.0], [0.5, 0.2]]).repeat(8, axis=0)
    wary = replace(plain, local_error=LocalError(far, np.array([0.3, 0.02]).repeat(8)))
    found = errors_of_plans(wary, states, [two_plans(), two_plans()], quantile=1.0)
    assert found == pytest.approx([0.82, 0.4, 0.82, 0.4], abs=1e-6)


def test_a_plan_that_runs_away_in_any_member_has_no_error_to_be_kept_with() -> None:
    states = np.array([[0.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    plane = Plane(jnp.array([0.0, jnp.nan])[:, None, None] * jnp.ones((1, 1, 2)))
    metric = ScaledMetric(np.ones(2, dtype=np.float32))
    found = errors_of_plans(Learned(plane, metric, BOX, None), states, [two_plans()], quantile=1.0)
    assert np.isinf(found).all()
    assert len(errors_of_plans(Learned(plane, metric, BOX, None), states, [], quantile=1.0)) == 0


def measured(result: Result, metric: BisimulationMetric) -> np.ndarray:
    """The errors of all plans of a run by a metric, in steps' worth, without anything that was kept of errors."""
    rows = result.model.held_out.halves()[0]
    run = RunFolder(result.folder)
    log = prune(run.load_mdp(), np.zeros(run.load_mdp().stitch_count, dtype=bool))
    metric = in_steps(metric, penalty_in_rewards(log, 1.0, "step"))
    local = LocalError.measured(metric, rows.observations, rows.next_observations, rows.predicted_next)
    learned = Learned(result.model.dynamics, metric, action_box(walks()), local)
    quantile = CONFIG.stitch.planner.quantile
    return errors_of_plans(learned, run.load_mdp().states, run.stitches(run.rounds_done), quantile=quantile)


def test_after_all_refreshes_errors_are_those_by_the_last_metric_alone(result: Result) -> None:
    run = RunFolder(result.folder)
    files = sorted(path.name for path in result.folder.glob("metric-*"))
    assert files[:2] == ["metric-0000.safetensors", "metric-0002.safetensors"]
    assert run.last_metric == run.rounds_done == len(result.records)
    assert result.value_metric is not None
    errors = measured(result, result.value_metric)
    assert stitch_errors(run.charged_mdp()) == pytest.approx(errors, rel=1e-5)
    assert stitch_errors(run.load_mdp()) != pytest.approx(errors, rel=1e-2)  # as they were when they were planned


def test_stitches_of_the_finished_graph_are_within_the_tolerance_by_the_last_metric(result: Result) -> None:
    assert sum(record.accepted for record in result.records) > 0
    assert result.value_metric is not None
    errors, charged = measured(result, result.value_metric), stitch_errors(result.mdp)
    assert np.array_equal(np.isfinite(charged), errors < TOLERANCE)
    assert np.isfinite(charged).sum() > 0
    assert result.value == policy_iteration(result.mdp).value[result.mdp.starts] @ result.mdp.start_weights
    assert result.mdp.penalty == pytest.approx(RunFolder(result.folder).finished().price)


class StoppedError(Exception):
    """Ends a run on the way."""


def stop_after(number: int) -> object:
    def on_record(record: RoundRecord) -> None:
        if record.round == number:
            raise StoppedError

    return on_record


def test_a_run_that_is_stopped_in_every_stretch_ends_as_one_that_is_not(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, learn = tmp_path / "run", stretches.learn_metric
    fitted: list[int] = []

    def counted(*given: object, **named: object) -> BisimulationMetric:
        fitted.append(1)
        return learn(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(stretches, "learn_metric", counted)
    for number in range(1, len(result.records) + 1):
        with pytest.raises(StoppedError):
            fit(walks(), CONFIG, folder=place, model=result.model, on_record=stop_after(number))  # type: ignore[arg-type]
    fit(walks(), CONFIG, folder=place, model=result.model)
    assert len(fitted) == len(list(result.folder.glob("metric-*")))  # none was learned twice
    assert checksums(place) == checksums(result.folder)


def test_solving_again_needs_no_networks(result: Result) -> None:
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "from pathlib import Path\n"
        "from bats.runs.solve_again import Changes, resolve\n"
        "from bats.runs.folder import RunFolder\n"
        "from bats.graph.solve import start_value\n"
        f"found = resolve(RunFolder(Path({str(result.folder)!r})), Changes())\n"
        "print(start_value(found.mdp, found.solution.value))"
    )
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert float(told) == result.value
    run = RunFolder(result.folder)
    assert resolve(run, Changes(tolerance=1e-9)).kept == 0
    assert load_result(result.folder).value == result.value


def test_errors_of_another_graph_are_refused(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "copy")
    run = RunFolder(tmp_path / "copy")
    run.save_errors(np.zeros(run.load_mdp().stitch_count + 1))
    with pytest.raises(DataError, match="an error for each of"):
        run.charged_mdp()


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"updates": 0}])
def test_settings_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        RefreshConfig(**wrong)
