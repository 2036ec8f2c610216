"""A saved policy answers the same wherever it is loaded, and nothing else is taken for a policy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from bats.errors import DataError, OutputError
from bats.policy.files import load_policy, save_policy
from bats.storage.tensors import read_tensors, write_tensors
from tests.crafted import rewrite
from tests.policy import old_policy
from tests.policy.policies import observations, some_policy, some_support

ROOT = Path(__file__).parents[2]
OLD_OBSERVATIONS = [[0.0, 0.0], [1.0, -1.0], [-3.0, 2.0]]
OLD_ACTIONS = [[0.12769602239131927], [-2.0], [0.11097090691328049]]
OLD_STD = [[0.23415298759937286], [2.5492472648620605], [5.362920761108398]]
OLD_DISTANCES = [0.3301642894225635, 0.3080732143116713, 1.0741183320090184]
"""what version 0.1 answered to these observations"""
ONLY_NUMPY = """
import sys

ALLOWED = {*sys.stdlib_module_names, "numpy", "safetensors", "bats"}

class OnlyNumPy:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in ALLOWED:
            raise ImportError(name)

sys.meta_path.insert(0, OnlyNumPy())
"""
"""makes everything but the standard library, NumPy, safetensors and this package impossible to import"""
ACT = """
import sys
import numpy as np
import bats

answers = {}
for name in sys.argv[1:]:
    policy = bats.load_policy(f"{name}.safetensors")
    observations = np.load(f"{name}.npy")
    actions, distances = policy.predict(observations), policy.support_distance(observations)
    answers |= {f"{name}.actions": actions, f"{name}.distances": distances}
