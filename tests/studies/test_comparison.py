"""Methods, tasks and seeds from one call: nothing is done twice, and the results follow from the runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bats.baselines.folder import BaselineFolder
from bats.cli.main import main
from bats.errors import BatsError, SettingError
from bats.studies.comparison import ComparisonConfig, StudyFolder, read_scores, run_comparison, write_results
from tests.logs import folder_bytes

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


def test_unknown_methods_and_tasks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingError, match="no method called 'dqn'"):
        ComparisonConfig(methods=("dqn",))
    with pytest.raises(BatsError, match="no task called 'chess'"):
        ComparisonConfig(tasks=("chess",))
    assert main(["benchmark", "maze2d", "--methods", "bc,dqn"]) == 2
    assert "There is no method called 'dqn'" in capsys.readouterr().err
