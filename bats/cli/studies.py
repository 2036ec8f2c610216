"""`bats-rl baseline` and `benchmark`: other methods on a log, and the paper's experiments, each by one command."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

from bats.baselines.config import CONFIGS, Baseline
from bats.cli.data import COLUMNS, LOG, QUIET, READING, REWARD, name_of_log, read_reward, read_training_log
from bats.cli.options import add_options
from bats.cli.output import (
    Terminal,
    print_columns,
    print_facts,
    print_line,
    shell_word,
    shown_progress,
)
from bats.cli.settings import add_flag, change_settings, leaves, shown_value
from bats.config import Count, Seed, checked
from bats.errors import BatsError, SettingError
from bats.presets import preset
from bats.runs.records import seconds_by_stage
from bats.studies.settings import BASELINES, BATS_PAPER, STUDIES, ComparisonConfig, baseline_settings, check_methods

POLICIES = {"expert": "expert", "plain": "cloning the log", "bats": "BATS, then cloning"}

OWN_METHODS = ("bc", "td3-bc", "iql")
"""baselines for a log of one's own, where none are chosen: those that take minutes on two cores"""


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
    path = arguments.out or Path("runs") / f"{arguments.method}-{name_of_log(arguments.log)}-{arguments.seed}"
    dataset = read_training_log(arguments, reward, terminal)
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
    for command, use in (
        ("evaluate", "run the policy in its environment (--task NAME or --environment ID)"),
        ("report", "show the run on one page"),
    ):
        print_line(f"  bats-rl {command} {shell_word(path)}  # {use}", terminal.out)


def add_benchmark(parser: ArgumentParser) -> None:
    study = """mountain-car [section 5 of the paper]: returns of an expert, of a clone of the whole log and of BATS, on
    a log of 20 random episodes and 5 episodes of the expert; also the errors of stitches, model and graph values.
    maze2d [Table 1 of the paper]: scores of ten baselines and BATS on three mazes. mujoco: the same on logs of hopper,
    walker2d and halfcheetah policies that are still learning. zoo: bc, iql and BATS on fifteen mostly bad logs, most of
    them of small Gymnasium tasks. own: BATS and baselines on your own log, and what can be known of their policies
    without an environment"""
    parser.add_argument("study", choices=("mountain-car", *STUDIES, "own"), metavar="STUDY", help=study)
    parser.add_argument("log", nargs="?", metavar="LOG", help=f"own only: {LOG}")
    table = """
    --seeds N  all but own: number of seeds (0 to N-1) to fit on the same log; the default is 5 for mountain-car, else 3
    --episodes N  all but own: episodes per policy and seed; the default is 100, or in mazes a fixed number for each
        cell
    --out FOLDER  folder for the runs and the results; the default is runs/STUDY (own: runs/own-LOG)
    --methods NAMES  all but mountain-car: methods to compare, separated by commas; the default is all methods of the
        study (own: bc,td3-bc,iql). The study `own` always fits BATS too, because it compares the methods in its model
    --tasks NAMES  maze2d, mujoco and zoo only: tasks to compare on, separated by commas; the default is all
    --updates N  all but mountain-car: updates of every baseline; the default is 50,000 for zoo, else each method's own
    --workers N  maze2d, mujoco and zoo only: number of processes that evaluate snapshots (default: 1)
    --preset NAME  all but mountain-car: the settings of BATS (default: default)
    --seed SEED  own only: the seed of all methods (default: 0)
    """
    add_options(parser, table + QUIET + COLUMNS + READING)
    parser.epilog = (
        "An interrupted study continues when the same command is called again. "
        "With a larger --seeds, only the new seeds are fitted."
    )


def run_benchmark(arguments: Namespace, terminal: Terminal) -> None:
    """Checks all options first, those that the study does not use too."""
    for name in ("seeds", "episodes", "updates", "workers"):
        checked(f"--{name}", Count | None, getattr(arguments, name))
    checked("--seed", Seed, arguments.seed)
    preset(arguments.preset)
    check_methods(() if arguments.methods is None else arguments.methods.split(","))
    if arguments.study == "own" and BATS_PAPER in (arguments.methods or "").split(","):
        raise SettingError(f"{BATS_PAPER} is only for known tasks; choose the settings of BATS with --preset.")
    if arguments.tasks is not None and arguments.study not in STUDIES:
        raise SettingError(f"--tasks is only for the studies {', '.join(STUDIES)}.")
    reading = (arguments.columns, arguments.actions, arguments.timeouts, arguments.max_memory)
    if arguments.study == "own" and arguments.log is None:
        raise SettingError("The study own needs a log: `bats-rl benchmark own log.hdf5`.")
    if arguments.study != "own" and (arguments.log, *reading) != (None, None, "auto", "auto", None):
        options = "LOG, --columns, --actions, --timeouts and --max-memory"
        raise SettingError(f"{options} are only for the study own; {arguments.study} collects its log itself.")
    studies = {"mountain-car": _run_mountain_car, "own": _run_own}
    studies.get(arguments.study, _run_comparison)(arguments, terminal)


