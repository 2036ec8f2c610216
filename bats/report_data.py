"""What a report tells of a run: read from its folder and, where that takes a second or two, solved and walked again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bats.config_files import from_plain, parsed
from bats.errors import DataError
from bats.mdp import TabularMDP
from bats.records import LOG_CARD, WALKED, Attempts, LogCard, RoundRecord
from bats.resolve import Changes, resolve
from bats.rollouts import Walks, undiscounted_return, walk
from bats.run_folder import Finished, RunFolder, Timing
from bats.solve import Solution

EVALUATION, POLICY = "evaluation.json", "policy.json"
"""files that a run folder may hold besides: what was promised and kept, the policy's card"""
MOST_WALKS = 20_000
"""more starts than this are thinned"""


@dataclass(frozen=True, eq=False)
class Walked:
    """The solved graph and the policy's walks through it."""

    mdp: TabularMDP
    solution: Solution
    kept: int
    """stitches in the finished graph"""
    starts: Int[np.ndarray, "n"]
    weights: Float[np.ndarray, "n"]
    walks: Walks
    returns: Float[np.ndarray, "n"]
    """undiscounted, without penalties"""


@dataclass(frozen=True, eq=False)
class Story:
    """All that a report tells of one run."""

    path: Path
    log: str
    package: str
    """version that began the run"""
    seed: int
    settings: dict[str, Any]
    """by their dotted names"""
    ended: Finished
    rounds: tuple[RoundRecord, ...]
    tried: tuple[Attempts, ...]
    timings: tuple[Timing, ...]
    walked: Walked
    model: dict[str, Any] | None
    log_card: LogCard | None
    evaluation: dict[str, Any] | None
    policy: dict[str, Any] | None

    def dimension(self, number: int) -> str:
        """What a number of the state is called."""
        names = () if self.log_card is None else self.log_card.observation_names
        return names[number] if number < len(names) else f"number {number}"

    @property
    def tolerance(self) -> float | None:
        """Largest error of a stitch, where the settings tell."""
        return finite(self.settings.get("stitch.tolerance"))

    @property
    def threshold(self) -> float | None:
        """Least return of a walk that was cloned, where one was set for all walks."""
        return None if self.policy is None else finite(self.policy.get("threshold"))


def read_story(path: Path) -> Story:
    """All that a report tells of a run; `DataError` where the folder is none of a finished run."""
    run = RunFolder(path)
    ended = run.finished()
    header = _object(run.path / "run.json") or {}
    card = _object(run.path / LOG_CARD)
    return Story(
        path=run.path,
        log=str(header.get("log", "")),
        package=str(header.get("package", "")),
        seed=int(header.get("seed", 0)),
        settings=dict(entries(header.get("config", {}))),
        ended=ended,
        rounds=run.records(RoundRecord),
        tried=tuple(run.attempts(Attempts)),
        timings=run.timings(),
        walked=_walked(run),
        model=_object(run.model.with_suffix(".json")),
        log_card=None if card is None else from_plain(LogCard, card, file=str(run.path / LOG_CARD)),
        evaluation=_object(run.path / EVALUATION),
        policy=_object(run.path / POLICY),
    )


def _walked(run: RunFolder) -> Walked:
    solved = resolve(run, Changes())
    mdp = solved.mdp
    chosen = evenly(len(mdp.starts), MOST_WALKS)
    starts, weights = mdp.starts[chosen], mdp.start_weights[chosen]
    walks = walk(mdp, solved.solution.policy, starts, WALKED)
    total = weights.sum()
    return Walked(
        mdp=mdp,
        solution=solved.solution,
        kept=solved.kept,
        starts=starts,
        weights=weights / total if total > 0 else np.full(len(weights), 1 / len(weights)),
        walks=walks,
        returns=undiscounted_return(mdp, walks),
    )


def finite(value: object) -> float | None:
    """The number that an entry of a JSON file is, or None if it is something else: people may write such files too."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def evenly(count: int, most: int) -> Int[np.ndarray, "n"]:
    """At most so many of `count` places, evenly apart, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _object(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file, or None where there is no file."""
    if not path.exists():
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError("a text that can be read", str(error), file=str(path)) from error
    found = parsed(text, file=str(path))
    if not isinstance(found, dict):
        raise DataError("a JSON object", type(found).__name__, file=str(path))
    return found


def entries(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of nested tables with their dotted names."""
    if not isinstance(value, dict):
        yield name, value
        return
    for key, entry in value.items():
        yield from entries(entry, f"{name}.{key}" if name else key)