np.savez("answers.npz", **answers)
"""
"""loads policies, lets them act, and saves what they answered"""


def save_cases(folder: Path) -> dict[str, np.ndarray]:
    """Saves a continuous, a discrete and an old policy with observations; returns what they must answer."""
    expected = {}
    for name, policy in (
        ("continuous", some_policy(support=some_support())),
        ("discrete", some_policy(action_count=5, support=some_support())),
    ):
        save_policy(policy, folder / f"{name}.safetensors")
        rows = observations(100, policy)
        np.save(folder / f"{name}.npy", rows)
        expected |= {f"{name}.actions": policy.predict(rows), f"{name}.distances": policy.support_distance(rows)}
    (folder / "old.safetensors").write_bytes(old_policy.CONTENT)
    np.save(folder / "old.npy", np.array(OLD_OBSERVATIONS))
    return expected | {"old.actions": np.array(OLD_ACTIONS), "old.distances": np.array(OLD_DISTANCES)}


def check_answers(folder: Path, expected: dict[str, np.ndarray]) -> None:
    answers = np.load(folder / "answers.npz")
    assert sorted(answers) == sorted(expected)
    for name, values in expected.items():
        if name.startswith("old"):
            np.testing.assert_allclose(answers[name], values, rtol=1e-6)
        else:
            assert np.array_equal(answers[name], values), name


def test_a_saved_policy_is_loaded_with_its_card(tmp_path: Path) -> None:
    policy = some_policy(support=some_support())
    save_policy(policy, tmp_path / "policy.safetensors")
    loaded, rows = load_policy(tmp_path / "policy.safetensors"), observations(100, policy)
    assert loaded.card == policy.card
    assert np.array_equal(loaded.predict(rows), policy.predict(rows))
    assert np.array_equal(loaded.support_distance(rows), policy.support_distance(rows))
    card = json.loads((tmp_path / "policy.json").read_text())
    assert card["log"] == "random"
    assert card["hidden"] == [16, 8]
    assert card["support_limit"] == policy.support_limit
    assert card["observation"]["std"] == policy.std.tolist()
    save_policy(some_policy(), tmp_path / "bare.safetensors")
    assert load_policy(tmp_path / "bare.safetensors").support is None


def test_a_policy_file_of_version_0_1_is_loaded_and_answers_as_it_did(tmp_path: Path) -> None:
    (tmp_path / "old.safetensors").write_bytes(old_policy.CONTENT)
    policy = load_policy(tmp_path / "old.safetensors")
    assert policy.predict(OLD_OBSERVATIONS) == pytest.approx(np.array(OLD_ACTIONS), rel=1e-6)
    assert policy.distribution(np.array(OLD_OBSERVATIONS))[1] == pytest.approx(np.array(OLD_STD), rel=1e-6)
    assert policy.support_distance(OLD_OBSERVATIONS) == pytest.approx(OLD_DISTANCES, rel=1e-6)
    assert policy.card == {"log": "made with version 0.1", "seed": 0}


def test_a_card_with_earlier_names_is_read_with_the_present_ones(tmp_path: Path) -> None:
    save_policy(replace(some_policy(), card={"cut": 0.9, "cut_by": "return"}), tmp_path / "policy.safetensors")
    assert load_policy(tmp_path / "policy.safetensors").card == {"threshold": 0.9, "threshold_measure": "return"}


def test_loading_and_acting_import_nothing_but_numpy_and_safetensors(tmp_path: Path) -> None:
    expected = save_cases(tmp_path)
    program = [sys.executable, "-c", ONLY_NUMPY + ACT, "continuous", "discrete", "old"]
    subprocess.run(program, check=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    check_answers(tmp_path, expected)


@pytest.mark.slow
def test_a_policy_acts_in_an_environment_that_has_only_numpy_and_safetensors(tmp_path: Path) -> None:
    expected = save_cases(tmp_path)
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def pip(*arguments: str) -> str:
        command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
        return subprocess.run(command, check=True, cwd=tmp_path, env=clean, stdout=subprocess.PIPE, text=True).stdout

    pip("install", "--quiet", *(f"{name}=={version(name)}" for name in ("numpy", "safetensors")))
    pip("install", "--quiet", "--no-deps", str(ROOT))
    installed = {package["name"] for package in json.loads(pip("list", "--format", "json"))}
    assert installed - {"pip", "setuptools"} == {"numpy", "safetensors", "bats-rl"}
    (tmp_path / "act.py").write_text(ACT)
    subprocess.run([python, "act.py", "continuous", "discrete", "old"], check=True, cwd=tmp_path, env=clean)
    check_answers(tmp_path, expected)


def test_an_existing_policy_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    save_policy(some_policy(), path)
    before = path.read_bytes()
    with pytest.raises(OutputError, match="exists already"):
        save_policy(some_policy(scale=2.0), path)
    assert path.read_bytes() == before
    save_policy(some_policy(scale=2.0), path, overwrite=True)
    assert path.read_bytes() != before


@pytest.mark.parametrize("name", ["policy.json", "policy.onnx", "policy", "policy.safetensors.bak", ".safetensors"])
def test_a_policy_is_written_to_a_safetensors_file_only(name: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=rf"{name}: a policy can only be written to a \.safetensors file"):
        save_policy(some_policy(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_card_without_its_policy_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text("left by a killed process")
    save_policy(some_policy(), tmp_path / "policy.safetensors")
    assert json.loads((tmp_path / "policy.json").read_text())["log"] == "random"


def test_a_file_that_is_not_a_complete_policy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    save_policy(some_policy(), path)
    arrays, facts = read_tensors(path, "bats-policy")
    own_facts = {name: fact for name, fact in facts.items() if name not in ("format", "version", "checksum")}
    incomplete = {name: array for name, array in arrays.items() if name != "bias.1"}
    write_tensors(tmp_path / "incomplete.safetensors", "bats-policy", incomplete, own_facts)
    write_tensors(tmp_path / "other.safetensors", "bats-model", arrays, own_facts)
    for name in ("incomplete", "other", "missing"):
        with pytest.raises(DataError, match=name):
            load_policy(tmp_path / f"{name}.safetensors")


POLICY_DEFECTS: list[tuple[dict[str, object], str]] = [
    ({"weight.0": np.full((3, 16), np.nan)}, r"expected a valid policy, found `weights\[0\]` must have finite numbers"),
    ({"bias.1": None}, "expected a complete policy, found no entry 'bias.1'"),
    ({"mean": np.zeros((3, 1))}, "`mean` must be an array of floats with 1 dimensions"),
    ({"mean": np.zeros(3, dtype=bool)}, "`mean` must be an array of floats with 1 dimensions; got bool"),
    ({"std": np.zeros(3)}, "`std` must be positive"),
    ({"low": np.full(2, 9.0)}, "`low` must not exceed `high`"),
    ({"high": np.full(2, np.nan)}, "`high` must have finite numbers"),
    ({"support.sample": np.zeros((5, 2))}, "a weight of at least 0 for each number"),
    ({"support_limit": float("nan")}, "The limit of a support must be a number"),
    ({"support_limit": 10**400}, "The limit of a support must be a number"),
    ({"support_limit": "1"}, "The limit of a support must be a number"),
    ({"layers": "x"}, "found 'str' object"),
    ({"layers": -1}, "At least one layer is needed"),
    ({"layers": 10**9}, "no entry 'weight.3'"),
    ({"layers": 1}, "the last must give 4 outputs"),
    ({"action_count": -1}, "`action_count` must be a positive integer"),
    ({"action_count": 4.0}, "`action_count` must be a positive integer"),
    ({"action_count": 4}, "`action_count` is for discrete ones"),
    ({"card": [1, 2]}, "`card` must be a mapping"),
]


@pytest.mark.parametrize(
    ("change", "message"),
    POLICY_DEFECTS,
    ids=[f"{next(iter(change))}-{i}" for i, (change, _) in enumerate(POLICY_DEFECTS)],
)
def test_a_crafted_policy_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """Its checksum is right, as in a file that was made to do harm."""
    path = tmp_path / "policy.safetensors"
    save_policy(some_policy(support=some_support()), path)
    rewrite(path, change)
    with pytest.raises(DataError, match=message):
        load_policy(path)
