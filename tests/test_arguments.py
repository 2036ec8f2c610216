"""Arguments of the public functions that make no sense are refused at once, by their names, on one line."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import bats
from bats.config import CertificateConfig, Config, ModelConfig
from bats.errors import BatsError, OutputError, SettingError
from bats.graph.solve import Solution
from bats.model.fit import fit_model
from tests.logs import folder_bytes
from tests.policy.policies import some_policy
from tests.small_runs import SMALL, small_log

pytestmark = pytest.mark.usefixtures("without_shape_checks")

NAN, NOTHING = math.nan, object()
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: value for name in bats.__all__ if inspect.isfunction(value := getattr(bats, name))},
    "tasks.collect": bats.tasks.collect,
    "model.fit.fit_model": fit_model,
}
SEEDS = (-1, 2**63, 2**70, 1.5, 1.0, NAN, True, "0", None, (0,), np.int64(-1), np.array([0, 1]))
LOGS = ("log.hdf5", Path("log.hdf5"), {"observations": [[0.0]]}, None, 3, np.zeros((2, 2)), NOTHING)
PATHS = (3, b"run", NOTHING, ("a", "b"), "a\0b", Path("a\0b"), "a\ud800b", True, 0.5)
FUNCTION = (None, 3, "print", NOTHING)
SWITCH = ("no", 0, 1, None, NAN)
NONSENSE: dict[str, tuple[Any, ...]] = {
    "dataset": LOGS,
    "mdp": (None, "mdp", Path("mdp"), {}, NOTHING),
    "config": ({}, 3, True, CertificateConfig(), ("default",), NOTHING),
    "settings": (None, {}, 0.9, "0.9", SMALL, NOTHING),
    "changes": ({}, {"gamma": 0.9}, 0.9, "gamma", False, SMALL, NOTHING),
    "seed": SEEDS,
    "rows": (0, 1, -5, 10**30, 1.5, NAN, "50", True, (50,)),
    "episodes": (0, -1, 10**30, 1.5, NAN, "5", True, (5,)),
    "starts": ("x", 3, [], [[]], [[NAN]], [[1.0], [1.0, 2.0]], [0.0], [[None]], {}, NOTHING),
    "environment": (None, 3, [], [None], {}, gymnasium.Env, "no-such-environment-v0", "", ":", ".:x", "a b", NOTHING),
    "actor": (None, 3, "policy.safetensors", NOTHING),
    "gamma": (0, 1, -0.5, 2, NAN, math.inf, "0.9", None, True, (0.9,), np.array([0.9])),
    "penalty": (-1, NAN, math.inf, 10**400, "1", None, True, (1,)),
    "dead_end_value": (NAN, math.inf, "x", [1.0, 2.0], 10**400, {}, (NAN,), np.zeros((2, 2)), NOTHING),
    "policy": (None, 3, "policy", [0], np.zeros(3), np.zeros((2, 2), int), {}, NOTHING),
    "value": (None, 3, [0.0], np.zeros(3), np.zeros((2, 2)), "x", {}),
    "model": ("model.safetensors", {}, 3, SMALL.model, NOTHING),
    "name": (None, 3, {}, ["default"], "fast", ""),
    "task": (None, 3, {}, ["grid"], "no-such-task", ""),
    **dict.fromkeys(("folder", "run", "out", "reuse", "unfinished"), PATHS),
    "path": (None, *PATHS),
    **dict.fromkeys(("dataset_id", "description", "author"), (None, 3, b"a/b-v0", ("a/b-v0",), NOTHING)),
    "runs": ("ab", None, 3, (), ("a",), (None, None), ("a\0", "b"), [3, 4]),
    **dict.fromkeys(("progress", "on_round"), FUNCTION),
    "set_state": FUNCTION[1:],
    **dict.fromkeys(("record", "overwrite"), SWITCH),
    "discrete": ("yes", 0, 1, NAN, (True,)),
    "max_memory": ("1", 0, -1.0, NAN, True, (1.0,)),
    "timeout_rule": ("trusted", "", None, 0, True, ["auto"]),
}
"""values that an argument of this name must refuse, whatever the function"""
OWN_WORDS = {
    "name": ("no preset called",),
    "task": ("no task called",),
    "environment": ("Gymnasium cannot make",),
    "runs": ("A comparison needs at least two runs",),
}
"""what a message may say instead of an argument's name"""
OTHERS = {"load_dataset.source", "load_dataset.columns", "model.fit.fit_model.checkpoint"}
"""arguments that are data, or not given by users"""
NONE_MEANS_DEFAULT = {"evaluate.starts", "fit.model", "certify_again.policy"}


