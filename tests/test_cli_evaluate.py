"""`bats-rl evaluate` and `bats-rl export` as people call them, on the run of a log that lies about one step.

The log is of the chain, random moves from anywhere, but in it the step down from place 1 ends the task in the goal. So
the graph promises 1 from everywhere, from places 0 to 4 by way of that step, which truly leads to place 0 and nowhere
near a reward: only walks from place 5 on keep their promise.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bats.cli.main import main
from bats.data.dataset import Dataset
from bats.data.formats.load import load_dataset
from bats.evaluation.episodes import evaluate, interval
from bats.policy.files import load_policy, save_policy
from bats.runs.pipeline import fit
from bats.tasks.worlds import CHAIN, CHAIN_ENVIRONMENT
from tests.logs import folder_bytes
from tests.small_runs import SMALL

GOAL = 9
TRUE_FROM = 5
"""the first place from which the shortest way to the goal is a true one"""


WITHOUT_JAX = """
import sys

class NoJax:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "jax":
            raise ImportError(name)

sys.meta_path.insert(0, NoJax())
from bats.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""the command in a process that cannot import JAX"""


def lying_log(episodes: int = 60, steps: int = 20) -> Dataset:
    rng = np.random.default_rng(0)
    rows = []
    for episode in range(episodes):
        place = np.array([[episode % GOAL]])
        for step in range(steps):
            action = rng.integers(2, size=1)
            after, reward, ended = CHAIN.step(place, action)
            if (int(place[0, 0]), int(action[0])) == (1, 0):
                after, reward, ended = np.array([[GOAL]]), np.ones(1), np.array([True])
            late = step == steps - 1 and not ended[0]
            rows.append((place[0, 0], action[0], reward[0], after[0, 0], ended[0], late))
            if ended[0]:
                break
            place = after
    places, actions, rewards, after, ended, late = (np.array(column) for column in zip(*rows, strict=True))
    return Dataset.from_arrays(
        places[:, None].astype(np.float64),
        actions,
        rewards,
        next_observations=after[:, None].astype(np.float64),
        terminations=ended,
        timeouts=late,
        action_count=2,
        name="chain-lying.hdf5",
    )


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place") / "run"
    log = lying_log()
    assert len(np.unique(np.column_stack([log.observations, log.actions]), axis=0)) == 2 * GOAL  # all there is to try
    result = fit(log, replace(SMALL, stitch=replace(SMALL.stitch, rounds=1, tolerance=1e-6)), folder=folder)
    assert result.records[-1].accepted == 0  # what is wrong with the graph is the log
    return folder


@pytest.fixture
def run(fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run, in a folder that one is in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    shutil.copytree(fitted, tmp_path / "run")
    return Path("run")


def rows(shown: str) -> dict[str, list[str]]:
    """The rows of a printed table, by their first cell."""
    lines = (line.replace("┃", "│").split("│")[1:-1] for line in shown.splitlines())
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines if cells}


def test_what_was_promised_replayed_and_cloned_stand_side_by_side(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_bytes(run)
    policy = load_policy(run / "policy.safetensors")
    played = evaluate(policy, CHAIN_ENVIRONMENT, episodes=40, seed=2)
    kept = (played.starts[:, 0] >= TRUE_FROM).astype(np.float64)
    assert 0 < kept.mean() < 1
    assert main(["evaluate", str(run), "--episodes", "40", "--seed", "2"]) == 0
    told = capsys.readouterr()
    assert "the log is called chain-lying.hdf5, so it is played in chain;" in " ".join(told.err.split())
    held = json.loads((run / "evaluation.json").read_text())
    low, high = interval(kept, seed=2)
    assert held["promised"] == {"mean_return": 1.0, "low": 1.0, "high": 1.0, "episodes": 40}
    assert held["replayed"] == {"mean_return": kept.mean(), "low": low, "high": high, "episodes": 40}
    assert held["cloned"]["mean_return"] == played.mean_return
    own = {"environment": CHAIN_ENVIRONMENT, "starts": "the environment's own", "episodes": 40, "seed": 2}
    assert {name: fact for name, fact in held.items() if not isinstance(fact, dict)} == own
    assert f"run, played in {CHAIN_ENVIRONMENT}; starts: the environment's own; seed 2" in told.out
    shown = rows(told.out)
    assert shown[""] == ["promised", "replayed", "cloned"]
    assert shown["mean return"] == ["1", f"{kept.mean():.5g}", f"{played.mean_return:.5g}"]
    assert shown["95% interval"][:2] == ["1 to 1", f"{low:.5g} to {high:.5g}"]
    assert shown["episodes"] == ["40", "40", "40"]
    assert "kept in run/evaluation.json; `bats-rl report run` shows it" in told.out
    assert {name: content for name, content in folder_bytes(run).items() if "evaluation" not in str(name)} == before


def test_an_evaluation_is_not_overwritten_unless_asked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "evaluation.json").write_text("{}")
    assert main(["evaluate", str(run), "--task", "no-such-task"]) == 2
    assert "run/evaluation.json exists already; --overwrite replaces it" in capsys.readouterr().err
    assert (run / "evaluation.json").read_text() == "{}"
    assert main(["evaluate", str(run), "--overwrite", "--quiet"]) == 0
    assert json.loads((run / "evaluation.json").read_text())["episodes"] == 100


def test_a_policys_own_file_is_played_and_nothing_written_but_what_is_asked_for(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_bytes(run)
    asked = ["evaluate", "run/policy.safetensors", "--environment", CHAIN_ENVIRONMENT, "--episodes", "5"]
    assert main([*asked, "--record", "played.hdf5"]) == 0
    told = capsys.readouterr()
    assert "so it is played in" not in told.err
    assert rows(told.out)[""] == ["cloned"]
    log = load_dataset("played.hdf5")
    assert log.episode_ends.sum() == 5
    policy = load_policy(run / "policy.safetensors")
    assert np.array_equal(policy.predict(log.observations), log.actions)
    assert float(rows(told.out)["mean return"][0]) == pytest.approx(log.rewards.sum() / 5)
    assert folder_bytes(run) == before
    assert main([*asked, "--record", "played.hdf5"]) == 2
    assert "played.hdf5 exists already" in capsys.readouterr().err
    assert main([*asked, "--record", "played.txt"]) == 2
    assert "recorded as .hdf5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--task", "grid", "--environment", "bats/grid-v0"], "Give a --task or an --environment, not both"),
        (["run", "--task", "maze"], "There is no task called 'maze'; known are maze2d-umaze"),
        (["run", "--task", "grid"], "The policy looks at 1 number, but 'bats/grid-v0' shows 2 numbers"),
        (["run", "--environment", "nowhere-v0"], "Gymnasium cannot make 'nowhere-v0'"),
        (["run", "--episodes", "0"], "at least 1 episode; got 0"),
        (["run", "--seed", "-1"], "A seed is a whole number from 0; got -1"),
        (["."], "expected the folder of a run, found none"),
        (["absent.safetensors"], "found no such file"),
        (["run/model.safetensors"], "expected bats-policy version"),
    ],
)
def test_what_cannot_be_played_is_told(
    run: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_bytes(run)
    assert main(["evaluate", *arguments]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert folder_bytes(run) == before


def test_a_policy_that_says_nothing_of_its_log_is_told_what_to_give(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_policy(replace(load_policy(run / "policy.safetensors"), card={}), "bare.safetensors")
    assert main(["evaluate", "bare.safetensors"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "Nothing says where the policy of this file is to be played: give --task (maze2d-umaze" in told
    assert "or --environment with the id of a Gymnasium environment" in told


def test_an_unfinished_run_has_no_policy_to_play_or_export(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "finished.json").unlink()
    for command in (["evaluate", "run"], ["export", "run", "policy.onnx"]):
        assert main(command) == 2
        assert "expected a finished run, found one that is not" in " ".join(capsys.readouterr().err.split())


def test_a_policy_is_exported_as_onnx_that_answers_like_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    assert main(["export", str(run), "policy.onnx"]) == 0
    assert "wrote policy.onnx; over 10,000 random observations its probabilities differ" in capsys.readouterr().out
    places = np.arange(10.0, dtype=np.float32)[:, None]
    session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
    answered = session.run(["action"], {"observation": places})[0]
    assert np.array_equal(answered, load_policy(run / "policy.safetensors").predict(places))
    assert main(["export", str(run), "policy.onnx"]) == 2
    assert "policy.onnx exists already" in capsys.readouterr().err
    assert main(["export", "run/policy.safetensors", "policy.onnx", "--overwrite"]) == 0


def test_an_unchecked_onnx_file_is_said_to_be_one(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export", str(run), "policy.onnx"]) == 0
    assert "its answers were not checked, as onnxruntime is not installed" in capsys.readouterr().out


def test_a_policy_is_copied_out_of_its_run_with_its_card(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "mine.safetensors"]) == 0
    assert Path("mine.safetensors").read_bytes() == (run / "policy.safetensors").read_bytes()
    assert Path("mine.json").read_bytes() == (run / "policy.json").read_bytes()
    assert "bats.load_policy('mine.safetensors').predict(observation)" in capsys.readouterr().out
    assert main(["export", str(run), "mine.safetensors"]) == 2
    assert "mine.safetensors exists already" in capsys.readouterr().err
    Path("notes.json").write_text("mine")
    assert main(["export", str(run), "notes.safetensors"]) == 2
    assert "notes.json exists already" in capsys.readouterr().err
    assert Path("notes.json").read_text() == "mine"
    assert main(["export", str(run), "notes.safetensors", "--overwrite"]) == 0
    assert main(["export", str(run), "policy.pt"]) == 2
    assert "policy.pt: a policy is written as .onnx or .safetensors" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "run/policy.safetensors", "--environment", CHAIN_ENVIRONMENT, "--episodes", "3"],
        ["evaluate", "run"],
        ["export", "run", "policy.onnx"],
        ["export", "run/policy.safetensors", "copy.safetensors"],
    ],
    ids=" ".join,
)
def test_playing_and_exporting_need_no_jax(run: Path, arguments: list[str]) -> None:
    if arguments[-1].endswith(".onnx"):
        pytest.importorskip("onnx")
    told = subprocess.run([sys.executable, "-c", WITHOUT_JAX, *arguments], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "wrote" in told.stdout or "cloned: what the policy earns" in told.stdout


def test_a_process_without_jax_is_one() -> None:
    told = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX, "fit", "log.npz"], capture_output=True, text=True, check=False
    )
    assert "ImportError: jax" in told.stderr


@pytest.mark.parametrize("verb", ["evaluate", "export"])
def test_help_says_what_for_and_what_each_argument_is(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit, match="0"):
        main([verb, "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert {"evaluate": "Play the policy of a run", "export": "Write the policy of a run"}[verb] in shown
    assert "RUN|POLICY folder of a finished run" in shown
    assert "--overwrite replace the" in shown
