"""Whatever is given for an option or a path, a command ends with exit code 2 and one line that says what is wrong."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from bats.cli.main import COMMANDS, DATA, command_parser, main
from bats.data.formats.hdf5 import write_hdf5
from bats.policy.files import save_policy
from bats.policy.policy import Policy
from bats.storage.json_records import write_record
from tests.conftest import CopyRun
from tests.logs import folder_bytes
from tests.small_runs import SMALL, small_log
from tests.users import ordinary_user

LONG = "x" * 300
HUGE = "1" + "0" * 30
SOUND: dict[str, list[str]] = {
    "validate": ["small.hdf5"],
    "fit": ["small.hdf5", "--config", "small.json"],
    "evaluate": ["still.safetensors", "--environment", "bats/chain-v0"],
    "report": ["run"],
    "export": ["run", "policy.onnx"],
    "solve": ["run"],
    "clone": ["run", "--name", "new"],
    "certify": ["run"],
    "baseline": ["bc", "small.hdf5", "--updates", "20", "--batch-size", "8", "--hidden", "4"],
    "benchmark": ["mountain-car"],
    "collect": ["chain", "--rows", "50"],
    "convert": ["small.hdf5", "other.hdf5"],
}
"""arguments of each command that make sense; one of them is replaced, or one more is given"""
TOGETHER = {"--goal": ["--radius", "0.4"], "--radius": ["--goal", "0,0"]}
NUMBER = ("", "x", "nan", "1,2", "0x1", "\x1b[31m", "--")
PATH = (LONG, "/dev/null/x", "a\0b")
NONSENSE: dict[str, tuple[str, ...]] = {
    "N": (*NUMBER, "1.5", "0", "-1", HUGE, "1" + "0" * 5000),
    "SEED": (*NUMBER, "1.5", "-1", HUGE),
    "X": NUMBER,
    "NUMBERS": ("", "x", "nan", "1,nan", "1,,2", "1,2,3,4,5", "1;2", "--"),
    "VALUE": ("\x1b[31m", "--", HUGE, "[" * 100_000),
    "RUN": ("", "absent", "/", "/dev/null", "small.hdf5", "\x1b[31m", *PATH),
    "LOG": ("", "absent", "/", "/dev/null", "run", "absent.hdf5", "\x1b[31m.csv", *PATH),
    "FILE": ("/", *PATH),
    "FOLDER": ("/dev/null", "small.hdf5", *PATH),
    "OUT": ("", "other.txt", "/dev/null/x.hdf5", f"{LONG}.hdf5", "a\0b.hdf5", "small.hdf5", "minari:", "--"),
    "NAME": ("", "no such name", "../new", "\x1b[31m", LONG, "--"),
    "GYM_ID": ("", "nowhere-v0", ":", ".:x", "no_module:x", "a b", "\x1b[31m", "--"),
    "MODULE:FUNCTION": ("", "x", ":", "os:nothing", ".:x", "no_module:x", "os:getcwd", "--"),
    "MAP": ("", "x", "observations=", "--"),
    "TASK": ("", "no-such-task", "\x1b[31m"),
    "STUDY": ("", "no-such-study", "own"),
    "METHOD": ("", "no-such-method", "BC"),
    "NAMES": ("", "no-such-method", "bc,", "bc iql", "--"),
    "words": ("", "x", "AUTO"),
}
"""texts that make no sense, by what the help calls a value"""
ALLOWED = {("solve", "LOG", "run"), ("fit", "--cloning.hidden", ""), ("report", "--out", "/dev/null")}
UNLIMITED = ("--stitch.temperature", "--stitch.neighbours.radius", "--final-tolerance", "--choice.tolerances")
ALLOWED |= {("fit", flag, HUGE) for flag in UNLIMITED}


@pytest.fixture(autouse=True)
def files(copy_run: CopyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run, a log, a settings file and a policy that always takes the first of the chain's two actions."""
    monkeypatch.chdir(copy_run("run").parent)
    write_hdf5(small_log(), Path("small.hdf5"))
    write_record(Path("small.json"), SMALL)
    arrays = {name: np.ones(1, np.float32) for name in ("mean", "std")}
    empty = np.empty(0, np.float32)
    weights, biases = (np.zeros((1, 2), np.float32),), (np.array([1.0, 0.0], np.float32),)
    save_policy(
        Policy(weights=weights, biases=biases, low=empty, high=empty, action_count=2, **arrays), "still.safetensors"
    )


