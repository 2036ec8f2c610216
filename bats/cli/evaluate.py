"""`bats-rl evaluate`: the return of a policy in its environment, next to the return that its graph predicted."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.console import Console

from bats.baselines.folder import method_of_run
from bats.cli.data import QUIET, load_function
from bats.cli.export import OR_OVERWRITE, open_policy
from bats.cli.options import add_options
from bats.cli.output import Terminal, print_columns, print_line, shell_word, shown_progress
from bats.data.formats.hdf5 import write_hdf5
from bats.errors import OutputError, SettingError
from bats.evaluation.comparison import MEANING, Comparison, ReturnEstimate, compare
from bats.policy.policy import Policy
from bats.runs.folder import RunFolder
from bats.storage.atomic import refuse_existing
from bats.tasks.catalogue import TASK_NAMES, find_task, task_of_log
from bats.tasks.episodes import as_dataset


def add_evaluate(parser: ArgumentParser) -> None:
    table = """
    RUN|POLICY  folder of a finished run (evaluation.json is written there), or a policy file (.safetensors)
    --task NAME  evaluate in this task (`bats-rl data collect list` shows all); the default is the task that the log is
        named after
    --environment GYM_ID  evaluate in this Gymnasium environment, which must have a time limit; with MODULE:ID, the
        module is imported first
    --set-state MODULE:FUNCTION  runs only: a function that takes the environment and a logged state, puts the
        environment into this state and returns the observation, so that the graph's actions can be replayed; the
        current folder is searched for modules too
    --episodes N  number of episodes, which begin in the environment's own start states; the default is 100, or in mazes
        a fixed number for each cell
    --seed SEED  the same seed gives the same starts (default: 0)
    --record FILE  write the policy's episodes as a log (.hdf5)
    --overwrite  replace evaluation.json and the recorded log if they exist
    """
    add_options(parser, table + QUIET)


def run_evaluate(arguments: Namespace, terminal: Terminal) -> None:
    folder: Path | None = arguments.run if arguments.run.is_dir() else None
    run = None if folder is None or method_of_run(folder) is not None else RunFolder(folder)
    evaluation = None if folder is None else RunFolder(folder).evaluation
    policy = open_policy(arguments.run)
    record: Path | None = arguments.record
    if record is not None and record.suffix not in (".hdf5", ".h5"):
        raise OutputError(f"{record}: episodes can only be recorded in a .hdf5 file.")
    outputs = [path for path in (evaluation, record) if path is not None]
    refuse_existing(*outputs, overwrite=arguments.overwrite, hint=OR_OVERWRITE)
    set_state = None if arguments.set_state is None else load_function(arguments.set_state, "--set-state")
    environment = _environment(arguments, policy, terminal.err)
    with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
        episodes, seed = arguments.episodes, arguments.seed
        comparison = compare(
            policy,
            environment,
            run=run,
            set_state=set_state,
            episodes=episodes,
            seed=seed,
            record=record is not None,
            progress=progress,
        )
    if record is not None:
        log = as_dataset(comparison.recorded, name=comparison.environment, action_count=policy.action_count)
        write_hdf5(log, record, overwrite=arguments.overwrite)
    if evaluation is not None:
        comparison.save(evaluation, overwrite=arguments.overwrite)
    print_comparison(comparison, policy, str(arguments.run), terminal.out)
    if record is not None:
        print_line(f"recorded in {record}", terminal.out)
    if folder is not None:
        again = " --overwrite" if (folder / "report.html").exists() else ""
        print_line(f"saved in {evaluation}; `bats-rl report {shell_word(folder)}{again}` shows it", terminal.out)


def print_comparison(comparison: Comparison, policy: Policy, name: str, out: Console) -> None:
    """The environment, and the returns side by side."""
    print_line(f"{name} in {comparison.environment}; starts: {comparison.starts}; seed {comparison.seed}", out)
    changed = policy.card.get("solved_under")
    if isinstance(changed, dict):
        settings = ", ".join(f"{setting} {value}" for setting, value in changed.items())
        print_line(f"this policy was cloned from the run's graph, which was solved again with {settings}", out)
    columns, meaning = {column: _facts(estimate) for column, estimate in comparison.columns.items()}, MEANING
    method = policy.card.get("method")
    if isinstance(method, str):  # a baseline, whose policy is not cloned from a graph
        columns = {method: columns["cloned"]}
        meaning = {method: f"mean return of the policy of {method} in the environment"}
    print_columns(columns, out)
    for column in columns:
        print_line(f"{column}: {meaning[column]}", out)


def _facts(estimate: ReturnEstimate) -> dict[str, str]:
    facts = {"mean return": f"{estimate.mean_return:.5g}", "95% interval": f"{estimate.low:.5g} to {estimate.high:.5g}"}
    if estimate.score is not None:
        facts["score"] = f"{estimate.score:.1f}"
        facts["95% interval of the score"] = f"{estimate.score_low:.1f} to {estimate.score_high:.1f}"
    return facts | {"episodes": f"{estimate.episodes:,}"}


def _environment(arguments: Namespace, policy: Policy, err: Console) -> str:
    """The environment that was asked for, or that the log's name suggests."""
    if arguments.task is not None and arguments.environment is not None:
        raise SettingError("Give either --task or --environment, not both.")
    if arguments.environment is not None:
        return str(arguments.environment)
    if arguments.task is not None:
        return find_task(arguments.task).environment
    log = policy.card.get("log")
    task = task_of_log(log) if isinstance(log, str) else None
    if task is None:
        reason = f"the log {log} is not named after a task" if log else "the policy does not say which log it is from"
        raise SettingError(
            f"The environment is not known, because {reason}. Give --task ({', '.join(TASK_NAMES)}) "
            "or --environment with the id of a Gymnasium environment."
        )
    chosen = f"the log is named {log}, so the policy is evaluated in {task.name}"
    print_line(f"{chosen}; use --task or --environment to choose another environment", err)
    return task.environment
