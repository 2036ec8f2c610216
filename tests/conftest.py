"""Shape checks on every annotated function of the package, and one small finished run for all tests."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import jaxtyping
import pytest
from jaxtyping import install_import_hook

PACKAGE = Path(__file__).parent.parent / "bats"
UNCHECKED = (
    "graph/kernels.py",  # a wrapper would break what Numba compiles
    "data/distinct.py",
    "cli/main.py",
    "cli/options.py",  # these two build a parser for every call, without any array, thousands of times in the tests
    "cli/settings.py",
    "metric/scaled.py",  # JAX rebuilds the metric around whatever it traces
    "config.py",  # it checks its values itself, and tests give it wrong ones
    # these run where jaxtyping is not installed, so their annotations cannot be evaluated
    "networks/inference.py",
    "policy/policy.py",
    "policy/support.py",
)
CHECKED = sorted(
    ".".join(path.with_suffix("").relative_to(PACKAGE.parent).parts)
    for path in PACKAGE.rglob("*.py")
    if path.stem != "__init__" and path.relative_to(PACKAGE).as_posix() not in UNCHECKED
)
install_import_hook(CHECKED, "beartype.beartype")

# Most of the time of a small run is spent on compiling it, so all workers and the processes they start share what was
# compiled. The first process makes the folder before the workers start, which inherit its name.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = mkdtemp(prefix="bats-compiled-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"


def pytest_configure(config: pytest.Config) -> None:
    # a program that another worker is just writing cannot be read; JAX warns and compiles it itself
    config.addinivalue_line("filterwarnings", "ignore:Error (reading|writing) persistent compilation cache:UserWarning")


@pytest.fixture(scope="module")
def without_shape_checks() -> Iterator[None]:
    """Lets values of wrong types through to the code that has to refuse them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one small finished run, made once for all tests and all workers. Not to be written to."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # the same for all workers
    folder = shared / "finished-run"
    with (shared / "finished-run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "finished.json").exists():
            from bats.runs.pipeline import fit
            from tests.small_runs import SMALL, small_log

            fit(small_log(), SMALL, folder=folder)
    return folder


@pytest.fixture
def run_copy(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may change."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


CopyRun = Callable[[str], Path]


@pytest.fixture
def copy_run(finished_run: Path, tmp_path: Path) -> CopyRun:
    """Makes copies of the finished run under given names."""
    return lambda name: Path(shutil.copytree(finished_run, tmp_path / name))
