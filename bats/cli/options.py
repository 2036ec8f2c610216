"""A command's options as the table that its help shows.

    RUN                    a positional argument
    --rows N               an option with a value; its metavar decides the type
    --goal NUMBERS         with several, separated by commas
    --actions auto|index   one of several words
    --overwrite            a switch

A help text that ends in "(default: VALUE)" sets the default, one that ends in "(required)" makes an option required.
Lines that begin with two more spaces continue the text above.
"""

from __future__ import annotations

import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace, _ArgumentGroup
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from bats.errors import printable
from bats.storage.json_records import shown


def _reader(convert: Callable[[str], Any], expected: str) -> Callable[[str], Any]:
    """A function that converts the text of an option, or says what it expected."""

    def read(text: str) -> Any:
        try:
            return convert(text)
        except ValueError as error:
            raise ArgumentTypeError(f"expected {expected}; got {shown(text)}") from error

    return read


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


class Parser(ArgumentParser):
    """Says what is wrong on one line; the usage of a command with sixty settings would hide it."""

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else "."
        self.exit(2, f"error: {printable(message)}{end} `{self.prog} --help` lists the options.\n")


def parse_options(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """The options of a command. What is not one of them ends the process, with a hint at what was probably meant."""
    if any("\0" in argument for argument in arguments):  # the system would raise a ValueError, not an OSError
        parser.error("an argument contains a zero byte")
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        # behind an option that is not known, its value is not known either
        first = next((argument for argument in unknown if argument.startswith("-")), unknown[0]).partition("=")[0]
        kind = "option" if first.startswith("-") else "argument"
        parser.error(f"unknown {kind} {first}{_meant(first, parser)}")
    for action in parser._actions:
        if getattr(parsed, action.dest, None) == []:  # argparse drops a value that is two dashes
            parser.error(f"argument {'/'.join(action.option_strings) or action.metavar}: expected one argument")
    return parsed


def _meant(flag: str, parser: ArgumentParser) -> str:
    """The options that somebody who wrote this flag may have meant, as a question: settings are in groups."""
    wanted = flag.strip("-").replace("_", "-").lower()
    options = (option for action in parser._actions for option in action.option_strings)
    names = [option[2:] for option in options if option.startswith("--")]
    # by the whole name, or by its last part: `rounds` of `stitch.rounds`
    words = {name: (name, name.rpartition(".")[2]) for name in names}
    close = [wanted] if any(wanted in both for both in words.values()) else None
    close = close or get_close_matches(wanted, {word for both in words.values() for word in both}, cutoff=0.75)
    meant = [f"--{name}" for name, both in words.items() if not {*both}.isdisjoint(close)]
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


PATHS = ("RUN", "POLICY", "FILE", "FOLDER")
TYPES: dict[str, Any] = {
    **dict.fromkeys(("N", "SEED"), _reader(int, "an integer")),
    "X": _reader(float, "a number"),
    "NUMBERS": _reader(_numbers, "numbers separated by commas"),
    **dict.fromkeys(PATHS, Path),
}
"""by metavar; other values are text"""


def add_options(parser: ArgumentParser | _ArgumentGroup, table: str, *, hidden: bool = False) -> None:
    """Adds the options of a table to a parser. Hidden ones are shown by --help-all only."""
    table = re.sub(r"\n {6,}(?=\S)", " ", table)
    for line in filter(None, map(str.strip, table.splitlines())):
        call, text = re.split(r" {2,}", line, maxsplit=1)
        name, *values = call.split(" ")
        settings: dict[str, Any] = {"help": text.replace("%", "%%")}
        metavar = values[0] if values else name.rstrip(".")
        kind = TYPES.get(metavar.split("|")[0] if metavar.isupper() else "", str)
        if not name.startswith("--"):
            settings |= {"metavar": metavar, "type": kind, "nargs": "+" if name.endswith("...") else None}
            name = metavar.lower().split("|")[0]
        elif not values:
            settings["action"] = "store_true"
        elif "|" in metavar and metavar.islower():
            settings["choices"] = metavar.split("|")
        else:
            settings |= {"metavar": metavar, "type": kind}
        if default := re.search(r"\(default: ([\w.]+)\)$", text):
            settings["default"] = kind(default[1])
        if text.endswith("(required)"):
            settings["required"] = True
        action = parser.add_argument(name, **settings)
        action.full_help = action.help  # type: ignore[attr-defined]
        action.help = SUPPRESS if hidden else action.help
