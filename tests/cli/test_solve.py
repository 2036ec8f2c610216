"""`bats-rl solve`, `clone` and `certify`: a log solved exactly, and a finished run under other settings."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bats.bounds.certificate import load_certificate
from bats.cli.main import main
from bats.data.formats.hdf5 import write_hdf5
from bats.graph.files import load_mdp
from bats.graph.relabel import goal_reward, stitch_errors
from bats.policy.files import load_policy
from bats.policy.policy import Policy
from bats.runs.folder import RunFolder
from bats.runs.result import Changes
from bats.runs.variants import clone_again
from tests.cli.printed import error_text, facts
from tests.conftest import CopyRun
from tests.logs import folder_bytes
from tests.small_runs import SMALL, small_log

CORNER = ["--goal", "0,0", "--radius", "0.4"]


@pytest.fixture
def log() -> Path:
    write_hdf5(small_log(), Path("small.hdf5"))
    return Path("small.hdf5")


@pytest.fixture
def run(copy_run: CopyRun, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the finished run, called `run` from where the command is called."""
    folder = copy_run("run")
    monkeypatch.chdir(folder.parent)
    return Path("run")


def solve(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    assert main(["solve", *arguments]) == 0
    return facts(capsys.readouterr().out)


def same_answers(one: Policy, other: Policy) -> bool:
    states = small_log().observations
    return np.array_equal(one.predict(states), other.predict(states))


def test_a_log_is_solved_exactly_and_its_mdp_saved(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "collect", "grid", "--rows", "1000"]) == 0
    shown = solve(capsys, "grid-0.hdf5", "--gamma", "0.9", "--save", "mdp")
    optimal, logged = shown["optimal value at the starts"].split()[0], shown["value of the log at the starts"]
    assert float(optimal) > float(logged)
    assert shown["saved in"] == "mdp"
    assert load_mdp(Path("mdp")).gamma == 0.9


