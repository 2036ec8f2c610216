"""`bats-rl fit`: what it prints, how it continues, and what it refuses before any work."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bats.bounds.certificate import Option, load_certificate
from bats.cli.fit import print_certificate, print_result
from bats.cli.main import main
from bats.data.formats.hdf5 import write_hdf5
from bats.policy.files import load_policy
from bats.runs.folder import RunFolder
from bats.runs.result import load_result
from bats.runs.variants import clone_again
from bats.stitching.records import RoundRecord
from bats.storage.json_records import write_record
from tests.bounds.test_certificate import simple_certificate
from tests.cli.printed import error_text, facts
from tests.logs import folder_bytes
from tests.runs.relisted import relisted
from tests.small_runs import COMPARED, SMALL, small_log

LOG = "small [red].hdf5"
RUN = "runs/small-red--0"
"""the default folder of this log with seed 0"""
LATER = (
    *("attempts/round-0002.safetensors", "attempts/round-0003.safetensors"),
    *("mdp/round-0002.safetensors", "mdp/round-0003.safetensors"),
    *(f"policies/{name}.{kind}" for name in COMPARED for kind in ("safetensors", "json")),
    *(f"certificates/{name}/{file}" for name in COMPARED for file in ("certificate.json", "bounds.safetensors")),
    *("policy.safetensors", "policy.json", "rollouts.safetensors"),
    *("certificate.json", "bounds.safetensors", "finished.json"),
)
"""what is made after the first round"""


@pytest.fixture(autouse=True)
def log() -> None:
    write_hdf5(small_log(), Path(LOG))
    write_record(Path("small.json"), SMALL)


@pytest.fixture
def run(finished_run: Path) -> Path:
    """The finished run where `fit` expects that of this log."""
    shutil.copytree(finished_run, RUN)
    header = json.loads(Path(RUN, "run.json").read_text())
    Path(RUN, "run.json").write_text(json.dumps(header | {"log": LOG}))
    return relisted(Path(RUN))


def fit(*arguments: str) -> int:
    return main(["fit", LOG, "--config", "small.json", *arguments])


def test_an_interrupted_fit_continues_and_ends_as_one_from_python_does(
    run: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in LATER:
        (run / name).unlink()
    relisted(run)

    def interrupt(record: RoundRecord) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bats.cli.fit.round_line", interrupt)
        assert fit() == 130
    assert "call the same command again to continue from the last saved state" in error_text(capsys)
    assert RunFolder(run).rounds_done == 2
    assert fit() == 0
    printed = capsys.readouterr()
    assert "round 3: " in printed.err
    assert f"{RUN}: continued after round 2" in printed.err
    assert "was finished before" not in printed.out
    mine, expected = folder_bytes(run), folder_bytes(finished_run)
    assert mine.keys() == expected.keys()
    # these name the log, or say how long the run took
    named = {"run.json", "policy.json", "policy.safetensors", "timings.jsonl"}
    named |= {f"policies/{name}.{kind}" for name in COMPARED for kind in ("json", "safetensors")}
    checked = {"certificate.json", "bounds.safetensors"}  # these have the checksum of the policy
    checked |= {f"certificates/{name}/{file}" for name in COMPARED for file in checked}
    assert {name for name in expected if mine[name] != expected[name]} == {"files.json", *named, *checked}
    policy, expected_policy = (load_policy(folder / "policy.safetensors") for folder in (run, finished_run))
    states = small_log().observations
    assert np.array_equal(policy.predict(states), expected_policy.predict(states))


@pytest.mark.slow
def test_logs_from_which_little_can_be_learned_end_with_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    one, many = replace(small_log(1, 400), observation_names=("east", "north")), small_log()
    terminated = replace(many, terminations=many.episode_ends)
    rare = np.where(np.arange(len(many)) == 7, 3, np.arange(len(many)) % 3).astype(np.int32)
    for name, log, problem in (
        ("one episode", one, ""),
        ("equal rewards", many.with_rewards(np.ones(len(many))), "Every reward is 1 and no episode terminates"),
        ("equal rewards of episodes", terminated.with_rewards(-np.ones(len(many))), ""),
        ("a rare action", replace(many, actions=rare, action_count=4), ""),
    ):
        write_hdf5(log, Path(f"{name}.hdf5"))
        assert main(["fit", f"{name}.hdf5", "--config", "small.json", "--out", name, "--quiet"]) == 0, name
        printed = capsys.readouterr().out
        assert "hold: the policy should not be deployed yet" in printed or "deploy: " in printed
        assert problem in printed
        assert main(["report", name]) == 0
    assert load_policy("one episode/policy.safetensors").card["observation_names"] == ["east", "north"]
    assert clone_again("one episode").card["observation_names"] == ["east", "north"]


def test_quiet_prints_no_rounds(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in LATER[4:]:
        (run / name).unlink()
    (run / "mdp/round-0003.safetensors").unlink()
    relisted(run)
    assert fit("--quiet") == 0
    assert capsys.readouterr().err == ""


def test_starting_again_says_so_and_prints_the_same_facts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder_bytes(run)
    assert fit() == 0
    printed = capsys.readouterr().out
    assert f"{RUN} was already finished; nothing was done" in printed
    assert f"{LOG}: stitched and solved" in printed
    records, summary = RunFolder(run).records(), RunFolder(run).summary()
    assert summary.value > summary.log_value
    shown = facts(printed)
    assert shown["stitches tried"] == str(sum(record.tried for record in records))
    assert shown["accepted"] == str(sum(record.accepted for record in records))
    assert shown["actions of a stitch"] == f"at most {max(record.max_length for record in records)} (as set)"
    assert shown["optimal value with stitches"] == f"{records[-1].value:.6g}"  # nothing is pruned
    assert shown["optimal value without stitches"] == f"{summary.log_value:.6g}"
    assert shown["value of the log at the starts"].startswith(f"{summary.logged_value:.6g} ")
    assert shown["folder"] == RUN
    assert folder_bytes(run) == before


def test_a_fit_shows_its_policy_and_the_next_commands(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit() == 0
    printed = capsys.readouterr().out
    shown, selection = facts(printed), RunFolder(run).selection()
    card = json.loads((run / "policy.json").read_text())
    assert shown["policy"] == f"{RUN}/policy.safetensors"
    kept = f"{np.count_nonzero(selection.kept)} of {len(selection.kept)}"
    threshold = f"{selection.threshold:.1%} of the best return from nearby starts"
    assert shown["rollouts cloned"] == f"{kept} (return at least {threshold})"
    assert shown["validation error"].startswith(f"{card['validation_error']:.4g} ")
    after = printed[printed.index("next:") :]
    for command in ("evaluate", "report", "export", "solve"):
        assert f"bats-rl {command} {RUN}" in after


def test_the_next_commands_can_be_pasted_into_a_shell(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("my runs/it's $HOME; #1", "-first"):
        shutil.copytree(run, name)
        assert fit(f"--out={name}") == 0
        printed = capsys.readouterr().out
        after = printed[printed.index("next:") :].splitlines()[1:]
        assert len(after) == 4
        for line in after:
            program, _, folder, *_ = shlex.split(line, comments=True)
            assert program == "bats-rl"
            assert Path(folder) == Path(name)
            assert not folder.startswith("-")


def test_problems_of_the_log_are_shown_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {"timeouts": np.zeros(60, dtype=bool), "terminations": np.zeros(60, dtype=bool)}
    states = np.random.default_rng(0).random((60, 2))
    np.savez("jumps.npz", observations=states, actions=states, rewards=states[:, 0], next_observations=states, **flags)

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bats.runs.pipeline.fit", stop)
    assert main(["fit", "jumps.npz"]) == 130
    assert "! problem: 59 rows had a next state that differs from the state of the next row" in capsys.readouterr().out


def test_a_fit_ends_with_bounds_and_the_verdict(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit() == 0
    printed = capsys.readouterr().out
    shown, certificate = facts(printed), load_certificate(run)
    assert certificate is not None
    assert {name: shown[name] for name in certificate.facts()} == certificate.facts()
    lines = printed.splitlines()
    verdict = next(number for number, line in enumerate(lines) if line.startswith("hold: "))
    after = lines[verdict + 1 : lines.index("next:")]
    assert after == [f"  - {reason}" for reason in certificate.reasons]  # nothing else stands between


def test_a_verdict_to_deploy_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_certificate(simple_certificate(3.0, 4.0), Console())
    last = capsys.readouterr().out.splitlines()[-1]
    assert (
        last == "deploy: at 90% confidence, the cloned policy's value is higher than the value of the logged behaviour"
    )


def test_the_chosen_option_is_shown(finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = load_result(finished_run)
    options = (Option(30.0, None, 20, 1.0), Option(3.0, 0.5, 10, 0.5))
    print_result(replace(result, options=options), finished_run, Console())
    assert "penalty 30, stitches with any error; best lower bound of 2 options" in capsys.readouterr().out
    print_result(replace(result, options=options[::-1]), finished_run, Console())
    assert "penalty 3, stitches with errors below 0.5; best lower bound of 2 options" in capsys.readouterr().out
    print_result(result, finished_run, Console())
    assert "options" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "best"], "There is no preset called 'best'; the presets are default"),
        (["--seed", "-1"], "`seed` must be between 0 and 9,223,372,036,854,775,807; got -1"),
        (["--gamma", "2"], "`gamma` must be strictly between 0 and 1; got 2.0"),
        (["--stitch.rounds", "5"], "its stitch.rounds is 2, not 5. Choose another folder"),
        (["--certificate.confidence", "0.5"], f"`bats-rl certify {RUN}` adds another certificate to this run"),
        (["--cloning.hidden", "64,64"], f"`bats-rl clone {RUN}` adds another policy to this run"),
        (["--seed", "4", "--out", RUN], "its seed is 0, not 4"),
        (["--out", "."], ". is not empty and is not the folder of a run"),
        (
            ["--certificate.reward-range", "0,0.5", "--out", "narrow"],
            "must include all logged rewards, 0 to 1; got 0 to 0.5",
        ),
    ],
)
def test_a_fit_that_cannot_be_made_is_refused_before_any_work(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_bytes(Path())
    assert fit(*arguments) == 2
    assert message in error_text(capsys)
    assert folder_bytes(Path()) == before


def test_a_policy_of_a_log_named_after_no_task_is_not_played_unless_the_environment_is_given(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy(run / "policy.safetensors")
    assert main(["evaluate", str(run)]) == 2
    assert f"the log {policy.card['log']} is not named after a task" in error_text(capsys)
    assert not (run / "evaluation.json").exists()
