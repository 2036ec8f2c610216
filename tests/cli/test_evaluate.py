"""`bats-rl evaluate`: what a policy earns in its environment, beside what its run promised."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from bats.cli.main import main
from bats.data.formats.load import load_dataset
from bats.evaluation.comparison import MEANING
from bats.evaluation.episodes import evaluate, interval
from bats.policy.files import load_policy, save_policy
from bats.storage.tensors import read_facts
from bats.tasks.worlds import CHAIN, CHAIN_ENVIRONMENT, EPISODE_STEPS, WorldEnv
from tests.cli.lying_run import TRUE_FROM, make_lying_run
from tests.cli.printed import error_text, table
from tests.logs import folder_bytes
from tests.runs.relisted import relisted

ROOT = Path(__file__).parents[2]
WITHOUT_JAX = """
import sys

class NoJax:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "jax":
            raise ImportError(name)

sys.meta_path.insert(0, NoJax())
sys.path.insert(0, sys.argv.pop(1))
from bats.cli.main import main
for line in sys.argv[1:]:
    if main(line.split()) != 0:
        sys.exit(f"{line} failed")
"""
"""commands in a process that cannot import JAX"""


@pytest.fixture
def run() -> Path:
    make_lying_run(Path("run"))
    return Path("run")


def test_promised_replayed_and_cloned_returns_stand_side_by_side(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder_bytes(run)
    policy = load_policy(run / "policy.safetensors")
    played = evaluate(policy, CHAIN_ENVIRONMENT, episodes=40, seed=2)
    kept = (played.starts[:, 0] >= TRUE_FROM).astype(np.float64)
    assert 0 < kept.mean() < 1
    assert main(["evaluate", str(run), "--episodes", "40", "--seed", "2"]) == 0
    printed = capsys.readouterr()
    expected = "the log is named chain-lying.hdf5, so the policy is evaluated in chain;"
    assert expected in " ".join(printed.err.split())
    saved = json.loads((run / "evaluation.json").read_text())
    low, high = interval(kept, seed=2)
    assert saved["promised"] == {"mean_return": 1.0, "low": 1.0, "high": 1.0, "episodes": 40}
    assert saved["replayed"] == {"mean_return": kept.mean(), "low": low, "high": high, "episodes": 40}
    assert saved["cloned"]["mean_return"] == played.mean_return
    own = {"environment": CHAIN_ENVIRONMENT, "starts": "the environment's own", "episodes": 40, "seed": 2}
    own["policy"] = read_facts(run / "policy.safetensors")["checksum"]
    assert {name: fact for name, fact in saved.items() if not isinstance(fact, dict)} == own
    assert f"run in {CHAIN_ENVIRONMENT}; starts: the environment's own; seed 2" in printed.out
    shown = table(printed.out)
    assert shown[""] == ["promised", "replayed", "cloned"]
    assert shown["mean return"] == ["1", f"{kept.mean():.5g}", f"{played.mean_return:.5g}"]
    assert shown["95% interval"][:2] == ["1 to 1", f"{low:.5g} to {high:.5g}"]
    assert shown["episodes"] == ["40", "40", "40"]
    assert all(f"{name}: {meaning}" in printed.out for name, meaning in MEANING.items())
    assert "saved in run/evaluation.json; `bats-rl report run` shows it" in printed.out
    assert {name: content for name, content in folder_bytes(run).items() if "evaluation" not in name} == before


def test_a_function_of_the_user_puts_the_environment_into_states(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_states.py").write_text(
        "def place(environment, state): return environment.reset(options={'state': state})[0]\n"
        "def ignore(environment, state): return state + 1\n"
        "def broken(environment, state): return 1 / 0\n"
        "number = 1\n"
    )
    arguments = ["evaluate", str(run), "--episodes", "10", "--overwrite"]
    assert main(arguments) == 0
    expected = json.loads((run / "evaluation.json").read_text())
    # the same environment under a name that is not a task's
    gymnasium.register("chain-unplaced-v0", WorldEnv, kwargs={"shape": CHAIN.shape}, max_episode_steps=EPISODE_STEPS)
    arguments += ["--environment", "chain-unplaced-v0"]
    assert main(arguments) == 0
    assert table(capsys.readouterr().out)["episodes"] == ["10"]
    assert main([*arguments, "--set-state", "my_states:place"]) == 0
    found = json.loads((run / "evaluation.json").read_text())
    assert found == {**expected, "environment": "chain-unplaced-v0"}
    capsys.readouterr()
    before = folder_bytes(run)
    for name, message in (
        ("my_states:ignore", "ignore must return the observation, which must be the state"),
        ("my_states:broken", "broken failed to set the state [0.0]: ZeroDivisionError"),
        ("my_states:absent", "--set-state my_states:absent could not be loaded: AttributeError"),
        ("my_states:number", "--set-state must be a function; my_states:number is of type int"),
        ("no_such_module:f", "could not be loaded: ModuleNotFoundError"),
        ("my_states", "--set-state must have the form package.module:function"),
    ):
        assert main([*arguments, "--set-state", name]) == 2
        assert message in error_text(capsys)
    assert main(["evaluate", "run/policy.safetensors", *arguments[2:], "--set-state", "my_states:place"]) == 2
    assert "needs the folder of a run" in error_text(capsys)
    assert folder_bytes(run) == before


def test_an_evaluation_is_not_overwritten_unless_asked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "evaluation.json").write_text("{}")
    assert main(["evaluate", str(run), "--task", "no-such-task"]) == 2
    assert "run/evaluation.json exists already; choose another name or use --overwrite" in error_text(capsys)
    assert (run / "evaluation.json").read_text() == "{}"
    assert main(["evaluate", str(run), "--overwrite", "--quiet"]) == 0
    assert json.loads((run / "evaluation.json").read_text())["episodes"] == 100


def test_after_a_report_the_advice_is_to_overwrite_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "report.html").write_text("old")
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0
    assert "`bats-rl report run --overwrite` shows it" in capsys.readouterr().out


def test_a_policys_own_file_is_played_and_only_what_is_requested_is_written(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_bytes(run)
    arguments = ["evaluate", "run/policy.safetensors", "--environment", CHAIN_ENVIRONMENT, "--episodes", "5"]
    assert main([*arguments, "--record", "played.hdf5"]) == 0
    printed = capsys.readouterr()
    assert "so the policy is evaluated in" not in printed.err
    assert table(printed.out)[""] == ["cloned"]
    log = load_dataset("played.hdf5")
    assert log.episode_ends.sum() == 5
    policy = load_policy(run / "policy.safetensors")
    assert np.array_equal(policy.predict(log.observations), log.actions)
    assert float(table(printed.out)["mean return"][0]) == pytest.approx(log.rewards.sum() / 5)
    assert folder_bytes(run) == before
    assert main([*arguments, "--record", "played.hdf5"]) == 2
    assert "played.hdf5 exists already" in error_text(capsys)
    assert main([*arguments, "--record", "played.txt"]) == 2
    assert "recorded in a .hdf5 file" in error_text(capsys)


def test_a_policy_that_was_solved_under_other_settings_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = load_policy(run / "policy.safetensors")
    card = {**policy.card, "solved_under": {"gamma": 0.5}}
    save_policy(replace(policy, card=card), "other.safetensors")
    assert main(["evaluate", "other.safetensors", "--task", "chain", "--episodes", "2"]) == 0
    assert "cloned from the run's graph, which was solved again with gamma 0.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--task", "grid", "--environment", "bats/grid-v0"], "Give either --task or --environment, not both"),
        (["run", "--task", "maze"], "There is no task called 'maze'; `bats-rl data collect list` shows all names."),
        (["run", "--task", "FrozenLake-v1"], "use `bats-rl evaluate --environment FrozenLake-v1`"),
        (
            ["run", "--task", "grid"],
            "The policy expects observations of size 1, but 'bats/grid-v0' has observations of size 2",
        ),
        (["run", "--environment", "nowhere-v0"], "Gymnasium cannot make 'nowhere-v0'"),
        (["run", "--episodes", "0"], "`episodes` must be between 1 and 1,000,000,000; got 0"),
        (["run", "--seed", "-1"], "`seed` must be between 0 and 9,223,372,036,854,775,807; got -1"),
        (["."], "expected the folder of a run, found no file run.json in it"),
        (["absent.safetensors"], "found no such file"),
        (["run/mdp/base.safetensors"], "expected bats-policy version"),
    ],
)
def test_what_cannot_be_played_is_refused(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_bytes(run)
    assert main(["evaluate", *arguments]) == 2
    assert message in error_text(capsys)
    assert folder_bytes(run) == before


def test_for_a_policy_without_the_name_of_its_log_the_error_says_what_to_give(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_policy(replace(load_policy(run / "policy.safetensors"), card={}), "bare.safetensors")
    assert main(["evaluate", "bare.safetensors"]) == 2
    message = error_text(capsys)
    assert "the policy does not say which log it is from. Give --task (maze2d-umaze" in message
    assert "or --environment with the id of a Gymnasium environment" in message


def test_an_unfinished_run_has_no_policy_to_play_or_export(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "finished.json").unlink()
    relisted(run)
    for command in (["evaluate", "run"], ["export", "run", "policy.onnx"]):
        assert main(command) == 2
        message = error_text(capsys)
        assert "expected a finished run, found an unfinished run" in message
        assert "Run the original `bats-rl fit` command again" in message


def test_playing_and_exporting_need_no_jax(run: Path) -> None:
    commands = [
        f"evaluate run/policy.safetensors --environment {CHAIN_ENVIRONMENT} --episodes 3",
        "evaluate run --episodes 3",
        "solve run",
        "export run/policy.safetensors copy.safetensors",
    ]
    process = [sys.executable, "-c", WITHOUT_JAX, str(ROOT)]
    subprocess.run([*process, *commands], check=True, capture_output=True)
    assert Path("copy.safetensors").exists()
    np.savez("log.npz", observations=np.arange(9.0)[:, None], actions=np.zeros((9, 1)), rewards=np.zeros(9))
    fit = subprocess.run([*process, "fit log.npz"], capture_output=True, text=True, check=False)
    assert "ImportError: jax" in fit.stderr  # so the process above had none
