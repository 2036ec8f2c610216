"""The folder of a run: all that was decided, learned, tried and found, so that a run goes on after any crash.

    run.json                    what it is a run of: configuration, seed, log and its fingerprint
    log.json                    rows, episodes, names and notes of the log
    model.safetensors, .json    the learned model, and a card for people
    mdp/base.safetensors        the MDP of the log
    mdp/round-0001.safetensors  what round 1 added; it is written last, and with it the round counts as done
    attempts/round-0001.…       all that round 1 tried
    records.jsonl               what each round did, one line each
    metric-0010.safetensors     where the run learns its metric: as it was learned after round 10
    errors.safetensors          and each stitch's error by the last of those
    options.jsonl               penalties and tolerances that were chosen between, best first, where there was a choice
    policy.safetensors, .json   the cloned policy, and a card for people
    walks.safetensors           what the policy's walks earned, and which of them were cloned
    certificate.json            deploy or hold, and why; what the policies are worth at least and at most
    bounds.safetensors          the same bounds at every start
    timings.jsonl               how long everything took: the one file that no two runs share
    finished.json               how it ended; where it is, the run is finished
    evaluation.json             what the policy earned in an environment, where it was played in one
    training.safetensors        where training stands, while it lasts
    lock                        held by the process that works here; the system lets go of it if the process dies

Every file appears whole or not at all, so a killed process leaves nothing but whole files and temporary ones, which the
next start clears away. What belongs to a round that was not done is dropped, and the round is made again.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from bats.data.dataset import Dataset
from bats.errors import DataError, OutputError
from bats.graph import files as mdp_files
from bats.graph.mdp import Stitches, TabularMDP
from bats.graph.pricing import PenaltyUnit
from bats.graph.relabel import charge
from bats.stitching.records import LOG_CARD, LogCard, Option
from bats.storage.atomic import atomic_path
from bats.storage.json_records import as_json, from_json, from_plain, parsed, plain
from bats.storage.tensors import read_arrays, write_arrays

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

VERSION = 5
"""raised when the meaning of what a folder holds changes"""
_RUN, _LOCK, _ATTEMPTS, _WALKS = "run.json", "lock", "bats-attempts", "bats-walks"
_ERRORS = "bats-errors"
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.tmp")
"""what `files.atomic_path` calls a file that is not whole yet"""

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Identity:
    """What a run is a run of. On one machine, everything else in its folder follows from this."""

    log: str
    fingerprint: str
    """of the log's arrays"""
    seed: int
    config: Any
    """a frozen dataclass that `config_files` can write"""


@dataclass(frozen=True)
class Timing:
    """How long something took."""

    stage: str
    round: int | None
    seconds: float


@dataclass(frozen=True)
class Finished:
    """How a run ended, and what solving it again has to know."""

    rounds: int
    gamma: float
    penalty: float
    """as it was asked for or chosen"""
    penalty_unit: PenaltyUnit
    price: float
    """the same in rewards per unit of error"""
    tolerance: float | None
    dead_end_value: float
    logged_value: float
    """what the logged behaviour earned from the starts"""
    log_value: float
    """the best that the log alone allows"""
    value: float
    """and with the stitches"""
    metric: tuple[float, ...]
    """weight of each number of a state; of ordinary steps where the run learned a metric"""


@dataclass(frozen=True)
class _Header:
    """What `run.json` says before the configuration."""

    version: int
    package: str
    log: str
    fingerprint: str
    seed: int


