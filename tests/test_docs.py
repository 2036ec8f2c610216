"""What the documents show runs, and what they name exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def snippets() -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        found += [(document.name, code) for code in re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)]
    return found


@pytest.mark.parametrize(("document", "code"), snippets(), ids=[name for name, _ in snippets()])
def test_a_snippet_runs(document: str, code: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, check=True, timeout=120)


def test_the_table_of_symbols_names_functions_that_exist() -> None:
    rows = [line for line in (ROOT / "docs" / "algorithm.md").read_text().splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`((?:\w+\.)+\w+)`", row.rsplit(" | ", 1)[-1])}
    assert len(named) > 10
    for name in sorted(named):
        module, *parts = name.split(".")
        thing = __import__(f"bats.{module}", fromlist=["*"])
        for part in parts:
            thing = getattr(thing, part)


def test_documents_that_are_named_exist() -> None:
    for document in DOCUMENTS:
        for name in re.findall(r"`(docs/[\w.]+|benchmarks/\w+\.py|tests/\w+\.py)`", document.read_text()):
            assert (ROOT / name).exists(), f"{document.name} names {name}"
