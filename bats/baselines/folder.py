"""The folder of a baseline's run.

    run.json                    what it is a run of: the method, the log with its checksums, the seed
    settings.json               the method's settings
    log.json                    rows, episodes, names and notes of the log
    snapshots/update-….safetensors, .json   the policy after so many updates
    snapshots.jsonl             the losses before each snapshot, one per line
    training.safetensors        the state of training, while it lasts
    policy.safetensors, .json   the last policy
    curve.jsonl                 returns of the snapshots in an environment, where they were evaluated
    evaluation.json             returns of the last policy, as `bats-rl evaluate` writes them
    timings.jsonl               seconds of training before each snapshot
    finished.json               how it ended
    files.json                  the checksums of the files above, except for curve, evaluation and times

Every file appears whole or not at all. A killed run continues from its last saved state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bats.arrays import field_values
from bats.baselines.config import CONFIGS, Baseline
from bats.data.dataset import Dataset
from bats.errors import DataError, OutputError
from bats.policy.files import load_policy, save_policy
from bats.policy.policy import Policy
from bats.policy.support import Support
from bats.runs.manifest import NAME as LIST_OF_FILES
from bats.runs.manifest import Manifest, check_manifest, file_checksum, files_of, write_manifest
from bats.runs.records import Header, LogCard, Timing
from bats.storage.atomic import output_errors, refuse_other_files, remove_temporary
from bats.storage.json_records import flatten, read_json, read_lines, read_record, to_plain, write_lines, write_record
from bats.storage.lock import locked

RESULTS = (
    *("run.json", "settings.json", "log.json", "model.safetensors", "model.json", "policy.safetensors", "policy.json"),
    *("snapshots/update-*.safetensors", "snapshots/update-*.json", "snapshots.jsonl", "finished.json"),
)
"""files whose checksums are kept"""


@dataclass(frozen=True)
class BaselineHeader(Header):
    """What a run is a run of, besides its settings."""

    method: str = ""

    @classmethod
    def of_method(cls, method: str, dataset: Dataset, seed: int) -> BaselineHeader:
        return cls(**field_values(Header.of(dataset, seed)), method=method)


@dataclass(frozen=True)
class Snapshot:
    """A policy that was kept, and the training up to it."""

    update: int
    losses: dict[str, float]
    """mean loss of each group of networks since the snapshot before"""


@dataclass(frozen=True)
class CurvePoint:
    """The return of a snapshot in an environment."""

    update: int
    environment: str
    mean_return: float
    low: float
    high: float
    score: float | None
    score_low: float | None
    score_high: float | None
    episodes: int


@dataclass(frozen=True)
class Finished:
    """How a run ended."""

    updates: int
    """until the last snapshot"""
    divergence: str
    """what was not finite, where training diverged; empty where it did not"""
    together: int
    """runs that were trained as one program; the time of training is that of all of them"""


class BaselineFolder:
    """Reads what is in the folder of a baseline's run; writes to it inside `claimed` only."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.training = self.path / "training.safetensors"
        self.model = self.path / "model.safetensors"
        self.policy = self.path / "policy.safetensors"
        self.evaluation = self.path / "evaluation.json"
        self._header = self.path / "run.json"
        self._settings = self.path / "settings.json"
        self._log_card = self.path / "log.json"
        self._snapshots = self.path / "snapshots.jsonl"
        self._curve = self.path / "curve.jsonl"
        self._timings = self.path / "timings.jsonl"
        self._finished = self.path / "finished.json"
        self._files = self.path / LIST_OF_FILES

    def header(self) -> BaselineHeader:
        """What the folder is a run of; `DataError` if it is none."""
        return read_record(BaselineHeader, self._header)

    def settings(self) -> Baseline:
        return read_record(CONFIGS[self.header().method], self._settings)

    def log_card(self) -> LogCard:
        return read_record(LogCard, self._log_card)

    @property
    def is_finished(self) -> bool:
        return self._files.exists()

    def finished(self) -> Finished:
        """How the run ended; `DataError` if it did not, or if a file is not the one that it wrote."""
        if not self.is_finished:
            hint = "Call the original command again to continue it."
            raise DataError("a finished run", "an unfinished run", file=str(self.path), hint=hint)
        check_manifest(self.path, read_record(Manifest, self._files), {}, RESULTS)
        return read_record(Finished, self._finished)

    @contextmanager
    def claimed(self, header: BaselineHeader, config: Baseline, dataset: Dataset) -> Iterator[None]:
        """Makes the folder, or continues it, as the only process that does; another run's folder is refused."""
        self._check(header, config)
        if self.is_finished:
            yield
            return
        with locked(self.path / "lock"):
            self._check(header, config)
            with output_errors(self.path, "cleaned up"):
                remove_temporary(self.path)
            if not self._header.exists():
                write_record(self._settings, config)
                write_record(self._log_card, LogCard.of(dataset))
                write_record(self._header, header)
            yield

    def _check(self, header: BaselineHeader, config: Baseline) -> None:
        if not self._header.exists():
            refuse_other_files(self.path, ("lock", self._settings.name, self._log_card.name))
            return
        own = self.header()
        found = [f"it is a run of {own.method}, not of {header.method}"] if own.method != header.method else []
        found += own.differences(header, "transitions", "rewards", "seed")
        if not found:
            old, new = dict(flatten(to_plain(self.settings()))), dict(flatten(to_plain(config)))
            found = [f"its {name} is {old[name]}, not {new[name]}" for name in old if old[name] != new[name]]
        if found:
            raise OutputError(f"{self.path} contains another run: {'; '.join(found)}. Choose another folder.")

    def add_snapshot(self, snapshot: Snapshot, policy: Policy) -> None:
        """Saves a policy, and then that it is there; it replaces those of a training that went further before."""
        save_policy(policy, self._snapshot(snapshot.update), overwrite=True)
        earlier = (one for one in self.snapshots() if one.update < snapshot.update)
        write_lines(self._snapshots, (*earlier, snapshot))

    def add_timing(self, timing: Timing) -> None:
        write_lines(self._timings, (*self.timings(), timing))

    def timings(self) -> tuple[Timing, ...]:
        return read_lines(Timing, self._timings)

    def snapshots(self) -> tuple[Snapshot, ...]:
        return read_lines(Snapshot, self._snapshots)

    def load_snapshot(self, update: int) -> Policy:
        return load_policy(self._snapshot(update))

    def save_curve(self, points: tuple[CurvePoint, ...]) -> None:
        write_lines(self._curve, points)

    def curve(self) -> tuple[CurvePoint, ...]:
        """The returns of the snapshots that have been evaluated."""
        return read_lines(CurvePoint, self._curve)

    def finish(self, end: Finished, support: Support) -> None:
        """Makes the last snapshot, if any, the policy of the run."""
        if snapshots := self.snapshots():
            last = self.load_snapshot(snapshots[-1].update)
            save_policy(replace(last, support=support), self.policy, overwrite=True)
        write_record(self._finished, end)
        files = {name: file_checksum(path) for name, path in sorted(files_of(self.path, RESULTS).items())}
        write_manifest(self.path, Manifest(files, {}))
        with output_errors(self.training, "removed"):
            self.training.unlink(missing_ok=True)

    def _snapshot(self, update: int) -> Path:
        return self.path / "snapshots" / f"update-{update:08d}.safetensors"


def method_of_run(path: Path) -> str | None:
    """The method of a baseline's run; None for other folders, such as a run of BATS."""
    header = path / "run.json"
    plain = read_json(header) if header.is_file() else None
    method = plain.get("method") if isinstance(plain, dict) else None
    return method if isinstance(method, str) else None
