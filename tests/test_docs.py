"""What the documents show runs, and what they name exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bats.cli import main as cli
from bats.data.formats.load import write_hdf5
from tests.small_runs import walks

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def snippets() -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        found += [(document.name, code) for code in re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)]
    return found


@pytest.mark.parametrize(("document", "code"), snippets(), ids=[name for name, _ in snippets()])
def test_a_snippet_runs(document: str, code: str, tmp_path: Path) -> None:
    write_hdf5(walks(), tmp_path / "log.hdf5")  # a log of the reader's own
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, check=True, timeout=300)


def calls() -> list[str]:
    """Every line of a document that calls the command, less those that only ask what there is."""
    fences = [re.findall(r"^```\w*\n(.*?)^```", each.read_text(), re.DOTALL | re.MULTILINE) for each in DOCUMENTS]
    lines = {line.strip() for found in fences for fence in found for line in fence.splitlines()}
    return sorted(line for line in lines if line.startswith("bats-rl ") and not re.search(r"--help|--version", line))


@pytest.mark.parametrize("call", calls())
def test_a_call_of_the_command_is_one_that_it_understands(call: str) -> None:
    arguments = shlex.split(call, comments=True)[1:]
    parsed = cli._parsed_fit(arguments[1:]) if arguments[0] == "fit" else cli._parsed(arguments)
    assert type(parsed).__name__.lower() == arguments[0]


def test_the_table_of_symbols_names_functions_that_exist() -> None:
    rows = [line for line in (ROOT / "docs" / "algorithm.md").read_text().splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`((?:\w+\.)+\w+)`", row.rsplit(" | ", 1)[-1])}
    assert len(named) > 10
    for name in sorted(named):
        package, module, *parts = name.split(".")
        thing = __import__(f"bats.{package}.{module}", fromlist=["*"])
        for part in parts:
            thing = getattr(thing, part)


def test_documents_that_are_named_exist() -> None:
    for document in DOCUMENTS:
        for name in re.findall(r"`(docs/[\w.]+|benchmarks/\w+\.py|tests/\w+\.py)`", document.read_text()):
            assert (ROOT / name).exists(), f"{document.name} names {name}"