def _run_own(arguments: Namespace, terminal: Terminal) -> None:
    names = OWN_METHODS if arguments.methods is None else arguments.methods.split(",")
    config = preset(arguments.preset)
    # BATS is always compared
    baselines = {name: baseline_settings(name, arguments.updates) for name in names if name in BASELINES}
    folder = arguments.out or Path("runs") / f"own-{name_of_log(arguments.log)}"
    log = read_training_log(arguments, None, terminal)
    from bats.studies.own import HEADING, compare_own, known_rows, remarks, write_known

    with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
        known, diverged = compare_own(log, folder, baselines, config=config, seed=arguments.seed, progress=progress)
    print_columns({row[0]: dict(zip(HEADING[1:], row[1:], strict=True)) for row in known_rows(known)}, terminal.out)
    print_line(remarks(diverged), terminal.out)
    for path in write_known(folder, log.name, known, diverged, gamma=config.gamma):
        print_line(f"wrote {path}", terminal.out)


def _run_comparison(arguments: Namespace, terminal: Terminal) -> None:
    folder, study = arguments.out or Path("runs") / arguments.study, STUDIES[arguments.study]
    config = ComparisonConfig(
        tasks=study.tasks if arguments.tasks is None else tuple(arguments.tasks.split(",")),
        methods=study.methods if arguments.methods is None else tuple(arguments.methods.split(",")),
        seeds=3 if arguments.seeds is None else arguments.seeds,
        episodes=arguments.episodes,
        updates=study.updates if arguments.updates is None else arguments.updates,
        preset=arguments.preset,
    )
    for task in config.tasks:
        if task not in study.tasks:
            raise SettingError(f"The study {arguments.study} has no task '{task}'; it has {', '.join(study.tasks)}.")
    from bats.studies.comparison import read_logs, read_scores, run_comparison, write_results, write_trajectories

    with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
        failures = run_comparison(folder, config, workers=arguments.workers, progress=progress)
    for failure in failures:
        print_line(f"failed: {failure}", terminal.out)
    scores = read_scores(folder, config)
    logs = read_logs(folder, config) if study.by_log else ()
    for path in write_results(folder, f"Methods compared: {arguments.study}", scores, logs):
        print_line(f"wrote {path}", terminal.out)
    try:
        drawn = write_trajectories(folder, config)
    except BatsError as error:  # without matplotlib everything else is there
        print_line(f"trajectories were not drawn: {error}", terminal.out)
    else:
        if drawn is not None:
            print_line(f"wrote {drawn}", terminal.out)
    for method in config.methods:
        for task in config.tasks:
            of_both = [score.last for score in scores if (score.method, score.task) == (method, task)]
            last = [score for score in of_both if score is not None]
            if last:
                print_line(f"figure {method}_{task}_last_policy {sum(last) / len(last):.6g} score", terminal.out)


def _run_mountain_car(arguments: Namespace, terminal: Terminal) -> None:
    # With JAX and matplotlib, which other commands do without. A missing matplotlib is noticed before any fitting.
    from bats.studies import mountain_car
    from bats.studies.car_figure import draw_findings
    from bats.studies.drawing import save_figure

    folder = arguments.out or Path("runs") / arguments.study
    seeds = mountain_car.DEFAULT.seeds if arguments.seeds is None else arguments.seeds
    episodes = mountain_car.DEFAULT.episodes if arguments.episodes is None else arguments.episodes
    config = replace(mountain_car.DEFAULT, seeds=seeds, episodes=episodes)
    with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
        findings = mountain_car.run_study(folder, config, progress=progress)
    numbers, figure = folder / "figures.json", folder / "mountain-car.svg"
    findings.save(numbers)
    save_figure(draw_findings(findings), figure)
    columns = {}
    for policy, returns in findings.returns.items():
        of_seeds = returns.mean(axis=1)
        columns[POLICIES[policy]] = {
            "mean return": f"{returns.mean():.2f}",
            "range over the seeds": f"{of_seeds.min():.2f} to {of_seeds.max():.2f}",
            "worst episode": f"{returns.min():.2f}",
            "episodes": f"{returns.size:,}",
        }
    print_columns(columns, terminal.out)
    print_line(f"wrote {numbers} and {figure}", terminal.out)
    for name, (value, unit) in findings.figures().items():
        print_line(f"figure {name} {value:.6g} {unit}", terminal.out)
