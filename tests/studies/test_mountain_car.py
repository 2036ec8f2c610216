"""The mountain-car study as a whole: what it measures, saves, draws and prints, and that it continues."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bats.cli.main import main
from bats.errors import BatsError, OutputError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED
from bats.runs.result import load_result
from bats.studies import mountain_car
from bats.studies.car_findings import Findings
from bats.studies.mountain_car import StudyConfig, Variant, run_study
from tests.small_runs import SMALL

TINY = replace(SMALL, gamma=0.99)
STUDY = StudyConfig(
    variants=(Variant("steps", "steps", TINY), Variant("raw", "raw", replace(TINY, metric="raw"))),
    seeds=1,
    episodes=2,
    rows=1_200,
    value_states=12,
    rollouts=10,
)
CALL = ["benchmark", "mountain-car", "--seeds", "1", "--episodes", "2", "--quiet", "--out"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study") / "car"


@pytest.fixture(scope="module")
def findings(folder: Path) -> Findings:
    return run_study(folder, STUDY)


@pytest.mark.slow
def test_errors_are_split_without_a_remainder(findings: Findings) -> None:
    for variant in findings.variants:
        values, errors = variant.values, variant.values.errors()
        np.testing.assert_allclose(errors["clone"], errors["actions"] + errors["cloning"], atol=1e-9)
        np.testing.assert_allclose(errors["clone"], values.graph - values.clone, atol=1e-9)
        assert (values.penalized <= values.graph + 1e-9).all()
        assert len(values.graph) == 12


@pytest.mark.slow
def test_a_rollout_along_the_log_alone_has_no_error(folder: Path, findings: Findings) -> None:
    result = load_result(folder / "steps-0")
    mdp, policy, values = result.mdp, result.solution.policy, findings.variants[0].values
    on_log = []
    for first in values.state:
        state, logged = int(first), True
        while logged and policy[state] != NO_EDGE and mdp.discount[policy[state]] > 0:
            logged = bool(mdp.stitch_round[policy[state]] == LOGGED)
            state = int(mdp.target[policy[state]])
        on_log.append(logged and first not in mdp.starts)
    np.testing.assert_allclose(values.errors()["actions"][on_log], 0.0, atol=1e-5)


@pytest.mark.slow
def test_returns_are_of_every_seed_and_episode(findings: Findings) -> None:
    assert {name: returns.shape for name, returns in findings.returns.items()} == dict.fromkeys(
        ("expert", "plain", "bats"), (1, 2)
    )
    assert findings.returns["expert"].min() > 90
    figures = findings.figures()
    assert figures["mountain_car_expert_return"] == (pytest.approx(findings.returns["expert"].mean()), "return")
    behind = findings.returns["expert"].mean() - findings.returns["bats"].mean()
    assert figures["mountain_car_bats_behind_expert"][0] == pytest.approx(behind)


@pytest.mark.slow
def test_the_example_starts_like_a_failed_episode(findings: Findings) -> None:
    rollout = findings.rollout
    np.testing.assert_array_equal(rollout.graph[0], findings.failed_episode[0])
    assert (findings.failed_episode[:, 0] < 0.45).all()
    assert len(rollout.graph) == len(rollout.model) == len(rollout.actions) + 1
    np.testing.assert_array_equal(rollout.model[0], rollout.graph[0])


@pytest.mark.slow
def test_the_bound_is_below_the_value(findings: Findings) -> None:
    bound = findings.bound
    assert bound.start_lower <= bound.start_value <= bound.start_upper
    assert 0 <= bound.holds <= 1
    assert bound.mean.shape == (len(bound.positions) - 1, len(bound.velocities) - 1)
    assert np.nanmin(bound.mean) <= bound.start_value
    assert 0 < np.count_nonzero(np.isfinite(bound.mean)) < bound.mean.size


@pytest.mark.slow
def test_every_number_is_saved_and_nothing_else_is_left(findings: Findings, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text("of an earlier study")
    findings.save(path)
    saved = json.loads(path.read_text())
    assert saved["figures"] == {name: list(figure) for name, figure in findings.figures().items()}
    assert saved["returns"]["bats"] == findings.returns["bats"].tolist()
    assert saved["settings"]["log_rows"] == 1_200
    assert np.array(saved["bound"]["mean"], dtype=float).shape == findings.bound.mean.shape
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_a_bound_without_a_factor_is_saved_too(findings: Findings, tmp_path: Path) -> None:
    unknown = replace(findings, bound=replace(findings.bound, factor=float("inf")))
    unknown.save(tmp_path / "figures.json")
    saved = json.loads((tmp_path / "figures.json").read_text())
    assert saved["bound"]["factor"] == "inf"
    assert "mountain_car_bound_factor" not in saved["figures"]


@pytest.mark.slow
def test_the_figure_has_four_panels_and_every_step(findings: Findings) -> None:
    car_figure = pytest.importorskip("bats.studies.car_figure", exc_type=BatsError)
    *panels, colours = car_figure.draw_findings(findings).axes
    assert len(panels) == 4
    assert colours.get_label() == "<colorbar>"
    marks = {scatter.get_label(): len(scatter.get_offsets()) for scatter in panels[0].collections}
    stitched = int(findings.rollout.stitched.sum())
    assert marks == {"step of the log": len(findings.rollout.actions) - stitched, "step of a stitch": stitched}
    lines = {line.get_label(): line.get_xydata() for line in panels[1].lines}
    for label, path in (("the graph", "graph"), ("the model", "model"), ("the true car", "replay")):
        np.testing.assert_allclose(lines[label], getattr(findings.rollout, path))


@pytest.mark.slow
def test_equal_findings_give_equal_files_in_the_format_of_their_ending(findings: Findings, tmp_path: Path) -> None:
    car_figure = pytest.importorskip("bats.studies.car_figure", exc_type=BatsError)
    save_figure = pytest.importorskip("bats.studies.drawing").save_figure
    for name, head in (("car.svg", b"<?xml"), ("car.png", b"\x89PNG")):
        contents = []
        for _ in range(2):
            save_figure(car_figure.draw_findings(findings), tmp_path / name)
            contents.append((tmp_path / name).read_bytes())
        assert contents[0].startswith(head)
        assert contents[0] == contents[1]


def test_a_figure_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    drawing = pytest.importorskip("bats.studies.drawing", exc_type=BatsError)
    path, figure = tmp_path / "car.svg", drawing.Figure()
    path.write_text("an earlier figure")
    figure.text(0, 0, "$\\nothing$")  # which matplotlib does not know how to set
    with pytest.raises(ValueError, match="nothing"):
        drawing.save_figure(figure, path)
    assert path.read_text() == "an earlier figure"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OutputError, match=r"\.png or \.svg"):
        drawing.save_figure(figure, tmp_path / "car.pdf")


@pytest.mark.slow
def test_a_finished_study_fits_nothing_again(folder: Path, findings: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("cloned again")

    monkeypatch.setattr(mountain_car, "clone", refuse)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    again = run_study(folder, STUDY)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
    np.testing.assert_array_equal(again.returns["bats"], findings.returns["bats"])
    assert again.figures() == findings.figures()


@pytest.mark.slow
def test_other_folders_are_left_alone(folder: Path, findings: Findings, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("notes")
    with pytest.raises(OutputError, match="does not contain a study"):
        run_study(tmp_path, STUDY)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(OutputError, match="another study"):
        run_study(folder, replace(STUDY, log_seed=1))
    other = replace(TINY, cloning=replace(TINY.cloning, updates=61))
    with pytest.raises(OutputError):
        run_study(folder, replace(STUDY, variants=(Variant("steps", "steps", other),)))


@pytest.mark.slow
def test_the_command_writes_and_prints_every_figure(
    folder: Path, findings: Findings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(mountain_car, "DEFAULT", STUDY)
    assert main([*CALL, str(folder)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("figure ")]
    assert lines == [f"figure {name} {value:.6g} {unit}" for name, (value, unit) in findings.figures().items()]
    for name in ("figures.json", "mountain-car.svg"):
        assert (folder / name).stat().st_size > 1_000
    (folder / "study.json").write_text("{}")
    assert main([*CALL, str(folder)]) == 2


def test_without_matplotlib_the_command_says_what_to_install_before_any_fitting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("car_figure", "drawing"):
        monkeypatch.delitem(sys.modules, f"bats.studies.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*CALL, str(tmp_path / "car")]) == 2
    assert "pip install 'bats-rl[studies]'" in capsys.readouterr().err
    assert not (tmp_path / "car").exists()


@pytest.mark.parametrize("option", ["seeds", "episodes"])
def test_the_command_refuses_a_study_of_nothing(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["benchmark", "mountain-car", f"--{option}", "0"]) == 2
    assert f"`--{option}` must be between 1 and" in capsys.readouterr().err


def test_the_command_knows_its_studies(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["benchmark", "pendulum"])
    assert error.value.code == 2
    with pytest.raises(SystemExit) as error:
        main(["benchmark", "--help"])
    assert error.value.code == 0
    assert "mountain-car" in capsys.readouterr().out