def test_the_value_of_dead_ends_can_be_given(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, worse = solve(capsys, str(log)), solve(capsys, str(log), "--dead-end-value", "-1")
    assert worse["dead ends"].endswith(", with value -1")
    name = "optimal value at the starts"
    assert float(worse[name].split()[0]) < float(plain[name].split()[0])


def test_solving_a_run_again_changes_what_is_requested_and_nothing_else(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, before = RunFolder(run).summary(), folder_bytes(run)
    assert main(["solve", str(run)]) == 0
    printed = capsys.readouterr().out
    assert facts(printed)["value at the starts"] == f"{summary.value:.6g} (discount 0.95)"
    assert "no setting was changed" in printed
    for free in (["--penalty", "0"], ["--penalty-steps", "0"]):
        assert float(solve(capsys, str(run), *free)["value at the starts"].split()[0]) > summary.value
    bare = solve(capsys, str(run), "--tolerance", "1e-9", "--save", "bare")
    assert bare["value at the starts"].split()[0] == f"{summary.log_value:.6g}"
    assert bare["stitches"] == "0"
    assert bare["stitched steps"] == "0.0%"
    assert np.isinf(stitch_errors(load_mdp(Path("bare")))).all()
    assert solve(capsys, str(run), "--gamma", "0.5")["value at the starts"].endswith("(discount 0.5)")
    assert folder_bytes(run) == before


def test_the_policy_of_a_run_that_was_solved_again_can_be_cloned(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder_bytes(run)
    own = load_policy(run / "policy.safetensors")
    assert main(["solve", str(run), "--policy", "same.safetensors", "--quiet"]) == 0
    same = load_policy("same.safetensors")
    assert same.card == own.card
    assert same_answers(same, own)
    capsys.readouterr()

    arguments = [str(run), *CORNER, "--steps", "50", "--policy", "corner.safetensors"]
    assert solve(capsys, *arguments)["policy saved in"] == "corner.safetensors"
    corner = load_policy("corner.safetensors")
    assert corner.card["solved_under"] == {"reward": "goal 0,0 with radius 0.4"}
    again = clone_again(run, Changes(reward=goal_reward(np.zeros(2), 0.4)))
    assert same_answers(corner, again)
    assert not same_answers(corner, own)
    assert main(["solve", *arguments]) == 2
    assert "corner.safetensors exists already" in error_text(capsys)
    assert main(["evaluate", "corner.safetensors", "--environment", "MountainCarContinuous-v0"]) == 2
    assert "expects Box" in error_text(capsys)
    assert folder_bytes(run) == before


def test_a_run_is_solved_for_another_goal_or_reward(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_rewards.py").write_text(
        "import numpy as np\n"
        "def corner(states, actions, next_states): return np.hypot(*next_states.T) <= 0.4\n"
        "def short(states, actions, next_states): return [1.0]\n"
        "def broken(states, actions, next_states): return 1 / 0\n"
    )
    by_goal = solve(capsys, str(run), *CORNER, "--steps", "50")
    by_function = solve(capsys, str(run), "--reward", "my_rewards:corner", "--steps", "50")
    del by_goal["seconds"], by_function["seconds"]
    assert by_goal == by_function
    assert by_goal["mean undiscounted return"].endswith("in at most 50 steps")
    for name, message in (
        ("my_rewards:short", "A reward function must return one finite number for each of"),
        ("my_rewards:broken", "The reward my_rewards:broken failed: ZeroDivisionError"),
        ("my_rewards:absent", "could not be loaded: AttributeError"),
        ("no_such_module:f", "could not be loaded: ModuleNotFoundError"),
        ("my_rewards", "must have the form package.module:function"),
    ):
        assert main(["solve", str(run), "--reward", name]) == 2
        assert message in error_text(capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--penalty", "1"], "--penalty needs a run folder"),
        (["--penalty-steps", "1"], "--penalty-steps needs a run folder"),
        (["--goal", "1,2"], "--goal needs a run folder"),
        (["--policy", "p.safetensors"], "--policy needs a run folder"),
        (["--gamma", "1"], "`gamma` must be strictly between 0 and 1"),
        (["--gamma", "0"], "`gamma` must be strictly between 0 and 1"),
        (["--dead-end-value", "nan"], "must"),
        (["--save", "small.hdf5"], "small.hdf5 exists already"),
    ],
)
def test_what_does_not_suit_a_log_is_refused(
    log: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["solve", str(log), *arguments]) == 2
    assert message in error_text(capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--actions", "discrete"], "--columns, --actions, --timeouts and --max-memory are only for logs"),
        (["--goal", "1,2"], "--goal and --radius must be given together"),
        (["--radius", "1"], "--goal and --radius must be given together"),
        (["--goal", "1,2,3", "--radius", "1"], "A state has 2 components, but the goal has 3"),
        (["--goal", "1", "--radius", "1", "--reward", "a:b"], "Give either --reward or --goal, not both"),
        (["--penalty", "-1"], "`penalty` must be between 0 and 1e+15; got -1.0"),
        (["--penalty", "1", "--penalty-steps", "1"], "Give the penalty either in reward or in steps, not both"),
        (["--tolerance", "0"], "`tolerance` must be positive"),
        (["--steps", "0"], "`--steps` must be between 1 and 100,000; got 0"),
        (["--save", "run"], "run exists already"),
        (["--policy", "p.onnx"], "p.onnx: a policy can only be written to a .safetensors file"),
        (["--policy", "run/run.safetensors"], "run.json exists already"),
        (["--gamma", "1"], "`gamma` must be strictly between 0 and 1"),
    ],
)
def test_what_does_not_suit_a_run_is_refused(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_bytes(run)
    assert main(["solve", str(run), *arguments]) == 2
    assert message in error_text(capsys)
    assert folder_bytes(run) == before


def test_clone_adds_a_policy_beside_the_first_one(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder_bytes(run)
    assert main(["clone", str(run), "--name", "even", "--rollouts.uniform-share", "1", "--quiet"]) == 0
    printed = capsys.readouterr().out
    file = "run/policies/even.safetensors"
    assert facts(printed)["policy"] == file
    assert f"bats-rl certify run --policy {file}  # compute bounds on its value" in printed
    even = replace(SMALL, rollouts=replace(SMALL.rollouts, uniform_share=1.0))
    expected = clone_again(run, config=even)
    assert same_answers(load_policy(file), expected)
    after = folder_bytes(run)
    assert {name: after[name] for name in before} == before
    assert main(["clone", str(run), "--name", "even"]) == 2
    assert "even.safetensors exists already" in error_text(capsys)


def test_the_commands_after_cloning_can_be_pasted_into_a_shell(
    copy_run: CopyRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_run("it's my run")
    assert main(["clone", str(folder), "--name", "new", "--quiet"]) == 0
    evaluate, certify = (shlex.split(line, comments=True) for line in capsys.readouterr().out.splitlines()[-2:])
    policy = str(folder / "policies" / "new.safetensors")
    assert evaluate == ["bats-rl", "evaluate", policy]
    assert certify == ["bats-rl", "certify", str(folder), "--policy", policy]


def test_certify_adds_a_certificate_named_after_what_was_changed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder_bytes(run)
    assert main(["certify", str(run), "--confidence", "0.5", "--reward-range", "-1,2", "--quiet"]) == 0
    folder = run / "certificates" / "confidence-0.5-rewards--1-2"
    printed, certificate = capsys.readouterr().out, load_certificate(folder)
    assert certificate is not None
    assert (certificate.confidence, certificate.floor, certificate.ceiling) == pytest.approx((0.5, -20.0, 40.0))
    assert {name: facts(printed)[name] for name in certificate.facts()} == certificate.facts()
    assert f"saved in {folder}" in printed
    after = folder_bytes(run)
    assert {name: after[name] for name in before} == before
    assert main(["certify", str(run), "--confidence", "0.5", "--reward-range", "-1,2"]) == 2
    assert "exists already" in error_text(capsys)
    policy = ["--policy", "run/policy.safetensors", "--name", "mine", "--quiet"]
    assert main(["certify", str(run), *policy]) == 0
    own = (run / "certificate.json").read_bytes()
    assert (run / "certificates" / "mine" / "certificate.json").read_bytes() == own


def test_what_a_killed_process_left_does_not_block_a_name(run: Path) -> None:
    summary, bounds = run / "policies" / "small.json", run / "certificates" / "again" / "bounds.safetensors"
    for path in (summary, bounds):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("left")
    assert main(["clone", str(run), "--name", "small", "--quiet"]) == 0
    assert summary.read_bytes() == (run / "policies" / "bats.json").read_bytes()
    assert main(["certify", str(run), "--quiet"]) == 0
    assert bounds.read_bytes() == (run / "bounds.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["certify", "run", "--confidence", "1"], "`certificate.confidence` must be strictly between 0 and 1; got 1.0"),
        (["certify", "run", "--reward-range", "0,0.5"], "`reward_range` must include all logged rewards"),
        (["certify", "run", "--policy", "absent.safetensors"], "found no such file"),
        (["certify", "run", "--name", "../elsewhere"], "--name may contain only letters, digits"),
        (["certify", "run", "--name", "bats"], "The name bats belongs to one of the run's own policies"),
        (["clone", "run", "--name", "log"], "The name log belongs to one of the run's own policies"),
        (["certify", "."], "expected the folder of a run, found no file run.json in it"),
        (["clone", "run", "--name", ".hidden"], "--name may contain only letters, digits"),
        (["clone", "run", "--name", "wide", "--cloning.hidden", "0"], "`cloning.hidden[0]` must be between 1 and"),
        (["clone", "run", "--name", "wide", "--penalty", "-1"], "`penalty` must be between 0 and"),
        (["clone", "run", "--name", "high", "--rollouts.min-return", "1e9"], "Lower `rollouts.min_return`"),
        (["clone", "run", "--name", "high", *CORNER, "--rollouts.min-return", "1e9"], "Lower `rollouts.min_return`"),
        (["clone", ".", "--name", "wide"], "expected the folder of a run, found no file run.json in it"),
    ],
)
def test_what_cannot_be_cloned_or_certified_is_refused_and_nothing_is_written(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_bytes(run)
    assert main(arguments) == 2
    assert message in error_text(capsys)
    assert folder_bytes(run) == before
