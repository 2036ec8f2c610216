"""`bats-rl export`: the policy alone, as ONNX for other programs or as the file that this package loads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from bats.cli.output import print_line
from bats.errors import OutputError
from bats.policy.files import load_policy, policy_paths, save_policy
from bats.policy.onnx import CHECKED, export_onnx
from bats.policy.policy import Policy
from bats.runs.folder import RunFolder


@dataclass(frozen=True)
class Export:
    """Write the policy of a run, or of a file, as ONNX for programs without Python, or as a file of its own."""

    policy: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN|POLICY")]
    """folder of a finished run, or a policy's own file (.safetensors)"""
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]
    """file to write: .onnx, checked against the policy where onnxruntime is installed; or .safetensors, which
    `bats.load_policy` reads, with a card for people beside it (.json)"""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """replace the file if there is one"""


def run_export(command: Export, out: Console) -> None:
    """Writes the file and says how well it answers."""
    target = command.out
    if target.suffix not in (".onnx", ".safetensors"):
        raise OutputError(f"{target}: a policy is written as .onnx or .safetensors.")
    if not command.overwrite:
        refuse_existing(*(policy_paths(target) if target.suffix == ".safetensors" else (target,)), may_overwrite=True)
    policy = opened_policy(command.policy)
    if target.suffix == ".safetensors":
        save_policy(policy, target, overwrite=command.overwrite)
        print_line(f"wrote {target}; in Python, `bats.load_policy({str(target)!r}).predict(observation)`", out)
        return
    print_line(f"wrote {target}; {_agreement(policy, export_onnx(policy, target, overwrite=command.overwrite))}", out)


def opened_policy(path: Path) -> Policy:
    """The policy of a finished run, or of a file."""
    if not path.is_dir():
        return load_policy(path)
    run = RunFolder(path)
    run.finished()  # complains where it is none
    return load_policy(run.policy)


def refuse_existing(*files: Path, may_overwrite: bool = False) -> None:
    """Complains about a file that would be overwritten before the work is done, not after."""
    for file in files:
        if file.exists():
            more = ", or --overwrite" if may_overwrite else ""
            raise OutputError(f"{file} exists already; choose another name{more}.")


def _agreement(policy: Policy, difference: float | None) -> str:
    """How far the answers of an exported file are from the policy's own."""
    if difference is None:
        return "its answers were not checked, as onnxruntime is not installed (`pip install 'bats-rl[onnx]'`)"
    what = "probabilities" if policy.action_count is not None else "actions, in halves of their range,"
    return f"over {CHECKED:,} random observations its {what} differ from the policy's by at most {difference:.1e}"
