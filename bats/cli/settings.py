"""Every setting as a flag: --stitch.rounds 40. Lists are written with commas, and `none` means no value.

A flag's help is the text below the field of the dataclass. `--help` shows the settings that matter most,
`--help-all` every one of them.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from bats.cli.options import add_options
from bats.config import Config
from bats.errors import SettingError
from bats.presets import PRESETS, preset
from bats.storage.json_records import from_plain, read_json, to_plain

MAIN = (
    "gamma",
    "penalty_steps",
    "model.updates",
    "stitch.rounds",
    "stitch.max_length",
    "stitch.tolerance",
    "stitch.dead_end_value",
    "rollouts.steps",
    "cloning.hidden",
    "certificate.confidence",
)
"""the settings that `--help` shows"""
PREFIX = "setting "
"""before the name of a setting, where its flag is kept"""
STITCH = (
    "A stitch is a planned sequence of actions that connects two logged states; its error estimates how far from its "
    "target it ends."
)
Chosen = TypeVar("Chosen")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds --preset, --config, --help-all and a flag for every setting."""
    table = f"""
    --preset NAME  named settings: {", ".join(PRESETS)} (default: default)
    --config FILE  read all or some settings from a JSON file, for example the settings.json of a run. The file
        overrides the preset; flags override both
    """
    add_options(parser, table)
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help="show every option and setting")
    add_groups(parser, main_only=True)


def add_groups(parser: argparse.ArgumentParser, *groups: str, main_only: bool = False) -> None:
    """Adds a flag for every setting, or for those of some groups of a run; `--help` may show the main ones only."""
    defaults = "the run's own settings" if groups else "those of the preset `default`"
    brackets = "Text in [ ] is the paper's symbol for a setting, or marks the paper's choice."
    stitches = "" if groups else f" {STITCH}"
    section = parser.add_argument_group("settings", f"The defaults are {defaults}. {brackets}{stitches}")
    for name, _, default, text in leaves(Config()):
        if not groups or name.split(".")[0] in groups:
            full = text if groups else f"{text} (default: {shown_value(default)})"
            add_flag(section, name, full, hidden=main_only and name not in MAIN)


def add_flag(section: argparse._ArgumentGroup, name: str, text: str, *, hidden: bool = False) -> None:
    """Adds the flag of one setting; `--help` does not show a hidden one."""
    text, flag = text.strip().replace("%", "%%"), f"--{name.replace('_', '-')}"
    action = section.add_argument(flag, dest=PREFIX + name, metavar="VALUE", default=argparse.SUPPRESS)
    action.help = argparse.SUPPRESS if hidden else text
    action.full_help = text  # type: ignore[attr-defined]


def read_settings(arguments: argparse.Namespace) -> Config:
    """The configuration: the file overrides the preset, and flags override both."""
    config = preset(arguments.preset)
    if arguments.config is not None:
        path = arguments.config / "settings.json" if arguments.config.is_dir() else arguments.config
        config = from_plain(Config, _merged(to_plain(config), read_json(path)), file=str(path))
    return change_settings(config, arguments)


def change_settings(config: Chosen, arguments: argparse.Namespace) -> Chosen:
    """The configuration with the settings that flags were given for."""
    usual = type(config)()
    plain, kinds = to_plain(config), {name: kind for name, kind, _, _ in leaves(usual)}
    for dest, text in vars(arguments).items():
        if dest.startswith(PREFIX):
            name = dest.removeprefix(PREFIX)
            if name not in kinds:
                raise SettingError(f"--{name.replace('_', '-')} is not a setting of this method.")
            *groups, leaf = name.split(".")
            table = plain
            for group in groups:
                if table[group] is None:  # a group that the preset switches off, such as the certificate
                    table[group] = to_plain(getattr(usual, group))
                table = table[group]
            table[leaf] = _parse(text, kinds[name])
    return from_plain(type(config), plain, file="settings")


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        for action in parser._actions:
            action.help = getattr(action, "full_help", action.help)
        parser.print_help()
        parser.exit()


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any, str]]:
    """Name, type, value and description of every setting, nested ones with dotted names."""
    hints = get_type_hints(type(config))
    texts: dict[str, str] = {}
    for base in reversed(type(config).__mro__):  # what a class says goes before what its bases say
        texts |= _descriptions(base) if is_dataclass(base) else {}
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", hints[field.name], value, texts.get(field.name, "")


def shown_value(value: Any) -> str:
    """A setting's value as a flag takes it."""
    return json.dumps(to_plain(value)).strip("[]").replace(" ", "").replace('"', "").replace("null", "") or "none"


@cache
def _descriptions(config: type) -> dict[str, str]:
    """The string below each field of a dataclass, from its source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(config))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        described = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and described:
            texts[field.target.id] = " ".join(str(after.value.value).split())  # type: ignore[attr-defined]
    return texts


def _parse(text: str, kind: Any) -> Any:
    """A flag's text as what JSON has; whether it is of the right type is checked with the whole configuration."""
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if text.lower() == "none":
        return [] if get_origin(kind) is tuple else None
    if any(get_origin(choice) is tuple for choice in choices):
        return [_scalar(part) for part in text.split(",")]
    return _scalar(text)


def _scalar(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text


def _merged(plain: Any, over: Any) -> Any:
    """Nested settings with some of them replaced."""
    if not isinstance(plain, dict) or not isinstance(over, dict):
        return over
    return {**plain, **{name: _merged(plain.get(name), value) for name, value in over.items()}}
