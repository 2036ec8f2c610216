"""`bats-rl solve`, `clone` and `certify`: exact solutions, and a finished run with other settings."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

from bats.bounds.certificate import save_certificate
from bats.cli.data import COLUMNS, LOG, QUIET, READING, REWARD, read_log, read_reward
from bats.cli.fit import policy_facts, print_certificate
from bats.cli.options import add_options
from bats.cli.output import Terminal, print_facts, print_line, print_notes, shell_word, shown_progress
from bats.cli.settings import STITCH, add_groups, change_settings
from bats.config import CertificateConfig, RolloutSteps, checked
from bats.errors import SettingError
from bats.graph.files import save_mdp
from bats.graph.mdp import from_dataset
from bats.graph.rollouts import roll_out, stitched_share, undiscounted_return
from bats.graph.solve import logged_value, policy_iteration, value_of_dead_ends
from bats.policy.files import load_policy, policy_paths, save_policy
from bats.runs.folder import RunFolder
from bats.runs.records import COMPARED
from bats.runs.result import Changes, solve_again
from bats.storage.atomic import refuse_existing

GAMMA, STEPS = 0.99, 1000
MAX_NAME = 100
"""letters in the name of a policy or certificate; file systems allow no more than about twice as many"""
RUN = "folder of a finished run"


def _add_changes(parser: ArgumentParser, *, log: bool) -> None:
    """The settings of a solution; `log`: of a log, too, which has no stitches."""
    only = "runs only: " if log else ""
    table = f"""
    --gamma X  discount per step
    --dead-end-value X  value of a dead end, which is a non-terminal state without a logged action
    --penalty-steps X  {only}penalty for a stitch error of 1, given as a number of lost steps. A lost step costs (1 -
        gamma) x (largest - smallest value in the log's MDP). The smallest value is raised to r / (1 - gamma) if it is
        lower, where r is the 1st percentile of the rewards
    --penalty X  {only}penalty for a stitch error of 1, in units of reward; replaces --penalty-steps
    --tolerance X  {only}maximum error of a stitch; stitches with larger errors are dropped
    {REWARD.replace("use another", f"{only}use another")}
    """
    defaults = "The defaults are the run's own settings."
    if log:
        defaults = f"For a run, the defaults are its own settings. For a log: discount {GAMMA}, and dead ends have the "
        defaults += "smallest possible value."
    add_options(parser.add_argument_group("settings to solve with", f"{defaults} {STITCH}"), table)


def _read_changes(arguments: Namespace) -> Changes:
    numbers = {field.name: getattr(arguments, field.name) for field in fields(Changes) if field.name != "reward"}
    return Changes(**numbers, reward=read_reward(arguments))


def add_solve(parser: ArgumentParser) -> None:
    table = f"""
    LOG|RUN  {LOG}; or the folder of a finished run
    --steps N  runs only: maximum length of the rollouts whose undiscounted returns are shown; the default is {STEPS}
    --save FOLDER  save the MDP in this folder; `bats.load_mdp` reads it
    --policy FILE  runs only: clone the solved policy and write the clone to this .safetensors file
    """
    add_options(parser, table + QUIET)
    _add_changes(parser, log=True)
    add_options(parser.add_argument_group("reading the log"), COLUMNS + READING)


def run_solve(arguments: Namespace, terminal: Terminal) -> None:
    if arguments.save is not None:
        refuse_existing(arguments.save)
    if RunFolder(arguments.log).is_run:
        _solve_run(arguments, terminal)
    else:
        _solve_log(arguments, terminal)


def _solve_log(arguments: Namespace, terminal: Terminal) -> None:
    for name in ("penalty_steps", "penalty", "tolerance", "reward", "goal", "radius", "steps", "policy"):
        if getattr(arguments, name) is not None:
            flag = name.replace("_", "-")
            raise SettingError(f"--{flag} needs a run folder, as `bats-rl fit` writes it; {arguments.log} is a log.")
    seconds: dict[str, float] = {}
    changes = Changes(gamma=arguments.gamma, dead_end_value=arguments.dead_end_value)  # checked before a log is read
    with shown_progress(terminal.err, quiet=arguments.quiet) as progress, _timed("read", seconds):
        dataset = read_log(arguments.log, arguments, progress)
    with _timed("build", seconds):
        mdp = from_dataset(dataset, gamma=changes.gamma or GAMMA)
    with _timed("solve", seconds):
        dead_end_value = value_of_dead_ends(mdp, changes.dead_end_value)
        solution = policy_iteration(mdp, dead_end_value=dead_end_value)
    if arguments.save is not None:
        save_mdp(mdp, arguments.save)
    dead_ends = int(((mdp.out_degree == 0) & ~mdp.terminal).sum())
    logged = logged_value(dataset, gamma=mdp.gamma, dead_end_value=dead_end_value)
    facts = {
        "states": f"{mdp.state_count:,}, {int((mdp.out_degree > 1).sum()):,} of them with more than one action",
        "edges": f"{mdp.edge_count:,}",
        "dead ends": f"{dead_ends:,}" + (f", with value {dead_end_value:g}" if dead_ends else ""),
        "start states": f"{len(mdp.starts):,}",
        "value of the log at the starts": f"{logged:.6g}",
        "optimal value at the starts": f"{solution.start_value:.6g} (discount {mdp.gamma:g})",
        "policy iterations": f"{solution.iterations}",
        "seconds": ", ".join(f"{stage} {spent:.2f}" for stage, spent in seconds.items()),
    }
    saved = {} if arguments.save is None else {"saved in": str(arguments.save)}
    print_facts(f"{dataset.name}: solved exactly", facts | saved, terminal.out)
    print_notes(dataset, terminal.out)


def _solve_run(arguments: Namespace, terminal: Terminal) -> None:
    reading = (arguments.columns, arguments.actions, arguments.timeouts, arguments.max_memory)
    if reading != (None, "auto", "auto", None):
        raise SettingError("--columns, --actions, --timeouts and --max-memory are only for logs; this is a run folder.")
    steps = checked("--steps", RolloutSteps, STEPS if arguments.steps is None else arguments.steps)
    changes = _read_changes(arguments)
    if arguments.policy is not None:
        refuse_existing(*policy_paths(arguments.policy))
    run = RunFolder(arguments.log)
    summary = run.summary()
    seconds: dict[str, float] = {}
    with _timed("load and solve", seconds):
        solution = solve_again(run, changes)
    mdp, policy = solution.mdp, solution.policy
    with _timed("roll out", seconds):
        rollouts = roll_out(mdp, policy, mdp.starts, steps)
        mean_return = float(mdp.start_weights @ undiscounted_return(mdp, rollouts))
    saved = {}
    if arguments.save is not None:
        save_mdp(mdp, arguments.save)
        saved["saved in"] = str(arguments.save)
    if arguments.policy is not None:
        from bats.runs.variants import clone_again  # with JAX

        with _timed("clone", seconds), shown_progress(terminal.err, quiet=arguments.quiet) as progress:
            save_policy(clone_again(run, changes, progress=progress), arguments.policy)
        saved["policy saved in"] = str(arguments.policy)
    facts = {
        "value at the starts": f"{solution.start_value:.6g} (discount {mdp.gamma:g})",
        "value when the run ended": f"{summary.value:.6g} (discount {summary.gamma:g})",
        "mean undiscounted return": f"{mean_return:.6g} in at most {steps:,} steps",
        "stitched steps": f"{stitched_share(mdp, rollouts):.1%}",
        "stitches": f"{mdp.kept_stitches:,}",
        "penalty": f"{mdp.penalty:.6g} of reward per unit of error",
        "seconds": ", ".join(f"{stage} {spent:.2f}" for stage, spent in seconds.items()),
    }
    print_facts(f"{run.path}: solved exactly", facts | saved, terminal.out)
    if not changes.given():
        print_line("no setting was changed; --help lists the settings", terminal.out)


def add_clone(parser: ArgumentParser) -> None:
    name = "--name NAME  name of the new policy, which is written to RUN/policies/NAME.safetensors (required)"
    add_options(parser, f"RUN  {RUN}\n {name} {QUIET}")
    _add_changes(parser, log=False)
    add_groups(parser, "rollouts", "cloning")


def run_clone(arguments: Namespace, terminal: Terminal) -> None:
    from bats.runs.variants import clone_again, cloning_settings  # with JAX

    run = RunFolder(arguments.run)
    run.summary()
    file = run.policies / f"{_checked_name(arguments.name)}.safetensors"
    refuse_existing(file)  # a summary alone is what a killed process left
    changes = _read_changes(arguments)
    config = change_settings(cloning_settings(run, changes), arguments)
    with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
        policy = clone_again(run, changes, config=config, progress=progress)
        save_policy(policy, file)
    print_facts(f"{run.path}: cloned again", policy_facts(policy, file), terminal.out)
    print_line("next:", terminal.out)
    new, own = shell_word(file), shell_word(run.path)
    print_line(f"  bats-rl evaluate {new}  # run the policy in an environment (--environment ID)", terminal.out)
    print_line(f"  bats-rl certify {own} --policy {new}  # compute bounds on its value", terminal.out)


def add_certify(parser: ArgumentParser) -> None:
    table = f"""
    RUN  {RUN}
    --confidence X  confidence of the bounds: fraction of rollouts whose total model error they must cover
    --reward-range NUMBERS  smallest and largest possible reward, for example 0,1
    --policy FILE  policy to certify, which must be cloned from this run; the default is the run's own policy
    --name NAME  name of the new certificate, which is written to RUN/certificates/NAME; the default is made from the
        other options
    """
    add_options(parser, table + QUIET)


def run_certify(arguments: Namespace, terminal: Terminal) -> None:
    from bats.runs.variants import certify_again  # with JAX

    run = RunFolder(arguments.run)
    run.summary()
    settings = run.settings().certificate or CertificateConfig()
    named = [] if arguments.policy is None else [arguments.policy.stem]
    if arguments.confidence is not None:
        settings = replace(settings, confidence=arguments.confidence)
        named.append(f"confidence-{arguments.confidence:g}")
    if arguments.reward_range is not None:
        settings = replace(settings, reward_range=arguments.reward_range)
        named.append("rewards-" + "-".join(f"{reward:g}" for reward in arguments.reward_range))
    folder = run.certificates / _checked_name("-".join(named) or "again" if arguments.name is None else arguments.name)
    refuse_existing(folder / run.certificate.name)  # other files alone are what a killed process left
    policy = None if arguments.policy is None else load_policy(arguments.policy)
    with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
        certificate = certify_again(run, settings, policy=policy, progress=progress)
        save_certificate(certificate, folder)
    print_certificate(certificate, terminal.out)
    print_line(f"saved in {folder}", terminal.out)


def _checked_name(name: str) -> str:
    if not name or any(not (letter.isalnum() or letter in "-_.") for letter in name) or name.startswith("."):
        allowed = "letters, digits, '-', '_' and '.', and must not begin with '.'"
        raise SettingError(f"--name may contain only {allowed}; got '{name}'.")
    if len(name) > MAX_NAME:
        raise SettingError(f"--name may have at most {MAX_NAME} letters; got {len(name)}.")
    if name in COMPARED:
        raise SettingError(f"The name {name} belongs to one of the run's own policies; give another one with --name.")
    return name


@contextmanager
def _timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - began
