"""`bats-rl evaluate`: what a policy earns in its environment, beside what its graph promised."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from bats.cli.export import opened_policy, refuse_existing
from bats.cli.output import print_columns, print_line
from bats.cli.progress import shown_progress
from bats.data.formats.load import write_hdf5
from bats.errors import OutputError, SettingError
from bats.evaluation.comparison import Comparison, ReturnEstimate, compare
from bats.policy.policy import Policy
from bats.runs.folder import RunFolder
from bats.tasks import TASK_NAMES, find_task, task_of_log
from bats.tasks.episodes import as_dataset

MEANING = {
    "promised": "what the graph says that its walks earn",
    "replayed": "what the actions of the same walks earn, played one after another without looking",
    "cloned": "what the policy earns",
}


@dataclass(frozen=True)
class Evaluate:
    """Play the policy of a run, or of a file, in its environment, beside what the run promised and a replay of that."""

    policy: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN|POLICY")]
    """folder of a finished run, which gets an evaluation.json; or a policy's own file (.safetensors)"""
    task: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None
    """where to play: a task of `bats-rl data collect list`; by default the one that the log is called after"""
    environment: Annotated[str | None, tyro.conf.arg(metavar="GYM_ID", help_behavior_hint="")] = None
    """where to play: any environment that Gymnasium knows and that has a time limit, MODULE:ID to import it first"""
    episodes: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """episodes from the environment's own starts; by default 100, and for mazes the same number in every cell"""
    seed: int = 0
    """the same seed gives the same starts"""
    record: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """also keep the policy's episodes, as a log (.hdf5) that `bats-rl validate` reads"""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """replace the evaluation.json of a run, and what was recorded, if they are there"""
    quiet: tyro.conf.FlagCreatePairsOff[bool] = False
    """no progress display"""


def run_evaluate(command: Evaluate, out: Console, told: Console) -> None:
    """Plays, tells, and keeps what was found of a run in its folder."""
    run = RunFolder(command.policy) if command.policy.is_dir() else None
    policy = opened_policy(command.policy)
    _check_outputs(command, run)
    environment = _where(command, policy, told)
    with shown_progress(told, quiet=command.quiet) as progress:
        found = compare(
            policy,
            environment,
            run=run,
            episodes=command.episodes,
            seed=command.seed,
            record=command.record is not None,
            progress=progress,
        )
    if command.record is not None:
        log = as_dataset(found.recorded, name=found.environment, action_count=policy.action_count)
        write_hdf5(log, command.record, overwrite=command.overwrite)
    if run is not None:
        found.save(run.evaluation, overwrite=command.overwrite)
    print_comparison(found, policy, str(command.policy), out)
    if command.record is not None:
        print_line(f"recorded in {command.record}", out)
    if run is not None:
        again = " --overwrite" if (run.path / "report.html").exists() else ""
        print_line(f"kept in {run.evaluation}; `bats-rl report {run.path}{again}` shows it", out)


def print_comparison(found: Comparison, policy: Policy, name: str, out: Console) -> None:
    """Where it was played, and what was earned there, side by side."""
    print_line(f"{name}, played in {found.environment}; starts: {found.starts}; seed {found.seed}", out)
    changed = policy.card.get("solved_under")
    if isinstance(changed, dict):
        told = ", ".join(f"{setting} {value}" for setting, value in changed.items())
        print_line(f"the policy was cloned from its run as solved under {told}", out)
    columns = {column: _told(earned) for column, earned in found.columns.items()}
    print_columns(columns, out)
    for column in columns:
        print_line(f"{column}: {MEANING[column]}", out)


def _told(earned: ReturnEstimate) -> dict[str, str]:
    held = {"mean return": f"{earned.mean_return:.5g}", "95% interval": f"{earned.low:.5g} to {earned.high:.5g}"}
    if earned.score is not None:
        held |= {"score": f"{earned.score:.1f}", "of the score": f"{earned.score_low:.1f} to {earned.score_high:.1f}"}
    return held | {"episodes": f"{earned.episodes:,}"}


def _check_outputs(command: Evaluate, run: RunFolder | None) -> None:
    """Complains about files before anything is played."""
    if command.record is not None and command.record.suffix not in (".hdf5", ".h5"):
        raise OutputError(f"{command.record}: episodes are recorded as .hdf5.")
    if command.overwrite:
        return
    if run is not None and run.evaluation.exists():
        raise OutputError(f"{run.evaluation} exists already; --overwrite replaces it.")
    if command.record is not None:
        refuse_existing(command.record)


def _where(command: Evaluate, policy: Policy, told: Console) -> str:
    """The environment that was asked for, or that the log's name suggests."""
    if command.task is not None and command.environment is not None:
        raise SettingError("Give a --task or an --environment, not both.")
    if command.environment is not None:
        return command.environment
    if command.task is not None:
        return find_task(command.task).environment
    log = policy.card.get("log")
    task = task_of_log(log) if isinstance(log, str) else None
    if task is None:
        raise SettingError(
            f"Nothing says where the policy of {f'the log {log}' if log else 'this file'} is to be played: give --task "
            f"({', '.join(TASK_NAMES)}) or --environment with the id of a Gymnasium environment."
        )
    print_line(f"the log is called {log}, so it is played in {task.name}; --task or --environment say otherwise", told)
    return task.environment
