"""Methods, tasks and seeds from one call: nothing is done twice, and the results follow from the runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bats.baselines.config import BCConfig, CQLConfig, IQLConfig
from bats.baselines.folder import BaselineFolder
from bats.cli.main import main
from bats.errors import BatsError, SettingError
from bats.evaluation.comparison import ReturnEstimate
from bats.presets import preset
from bats.runs.folder import RunFolder
from bats.storage.json_records import to_plain
from bats.studies.comparison import StudyFolder, read_logs, read_scores, run_comparison, task_log, write_results
from bats.studies.settings import BATS, BATS_PAPER, BEST_TENTH, STUDIES, ComparisonConfig
from bats.tasks import find_task
from tests.cli.printed import error_text
from tests.logs import folder_bytes
from tests.runs.relisted import relisted

SMALL = ComparisonConfig(
    tasks=("maze2d-umaze", "maze2d-medium"), methods=("bc",), seeds=2, updates=20, rows=3000, episodes=2
)


@pytest.mark.slow
def test_a_study_trains_and_evaluates_every_run_once(tmp_path: Path) -> None:
    run_comparison(tmp_path, SMALL)
    scores = read_scores(tmp_path, SMALL)
    assert [(one.task, one.seed, one.together) for one in scores] == [
        ("maze2d-umaze", 0, 4),
        ("maze2d-umaze", 1, 4),
        ("maze2d-medium", 0, 4),
        ("maze2d-medium", 1, 4),
    ]
    for one in scores:
        points = BaselineFolder(StudyFolder(tmp_path).run("bc", one.task, one.seed)).curve()
        assert len(points) == 20
        assert one.last == points[-1].score
        assert one.picked == max(point.score or 0 for point in points)
    before = folder_bytes(tmp_path)
    run_comparison(tmp_path, SMALL, workers=2)
    assert folder_bytes(tmp_path) == before
    assert [path.name for path in write_results(tmp_path, "mazes", scores)] == [
        "results.md",
        "results.csv",
        "results.html",
    ]


def test_a_fit_that_fails_is_reported_and_does_not_stop_the_others(tmp_path: Path) -> None:
    few = ComparisonConfig(tasks=("maze2d-umaze", "maze2d-open"), methods=("bats",), seeds=1, rows=70, episodes=2)
    failures = run_comparison(tmp_path, few)
    assert [failure.split(":")[0] for failure in failures] == [
        "bats on maze2d-umaze, seed 0",
        "bats on maze2d-open, seed 0",
    ]
    assert all("at least 75 rows with a known next state to train a model on" in failure for failure in failures)
    assert read_scores(tmp_path, few) == []


def test_unknown_methods_and_tasks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingError, match="no method called 'dqn'"):
        replace(SMALL, methods=("dqn",))
    with pytest.raises(SettingError, match="one of them twice"):
        replace(SMALL, methods=("bc", "iql", "bc"))
    with pytest.raises(SettingError, match="The tasks maze2d-umaze, maze2d-umaze contain one of them twice"):
        replace(SMALL, tasks=("maze2d-umaze",) * 2)
    with pytest.raises(BatsError, match="no task called 'chess'"):
        replace(SMALL, tasks=("chess",))
    for arguments, message in {
        ("maze2d", "--methods", "bc,dqn"): "There is no method called 'dqn'",
        ("mujoco", "--tasks", "maze2d-umaze"): "The study mujoco has no task 'maze2d-umaze'",
        ("own", "log.hdf5", "--methods", "bats-paper"): "bats-paper is only for known tasks",
        ("mountain-car", "--tasks", "maze2d-umaze"): "--tasks is only for the studies maze2d, mujoco, zoo.",
    }.items():
        assert main(["benchmark", *arguments]) == 2
        assert message in error_text(capsys)


def test_the_paper_has_settings_for_every_task_of_its_studies() -> None:
    for study in (STUDIES["maze2d"], STUDIES["mujoco"]):
        config = ComparisonConfig(study.tasks, (BATS, BATS_PAPER), preset="demo")
        for task in study.tasks:
            assert config.of_bats(BATS, task) == preset("demo")
            assert config.of_bats(BATS_PAPER, task) == preset(f"paper-{task.split('-')[task.startswith('maze')]}")


def test_the_zoo_compares_four_methods_on_fifteen_logs_with_reference_scores() -> None:
    zoo = STUDIES["zoo"]
    assert (len(zoo.tasks), zoo.methods, zoo.updates) == (15, ("bc", BEST_TENTH, "iql", BATS), 50_000)
    assert set(STUDIES["mujoco"].tasks) < set(zoo.tasks)
    assert all(find_task(name).score is not None for name in zoo.tasks)
    config = ComparisonConfig(zoo.tasks, zoo.methods, updates=zoo.updates)
    assert config.of_baseline("iql", "pendulum") == IQLConfig(updates=50_000)
    with pytest.raises(SettingError, match="paper-pendulum"):
        ComparisonConfig(("pendulum",), (BATS_PAPER,))


@pytest.mark.slow
def test_a_method_is_left_out_where_it_does_not_take_the_actions(tmp_path: Path) -> None:
    config = ComparisonConfig(("pendulum", "cartpole"), ("bc", "td3-bc"), seeds=1, updates=20, rows=400, episodes=2)
    run_comparison(tmp_path, config)
    scores = read_scores(tmp_path, config)
    assert [(one.method, one.task) for one in scores] == [
        ("bc", "pendulum"),
        ("bc", "cartpole"),
        ("td3-bc", "pendulum"),
    ]
    logs = read_logs(tmp_path, config)
    cartpole = task_log(StudyFolder(tmp_path), "cartpole", config)
    # 21.6 steps are random, 500 the reference
    assert logs[1].mean == pytest.approx(100 * (400 / cartpole.episode_count - 21.6) / (500 - 21.6), abs=0.1)
    text, *_ = (path.read_text() for path in write_results(tmp_path, "two", scores, logs))
    (row,) = [line for line in text.split("### ")[1].splitlines() if line.startswith("| cartpole")]
    assert row.startswith(f"| cartpole | 400 | {logs[1].mean:.1f} | {scores[1].last:.1f} ± 0.0 (")
    assert row.endswith("|  | 100 |")


def test_cloning_the_best_tenth_is_a_method_of_its_own() -> None:
    config = replace(SMALL, methods=("bc", BEST_TENTH))
    assert config.of_baseline(BEST_TENTH, "maze2d-umaze") == BCConfig(updates=20, best_share=0.1)
    assert config.of_baseline("bc", "maze2d-umaze") == BCConfig(updates=20)


def test_baselines_have_the_settings_published_for_the_kind_of_task() -> None:
    config = replace(SMALL, methods=("cql", "iql"))
    assert config.of_baseline("cql", "maze2d-umaze") == CQLConfig(updates=20)
    assert config.of_baseline("cql", "hopper-mixed") == CQLConfig(updates=20, target_gap=None)
    assert config.of_baseline("iql", "hopper-mixed") == config.of_baseline("iql", "maze2d-umaze")


def test_where_a_run_kept_a_clone_of_the_log_its_stitched_policy_is_a_method_of_its_own(
    finished_run: Path, tmp_path: Path
) -> None:
    config = replace(SMALL, tasks=("grid",), methods=(BATS,), seeds=1)
    run = RunFolder(StudyFolder(tmp_path).run(BATS, "grid", 0))
    shutil.copytree(finished_run, run.path)
    for path, mean in ((run.evaluation, 3.0), (run.policies / "bats-evaluation.json", 1.0)):
        returns = ReturnEstimate.of(np.full(2, mean), None, seed=0)
        path.write_text(json.dumps({"cloned": to_plain(returns)}))
    for policy, expected in (("bats", [("bats", 3.0)]), ("log", [("bats", 3.0), ("bats alone", 1.0)])):
        file = run.path / "finished.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"policy": policy}))
        relisted(run.path)
        assert [(one.method, one.last) for one in read_scores(tmp_path, config)] == expected


def test_a_log_of_another_size_is_not_taken_for_the_right_one(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path)
    assert len(task_log(study, "maze2d-umaze", SMALL)) == 3000
    assert len(task_log(study, "maze2d-umaze", replace(SMALL, rows=None))) == 3000
    with pytest.raises(SettingError, match=r"maze2d-umaze.hdf5 has 3,000 rows and not 2,000"):
        task_log(study, "maze2d-umaze", replace(SMALL, rows=2000))
