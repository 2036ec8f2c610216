"""Everything that a report shows of a run, read from its folder; its graph is solved again, which takes seconds."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from bats.bounds.certificate import Certificate, load_certificate
from bats.data.dataset import Names
from bats.errors import DataError
from bats.graph.rollouts import ends_in_dead_end, roll_out
from bats.report.html import in_words
from bats.runs.folder import RunFolder
from bats.runs.manifest import file_checksum
from bats.runs.records import seconds_by_stage
from bats.runs.result import solve_again, value_of_log
from bats.stitching.records import SHARE_STEPS
from bats.storage.json_records import flatten, read_json, to_plain

MAX_ROLLOUTS = 20_000
"""more starts than this are thinned"""


class Contents:
    """Everything that a report shows of one run; `DataError` if the folder is not that of a finished run."""

    def __init__(self, path: Path | str) -> None:
        run = RunFolder(path)
        self.path = run.path
        self.summary = run.summary()
        self.header = run.header()
        self.config = run.settings()
        self.log_card = run.log_card()
        self.model_card = _read_object(run.model.with_suffix(".json"))
        """a human-readable summary, as `policy_card`"""
        self.policy_card = _read_object(run.policy.with_suffix(".json"))
        self.records = run.records()
        self.attempts = run.attempts()
        """of each round"""
        self.tried = sum(record.tried for record in self.records)
        self.accepted = sum(record.accepted for record in self.records)
        self.options = run.options()
        """penalties and tolerances that were compared, best first"""
        self.certificate = load_certificate(run.path)
        self.variants = _read_variants(run)
        """further certificates, and further policies without one, by their names"""
        self.policies = {file_checksum(path) for path in (run.policy, *run.policies.glob("*.safetensors"))}
        """checksums of the policies in the folder; a further certificate may be of one that lies elsewhere"""
        self.evaluation = _read_evaluation(run)
        """returns in an environment, in columns, and facts about it; people may write such a file by hand, so entries
        may be missing or anything at all: see `finite_number`"""
        self.columns = {name: entry for name, entry in self.evaluation.items() if isinstance(entry, dict)}
        """by what was evaluated: promised, replayed, cloned, or any other name"""

        solution = solve_again(run)
        self.mdp, self.value = solution.mdp, solution.value
        self.logged_value = value_of_log(self.summary, self.mdp, self.config.certificate)
        # rollouts of a million starts would take gigabytes, and the page shows shares and a few examples
        self.starts = self.mdp.starts[evenly_spaced(len(self.mdp.starts), MAX_ROLLOUTS)]
        self.rollouts = roll_out(self.mdp, solution.policy, self.starts, SHARE_STEPS)
        """of the graph's policy from these starts"""
        steps = self.config.rollouts.steps
        self.stops = float(self.mdp.start_weights @ ends_in_dead_end(self.mdp, solution.policy, self.mdp.starts, steps))
        """share of the start weight from which the graph's policy comes to where the log stops"""
        self.selection = run.selection()
        # every file can be whole by its checksum and still belong to another run
        if not np.isin(self.selection.start, self.mdp.starts).all():
            raise DataError("rollouts from the start states of this graph", "other first states", file=str(run.path))
        self.mean_return = float(self.selection.start_weights @ self.selection.returns)
        """of the rollouts that could be cloned, by the weights of their starts"""

        settings = {name: in_words(value) for name, value in flatten(to_plain(self.config))}
        self.settings = {"seed": str(self.header.seed), **settings}
        """the configuration by dotted names, as text"""
        self.seconds = seconds_by_stage(run.timings())
        self.task = self.header.transitions, self.header.rewards, self.header.starts, self.summary.gamma
        """the log and the discount: bounds of runs with the same can be compared"""

    def evaluated(self, name: str) -> float | None:
        """A number about the cloned policy in the environment, where it is known."""
        return finite_number(self.columns.get("cloned", {}).get(name))

    def dimension(self, index: int) -> str:
        """The name of a component of the state."""
        return _name(self.log_card.observation_names, index)

    def action_dimension(self, index: int) -> str:
        """The name of a component of the action."""
        return _name(self.log_card.action_names, index)


def _name(names: Names, index: int) -> str:
    return names[index] if index < len(names) else f"component {index}"


def finite_number(value: object) -> float | None:
    """An entry of a JSON file as a number; None if it is anything else."""
    with suppress(OverflowError):  # JSON has whole numbers of any size
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


def evenly_spaced(count: int, at_most: int) -> Int[np.ndarray, "n"]:
    """Indices from 0 to `count` - 1, thinned evenly to `at_most`; the first and the last are among them."""
    return np.unique(np.linspace(0, count - 1, min(count, at_most)).round().astype(np.int64))


def _read_variants(run: RunFolder) -> dict[str, Certificate | None]:
    """Further certificates of a run, and further policies that have no certificate of the same name."""
    variants: dict[str, Certificate | None] = {path.stem: None for path in run.policies.glob("*.safetensors")}
    for path in run.certificates.glob("*/certificate.json"):
        variants[path.parent.name] = load_certificate(path.parent)
    return dict(sorted(variants.items()))


def _read_evaluation(run: RunFolder) -> dict[str, Any]:
    evaluation = _read_object(run.evaluation) if run.evaluation.exists() else {}
    # a file that somebody wrote by hand need not say which policy it is about
    if evaluation.get("policy") not in (None, file_checksum(run.policy)):
        hint = f"Write it again: bats-rl evaluate {run.path} --overwrite"
        raise DataError(
            "an evaluation of this run's policy", "one of another policy", file=str(run.evaluation), hint=hint
        )
    return evaluation


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError("a JSON object", type(content).__name__, file=str(path))
    return content
