"""`bats-rl fit` and `bats-rl solve RUN` as people call them, on a log that is fitted in seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bats.bounds.certificate import load_certified
from bats.cli.fit import print_verdict
from bats.cli.main import _parsed_fit, main
from bats.config import Config
from bats.data.formats.load import write_hdf5
from bats.graph.files import load_mdp
from bats.graph.relabel import goal_reward, stitch_errors
from bats.policy.files import load_policy
from bats.runs.folder import RunFolder
from bats.runs.pipeline import clone_resolved, fit
from bats.runs.solve_again import Changes, resolve
from bats.stitching.records import RoundRecord
from bats.storage.json_records import from_plain
from tests.logs import folder_bytes
from tests.small_runs import SMALL, walks
from tests.test_certified import certificate_of

DYNAMICS = "members=2 elites=2 hidden=8 reward-hidden=8 batch-size=32 updates=60 evaluate-every=15"
CLONING = "hidden=8 batch-size=32 updates=60 evaluate-every=20"
BISIMULATION = "hidden=8 horizon=20 updates=60 batch-size=16"
STITCH = "rounds=2 rounds-beside=1 samples=60 attempts=20 tolerance=2.0 candidates.longest=3 planner.batch=32"
FLAGS = [
    *("--gamma", "0.95", "--dynamics.validation-rows", "50", "--dynamics.held-out-rows", "50"),
    *[word for each in DYNAMICS.split() for word in f"--dynamics.{each}".split("=")],
    *[word for each in STITCH.split() for word in f"--stitch.{each}".split("=")],
    *[word for each in CLONING.split() for word in f"--cloning.{each}".split("=")],
    *[word for each in BISIMULATION.split() for word in f"--bisimulation.{each}".split("=")],
    "--stitch.planner.no-fallback",
]
"""what makes the default preset the small one"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    write_hdf5(walks(), folder / "walks [red].hdf5")
    return folder


