"""`bats-rl export`: the policy alone, as ONNX for other programs or as the file that this package loads."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from bats.baselines.folder import BaselineFolder, method_of_run
from bats.cli.options import add_options
from bats.cli.output import Terminal, print_line
from bats.errors import OutputError
from bats.policy.files import load_policy, policy_paths, save_policy
from bats.policy.onnx import CHECKED, export_onnx
from bats.policy.policy import Policy
from bats.runs.folder import RunFolder
from bats.storage.atomic import refuse_existing

OR_OVERWRITE = " or use --overwrite"


def add_export(parser: ArgumentParser) -> None:
    table = """
    RUN|POLICY  folder of a finished run, or a policy file (.safetensors)
    FILE  file to write: .onnx, or .safetensors for `bats.load_policy`. A .onnx file is compared with the policy if
        onnxruntime is installed. A human-readable summary (.json) is written beside a .safetensors file
    --overwrite  replace the file if it exists
    """
    add_options(parser, table)


def run_export(arguments: Namespace, terminal: Terminal) -> None:
    target: Path = arguments.file
    if target.suffix not in (".onnx", ".safetensors"):
        raise OutputError(f"{target}: a policy can only be written to a .onnx or .safetensors file.")
    files = policy_paths(target) if target.suffix == ".safetensors" else (target,)
    refuse_existing(*files, overwrite=arguments.overwrite, hint=OR_OVERWRITE)
    policy = open_policy(arguments.run)
    if target.suffix == ".safetensors":
        save_policy(policy, target, overwrite=arguments.overwrite)
        line = f"wrote {target}; use it in Python with `bats.load_policy({str(target)!r}).predict(observation)`"
    else:
        line = f"wrote {target}; {_agreement(policy, export_onnx(policy, target, overwrite=arguments.overwrite))}"
    print_line(line, terminal.out)


def open_policy(path: Path) -> Policy:
    """The policy of a finished run, or of a file."""
    if not path.is_dir():
        return load_policy(path)
    if method_of_run(path) is not None:
        baseline = BaselineFolder(path)
        baseline.finished()  # refuses an unfinished run
        return load_policy(baseline.policy)
    run = RunFolder(path)
    run.summary()
    return load_policy(run.policy)


def _agreement(policy: Policy, difference: float | None) -> str:
    """How far the answers of an exported file are from the policy's own."""
    if difference is None:
        return "it was not compared with the policy: onnxruntime is not installed (`pip install 'bats-rl[onnx]'`)"
    continuous = policy.action_count is None
    what, unit = ("actions", " in units of half the action range") if continuous else ("probabilities", "")
    differ = f"its {what} differ from the policy's by at most {difference:.1e}{unit}"
    return f"{differ}, measured on {CHECKED:,} random observations"
