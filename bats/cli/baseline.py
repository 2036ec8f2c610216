"""`bats-rl baseline`: another method of offline reinforcement learning on the same log, for comparison."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from pathlib import Path

from bats.baselines.config import CONFIGS, Baseline
from bats.cli.data import COLUMNS, LOG, QUIET, READING, REWARD, read_log, read_reward
from bats.cli.options import add_options
from bats.cli.output import Terminal, print_facts, print_line, print_notes, shell_word, shown_progress
from bats.cli.settings import add_flag, change_settings, leaves, shown_value
from bats.runs.records import seconds_by_stage


def add_baseline(parser: ArgumentParser) -> None:
    summaries = "; ".join(f"{name}: {(kind.__doc__ or '').rstrip('.')}" for name, kind in CONFIGS.items())
    parser.add_argument("method", choices=tuple(CONFIGS), metavar="METHOD", help=summaries.replace("%", "%%"))
    table = f"""
    LOG  {LOG}
    --out RUN  folder of the run; the default is runs/METHOD-LOG-SEED
    --seed SEED  the same seed gives the same run on the same machine (default: 0)
    """
    add_options(parser, table + COLUMNS + QUIET + READING + REWARD)
    section = parser.add_argument_group("settings", "The defaults are those published for D4RL's mazes.")
    for name, text in setting_texts().items():
        add_flag(section, name, text)
    parser.epilog = "An interrupted run continues when the same command is called again."


def setting_texts() -> dict[str, str]:
    """The help of each setting: what it is, which methods have it, and their defaults."""
    meanings: dict[str, dict[str, str]] = {}
    defaults: dict[str, dict[str, str]] = {}
    for method, kind in CONFIGS.items():
        for name, _, default, text in leaves(kind()):
            if text:
                meanings.setdefault(name, {}).setdefault(text, method)
            defaults.setdefault(name, {})[method] = shown_value(default)
    common = {name: shown_value(default) for name, _, default, _ in leaves(Baseline())}
    texts = {}
    for name, of_methods in defaults.items():
        # the same name may mean one thing here and another there, as in the papers
        several = len(meanings[name]) > 1
        text = "; ".join(f"{method}: {text}" if several else text for text, method in meanings[name].items())
        parts = [f"default: {common[name]}"] if name in common else []
        parts += [f"{method}: {value}" for method, value in of_methods.items() if value != common.get(name)]
        texts[name] = f"{text} ({', '.join(parts)})"
    return texts


def run_baseline(arguments: Namespace, terminal: Terminal) -> None:
    config, reward = change_settings(CONFIGS[arguments.method](), arguments), read_reward(arguments)
    name = re.sub(r"[^\w.-]+", "-", Path(arguments.log).stem)
    path = arguments.out or Path("runs") / f"{arguments.method}-{name}-{arguments.seed}"
    with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
        dataset = read_log(arguments.log, arguments, progress)
        if reward is not None:
            dataset = dataset.with_rewards(reward(dataset.observations, dataset.actions, dataset.next_observations))
    print_notes(dataset, terminal.out)
    # with JAX, after the log is known to be readable
    from bats.baselines.folder import BaselineFolder
    from bats.baselines.runs import Run, train_runs
    from bats.baselines.training import divergence_error

    folder = BaselineFolder(path)
    finished = folder.is_finished
    with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
        (end,) = train_runs(config, [Run(dataset, arguments.seed, folder)], progress=progress)
    if end.divergence:
        raise divergence_error(end.divergence, dataset)
    if finished:
        print_line(f"{path} was already finished; nothing was done", terminal.out)
    losses = ", ".join(f"{group} {loss:.4g}" for group, loss in folder.snapshots()[-1].losses.items())
    facts = {
        "method": arguments.method,
        "updates": f"{end.updates:,}",
        "snapshots": f"{len(folder.snapshots())}",
        "mean losses before the last snapshot": losses,
        "seconds": f"{sum(seconds_by_stage(folder.timings()).values()):.1f}",
        "policy": str(folder.policy),
    }
    print_facts(f"{arguments.method} on {dataset.name}", facts, terminal.out)
    print_line("next:", terminal.out)
    for command, use in (("evaluate", "run the policy in its environment"), ("report", "one HTML page")):
        print_line(f"  bats-rl {command} {shell_word(path)}  # {use}", terminal.out)