def called(name: str) -> list[str]:
    return ["data", name] if name in DATA else [name]


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The line with which a command refuses its arguments."""
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    printed = capsys.readouterr()
    assert code == 2, f"{arguments} ended with {code}"
    assert all("made while reading the log" in line for line in printed.out.splitlines())
    lines = [line for line in printed.err.splitlines() if not line.startswith("the log is named")]
    assert len(lines) == 1, f"{arguments} printed {lines}"
    assert lines[0].startswith("error: ")
    assert lines[0].isprintable()
    return lines[0]


def nonsense_calls(name: str) -> Iterator[list[str]]:
    """The command with each of its options and arguments replaced by each text that makes no sense there."""
    sound, actions = SOUND[name], command_parser(name)._actions
    for action in actions:
        if action.nargs == 0 or isinstance(action, argparse._HelpAction):
            continue
        metavar = str(action.metavar or "words").removesuffix("...").split("|")[0]
        for text in NONSENSE["FOLDER" if name in ("fit", "baseline") and action.dest == "out" else metavar]:
            if action.option_strings:
                flag = action.option_strings[0]
                kept = sound[: sound.index("--environment")] if flag == "--task" else sound
                arguments = [*kept, *TOGETHER.get(flag, []), f"{flag}={text}"]
            else:
                flag, place = metavar, [one.dest for one in actions if not one.option_strings].index(action.dest)
                arguments = [*sound[:place], text, *sound[place + 1 :]]
            if (name, flag, text) not in ALLOWED:
                yield [*called(name), *arguments]


@pytest.mark.parametrize("name", COMMANDS)
def test_nonsense_is_refused_on_one_line_and_nothing_is_written(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder_bytes(Path())
    for arguments in nonsense_calls(name):
        refusal(arguments, capsys)
    assert folder_bytes(Path()) == before


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["fit", "small.hdf5", "--rounds", "3"], "unknown option --rounds; did you mean --stitch.rounds?"),
        (["fit", "small.hdf5", "--rounds=3"], "unknown option --rounds; did you mean --stitch.rounds?"),
        (["fit", "small.hdf5", "--stitch.round", "3"], "unknown option --stitch.round; did you mean --stitch.rounds"),
        (["fit", "small.hdf5", "--dead_end_value", "3"], "did you mean --stitch.dead-end-value?"),
        (
            ["fit", "small.hdf5", "--hidden", "64"],
            "did you mean --model.hidden or --cloning.hidden or --bisimulation.hidden?",
        ),
        (
            ["clone", "run", "--name", "new", "--hidden", "64"],
            "unknown option --hidden; did you mean --cloning.hidden?",
        ),
        (["clone", "run", "--name", "new", "--rounds", "3"], "unknown option --rounds. `bats-rl clone --help` lists"),
        (["solve", "run", "--tolerence", "3"], "unknown option --tolerence; did you mean --tolerance?"),
        (["evaluate", "run", "--enviroment", "x"], "unknown option --enviroment; did you mean --environment?"),
        (["validate", "small.hdf5", "-v"], "unknown option -v. `bats-rl validate --help` lists the options."),
        (["validate", "small.hdf5", "other.hdf5"], "unknown argument other.hdf5."),
        (["data", "collect", "chain", "--row", "9"], "unknown option --row; did you mean --rows?"),
    ],
)
def test_an_option_that_does_not_exist_is_refused_with_the_one_that_was_probably_meant(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert meant in refusal(arguments, capsys)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "mine.json: expected valid JSON, found objects or lists that are nested too deeply"),
        ('{"stitch":' * 100_000, "mine.json: expected valid JSON, found objects or lists that are nested too deeply"),
        (" " * 10_000_001, "mine.json: expected a text file of at most 10,000,000 letters, found a longer one"),
        (json.dumps({"stitch": {"rounds": [[1]]}}), "field 'stitch.rounds': expected an integer, found [[1]]"),
        (json.dumps({"gamma": 10**400}), "field 'gamma': expected a number, found 1000"),
        ('{"gamma": ' + "1" * 5000 + "}", "mine.json: expected valid JSON, found Exceeds the limit"),
    ],
    ids=["lists", "objects", "long", "nested", "large", "digits"],
)
def test_a_settings_file_that_makes_no_sense_is_refused(
    content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.json").write_text(content)
    assert message in refusal(["fit", "small.hdf5", "--config", "mine.json"], capsys)


def test_a_folder_without_settings_is_no_settings_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    message = refusal(["fit", "small.hdf5", "--config", "empty"], capsys)
    assert "empty/settings.json: expected a readable text file" in message


def test_a_goal_far_from_all_states_is_refused_with_the_distance(capsys: pytest.CaptureFixture[str]) -> None:
    far = ["--goal", "4,5", "--radius", "0.5"]
    for arguments in (["solve", "run"], ["fit", "small.hdf5"], ["clone", "run", "--name", "far"]):
        message = refusal([*arguments, *far], capsys)
        assert "No next state is within the radius of the goal, 0.5; the nearest next state is 5.1" in message


@pytest.mark.skipif(os.name == "nt", reason="other users are made in another way")
def test_a_run_that_the_user_may_not_read_is_reported_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with TemporaryDirectory() as name:  # the folders of pytest may be entered by their owner alone
        folder = Path(name)
        folder.chmod(0o755)
        locked, log = str(folder / "run"), str(folder / "small.hdf5")
        Path("run").rename(locked)
        Path("small.hdf5").rename(log)
        Path(locked).chmod(0)
        with ordinary_user():
            for arguments in (
                ["fit", log, "--out", locked],
                ["fit", log, "--reuse", locked, "--out", f"{locked}/new"],
                ["fit", log, "--config", locked],
                ["evaluate", locked],
                ["report", locked],
                ["report", locked, locked],
                ["export", locked, "policy.onnx"],
                ["solve", locked],
                ["clone", locked, "--name", "new"],
                ["certify", locked],
                ["solve", log, "--save", f"{locked}/mdp"],
                ["data", "convert", log, f"{locked}/log.hdf5"],
            ):
                assert "Permission denied" in refusal(arguments, capsys)
        Path(locked).chmod(0o755)


def test_a_file_that_cannot_be_written_is_refused_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    expected = "could not be written: its folder is a file"
    later = ["evaluate", "still.safetensors", "--environment", "nowhere-v0"]  # which would be refused next
    assert expected in refusal([*later, "--record", "small.hdf5/x.hdf5"], capsys)
    assert expected in refusal(["solve", "run", "--goal", "9,9,9", "--radius", "1", "--save", "small.hdf5/mdp"], capsys)
    assert expected in refusal(["data", "convert", "absent.hdf5", "small.hdf5/x/y.hdf5"], capsys)
    assert expected in refusal(["report", "run", "--out", "/dev/null/x"], capsys)


def test_an_error_of_the_system_that_is_about_no_path_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("bats.cli.data.load_dataset", fail)
    with pytest.raises(OSError, match="Input/output error"):
        main(["validate", "small.hdf5"])


@pytest.mark.slow
def test_a_lack_of_memory_is_reported_as_an_error() -> None:
    program = (
        "import resource\n"
        "from bats.cli.main import main\n"
        "import bats.runs.pipeline\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**35,) * 2)\n"
        "for number, setting in enumerate(('hidden=100000,100000', 'batch-size=1000000')):\n"
        "    log = ['small.hdf5', '--config', 'small.json', '--out', f'{number}']\n"
        "    assert main(['fit', *log, '--quiet', '--model.members=1000', f'--model.{setting}']) == 2\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    of_jax, of_numpy = ended.stderr.splitlines()
    assert of_jax.startswith("error: There is not enough memory: Out of memory allocating ")
    assert of_numpy.startswith("error: There is not enough memory: Unable to allocate ")
