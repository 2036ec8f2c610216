"""However a file is damaged, a reader either reads it or complains with a `BatsError`; it never crashes or hangs.

`tests/fuzz_campaign.py` tries as many inputs as one has time for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz_campaign import attempts
from tests.fuzz_targets import RUN, TARGETS

INPUTS = 200


@pytest.mark.parametrize("target", TARGETS)
def test_damaged_files_are_read_or_refused_and_nothing_else(
    target: str, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN, str(finished_run))
    tried = list(attempts(target, 0, INPUTS))
    assert [attempt for attempt in tried if attempt.is_finding] == []
    assert len(tried) == INPUTS
    assert {attempt.outcome for attempt in tried} == {"read", "refused"}


def test_a_reader_that_does_not_end_is_found() -> None:
    """No process starts this fast."""
    assert [(one.number, one.outcome) for one in attempts("csv", 7, 9, seconds=0.01)] == [(7, "hung"), (8, "hung")]
