"""The command `bats-rl`: parses, calls the library and prints. Whatever it shows can be had from Python too.

A command NAME is two functions of its module, `add_NAME(parser)` and `run_NAME(arguments, terminal)`. The module is
imported only when the command is called, so that no command waits for what another one needs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from rich.console import Console

from bats.cli import INTERRUPTED, end_at_once
from bats.cli.options import Parser, parse_options
from bats.cli.output import Terminal, print_error
from bats.errors import BatsError
from bats.runs.interrupts import noted_interrupts

COMMANDS = {
    "validate": ("data", "show what a log contains, its problems, and the decisions made while reading it"),
    "fit": ("fit", "turn a log into a policy with bounds on its value and a verdict: deploy or hold"),
    "evaluate": ("evaluate", "run a policy in its environment and compare its return with the predicted one"),
    "report": ("report", "write an HTML report of a run, or of several runs side by side"),
    "export": ("export", "write a policy to a file: ONNX, or safetensors for Python"),
    "solve": ("solve", "solve a log exactly, or solve a finished run again with other settings"),
    "clone": ("solve", "clone another policy from a finished run, with other settings"),
    "certify": ("solve", "compute new bounds for a finished run, for example with another confidence"),
    "baseline": ("studies", "train another offline RL method on a log, for comparison"),
    "benchmark": ("studies", "repeat an experiment of the paper, or compare methods on known tasks or your own log"),
    "collect": ("data", "collect a log of a known task"),
    "convert": ("data", "read a log in any format and write it as HDF5 or Minari"),
}
"""module and summary of each command"""
DATA = ("collect", "convert")
"""commands that are called as `bats-rl data NAME`"""
RESUMABLE = ("fit", "baseline", "benchmark")
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED: "
"""how JAX's error of this kind begins, which is no `MemoryError`"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; 0 if it succeeded, 1 for problems under --strict, 2 if the input or the arguments are wrong."""
    terminal = Terminal(_Console(), _Console(stderr=True))
    name, rest = split_command(list(sys.argv[1:] if arguments is None else arguments))
    try:
        with noted_interrupts(second=end_at_once):
            parsed = parse_options(command_parser(name), rest)
            run = getattr(import_module(f"bats.cli.{COMMANDS[name][0]}"), f"run_{name}")
            return run(parsed, terminal) or 0
    except BatsError as error:
        print_error(str(error), terminal.err)
        return 2
    except KeyboardInterrupt:
        more = "; call the same command again to continue from the last saved state" if name in RESUMABLE else ""
        terminal.err.print(f"interrupted; no file is incomplete{more}")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:  # not about a path, so not something that the user could correct
            raise
        print_error(f"{os.fsdecode(error.filename)}: {error.strerror or error}.", terminal.err)
        return 2
    except (MemoryError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        if not isinstance(error, MemoryError) and not reason.startswith(OUT_OF_MEMORY):
            raise
        reason = reason.removeprefix(OUT_OF_MEMORY) or "an allocation failed"
        print_error(f"There is not enough memory: {reason}.", terminal.err)
        return 2


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # by default Rich ends the process with code 1


def command_parser(name: str) -> argparse.ArgumentParser:
    """The parser of one command."""
    module, summary = COMMANDS[name]
    called = f"bats-rl {'data ' if name in DATA else ''}{name}"
    parser = Parser(called, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False)
    getattr(import_module(f"bats.cli.{module}"), f"add_{name}")(parser)
    return parser


def split_command(arguments: list[str]) -> tuple[str, list[str]]:
    """The command that is called, and its arguments."""
    names = [name for name in COMMANDS if name not in DATA]
    listed = "\n".join(f"  {name:10}{COMMANDS[name][1]}" for name in names)
    listed += "".join(f"\n  data {name:8} {COMMANDS[name][1]}" for name in DATA)
    parser = Parser(
        "bats-rl",
        usage="bats-rl COMMAND …",
        description="Best Action Trajectory Stitching: turns a log into a policy with bounds on its value.",
        epilog=f"commands:\n{listed}\n\n`bats-rl COMMAND --help` shows the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=version("bats-rl"))
    parser.add_argument("command", choices=[*names, "data"], metavar="COMMAND")
    command, rest = parser.parse_args(arguments[:1]).command, _with_negative_values(arguments[1:])
    if command != "data":
        return command, rest
    data = Parser("bats-rl data", description="Collect and convert logs.")
    data.add_argument("command", choices=DATA, help="; ".join(f"{name}: {COMMANDS[name][1]}" for name in DATA))
    return data.parse_args(rest[:1]).command, rest[1:]


def _with_negative_values(arguments: list[str]) -> list[str]:
    """With --goal -1,2 as --goal=-1,2: argparse would take a value that begins with a minus for an option."""
    joined: list[str] = []
    for argument in arguments:
        if argument[:1] == "-" and argument[1:2] in (*"0123456789.",) and joined and joined[-1].startswith("--"):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


if __name__ == "__main__":
    sys.exit(main())
