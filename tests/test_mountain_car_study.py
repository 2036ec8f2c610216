"""The mountain-car study: its arithmetic, its true car, and that what it finds is written and drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from bats.cli.main import main
from bats.data.dataset import Dataset
from bats.errors import OutputError, SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED, from_dataset
from bats.graph.rollouts import Walks
from bats.studies import car_picture, mountain_car
from bats.studies.car_findings import Findings
from bats.studies.car_picture import BLUE, ORANGE, drawn, write_picture
from bats.studies.car_tracks import AFTERWARDS, Apart, hopeless_rows, logged_path, replayed, states_of_rows
from bats.studies.car_values import discounted_return
from bats.studies.mountain_car import StudyConfig, Variant, run_study
from bats.studies.svg_charts import SHADE_COUNT, SHADES, shade_colour, ticks
from bats.tasks.mountain_car import PlacedCar, collect_mountain_car
from tests.small_runs import SMALL

SVG = "{http://www.w3.org/2000/svg}"
TINY = replace(SMALL, gamma=0.99)
STUDY = StudyConfig(
    variants=(Variant("steps", "steps", TINY), Variant("raw", "raw", replace(TINY, metric="raw"))),
    seeds=1,
    episodes=2,
    rows=1_200,
    value_states=12,
    walks=10,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study") / "car"


@pytest.fixture(scope="module")
def found(folder: Path) -> Findings:
    return run_study(folder, STUDY)


@pytest.fixture(scope="module")
def log() -> Dataset:
    return collect_mountain_car(1_200, 0)


@pytest.fixture
def car() -> Iterator[PlacedCar]:
    made = PlacedCar()
    yield made
    made.close()


def test_later_rewards_count_for_less() -> None:
    # -1 - 0.5 * 2 + 0.25 * 8 = 0
    assert discounted_return(np.array([-1.0, -2.0, 8.0]), 0.5) == pytest.approx(0.0)
    assert discounted_return(np.zeros(0), 0.9) == 0.0


def test_distances_are_those_of_the_steps_that_both_paths_have() -> None:
    # 3 and 5 apart after one and two steps; the third step of one path alone does not count
    graph = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    path = np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0], [9.0, 9.0]])
    assert Apart.of(path, graph) == Apart(mean=4.0, end=5.0)


def test_the_car_begins_where_it_is_put_and_nowhere_else(car: PlacedCar) -> None:
    observation, _ = car.reset(options={"state": np.array([0.3, -0.02])})
    np.testing.assert_array_equal(observation, np.array([0.3, -0.02], dtype=np.float32))
    after = car.step(np.array([0.0], dtype=np.float32))[0]
    # v' = -0.02 - 0.0025 cos(0.9) = -0.021554, x' = 0.3 + v'
    np.testing.assert_allclose(after, [0.3 - 0.021554, -0.021554], atol=1e-6)
    with pytest.raises(SettingError, match="position and a velocity"):
        car.reset(options={"state": np.array([3.0, 0.0])})
    first, _ = car.reset(seed=1)
    assert -0.6 <= first[0] <= -0.4
    assert first[1] == 0


def test_the_true_car_goes_through_the_log_itself(log: Dataset) -> None:
    # every row of an expert's episode but the first, whose state was drawn in double precision
    mdp = from_dataset(log, gamma=0.99)
    last = int(np.flatnonzero(log.terminations)[0])
    first = int(np.flatnonzero(log.episode_ends[:last])[-1]) + 2
    rows = np.arange(first, last + 1)
    edges = mdp.first_edge[states_of_rows(log, rows)]
    assert (mdp.out_degree[states_of_rows(log, rows)] == 1).all()
    replay = replayed(mdp, Walks(edges[None]), states_of_rows(log, rows[:1]))[0]
    np.testing.assert_array_equal(replay.episode.observations, logged_path(log, first))
    np.testing.assert_allclose(replay.episode.rewards, log.rewards[rows], rtol=1e-6)
    assert replay.episode.terminated
    assert replay.on_time
    value = discounted_return(replay.episode.rewards, 0.99)
    assert value == pytest.approx(float(log.rewards[rows] @ 0.99 ** np.arange(len(rows))), rel=1e-6)


def test_a_walk_that_falls_short_keeps_its_last_action_up(log: Dataset) -> None:
    # without its last step but one, the expert's end comes one step too early, and is made up for
    mdp = from_dataset(log, gamma=0.99)
    last = int(np.flatnonzero(log.terminations)[0])
    states = states_of_rows(log, np.array([last - 2, last]))
    edges = mdp.first_edge[states]
    replay = replayed(mdp, Walks(edges[None]), states[:1])[0]
    assert replay.episode.terminated
    assert not replay.on_time
    assert 2 < len(replay.episode) <= 2 + AFTERWARDS
    # where the graph does not claim an end, nothing is added
    goes_on = replayed(mdp, Walks(edges[None, :1]), states[:1])[0]
    assert len(goes_on.episode) == 1


def test_hopeless_rows_are_those_of_the_random_episodes(log: Dataset) -> None:
    rows = hopeless_rows(log)
    ended = np.flatnonzero(log.episode_ends)
    count = int(ended[~log.terminations[ended]][-1]) + 1  # random episodes come first
    np.testing.assert_array_equal(rows, np.arange(count))


def test_errors_are_taken_apart_without_a_rest(found: Findings) -> None:
    for variant in found.variants:
        errors = variant.errors
        np.testing.assert_allclose(errors.of_clone, errors.of_actions + errors.of_cloning, atol=1e-9)
        np.testing.assert_allclose(errors.of_clone, errors.graph - errors.clone, atol=1e-9)
        assert (errors.charged <= errors.graph + 1e-9).all()
        assert len(errors.graph) == 12


def test_a_walk_along_the_log_alone_has_no_error(folder: Path, found: Findings, log: Dataset) -> None:
    result = mountain_car.fit(log, TINY, seed=0, folder=folder / "steps-0")
    errors, taken = found.variants[0].errors, result.solution.policy
    alone = []
    for number in errors.number:
        here, logged = int(number), True
        while logged and taken[here] != NO_EDGE and result.mdp.discount[taken[here]] > 0:
            logged = bool(result.mdp.stitch_round[taken[here]] == LOGGED)
            here = int(result.mdp.target[taken[here]])
        alone.append(logged and number not in result.mdp.starts)
    np.testing.assert_allclose(errors.of_actions[alone], 0.0, atol=1e-5)


def test_returns_are_of_every_seed_and_episode(found: Findings) -> None:
    assert {who: returns.shape for who, returns in found.returns.items()} == dict.fromkeys(
        ("expert", "plain", "bats"), (1, 2)
    )
    assert found.returns["expert"].min() > 90
    named = {figure.name: figure.value for figure in found.figures()}
    assert len(named) == len(found.figures())
    assert named["mountain_car_expert_return"] == pytest.approx(found.returns["expert"].mean())
    behind = found.returns["expert"].mean() - found.returns["bats"].mean()
    assert named["mountain_car_bats_behind_expert"] == pytest.approx(behind)


def test_the_walk_that_is_shown_begins_where_a_hopeless_episode_does(found: Findings) -> None:
    np.testing.assert_array_equal(found.shown.graph[0], found.original[0])
    assert (found.original[:, 0] < 0.45).all()
    assert len(found.shown.graph) == len(found.shown.model) == len(found.shown.actions) + 1


def test_the_bound_is_below_the_value(found: Findings) -> None:
    bound = found.bound
    assert bound.start_lower <= bound.start_value <= bound.start_upper
    assert 0 <= bound.holds <= 1
    assert len(bound.corners) == len(bound.values)


def test_every_number_is_written_and_nothing_else_is_left(found: Findings, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text("of a study before")
    found.save(path)
    told = json.loads(path.read_text())
    assert [figure["name"] for figure in told["figures"]] == [figure.name for figure in found.figures()]
    assert told["returns"]["bats"] == found.returns["bats"].tolist()
    assert told["settings"]["log_rows"] == 1_200
    assert list(tmp_path.iterdir()) == [path]


def test_a_picture_that_fails_leaves_the_old_one(
    found: Findings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "car.svg"
    write_picture(found, path)
    before = path.read_text()
    monkeypatch.delattr(car_picture, "drawn")
    with pytest.raises(NameError):
        write_picture(found, path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_picture_has_four_panels_and_every_step(found: Findings) -> None:
    root = ElementTree.fromstring(drawn(found))
    assert len(list(root.iter(f"{SVG}clipPath"))) == 4
    marks = {BLUE: 0, ORANGE: 0}
    for path in root.iter(f"{SVG}path"):
        if path.attrib.get("stroke") in marks and "h0" in path.attrib["d"]:
            marks[path.attrib["stroke"]] += path.attrib["d"].count("h0")
    stitched = int(found.shown.stitched.sum())
    assert marks == {BLUE: len(found.shown.actions) - stitched, ORANGE: stitched}


def test_ticks_are_round_and_colours_reach_both_ends() -> None:
    assert list(ticks(0.0, 100.0)) == [0, 20, 40, 60, 80, 100]
    assert ticks(-0.31, 0.3, 4) == {-0.2: "\N{MINUS SIGN}0.2", 0.0: "0", 0.2: "0.2"}
    assert (shade_colour(0), shade_colour(SHADE_COUNT - 1)) == (SHADES[0], SHADES[-1])


def test_a_finished_study_fits_nothing_again(folder: Path, found: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("cloned again")

    monkeypatch.setattr(mountain_car, "clone", refuse)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    again = run_study(folder, STUDY)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
    np.testing.assert_array_equal(again.returns["bats"], found.returns["bats"])
    assert [figure.value for figure in again.figures()] == [figure.value for figure in found.figures()]


def test_folders_of_others_are_left_alone(folder: Path, found: Findings, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("notes")
    with pytest.raises(OutputError, match="holds no study"):
        run_study(tmp_path, STUDY)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(OutputError, match="another study"):
        run_study(folder, replace(STUDY, log_seed=1))
    other = replace(TINY, cloning=replace(TINY.cloning, updates=61))
    with pytest.raises(OutputError):
        run_study(folder, replace(STUDY, variants=(Variant("steps", "steps", other),)))


@pytest.mark.parametrize("option", ["--seeds", "--episodes"])
def test_the_command_refuses_nothing_to_do(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "mountain-car", option, "0"]) == 2
    assert f"{option} must be at least 1" in capsys.readouterr().err


def test_the_command_knows_its_studies(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["benchmark", "pendulum"])
    assert error.value.code == 2
    with pytest.raises(SystemExit) as error:
        main(["benchmark", "--help"])
    assert error.value.code == 0
    assert "mountain-car" in capsys.readouterr().out


def test_the_command_writes_and_tells_every_figure(
    folder: Path, found: Findings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mountain_car, "DEFAULT", STUDY)
    call = ["benchmark", "mountain-car", "--seeds", "1", "--episodes", "2", "--quiet", "--out", str(folder)]
    assert main(call) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("figure ")]
    assert lines == [str(figure) for figure in found.figures()]
    for name in ("figures.json", "mountain-car.svg", "mountain-car.html"):
        assert (folder / name).stat().st_size > 1_000
    (folder / "study.json").write_text("{}")
    assert main(call) == 2
