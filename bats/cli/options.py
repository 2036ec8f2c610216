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
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, _ArgumentGroup
from pathlib import Path
from typing import Any


def numbers(text: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError as error:
        raise ArgumentTypeError(f"expected numbers separated by commas; got '{text}'") from error


PATHS = ("RUN", "POLICY", "FILE", "FOLDER")
TYPES: dict[str, Any] = {"N": int, "SEED": int, "X": float, "NUMBERS": numbers, **dict.fromkeys(PATHS, Path)}
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
