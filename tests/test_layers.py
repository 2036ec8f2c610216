"""Imports go one way, the tabular core never needs JAX, and only the command line talks."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bats

PACKAGE = Path(__file__).parent.parent / "bats"

ORDER = (
    "errors",
    "arrays",
    "storage",
    "data",
    "tasks",
    "graph",
    "metric",
    "model",
    "planning",
    "stitching",
    "policy",
    "bounds",
    "config",
    "runs",
    "evaluation",
    "report",
    "studies",
    "cli",
)
"""a package may import from those before it"""
STILL = {
    ("metric", "policy"),
    ("metric", "model"),
    ("stitching", "config"),
    ("stitching", "runs"),
    ("bounds", "config"),
}
"""imports that go the wrong way until what they need has moved"""
NEURAL = (
    "model",
    "planning",
    "config",
    "studies",
    *("metric.bisimulation", "metric.bisimulation_files", "metric.calibration"),
    *("stitching.acceptance", "stitching.loop", "stitching.metric_refresh", "stitching.phases"),
    *("bounds.certify", "bounds.choose_penalty", "bounds.cloned_policy", "bounds.error_calibration"),
    *("bounds.error_estimates", "bounds.graph_policy"),
    *("policy.cloning", "runs.pipeline", "cli.fit"),
)
"""the packages and modules that may need JAX"""
TALKING = ("cli",)


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_layers(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "bats":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("bats.")}
    return found


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_the_layers_before_it(path: Path) -> None:
    layer = layer_of(path)
    assert layer in ORDER, f"{layer} has no place in the order"
    allowed = set(ORDER[: ORDER.index(layer)]) | ({layer} if path.parent != PACKAGE else set())
    assert imported_layers(path) <= allowed | {above for below, above in STILL if below == layer}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_command_line_prints(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    prints = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
    assert layer_of(path) in TALKING or not prints


def test_the_public_names_are_where_the_package_says() -> None:
    assert sorted(name for names in bats._HOMES.values() for name in names) == bats.__all__
    assert all(getattr(bats, name) for name in bats.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bats.nothing


def test_importing_the_package_alone_loads_none_of_the_heavy_libraries() -> None:
    program = "import sys, bats; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert not {"numba", "h5py", "gymnasium", "jax", "scipy", "pyarrow", "rich"} & set(loaded)


def test_everything_but_the_neural_modules_imports_without_jax() -> None:
    inner = [".".join(path.with_suffix("").relative_to(PACKAGE).parts).removesuffix(".__init__") for path in SOURCES]
    names = [f"bats.{name}" for name in inner if name not in NEURAL and name.split(".")[0] not in NEURAL]
    program = (
        f"import sys; sys.modules['jax'] = None; import importlib\nfor name in {names}: importlib.import_module(name)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
