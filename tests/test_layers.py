"""Imports between packages go one way, the tabular core never needs JAX, and only the command line prints."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import bats
from bats.config import CertificateConfig
from tests.policy.policies import some_policy
from tests.small_runs import SMALL, small_log

PACKAGE = Path(bats.__file__).parent
ORDER = (
    *("errors", "arrays", "streams", "storage", "config", "presets"),
    *("data", "tasks", "graph", "networks", "model", "metric", "planning", "stitching"),
    *("policy", "improvement", "bounds", "runs", "evaluation", "baselines", "report", "studies", "cli"),
)
"""a package may import from those before it"""
NEURAL = (
    *("networks.files", "networks.mlp", "networks.training", "model", "metric.bisimulation", "metric.calibration"),
    *("planning", "stitching.acceptance", "stitching.loop", "stitching.metric_refresh", "stitching.sources"),
    *(
        "policy.cloning",
        "policy.model_actor",
        "improvement",
        "bounds.certify",
        "bounds.choose_penalty",
        "bounds.cloned_policy",
        "bounds.error_calibration",
    ),
    *("bounds.error_estimates", "bounds.graph_policy", "runs.policy_selection", "runs.pipeline", "runs.reuse"),
    *("runs.variants", "studies"),
    *("baselines.core", "baselines.networks", "baselines.methods", "baselines.model", "baselines.catalogue"),
    *("baselines.training", "baselines.runs", "baselines.online"),
)
"""the packages and modules that need JAX"""
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_packages(path: Path) -> set[str]:
    packages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            module = (node.module or "").split(".")
            if module[0] == "bats":
                packages |= {module[1]} if len(module) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("bats.")}
    return packages - {package_of(path)}


def test_a_package_imports_only_from_packages_before_it() -> None:
    for path in SOURCES:
        package = package_of(path)
        assert package in ORDER, f"{package} has no place in the order"
        later = imported_packages(path) - set(ORDER[: ORDER.index(package)])
        assert not later, f"{path.relative_to(PACKAGE)} imports {later}"


def test_no_folder_is_a_crowd_and_few_modules_lie_flat() -> None:
    files = Counter(path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
    assert max(files.values()) <= 12
    assert files[Path()] <= 6


def test_only_the_command_line_prints() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.func if isinstance(node, ast.Call) else None
            prints = (isinstance(name, ast.Name) and name.id == "print") or (
                isinstance(name, ast.Attribute) and name.attr == "print"
            )
            assert not prints or package_of(path) == "cli", f"{path.relative_to(PACKAGE)} prints"


def test_no_child_of_the_package_has_the_name_of_a_public_name() -> None:
    children = {path.stem for path in PACKAGE.iterdir()}
    assert not children & (set(bats.__all__) - {"tasks"})


def test_public_names_are_the_same_objects_however_often_and_in_whatever_order_they_are_used() -> None:
    program = (
        "import bats\n"
        "first = {name: getattr(bats, name) for name in bats.__all__}\n"
        "import bats.data.checks, bats.evaluation.episodes, bats.runs.pipeline, bats.report.page, bats.tasks\n"
        "again = {name: getattr(bats, name) for name in reversed(bats.__all__)}\n"
        "assert all(first[name] is again[name] for name in first)\n"
        "assert all(callable(value) for name, value in first.items() if name != 'tasks')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bats.nothing


def public_calls(folder: Path, run: Path) -> dict[str, Callable[[], object]]:
    """A real call of every public name that is cheap to call; each can be repeated."""
    number = count()
    log, policy = small_log(), some_policy(action_count=4)
    mdp = bats.from_dataset(log)
    solution = bats.policy_iteration(mdp)
    bats.write_hdf5(log, folder / "log.hdf5")
    bats.save_mdp(mdp, folder / "mdp")
    bats.save_policy(policy, folder / "policy.safetensors")
    # a policy that always takes the first of the chain's two actions
    still = bats.Policy(
        weights=(np.zeros((1, 2), np.float32),),
        biases=(np.array([1.0, 0.0], np.float32),),
        mean=np.zeros(1, np.float32),
        std=np.ones(1, np.float32),
        low=np.empty(0, np.float32),
        high=np.empty(0, np.float32),
        action_count=2,
    )

    def new(name: str) -> Path:
        return folder / f"{next(number)}-{name}"

    return {
        "BatsError": lambda: bats.BatsError("wrong"),
        "ColumnMap": lambda: bats.ColumnMap.parse("observations=x actions=u rewards=r"),
        "Config": lambda: bats.Config(gamma=0.9),
        "DataError": lambda: bats.DataError("a log", "none"),
        "Dataset": lambda: bats.Dataset.from_arrays(log.observations, log.actions, log.rewards),
        "evaluate": lambda: bats.evaluate(still, "bats/chain-v0", episodes=2),
        "export_onnx": lambda: bats.export_onnx(policy, new("policy.onnx")),
        "fit": lambda: bats.fit(log, SMALL, folder=run),
        "from_dataset": lambda: bats.from_dataset(log),
        "certify_again": lambda: bats.certify_again(run, CertificateConfig(confidence=0.5)),
        "Changes": lambda: bats.Changes(gamma=0.9),
        "clone_again": lambda: bats.clone_again(run),
        "compare_reports": lambda: bats.compare_reports([run, run], new("both.html")),
        "load_dataset": lambda: bats.load_dataset(folder / "log.hdf5"),
        "load_mdp": lambda: bats.load_mdp(folder / "mdp"),
        "load_policy": lambda: bats.load_policy(folder / "policy.safetensors"),
        "load_result": lambda: bats.load_result(run),
        "Policy": lambda: bats.Policy.predict(policy, np.zeros(3)),
        "policy_iteration": lambda: bats.policy_iteration(mdp),
        "policy_value": lambda: bats.policy_value(mdp, solution.policy),
        "preset": lambda: bats.preset("demo"),
        "save_mdp": lambda: bats.save_mdp(mdp, new("mdp")),
        "save_policy": lambda: bats.save_policy(policy, new("policy.safetensors")),
        "solve_again": lambda: bats.solve_again(run, bats.Changes(gamma=0.9)),
        "start_value": lambda: bats.start_value(mdp, solution.value),
        "tasks": lambda: bats.tasks.collect("chain", rows=50, seed=0),
        "validate": lambda: bats.validate(log),
        "write_hdf5": lambda: bats.write_hdf5(log, new("log.hdf5")),
    }


MADE_BY_OTHERS = {"Certificate", "Evaluation", "Result", "Solution", "TabularMDP"}
"""public classes that functions return"""
CALLED_ELSEWHERE = {"write_minari", "write_report"}


def test_every_public_function_works_twice_in_a_row_and_in_any_order(tmp_path: Path, run_copy: Path) -> None:
    pytest.importorskip("onnx")
    calls = public_calls(tmp_path, run_copy)
    assert {*calls} | MADE_BY_OTHERS | CALLED_ELSEWHERE == set(bats.__all__)
    for name in (*calls, *calls, *reversed(calls)):
        calls[name]()
    assert isinstance(calls["load_result"](), bats.Result)
    assert isinstance(calls["policy_iteration"](), bats.Solution)
    assert isinstance(calls["from_dataset"](), bats.TabularMDP)
    assert isinstance(calls["evaluate"](), bats.Evaluation)


def test_the_report_can_be_written_twice_in_a_row(run_copy: Path, tmp_path: Path) -> None:
    for number in range(2):
        bats.write_report(run_copy, tmp_path / f"{number}.html")
    assert (tmp_path / "0.html").read_bytes() == (tmp_path / "1.html").read_bytes()


def test_importing_the_package_alone_loads_none_of_the_heavy_libraries() -> None:
    program = "import sys, bats; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert not {"numpy", "numba", "h5py", "gymnasium", "jax", "scipy", "pyarrow", "rich"} & set(loaded)


def test_everything_but_the_neural_modules_imports_without_jax() -> None:
    modules = [".".join(path.with_suffix("").relative_to(PACKAGE).parts).removesuffix(".__init__") for path in SOURCES]
    neural = tuple(f"{name}." for name in NEURAL)
    names = [f"bats.{name}" for name in modules if not f"{name}.".startswith(neural)]
    program = (
        f"import sys; sys.modules['jax'] = None; import importlib\nfor name in {names}: importlib.import_module(name)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