def sound_calls(run: Path, solution: Solution) -> dict[str, dict[str, Any]]:
    """Arguments of every function that it takes; all but one of them are given in each test."""
    log, mdp = small_log(), solution.mdp
    return {
        "fit": {"dataset": log, "config": SMALL, "folder": run},
        "evaluate": {"actor": some_policy(), "environment": "bats/chain-v0", "episodes": 1},
        "validate": {"dataset": log},
        "from_dataset": {"dataset": log},
        "policy_iteration": {"mdp": mdp},
        "policy_value": {"mdp": mdp, "policy": solution.policy},
        "start_value": {"mdp": mdp, "value": solution.value},
        "load_mdp": {"folder": run / "mdp"},
        "save_mdp": {"mdp": mdp, "folder": run / "other"},
        "preset": {"name": "demo"},
        "write_report": {"run": run, "out": run / "report.html"},
        "compare_reports": {"runs": [run, run], "out": run / "both.html"},
        "load_result": {"folder": run},
        "solve_again": {"run": run},
        "clone_again": {"run": run},
        "certify_again": {"run": run, "settings": CertificateConfig()},
        "load_dataset": {"source": vars(log)},
        "load_policy": {"path": run / "policy.safetensors"},
        "save_policy": {"policy": some_policy(), "path": run / "other.safetensors"},
        "export_onnx": {"policy": some_policy(), "path": run / "policy.onnx"},
        "write_hdf5": {"dataset": log, "path": run / "log.hdf5"},
        "write_minari": {"dataset": log, "dataset_id": "small/log-v0"},
        "tasks.collect": {"task": "chain", "rows": 50},
        "model.fit.fit_model": {"dataset": log, "config": ModelConfig(), "seed": 0},
    }


@pytest.fixture(scope="module")
def solution() -> Solution:
    return bats.policy_iteration(bats.from_dataset(small_log()))


PARAMETERS = [
    (function, name)
    for function, body in FUNCTIONS.items()
    for name in inspect.signature(body).parameters
    if f"{function}.{name}" not in OTHERS
]


@pytest.mark.parametrize(("function", "parameter"), PARAMETERS, ids=[".".join(pair) for pair in PARAMETERS])
def test_nonsense_is_refused_by_the_name_of_the_argument_and_nothing_is_written(
    function: str, parameter: str, solution: Solution, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(run_copy / "minari"))
    before, sound = folder_bytes(run_copy), sound_calls(run_copy, solution)[function]
    if (function, parameter) == ("evaluate", "starts"):
        sound = sound | {"episodes": None}
    for value in NONSENSE[parameter]:
        if value is None and f"{function}.{parameter}" in NONE_MEANS_DEFAULT:
            continue
        with pytest.raises(BatsError) as caught:
            FUNCTIONS[function](**sound | {parameter: value})
        message = str(caught.value)
        assert any(name in message for name in (f"`{parameter}`", f"`{parameter}[", *OWN_WORDS.get(parameter, ())))
        assert "\n" not in message
        assert len(message) < 300
    assert folder_bytes(run_copy) == before


