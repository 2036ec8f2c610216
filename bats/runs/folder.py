"""The folder of a run: all that was decided, learned, tried and found, so that a run continues after any crash.

    run.json                    what it is a run of: the log, its fingerprint, the seed
    settings.json               the configuration; `bats-rl fit --config` reads it
    log.json                    rows, episodes, names and notes of the log
    model.safetensors, .json    the learned model, and a human-readable summary
    mdp/base.safetensors        the MDP of the log
    mdp/round-0001.safetensors  what round 1 added; it is written last, and with it the round counts as done
    attempts/round-0001.…       everything that round 1 tried
    records.jsonl               a summary of each round, one per line
    metric-0010.safetensors     a learned metric: as it was after round 10
    errors.safetensors          each stitch's error by the last learned metric
    options.jsonl               penalties and tolerances that were compared, best first
    policies/bats.safetensors   the policies that are compared (also improved, log, best-tenth), with summaries
    certificates/bats/          the certificate of each of them
    policy.safetensors, .json   the one of them that was kept, and a human-readable summary
    rollouts.safetensors        the policy's rollouts from the starts, and which of them were cloned
    certificate.json            deploy or hold and why, and the bounds at the starts as a whole
    bounds.safetensors          the bounds at every start
    timings.jsonl               seconds per stage and round: the one file that differs between equal runs
    finished.json               a summary, the last file of a run
    files.json                  all files above but two, with their checksums: `manifest`
    policies/, certificates/    further ones that clone and certify add
    evaluation.json             returns in an environment, where the policy was played in one
    training.safetensors        the state of training, while it lasts
    lock                        held by the process that works here; the system releases it when the process ends

Every file appears whole or not at all, so a killed process leaves nothing but whole files and temporary ones. The next
start removes the temporary ones and those of an unfinished stage or round, which is made again.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from jaxtyping import Float

from bats.bounds.certificate import Certificate, Option, save_certificate
from bats.config import Config
from bats.data.dataset import Dataset
from bats.errors import DataError, OutputError, SettingError
from bats.graph.files import base_path, load_mdp, load_round, round_path, save_mdp, save_round
from bats.graph.mdp import Stitches, TabularMDP
from bats.graph.relabel import with_errors
from bats.policy.demonstrations import Selection
from bats.policy.files import save_policy
from bats.policy.policy import Policy
from bats.runs.manifest import (
    Manifest,
    check_manifest,
    current_files,
    discard_manifest,
    read_manifest,
    remove_unlisted,
    write_manifest,
)
from bats.runs.records import BATS, IMPROVED, VERSION, Header, LogCard, StitchErrors, Summary, Timing
from bats.runs.stages import STAGES, setting_differences, stage_checksums
from bats.stitching.records import Attempts, RoundRecord
from bats.storage.atomic import output_errors, read_text, refuse_other_files, remove_temporary, write_text
from bats.storage.json_records import read_json, read_lines, read_record, write_lines, write_record
from bats.storage.lock import locked
from bats.storage.tensors import read_struct, write_struct

_ATTEMPTS, _ROLLOUTS, _ERRORS = "bats-attempts", "bats-rollouts", "bats-errors"


class RunFolder:
    """Reads what is in the folder of a run; writes to it inside `claimed` only."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.model = self.path / "model.safetensors"
        self.training = self.path / "training.safetensors"
        self.policy = self.path / "policy.safetensors"
        self.certificate = self.path / "certificate.json"
        self.evaluation = self.path / "evaluation.json"
        self.policies = self.path / "policies"
        self.certificates = self.path / "certificates"
        self._header = self.path / "run.json"
        self._settings = self.path / "settings.json"
        self._log_card = self.path / "log.json"
        self._mdp = self.path / "mdp"
        self._attempts = self.path / "attempts"
        self._records = self.path / "records.jsonl"
        self._errors = self.path / "errors.safetensors"
        self._options = self.path / "options.jsonl"
        self._rollouts = self.path / "rollouts.safetensors"
        self._timings = self.path / "timings.jsonl"
        self._summary = self.path / "finished.json"

    @classmethod
    def of(cls, run: RunFolder | Path | str) -> RunFolder:
        """The run of a folder; a run is its own."""
        return run if isinstance(run, RunFolder) else cls(run)

    # what it is a run of

    @property
    def is_run(self) -> bool:
        try:
            return self._header.is_file()
        except OSError as error:  # a folder that may not be looked into
            raise DataError("the folder of a run", str(error.strerror or error), file=str(self.path)) from error

    @property
    def is_finished(self) -> bool:
        return self._summary.name in self._manifest().files

    def header(self) -> Header:
        """What the folder is a run of; `DataError` if it is none, or of another version."""
        if not self.is_run:
            missing = "no file run.json in it" if self.path.is_dir() else "no such folder"
            raise DataError("the folder of a run", missing, file=str(self.path))
        plain = read_json(self._header)
        if isinstance(plain, dict) and "method" in plain:
            hint = "Only `bats-rl evaluate`, `export` and `report` (of this run alone) accept it."
            raise DataError("a run of BATS", f"a run of {plain['method']}", file=str(self._header), hint=hint)
        found = plain.get("version") if isinstance(plain, dict) else None
        if isinstance(found, int) and found != VERSION:
            made_by = f"It was written by bats-rl {plain.get('package')}."
            hint = f"{made_by} Fit the log again. The file policy.safetensors can still be loaded."
            raise DataError(f"a run folder of version {VERSION}", f"version {found}", file=str(self._header), hint=hint)
        return read_record(Header, self._header)

    def settings(self) -> Config:
        """The run's configuration."""
        self.header()
        return read_record(Config, self._settings)

    def summary(self) -> Summary:
        """How the run ended; `DataError` if it did not, or if a file is not the one that it wrote."""
        self.header()
        if not self.is_finished:
            hint = "Run the original `bats-rl fit` command again to continue it."
            raise DataError("a finished run", "an unfinished run", file=str(self.path), hint=hint)
        self._check_files()
        return read_record(Summary, self._summary)

    def log_card(self) -> LogCard:
        return read_record(LogCard, self._log_card)

    def finish(self, summary: Summary) -> None:
        write_record(self._summary, summary)
        self._list_files()

    # claiming it

    @contextmanager
    def claimed(self, header: Header, config: Config) -> Iterator[None]:
        """Makes the folder, or continues it, as the only process that does.

        Refused, with nothing touched, where the folder is not this run's. A finished run is not written to, so it is
        not locked either.
        """
        self._check(header, config)
        if self.is_finished:
            yield
            return
        with locked(self.path / "lock"):
            self._check(header, config)  # again: another process may have been faster
            if self._has_begun:
                if self.settings() != config:
                    write_record(self._settings, config)
            else:
                with output_errors(self.path, "cleaned up"):
                    discard_manifest(self.path)
                write_record(self._settings, config)
                write_record(self._header, header)
            self._remove_leftovers()
            self._check_files()
            self._list_files()
            yield

    @property
    def _has_begun(self) -> bool:
        """Whether anything was made: a run whose log was refused at once leaves room for another one."""
        return self.is_run and bool(self.stages_made())

    def stages_made(self) -> list[str]:
        """The stages up to the last one that has begun to leave results: all of them have determined these."""
        return self._stages(self._manifest().files)

    def _stages(self, listed: Container[str]) -> list[str]:
        made = {
            "model": self.model.name in listed or self.training.exists(),
            "stitching": base_path(self._mdp).relative_to(self.path).as_posix() in listed,
            "final graph": self._options.name in listed,
            "policy": f"policies/{BATS}.safetensors" in listed,
            "improvement": f"policies/{IMPROVED}.safetensors" in listed,
            "certificate": f"certificates/{BATS}/certificate.json" in listed or self._summary.name in listed,
        }
        last = max((number for number, stage in enumerate(STAGES, 1) if made[stage]), default=0)
        return list(STAGES)[:last]

    def _check(self, header: Header, config: Config) -> None:
        """Refuses a folder that is anything but a place for this run."""
        with output_errors(self.path, "read"):
            is_run = self._header.is_file()
        if not is_run:
            refuse_other_files(self.path, ("lock", self._settings.name))
        if not self._has_begun:
            return
        differences = self.header().differences(header, "transitions", "rewards", "starts", "seed", "reused")
        changed = setting_differences(self.settings(), config, self.stages_made())
        if differences or changed:
            groups, advice = {name.split(".")[0] for name in changed}, "Choose another folder."
            if not differences and groups <= {*STAGES["final graph"], *STAGES["policy"], "certificate"}:
                command, addition = ("certify", "certificate") if groups == {"certificate"} else ("clone", "policy")
                finish = (
                    f"First finish this run with its own settings, `bats-rl fit … --config {self._settings}`; then "
                )
                advice = f"`bats-rl {command} {self.path}` adds another {addition} to this run."
                advice = advice if self.is_finished else finish + advice
            found = "; ".join([*differences, *changed.values()])
            raise OutputError(f"{self.path} contains another run: {found}. {advice}")

    def _remove_leftovers(self) -> None:
        """Removes what a killed process left: temporary files, and what belongs to no finished stage or round."""
        manifest = self._manifest()
        with output_errors(self.path, "cleaned up"):
            remove_temporary(self.path)
            remove_unlisted(self.path, manifest)
        lines = read_text(self._records).splitlines(keepends=True) if self._records.exists() else []
        if len(lines) > self.rounds_done:
            write_text(self._records, "".join(lines[: self.rounds_done]))

    def _manifest(self) -> Manifest:
        if not self.is_run:
            return Manifest({}, {})
        self.header()  # refuses a folder of another version, which has no such list
        return read_manifest(self.path)

    def _list_files(self) -> None:
        files = current_files(self.path)
        write_manifest(self.path, Manifest(files, stage_checksums(self.settings(), self._stages(files))))

    def _check_files(self) -> None:
        manifest = self._manifest()
        check_manifest(self.path, manifest, stage_checksums(self.settings(), manifest.settings))

    # its contents

    def describe_log(self, dataset: Dataset) -> None:
        if not self._log_card.exists():
            write_record(self._log_card, LogCard.of(dataset))

    @property
    def has_base(self) -> bool:
        return base_path(self._mdp).exists()

    def save_base(self, mdp: TabularMDP) -> None:
        """Saves the MDP that stitching begins with."""
        save_mdp(mdp, self._mdp)

    def load_graph(self) -> TabularMDP:
        """The MDP with the stitches of all finished rounds, and their errors by the last learned metric, if any."""
        mdp = load_mdp(self._mdp)
        if not self._errors.exists():
            return mdp
        errors, _ = read_struct(StitchErrors, self._errors, _ERRORS)
        try:
            return with_errors(mdp, errors.error, penalty=mdp.penalty)
        except SettingError as error:
            raise DataError("the errors of this run's stitches", str(error), file=str(self._errors)) from error

    def save_errors(self, error: Float[np.ndarray, "C"]) -> None:
        """Saves the errors of all stitches by the last learned metric."""
        write_struct(self._errors, _ERRORS, StitchErrors(error), overwrite=True)

    @property
    def rounds_done(self) -> int:
        return len(list(self._mdp.glob("round-*.safetensors")))

    def add_round(self, number: int, stitches: Stitches, attempts: Attempts, records: tuple[RoundRecord, ...]) -> None:
        """Saves a round: what it tried, the records of all rounds so far, and last what it added."""
        write_struct(round_path(self._attempts, number), _ATTEMPTS, attempts, overwrite=True)
        write_lines(self._records, records)
        save_round(stitches, self._mdp, stitch_round=number)

    def stitches(self) -> list[Stitches]:
        """What each finished round added."""
        return [load_round(self._mdp, number) for number in range(1, self.rounds_done + 1)]

    def attempts(self) -> list[Attempts]:
        """What each finished round tried."""
        paths = [round_path(self._attempts, number) for number in range(1, self.rounds_done + 1)]
        return [read_struct(Attempts, path, _ATTEMPTS)[0] for path in paths]

    def records(self) -> tuple[RoundRecord, ...]:
        """The records of the finished rounds."""
        records = read_lines(RoundRecord, self._records)[: self.rounds_done]
        if len(records) < self.rounds_done:
            raise DataError(f"{self.rounds_done} lines, one for each round", f"{len(records)}", file=str(self._records))
        return records

    def metric(self, rounds: int) -> Path:
        """The file of the metric that was learned after this number of rounds."""
        return self.path / f"metric-{rounds:04d}.safetensors"

    @property
    def last_metric(self) -> int | None:
        """The number of rounds after which the metric was last learned; None: never."""
        files = sorted(self.path.glob("metric-*.safetensors"))
        return int(files[-1].stem.removeprefix("metric-")) if files else None

    def save_options(self, options: tuple[Option, ...]) -> None:
        write_lines(self._options, options)

    def options(self) -> tuple[Option, ...]:
        """The penalties and tolerances that were compared, best first; none where nothing was to be chosen."""
        return read_lines(Option, self._options)

    def compared(self, name: str) -> Path:
        """The file of a policy that is compared with others."""
        return self.policies / f"{name}.safetensors"

    def keep(self, policy: Policy, certificate: Certificate | None) -> None:
        """Saves a policy as that of the run, with its certificate."""
        save_policy(policy, self.policy, overwrite=True)
        if certificate is not None:
            save_certificate(certificate, self.path)

    def save_selection(self, selection: Selection) -> None:
        write_struct(self._rollouts, _ROLLOUTS, selection, overwrite=True)

    def selection(self) -> Selection:
        """The policy's rollouts from the starts, and which of them were cloned."""
        return read_struct(Selection, self._rollouts, _ROLLOUTS, renamed={"cut": "threshold"})[0]

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Notes how long a stage takes, and lists its files."""
        began = time.perf_counter()
        yield
        self.add_timing(Timing(stage, None, time.perf_counter() - began))

    def add_timing(self, timing: Timing) -> None:
        """Notes how long a stage or round took that is done now, and lists its files."""
        self._list_files()
        write_lines(self._timings, (*self.timings(), timing))

    def timings(self) -> tuple[Timing, ...]:
        return read_lines(Timing, self._timings)