@pytest.fixture(autouse=True)
def there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    """A finished run, interrupted once on its way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)

        def interrupt(record: RoundRecord) -> str:
            raise KeyboardInterrupt

        patch.setattr("bats.cli.fit.round_line", interrupt)
        assert main(["fit", "walks [red].hdf5", *FLAGS]) == 130
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["fit", "walks [red].hdf5", *FLAGS, "--quiet"]) == 0
    return place / "runs" / "walks-red--0"


def facts(shown: str) -> dict[str, str]:
    """The rows of a printed table."""
    rows = (line.strip("│ ").split("│") for line in shown.splitlines())
    return {cells[0].strip(): cells[1].strip() for cells in rows if len(cells) == 2}


def test_flags_override_the_preset(run: Path) -> None:
    held = json.loads((run / "run.json").read_text())
    assert from_plain(Config, held["config"], file="run.json") == SMALL


def test_an_interrupted_fit_goes_on_and_ends_as_one_from_python_does(run: Path) -> None:
    result = fit(walks(), SMALL)
    assert RunFolder(run).records(RoundRecord) == result.records
    assert RunFolder(run).finished().value == result.value
    assert result.value > result.log_value
    assert result.value == result.records[-1].value  # nothing is pruned, and errors are charged already


def test_starting_again_says_so_and_tells_the_same_facts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder_bytes(run)
    assert main(["fit", "walks [red].hdf5", *FLAGS]) == 0
    shown = capsys.readouterr().out
    assert "was finished before; nothing was left to do" in shown
    assert "walks [red].hdf5: stitched and solved" in shown
    records = RunFolder(run).records(RoundRecord)
    told = facts(shown)
    assert told["stitches tried"] == str(sum(record.tried for record in records))
    assert told["accepted"] == str(sum(record.accepted for record in records))
    assert told["best with stitches"] == f"{records[-1].value:.6g}"
    assert told["value at the starts, as logged"].startswith(f"{RunFolder(run).finished().logged_value:.6g} ")
    assert told["kept in"] == "runs/walks-red--0"
    assert folder_bytes(run) == before


def test_a_fit_tells_of_its_policy_and_what_it_is_good_for(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "walks [red].hdf5", *FLAGS]) == 0
    shown = capsys.readouterr().out
    told = facts(shown)
    walked, how = RunFolder(run).walks()
    card = json.loads((run / "policy.json").read_text())
    assert told["policy"] == "runs/walks-red--0/policy.safetensors"
    kept = f"{walked['kept'].sum()} of {len(walked['kept'])}"
    assert told["walks cloned"] == f"{kept}: share of the best nearby at least {how['cut']:.4g}"
    assert told["validation error"].startswith(f"{card['validation_error']:.4g}, ")
    after = shown[shown.index("next:") :]
    for verb in ("evaluate", "report", "export", "solve"):
        assert f"bats-rl {verb} runs/walks-red--0" in after


def test_a_fit_ends_with_bounds_and_the_verdict(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "walks [red].hdf5", *FLAGS]) == 0
    shown = capsys.readouterr().out
    told, found = facts(shown), load_certified(run)
    assert found is not None
    said = found.verdict
    assert told["at least"] == f"{said.lower:.6g}"
    assert told["at most"] == f"{said.upper:.6g}"
    assert told["as logged"].startswith(f"{said.logged_value:.6g} ")
    assert told["resting on stitches"].startswith(f"{said.share_on_stitches:.1%} ")
    assert told["starts within the data"] == f"{said.coverage:.1%}"
    lines = shown.splitlines()
    verdict = next(place for place, line in enumerate(lines) if line.startswith("hold: "))
    after = lines[verdict + 1 : lines.index("next:")]
    assert after == [f"  - {reason}" for reason in said.reasons]  # nothing else stands between


def test_a_policy_to_deploy_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_verdict(certificate_of(3.0, 4.0), Console())
    assert capsys.readouterr().out.startswith("deploy: it is sure to earn more than the log did")


def test_the_range_of_rewards_can_be_given(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parsed = _parsed_fit(["walks [red].hdf5", *FLAGS, "--certificate.reward-range", "0", "1"])
    assert SMALL.certificate is not None
    assert parsed.settings == replace(SMALL, certificate=replace(SMALL.certificate, reward_range=(0.0, 1.0)))
    narrow = ["--certificate.reward-range", "0", "0.5", "--out", "narrow"]
    assert main(["fit", "walks [red].hdf5", *FLAGS, *narrow]) == 2
    assert "must hold all logged rewards, 0 to 1; got 0 to 0.5" in " ".join(capsys.readouterr().err.split())


def test_penalties_can_be_chosen_between(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", "walks [red].hdf5", "--out", "chosen", *FLAGS, "--choice.penalties", "30", "--quiet"])
    told, best = capsys.readouterr().out, RunFolder(Path("chosen")).options()[0]
    assert f"penalty {best.penalty:g}, all stitches: the best lower bound of 2 options" in told
    assert RunFolder(Path("chosen")).finished().penalty == best.penalty


def test_a_log_that_is_called_after_no_task_is_not_played_unless_told_where(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(run)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "Nothing says where the policy of the log walks [red].hdf5 is to be played: give --task (maze2d-umaze" in told
    )
    assert not (run / "evaluation.json").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--preset", "best"], "There is no preset called 'best'; known are default"),
        (["--seed", "-1"], "`seed` must not be negative; got -1"),
        (["--gamma", "2"], "`gamma` must lie strictly between 0 and 1; got 2.0"),
        ([*FLAGS, "--stitch.rounds", "5"], "its stitch.rounds is 2, not 5"),
        ([*FLAGS, "--seed", "4", "--out", "runs/walks-red--0"], "its seed is 0, not 4"),
        (["--out", "."], ". is not empty and not the folder of a run"),
    ],
)
def test_a_fit_that_cannot_be_is_refused_before_any_work(
    run: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_bytes(run.parent.parent)
    assert main(["fit", "walks [red].hdf5", *arguments]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert folder_bytes(run.parent.parent) == before


def test_solving_a_run_again_changes_what_is_asked_and_nothing_else(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, before = RunFolder(run).finished(), folder_bytes(run)

    def solved(*arguments: str) -> dict[str, str]:
        assert main(["solve", str(run), *arguments]) == 0
        return facts(capsys.readouterr().out)

    assert solved()["value at the starts"] == f"{ended.value:.6g} (discount 0.95)"
    assert float(solved("--penalty", "0")["value at the starts"].split()[0]) > ended.value
    none = solved("--tolerance", "1e-9", "--save", str(run.parent / "bare"))
    assert none["value at the starts"].split()[0] == f"{ended.log_value:.6g}"
    assert none["stitches kept"] == "0"
    assert none["stitched steps"] == "0.0%"
    assert np.isinf(stitch_errors(load_mdp(run.parent / "bare"))).all()
    assert solved("--gamma", "0.5")["value at the starts"].endswith("(discount 0.5)")
    assert folder_bytes(run) == before


def test_the_policy_of_a_run_that_was_solved_again_can_be_cloned(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder_bytes(run)
    assert main(["solve", str(run), "--policy", "same.safetensors", "--quiet"]) == 0
    same, own = load_policy("same.safetensors"), load_policy(run / "policy.safetensors")
    assert same.card == own.card
    assert all(np.array_equal(one, other) for one, other in zip(same.weights, own.weights, strict=True))
    capsys.readouterr()

    asked = ["solve", str(run), "--goal", "0,0", "--radius", "0.4", "--steps", "50", "--policy", "corner.safetensors"]
    assert main(asked) == 0
    assert facts(capsys.readouterr().out)["policy cloned in"] == "corner.safetensors"
    corner = load_policy("corner.safetensors")
    assert corner.card["solved_under"] == {"goal": "0,0", "radius": 0.4}
    solved = resolve(RunFolder(run), Changes(reward=goal_reward(np.zeros(2), 0.4)))
    again = clone_resolved(RunFolder(run), solved)
    places = walks().observations
    assert np.array_equal(corner.predict(places), again.predict(places))
    assert not np.array_equal(corner.predict(places), own.predict(places))
    assert main(asked) == 2
    assert "corner.safetensors exists already" in capsys.readouterr().err
    assert main(["evaluate", "corner.safetensors", "--environment", "MountainCarContinuous-v0"]) == 2
    assert "takes Box" in " ".join(capsys.readouterr().err.split())
    assert folder_bytes(run) == before


def test_a_run_is_solved_for_another_goal_or_reward(run: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "my_rewards.py").write_text(
        "import numpy as np\n"
        "def corner(states, actions, next_states): return np.hypot(*next_states.T) <= 0.4\n"
        "def short(states, actions, next_states): return [1.0]\n"
        "def broken(states, actions, next_states): return 1 / 0\n"
    )
    told = []
    for arguments in (["--goal", "0,0", "--radius", "0.4"], ["--reward", "my_rewards:corner"]):
        assert main(["solve", str(run), *arguments, "--steps", "50"]) == 0
        told.append(facts(capsys.readouterr().out))
        del told[-1]["seconds"]
    assert told[0] == told[1]
    assert told[0]["undiscounted return"].endswith("in 50 steps at most")
    for name, complaint in (
        ("my_rewards:short", "A reward must be one finite number for each of"),
        ("my_rewards:broken", "The reward my_rewards:broken failed: ZeroDivisionError"),
        ("my_rewards:absent", "could not be loaded: AttributeError"),
        ("no_such_module:f", "could not be loaded: ModuleNotFoundError"),
        ("my_rewards", "must be like package.module:function"),
    ):
        assert main(["solve", str(run), "--reward", name]) == 2
        assert complaint in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("target", "arguments", "told"),
    [
        ("walks [red].hdf5", ["--penalty", "1"], "--penalty is for the folder of a run"),
        ("walks [red].hdf5", ["--goal", "1,2"], "--goal is for the folder of a run"),
        ("walks [red].hdf5", ["--policy", "p.safetensors"], "--policy is for the folder of a run"),
        ("runs/walks-red--0", ["--actions", "discrete"], "--columns, --actions and --timeouts say how a log is read"),
        ("runs/walks-red--0", ["--goal", "1,2"], "--goal needs a --radius"),
        ("runs/walks-red--0", ["--radius", "1"], "--radius needs a --goal"),
        ("runs/walks-red--0", ["--goal", "a,b", "--radius", "1"], "`goal` must be numbers with commas between"),
        ("runs/walks-red--0", ["--goal", "1,2,3", "--radius", "1"], "A goal has at most 2 numbers here"),
        ("runs/walks-red--0", ["--goal", "1", "--radius", "1", "--reward", "a:b"], "Give a --reward or a --goal"),
        ("runs/walks-red--0", ["--penalty", "-1"], "`penalty` must be finite and not negative; got -1.0"),
        ("runs/walks-red--0", ["--steps", "0"], "`steps` must be at least 1"),
        ("runs/walks-red--0", ["--save", "runs"], "runs exists already"),
        ("runs/walks-red--0", ["--policy", "p.onnx"], "p.onnx: it is written as .safetensors"),
        ("runs/walks-red--0", ["--policy", "runs/walks-red--0/run.safetensors"], "run.json exists already"),
        ("runs/walks-red--0", ["--gamma", "1"], "`gamma` must lie strictly between 0 and 1"),
    ],
)
def test_what_does_not_suit_is_refused(
    run: Path, target: str, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["solve", target, *arguments]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_help_names_the_settings_with_the_presets_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # wider, the boxes stand side by side
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "--preset", "paper-large", "--help"])
    shown = capsys.readouterr().out
    assert "--stitch.neighbours.radius" in shown
    assert "(default: paper-large)" in shown
    assert "(default: 0.15)" in shown
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "fit" in capsys.readouterr().out
