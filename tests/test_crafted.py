"""A crafted file, whose checksum is right, is refused by its reader or can be used; a sample of `crafted_campaign`."""

from __future__ import annotations

import pytest

from tests.crafted_campaign import CASES, run_case

FILES = 20
COMPILED = ("model", "checkpoint", "metric")
"""kinds whose networks take seconds to compile"""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in COMPILED else []) for name in CASES],
)
def test_a_crafted_file_is_refused_or_can_be_used(name: str) -> None:
    problems: list[str] = []
    found = run_case(name, range(FILES), report=problems.append)
    assert not problems
    assert found["refused"] + found["used"] == FILES
    assert found["refused"] > 0
