"""What the documents show runs, and what they name exists."""

from __future__ import annotations

import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bats.cli.main import command_parser, split_command
from bats.data.formats.hdf5 import write_hdf5
from tests.small_runs import small_log

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def snippets() -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        found += [(document.name, code) for code in re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)]
    return found


def snippet(document: str, code: str) -> object:
    # those that fit or train take long, with a preset minutes
    fits = any(word in code for word in ('"demo"', "fit(log", "train_runs(", "train(", "learn_bisimulation("))
    return pytest.param(code, id=document, marks=[pytest.mark.slow] if fits else [])


@pytest.mark.parametrize("code", [snippet(*found) for found in snippets()])
def test_a_snippet_runs(code: str, tmp_path: Path) -> None:
    write_hdf5(small_log(), tmp_path / "log.hdf5")  # a log of the reader's own
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, check=True)


def calls() -> list[str]:
    """Every line of a document that calls the command, less those that only ask what there is."""
    fences = [re.findall(r"^```\w*\n(.*?)^```", each.read_text(), re.DOTALL | re.MULTILINE) for each in DOCUMENTS]
    lines = {line.strip() for found in fences for fence in found for line in fence.splitlines()}
    return sorted(line for line in lines if line.startswith("bats-rl ") and not re.search(r"--help|--version", line))


@pytest.mark.parametrize("call", calls())
def test_a_call_of_the_command_is_one_that_it_understands(call: str) -> None:
    name, arguments = split_command(shlex.split(call, comments=True)[1:])
    command_parser(name).parse_args(arguments)


def test_the_table_of_symbols_names_functions_that_exist() -> None:
    rows = [line for line in (ROOT / "docs" / "algorithm.md").read_text().splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`((?:\w+\.)+\w+)`", row.rsplit(" | ", 1)[-1])}
    assert len(named) > 10
    for name in sorted(named):
        pkgutil.resolve_name(f"bats.{name}")


def test_documents_that_are_named_exist() -> None:
    for document in DOCUMENTS:
        for name in re.findall(
            r"`(docs/[\w.]+|benchmarks/\w+\.py|tests/[\w/]+\.py|examples/\w+\.py|bats/[\w/]+\.py)`",
            document.read_text(),
        ):
            assert (ROOT / name).exists(), f"{document.name} names {name}"
