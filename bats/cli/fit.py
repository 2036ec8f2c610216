"""`bats-rl fit`: the whole flow on a log, with progress, results and the verdict."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bats.bounds.certificate import Certificate, Option, load_certificate
from bats.cli.data import COLUMNS, LOG, QUIET, READING, REWARD, name_of_log, read_reward, read_training_log
from bats.cli.options import add_options
from bats.cli.output import Terminal, print_facts, print_line, shell_word, shown_progress
from bats.cli.settings import add_settings, read_settings
from bats.graph.rollouts import ends_in_dead_end, roll_out, stitched_share
from bats.policy.policy import Policy
from bats.runs.folder import RunFolder
from bats.runs.records import COMPARED, POLICY_NAMES, seconds_by_stage
from bats.runs.result import Result
from bats.stitching.history import MAX_FAILED_PLANS
from bats.stitching.records import SHARE_STEPS, RoundRecord


def add_fit(parser: ArgumentParser) -> None:
    table = f"""
    LOG  {LOG}
    --out RUN  folder of the run; the default is runs/LOG-SEED
    --seed SEED  the same seed gives the same run on the same machine (default: 0)
    --reuse RUN  use the model of a finished run and continue from its graph; the log must be the same, but its rewards
        may differ
    """
    add_options(parser, table + COLUMNS + QUIET)
    add_options(parser, READING + REWARD, hidden=True)
    add_settings(parser)
    parser.epilog = "An interrupted run continues when the same command is called again."


def run_fit(arguments: Namespace, terminal: Terminal) -> None:
    config, reward = read_settings(arguments), read_reward(arguments)
    folder = arguments.out or Path("runs") / f"{name_of_log(arguments.log)}-{arguments.seed}"
    run = RunFolder(folder)
    finished = run.is_finished

    def on_round(record: RoundRecord) -> None:
        if not arguments.quiet:
            print_line(round_line(record), terminal.err)

    dataset = read_training_log(arguments, reward, terminal)
    from bats.runs.pipeline import fit  # with JAX, after the log is known to be readable

    done_before = 0 if finished else run.rounds_done
    seed, reuse = arguments.seed, arguments.reuse
    with shown_progress(terminal.err, quiet=arguments.quiet) as progress:
        result = fit(dataset, config, seed=seed, folder=folder, reuse=reuse, progress=progress, on_round=on_round)
    if done_before and not arguments.quiet:
        print_line(f"{folder}: continued after round {done_before}", terminal.err)
    if finished:
        print_line(f"{folder} was already finished; nothing was done", terminal.out)
    print_result(result, folder, terminal.out)


def round_line(record: RoundRecord) -> str:
    value = f"value at the starts {record.value_before:.4g} -> {record.value:.4g}"
    return f"round {record.round}: {record.tried:,} tried, {record.accepted:,} accepted, {value}"


def print_result(result: Result, folder: Path, out: Console) -> None:
    mdp, records = result.mdp, result.records
    refused = sum((Counter(record.refused) for record in records), Counter[str]())
    outcomes = ", ".join(f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in refused.most_common())
    rollouts = roll_out(mdp, result.solution.policy, mdp.starts, SHARE_STEPS)
    facts = {
        "value of the log at the starts": f"{result.logged_value:.6g} (discount {mdp.gamma:g})",
        "optimal value without stitches": f"{result.log_value:.6g}",
        "optimal value with stitches": f"{result.value:.6g}",
        "rounds": f"{len(records)}{_why_early(result)}",
        **_length_facts(result),
        "stitches tried": f"{sum(record.tried for record in records):,}",
        "accepted": f"{sum(record.accepted for record in records):,}",
        "rejected": f"{sum(refused.values()):,}" + (f": {outcomes}" if outcomes else ""),
        "stitched steps": f"{stitched_share(mdp, rollouts):.1%}",
        **_dead_end_facts(result),
        "penalty": f"{mdp.penalty:.6g} of reward per unit of error",
        **_option_facts(result.options),
        **_selection_facts(result),
        **policy_facts(result.policy, folder / "policy.safetensors"),
        "seconds": ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in seconds_by_stage(result.timings).items()),
        "folder": str(folder),
    }
    print_facts(f"{result.log}: stitched and solved", facts, out)
    if result.certificate is not None:
        print_certificate(result.certificate, out)
    print_line("next:", out)
    run = shell_word(folder)
    for call, purpose in (
        (f"bats-rl evaluate {run}", "run the policy in an environment (--environment ID)"),
        (f"bats-rl report {run}", "show the whole run on one page"),
        (f"bats-rl export {run} policy.onnx", "write the policy for other programs"),
        (f"bats-rl solve {run} --help", "solve the same graph with other settings, in seconds"),
    ):
        print_line(f"  {call}  # {purpose}", out)


def _length_facts(result: Result) -> dict[str, str]:
    """How many actions a stitch could have, and what chose that."""
    longest = max((record.max_length for record in result.records), default=0)
    why = "chosen by the model's errors on held-out rows" if result.config.stitch.max_length is None else "as set"
    if result.mdp.action_count is not None:
        why += ", limited so that all sequences of discrete actions can be searched"
    return {"actions of a stitch": f"at most {longest} ({why})"} if longest else {}


def _why_early(result: Result) -> str:
    """Why there were fewer rounds than the settings allow."""
    records, settings = result.records, result.config.stitch
    if len(records) == settings.rounds + settings.recovery_rounds:
        return ""
    tried, accepted = (sum(getattr(record, name) for record in records) for name in ("tried", "accepted"))
    if tried >= MAX_FAILED_PLANS and not accepted:
        return f" (stopped early, because none of {tried:,} plans was accepted)"
    return " (stopped early, because there were no more candidates)"


def _option_facts(options: tuple[Option, ...]) -> dict[str, str]:
    if len(options) < 2:  # nothing was to be chosen, or the log is too small to compare
        return {}
    best = options[0]
    kept = "any error" if best.tolerance is None else f"errors below {best.tolerance:g}"
    return {"chosen": f"penalty {best.penalty:g}, stitches with {kept}; best lower bound of {len(options)} options"}


def _dead_end_facts(result: Result) -> dict[str, str]:
    """How many starts lead to where the log stops, if any do."""
    mdp, policy, steps = result.mdp, result.solution.policy, result.config.rollouts.steps
    share = float(mdp.start_weights @ ends_in_dead_end(mdp, policy, mdp.starts, steps))
    return {"rollouts that end in a dead end": f"{share:.1%} of the start weight"} if share else {}


def _selection_facts(result: Result) -> dict[str, str]:
    """The bounds of the policies that were compared, and which of them was kept."""
    run = RunFolder(result.folder)
    found = {name: load_certificate(run.certificates / name) for name in COMPARED}
    bounds = [
        f"{name} {one.clone.lower:.4g} to {one.clone.upper:.4g}, {one.in_model.value:.4g} in the model, "
        f"whose members disagree by {one.in_model.disagreement:.2g}"
        for name, one in found.items()
        if one is not None
    ]
    if len(bounds) < 2:
        return {}
    return {"policies compared": "; ".join(bounds), "policy kept": POLICY_NAMES[result.summary.policy]}


def policy_facts(policy: Policy, file: Path) -> dict[str, str]:
    """How a policy was cloned."""
    card = policy.card
    common = {"validation error": f"{card['validation_error']:.4g} (negative log-likelihood)", "policy": str(file)}
    if "share_cloned" in card:
        return {"rows cloned": f"{card['rows']:,} of the log, without stitches"} | common
    counts, threshold = f"{card['rollouts_cloned']:,} of {card['rollouts']:,}", f"{card['threshold']:.4g}"
    if card["threshold_measure"] != "return":
        threshold = f"{card['threshold']:.1%} of the best return from nearby starts"
    facts = {"rollouts cloned": f"{counts} (return at least {threshold})"}
    if "improved_return_less_costs" in card:
        before, after = card["return_less_costs"], card["improved_return_less_costs"]
        facts["improved in the model"] = f"return there, minus costs of leaving the log: {before:.4g}, then {after:.4g}"
    return facts | common


def print_certificate(certificate: Certificate, out: Console) -> None:
    """The bounds, and last the verdict."""
    print_facts("bounds on the policy's value at the starts", certificate.facts(), out)
    if certificate.deploy:
        _, _, text = certificate.verdict.partition(": ")
        print_line(Text.assemble(("deploy", "bold green"), (f": {text}", "bold")), out)
        return
    print_line(Text.assemble(("hold", "bold red"), (": the policy should not be deployed yet:", "bold")), out)
    for reason in certificate.reasons:
        print_line(f"  - {reason}", out)