def fingerprint(dataset: Dataset) -> str:
    """A checksum over all that a log says, whatever it is called and however it is stored."""
    digest = hashlib.sha256(str(dataset.action_count).encode())
    for field in fields(Dataset):
        array = getattr(dataset, field.name)
        if isinstance(array, np.ndarray):
            digest.update(f"{field.name} {array.dtype.str} {array.shape};".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


class RunFolder:
    """Reads what is in the folder of a run; writes to it inside `claimed` only."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.model = self.path / "model.safetensors"
        self.training = self.path / "training.safetensors"
        self.policy = self.path / "policy.safetensors"
        self.certificate = self.path / "certificate.json"
        self.evaluation = self.path / "evaluation.json"
        self._errors = self.path / "errors.safetensors"
        self._options = self.path / "options.jsonl"
        self._walks = self.path / "walks.safetensors"
        self._mdp = self.path / "mdp"
        self._records = self.path / "records.jsonl"
        self._timings = self.path / "timings.jsonl"
        self._finished = self.path / "finished.json"

    @property
    def is_run(self) -> bool:
        return (self.path / _RUN).is_file()

    @property
    def is_finished(self) -> bool:
        return self._finished.is_file()

    @contextmanager
    def claimed(self, identity: Identity) -> Iterator[None]:
        """Makes the folder, or goes on with it, as the only process that does.

        Refused, with nothing touched, where the folder belongs to another run or is none. A finished run is not
        written to, so it is not locked either.
        """
        self._check(identity)
        if self.is_finished:
            yield
            return
        with _locked(self.path / _LOCK):
            self._check(identity)  # once more: somebody may have been quicker
            if not self.is_run:
                self._write_identity(identity)
            self._drop_unfinished()
            yield

    def describe_log(self, card: LogCard) -> None:
        """Writes down what only the log itself knows."""
        _write_text(self.path / LOG_CARD, json.dumps(plain(card), indent=2) + "\n")

    @property
    def has_mdp(self) -> bool:
        return (self._mdp / "base.safetensors").exists()

    def load_mdp(self) -> TabularMDP:
        """The MDP with the stitches of all rounds that are done."""
        return mdp_files.load_mdp(self._mdp)

    def charged_mdp(self) -> TabularMDP:
        """The same, with the errors by the metric that the run ended with."""
        mdp = self.load_mdp()
        if not self._errors.exists():
            return mdp
        error = read_arrays(self._errors, _ERRORS)[0].get("error", np.zeros(0))
        if error.shape != (mdp.stitch_count,):
            expected = f"an error for each of {mdp.stitch_count} stitches"
            raise DataError(expected, f"{error.shape}", file=str(self._errors))
        return charge(mdp, error, penalty=mdp.penalty)

    def save_errors(self, error: Float[np.ndarray, "C"]) -> None:
        """Saves the errors of all stitches by the metric that the run ends with."""
        write_arrays(self._errors, _ERRORS, {"error": error}, {}, overwrite=True)

    def stitches(self, rounds: int) -> Iterator[Stitches]:
        """What each of the first rounds added."""
        for number in range(1, rounds + 1):
            yield mdp_files.load_round(self._mdp, number)

    def metric(self, rounds: int) -> Path:
        """Where the metric lies that was learned after so many rounds."""
        return self.path / f"metric-{rounds:04d}.safetensors"

    @property
    def last_metric(self) -> int | None:
        """After how many rounds the metric was last learned; None: never."""
        found = sorted(self.path.glob("metric-*.safetensors"))
        return int(found[-1].stem.removeprefix("metric-")) if found else None

    def save_mdp(self, mdp: TabularMDP) -> None:
        """Saves the MDP before stitching."""
        mdp_files.save_mdp(mdp, self._mdp)

    @property
    def rounds_done(self) -> int:
        return len(list(self._mdp.glob("round-*.safetensors")))

    def add_round(
        self, number: int, stitches: Stitches, attempts: Mapping[str, np.ndarray], records: tuple[object, ...]
    ) -> None:
        """Saves a round: what it tried, the records of all rounds up to it, and last what it added."""
        write_arrays(self._attempts(number), _ATTEMPTS, attempts, {"round": number}, overwrite=True)
        self._write_lines(self._records, records)
        mdp_files.save_round(stitches, self._mdp, stitch_round=number)

    def attempts(self, kind: type[Kind]) -> Iterator[Kind]:
        """What each round tried, as the dataclass of arrays that `kind` is."""
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # mypy knows no bound for dataclasses
        for number in range(1, self.rounds_done + 1):
            arrays, _ = read_arrays(self._attempts(number), _ATTEMPTS)
            if sorted(arrays) != sorted(names):
                found = ", ".join(sorted(arrays))
                raise DataError(f"the arrays {', '.join(names)}", found, file=str(self._attempts(number)))
            yield kind(**arrays)

    def records(self, kind: type[Kind]) -> tuple[Kind, ...]:
        """The records of the rounds that are done."""
        done = self._read_lines(self._records, kind)[: self.rounds_done]
        if len(done) < self.rounds_done:
            raise DataError(f"a line for each of {self.rounds_done} rounds", f"{len(done)}", file=str(self._records))
        return done

    def save_options(self, options: tuple[Option, ...]) -> None:
        """Saves what penalties and tolerances came to, the best first."""
        self._write_lines(self._options, options)

    def options(self) -> tuple[Option, ...]:
        """What was saved of those; empty where there was no choice."""
        return self._read_lines(self._options, Option)

    def save_walks(self, walks: Mapping[str, np.ndarray], facts: Mapping[str, object]) -> None:
        """Saves what the policy's walks earned, and which of them were cloned."""
        write_arrays(self._walks, _WALKS, walks, facts, overwrite=True)

    def walks(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What was saved of the policy's walks."""
        return read_arrays(self._walks, _WALKS)

    def add_timing(self, timing: Timing) -> None:
        self._write_lines(self._timings, (*self.timings(), timing))

    def timings(self) -> tuple[Timing, ...]:
        return self._read_lines(self._timings, Timing)

    def finish(self, facts: Finished) -> None:
        """Says how the run ended; nothing is written to the folder after this."""
        _write_text(self._finished, json.dumps(plain(facts), indent=2) + "\n")

    def finished(self) -> Finished:
        """How the run ended; `DataError` if it did not."""
        if not self.is_run:
            raise DataError("the folder of a run", "none", file=str(self.path))
        if not self.is_finished:
            hint = "The `bats-rl fit` that began it goes on with it."
            raise DataError("a finished run", "one that is not", file=str(self.path), hint=hint)
        return from_json(Finished, _read_text(self._finished), file=str(self._finished))

    def identity(self, config: type) -> Identity:
        """What the folder is a run of."""
        if not self.is_run:
            raise DataError("the folder of a run", "none", file=str(self.path))
        file = self.path / _RUN
        held = parsed(_read_text(file), file=str(file))
        header = {name: value for name, value in held.items() if name != "config"} if isinstance(held, dict) else held
        found = from_plain(_Header, header, file=str(file))
        if found.version != VERSION:
            raise DataError(f"a run folder of version {VERSION}", f"version {found.version}", file=str(file))
        settings: object = from_plain(config, held.get("config"), file=str(file))
        return Identity(found.log, found.fingerprint, found.seed, settings)

    def _attempts(self, number: int) -> Path:
        return self.path / "attempts" / f"round-{number:04d}.safetensors"

    def _check(self, identity: Identity) -> None:
        """Complains if the folder is anything but a place for this run."""
        try:
            held = sorted(path.name for path in self.path.iterdir()) if self.path.exists() else []
        except OSError as error:
            raise OutputError(f"{self.path} could not be read: {error.strerror or error}.") from error
        if self.is_run:
            differing = "; ".join(self._differences(identity))
            if differing:
                hint = "Choose another folder, or what it was begun with."
                raise OutputError(f"{self.path} is the folder of another run: {differing}. {hint}")
        elif any(name != _LOCK and not _is_temporary(name, _RUN) for name in held):
            raise OutputError(f"{self.path} is not empty and not the folder of a run; choose another.")

    def _differences(self, identity: Identity) -> Iterator[str]:
        """What sets the folder's run apart from another one."""
        found = self.identity(type(identity.config))
        if found.fingerprint != identity.fingerprint:
            yield f"its log is {found.log}, with other contents than {identity.log}"
        if found.seed != identity.seed:
            yield f"its seed is {found.seed}, not {identity.seed}"
        theirs = _flat(plain(found.config))
        for name, value in _flat(plain(identity.config)).items():
            if theirs[name] != value:
                yield f"its {name} is {theirs[name]}, not {value}"

    def _write_identity(self, identity: Identity) -> None:
        header = _Header(VERSION, version("bats-rl"), identity.log, identity.fingerprint, identity.seed)
        _write_text(self.path / _RUN, json.dumps(plain(header) | {"config": plain(identity.config)}, indent=2) + "\n")

    def _drop_unfinished(self) -> None:
        """Clears away what a process left that was killed: temporary files, and what belongs to no finished round."""
        try:
            for path in self.path.rglob(".*"):
                if _is_temporary(path.name):
                    path.unlink()
            for path in (self.path / "attempts").glob("round-*.safetensors"):
                if path.stem > f"round-{self.rounds_done:04d}":
                    path.unlink()
        except OSError as error:
            raise OutputError(f"{self.path} could not be tidied: {error.strerror or error}.") from error
        lines = _read_text(self._records).splitlines(keepends=True) if self._records.exists() else []
        if len(lines) > self.rounds_done:
            _write_text(self._records, "".join(lines[: self.rounds_done]))

    def _read_lines(self, path: Path, kind: type[Kind]) -> tuple[Kind, ...]:
        lines = _read_text(path).splitlines() if path.exists() else []
        return tuple(from_json(kind, line, file=f"{path}, line {number}") for number, line in enumerate(lines, 1))

    def _write_lines(self, path: Path, records: tuple[object, ...]) -> None:
        _write_text(path, "".join(as_json(record) + "\n" for record in records))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock that the system lets go of when the process ends, however it ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("ab")
    except OSError as error:
        raise OutputError(f"{path} could not be written: {error.strerror or error}.") from error
    with stream:
        try:
            if sys.platform == "win32":
                msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise OutputError(f"Another process is at work in {path.parent}; wait for it, or end it.") from error
        except OSError as error:
            raise OutputError(f"{path} could not be locked: {error.strerror or error}.") from error
        yield  # closing the file lets go of the lock


def _is_temporary(name: str, of: str | None = None) -> bool:
    found = _TEMPORARY.fullmatch(name)
    return found is not None and of in (None, found["name"])


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """The entries of nested tables by their dotted names."""
    if not isinstance(value, dict):
        return {name: value}
    parts = [_flat(entry, f"{name}.{key}" if name else key) for key, entry in value.items()]
    return {key: entry for part in parts for key, entry in part.items()}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError("a text that can be read", str(error), file=str(path)) from error


def _write_text(path: Path, text: str) -> None:
    with atomic_path(path, overwrite=True) as temporary:
        temporary.write_text(text, encoding="utf-8")
