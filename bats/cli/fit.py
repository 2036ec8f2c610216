"""`bats-rl fit`: runs the whole flow on a log, shows how it goes, tells what came of it and whether to deploy it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bats.arrays import Progress
from bats.bounds.certificate import Certified
from bats.cli.output import print_facts, print_line, print_problems
from bats.cli.progress import shown_progress
from bats.config import Config
from bats.data.dataset import Dataset
from bats.graph.rollouts import stitched_share, walk
from bats.policy.policy import Policy
from bats.runs.folder import RunFolder
from bats.runs.pipeline import Result, fit
from bats.stitching.records import WALKED, Option, RoundRecord


def fit_log(
    read: Callable[[Progress], Dataset],
    config: Config,
    folder: Path,
    *,
    seed: int,
    quiet: bool,
    out: Console,
    told: Console,
) -> None:
    """Reads a log, fits it in a folder and tells; goes on with a run that was begun there."""
    run = RunFolder(folder)
    finished = run.is_finished

    def on_record(record: RoundRecord) -> None:
        if not quiet:
            print_line(round_line(record), told)

    with shown_progress(told, quiet=quiet) as progress:
        dataset = read(progress)
        done_before = 0 if finished else run.rounds_done
        result = fit(dataset, config, seed=seed, folder=folder, progress=progress, on_record=on_record)
    if done_before and not quiet:
        print_line(f"{folder}: went on after round {done_before}", told)
    if finished:
        print_line(f"{folder} was finished before; nothing was left to do", out)
    print_result(result, folder, out)
    print_problems(dataset, out)


def round_line(record: RoundRecord) -> str:
    return (
        f"round {record.round}: {record.tried:,} tried, {record.accepted:,} accepted, "
        f"value at the starts {record.value_before:.4g} to {record.value:.4g}"
    )


def print_result(result: Result, folder: Path, out: Console) -> None:
    mdp, records = result.mdp, result.records
    refused: Counter[str] = Counter()
    for record in records:
        refused.update(record.refused)
    spent: dict[str, float] = {}
    for timing in result.timings:
        spent[timing.stage] = spent.get(timing.stage, 0.0) + timing.seconds
    tried, accepted = sum(record.tried for record in records), sum(record.accepted for record in records)
    reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in refused.most_common())
    walks = walk(mdp, result.solution.policy, mdp.starts, WALKED)
    facts = {
        "value at the starts, as logged": f"{result.logged_value:.6g} (discount {mdp.gamma:g})",
        "best without stitches": f"{result.log_value:.6g}",
        "best with stitches": f"{result.value:.6g}",
        "rounds": f"{len(records)}",
        "stitches tried": f"{tried:,}",
        "accepted": f"{accepted:,}",
        "refused": f"{sum(refused.values()):,}" + (f": {reasons}" if reasons else ""),
        "stitched steps": f"{stitched_share(mdp, walks):.1%}",
        "penalty": f"{mdp.penalty:.6g} of reward per unit of error",
        **_about_choice(result.options),
        **_about_policy(result.policy, RunFolder(folder).policy),
        "seconds": ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in spent.items()),
        "kept in": str(folder),
    }
    print_facts(f"{result.log}: stitched and solved", facts, out)
    if result.certificate is not None:
        print_certificate(result.certificate, out)
    print_next(folder, out)


def _about_choice(options: tuple[Option, ...]) -> dict[str, str]:
    if len(options) < 2:  # none was asked for, or the log is too small to compare any
        return {}
    best = options[0]
    kept = "all stitches" if best.tolerance is None else f"errors up to {best.tolerance:g}"
    return {"chosen": f"penalty {best.penalty:g}, {kept}: the best lower bound of {len(options)} options"}


def _about_policy(policy: Policy, file: Path) -> dict[str, str]:
    card = policy.card
    return {
        "walks cloned": f"{card['walks_cloned']:,} of {card['walks']:,}: {card['cut_by']} at least {card['cut']:.4g}",
        "validation error": f"{card['validation_error']:.4g}, negative log-likelihood (of actions held back, if many)",
        "policy": str(file),
    }


def print_certificate(found: Certified, out: Console) -> None:
    """What the policy is worth at least and at most, and last whether to deploy it."""
    said, card = found.verdict, found.card
    facts = {
        "at least": f"{said.lower:.6g}",
        "at most": f"{said.upper:.6g}",
        "as logged": f"{said.logged_value:.6g} (what came after an episode was cut off counted as the worst)",
        "doing as the graph says": f"{card.graph.lower:.6g} to {card.graph.upper:.6g}",
        "resting on stitches": f"{said.share_on_stitches:.1%} of the value that the graph's policy has at least",
        "starts within the data": f"{said.coverage:.1%}",
        "width of the bounds": f"{said.width:.1%} of all that rewards allow, {card.floor:.6g} to {card.ceiling:.6g}",
    }
    print_facts(f"what the policy is worth at the starts, with a confidence of {card.confidence:.0%}", facts, out)
    print_verdict(found, out)


def print_verdict(found: Certified, out: Console) -> None:
    """The verdict as one bold line; the reasons, if there are any, below."""
    said, wide = found.verdict, not out.is_terminal
    if said.deploy:
        told = ": it is sure to earn more than the log did, as far as its model and rows that were held out can tell"
        out.print(Text.assemble(("deploy", "bold green"), (told, "bold")), soft_wrap=wide)
        return
    out.print(Text.assemble(("hold", "bold red"), (": better not to deploy it yet, because", "bold")), soft_wrap=wide)
    for reason in said.reasons:
        print_line(f"  - {reason}", out)


def print_next(folder: Path, out: Console) -> None:
    """What a finished run is good for."""
    print_line("next:", out)
    for call, purpose in (
        (f"bats-rl evaluate {folder}", "play the policy, where there is an environment to play it in"),
        (f"bats-rl report {folder}", "all of the run on one page"),
        (f"bats-rl export {folder} policy.onnx", "the policy for other programs"),
        (f"bats-rl solve {folder} --help", "the same graph under other settings, in seconds"),
    ):
        print_line(f"  {call}  # {purpose}", out)