def test_a_path_or_arrays_given_as_a_data_set_are_refused_with_the_function_that_reads_them() -> None:
    for function in (bats.fit, bats.validate, bats.from_dataset):
        with pytest.raises(SettingError) as caught:
            function("log.hdf5")  # type: ignore[operator]
        expected = "`dataset` must be a Dataset; got 'log.hdf5'. `bats.load_dataset(path)` reads one from a file."
        assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("action_count", (2.5, "3", True, (3,), NAN)),
        ("name", (3, None, b"log", ("log",))),
        ("discrete", NONSENSE["discrete"]),
    ],
)
def test_nonsense_beside_the_arrays_of_a_data_set_is_refused(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(SettingError, match=f"`{name}` must be"):
            bats.Dataset.from_arrays(np.zeros((3, 1)), np.arange(3), np.zeros(3), **{name: value})


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_is_not_overwritten_by_a_file(
    overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    writers = ((bats.save_policy, some_policy()), (bats.export_onnx, some_policy()), (bats.write_hdf5, small_log()))
    for write, content in writers:
        for folder in (".", "..", tmp_path, "/"):
            with pytest.raises(OutputError, match=r"exists already|only be written to a \.safetensors file"):
                write(content, folder, overwrite=overwrite)
    assert not folder_bytes(tmp_path)


def test_a_config_is_given_itself_or_by_the_name_of_a_preset() -> None:
    for config in (None, {"gamma": 0.9}):
        message = "`config` must be a Config; got .* It may also be the name of a preset, such as 'default'."
        with pytest.raises(SettingError, match=message):
            bats.fit(small_log(), config)  # type: ignore[arg-type]


def test_seeds_and_counts_of_numpy_are_as_good_as_those_of_python(finished_run: Path) -> None:
    assert type(bats.fit(small_log(), SMALL, seed=np.int64(0), folder=str(finished_run)).seed) is int  # type: ignore[arg-type]
    mine, theirs = (bats.tasks.collect("chain", rows, 3) for rows in (np.int32(50), 50))
    assert np.array_equal(mine.observations, theirs.observations)
    mine, theirs = (bats.tasks.collect("chain", 50, seed) for seed in (np.uint8(3), 3))
    assert np.array_equal(mine.observations, theirs.observations)
    low, high = (bats.from_dataset(small_log(), gamma=gamma).gamma for gamma in (np.float32(0.5), 0.5))
    assert (low, type(low)) == (high, float)


def test_a_misspelt_timeout_rule_is_refused_wherever_it_is_given() -> None:
    log = small_log()
    arrays = log.observations, log.actions, log.rewards
    for make in (partial(bats.load_dataset, "absent.hdf5"), partial(bats.Dataset.from_arrays, *arrays)):
        with pytest.raises(SettingError, match="`timeout_rule` must be one of auto, trust, ignore; got 'trusted'"):
            make(timeout_rule="trusted")


def test_the_same_rule_holds_for_the_settings_of_a_configuration_and_for_arguments() -> None:
    with pytest.raises(SettingError) as of_config:
        Config(gamma=2)
    with pytest.raises(SettingError) as of_function:
        bats.from_dataset(small_log(), gamma=2)
    with pytest.raises(SettingError) as of_changes:
        bats.Changes(gamma=2)
    messages = {str(caught.value) for caught in (of_config, of_function, of_changes)}
    assert messages == {"`gamma` must be strictly between 0 and 1; got 2.0."}


def test_the_discount_of_a_fit_is_limited_and_that_of_an_exact_solution_is_not() -> None:
    with pytest.raises(SettingError, match=r"`gamma` must be at most 0\.9999 in a fit"):
        Config(gamma=1 - 1e-9)
    assert Config(gamma=0.9999).gamma == 0.9999
    solution = bats.policy_iteration(bats.from_dataset(small_log(), gamma=1 - 1e-9))
    assert 0 < solution.start_value <= 20  # steps of an episode
