"""What a report tells of a run: read from its folder and, where that takes a second or two, solved and walked again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from bats.bounds.certificate import Certified, load_certified
from bats.errors import DataError
from bats.graph.mdp import TabularMDP
from bats.graph.rollouts import Walks, walk
from bats.graph.solve import Solution
from bats.runs.folder import Finished, RunFolder, Timing
from bats.runs.solve_again import Changes, resolve
from bats.stitching.records import LOG_CARD, WALKED, Attempts, LogCard, Option, RoundRecord
from bats.storage.json_records import from_plain, parsed

EVALUATION = "evaluation.json"
"""file that a run folder may hold besides: what was promised and kept"""
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
    walks: Walks


@dataclass(frozen=True, eq=False)
class Earned:
    """The policy's walks that it could be cloned from: what each earned, and whether it was taken."""

    returns: Float[np.ndarray, "w"]
    """neither discounted nor charged"""
    share: Float[np.ndarray, "w"]
    """of the best return among the walks that start nearest"""
    kept: Bool[np.ndarray, "w"]
    weights: Float[np.ndarray, "w"]
    """how much each start counts; they sum to 1"""
    cut: float
    """least share that was kept, or the least return"""
    by: str
    """what the cut is a cut of"""
    steps: int
    """most steps of a walk"""

    @property
    def by_return(self) -> bool:
        return self.by == "return"

    @property
    def measured(self) -> Float[np.ndarray, "w"]:
        """What was held against the cut."""
        return self.returns if self.by_return else self.share

    @property
    def mean_return(self) -> float:
        return float(self.weights @ self.returns)


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
    earned: Earned
    model: dict[str, Any] | None
    log_card: LogCard | None
    evaluation: dict[str, Any] | None
    policy: dict[str, Any]
    """the cloned policy's card"""
    options: tuple[Option, ...]
    """that were chosen between, the best first"""
    certificate: Certified | None
    fingerprint: str
    """of the log"""

    def dimension(self, number: int) -> str:
        """What a number of the state is called."""
        names = () if self.log_card is None else self.log_card.observation_names
        return names[number] if number < len(names) else f"number {number}"

    @property
    def tolerance(self) -> float | None:
        """Largest error of a stitch, where the settings tell."""
        return finite(self.settings.get("stitch.tolerance"))

    @property
    def cloned(self) -> dict[str, Any]:
        """What the cloned policy earned in the environment; nothing where it was not evaluated."""
        column = (self.evaluation or {}).get("cloned")
        return column if isinstance(column, dict) else {}


def read_story(path: Path) -> Story:
    """All that a report tells of a run; `DataError` where the folder is none of a finished run."""
    run = RunFolder(path)
    ended = run.finished()
    header = _object(run.path / "run.json") or {}
    card = _object(run.path / LOG_CARD)
    settings = dict(entries(header.get("config", {})))
    walked = _walked(run)
    return Story(
        path=run.path,
        log=str(header.get("log", "")),
        package=str(header.get("package", "")),
        seed=int(header.get("seed", 0)),
        settings=settings,
        ended=ended,
        rounds=run.records(RoundRecord),
        tried=tuple(run.attempts(Attempts)),
        timings=run.timings(),
        walked=walked,
        earned=_earned(run, walked.mdp),
        model=_object(run.model.with_suffix(".json")),
        log_card=None if card is None else from_plain(LogCard, card, file=str(run.path / LOG_CARD)),
        evaluation=_object(run.path / EVALUATION),
        policy=_object(run.policy.with_suffix(".json")) or {},
        options=run.options(),
        certificate=load_certified(run.path),
        fingerprint=str(header.get("fingerprint", "")),
    )


def _walked(run: RunFolder) -> Walked:
    solved = resolve(run, Changes())
    mdp = solved.mdp
    starts = mdp.starts[evenly(len(mdp.starts), MOST_WALKS)]
    walks = walk(mdp, solved.solution.policy, starts, WALKED)
    return Walked(mdp=mdp, solution=solved.solution, kept=solved.kept, starts=starts, walks=walks)


def _earned(run: RunFolder, mdp: TabularMDP) -> Earned:
    """The walks as they were saved; `DataError` where they are not those of the graph."""
    arrays, facts = run.walks()
    try:
        kept = arrays["kept"]
        if len(kept) == 0 or any(
            arrays[name].shape != kept.shape for name in ("start", "start_weights", "returns", "share")
        ):
            raise ValueError("arrays of different lengths")
        if not np.isin(arrays["start"], mdp.starts).all():
            raise ValueError("walks that begin elsewhere")
        return Earned(
            returns=arrays["returns"],
            share=arrays["share"],
            kept=kept.astype(bool),
            weights=arrays["start_weights"],
            cut=float(facts["cut"]),
            by=str(facts["by"]),
            steps=int(facts["steps"]),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:  # a checksum can be right all the same
        raise DataError("the policy's walks through this graph", str(error), file=str(run.path)) from error


def finite(value: object) -> float | None:
    """The number that an entry of a JSON file is, or None if it is something else: people may write such files too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with suppress(OverflowError):  # JSON has whole numbers of any size
        return float(value) if math.isfinite(value) else None
    return None


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
