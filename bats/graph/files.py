"""Saving and loading an MDP: one base file and one small file per round of stitches.

    folder/base.safetensors             the MDP before stitching
    folder/round-0001.safetensors       what round 1 added
    folder/round-0002.safetensors       …

Loading replays the rounds, so twenty rounds cost twenty times what they added and one copy of the log. Each round
names the checksum of the file it follows (`array_files` says what else every file carries).
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from bats.errors import DataError
from bats.graph.mdp import Stitches, TabularMDP, add_stitches, amiss_in_mdp, amiss_in_stitches
from bats.storage.tensors import read_arrays, read_facts, write_arrays

_BASE, _ROUND = "bats-mdp", "bats-stitches"
_MDP_ARRAYS = (
    "states",
    "first_edge",
    "target",
    "action",
    "reward",
    "discount",
    "stitch_round",
    "stitch",
    "planning_error",
    "starts",
    "start_weights",
)
_MDP_FACTS = ("real_count", "gamma", "penalty", "action_count", "stitch_count")
_STITCH_ARRAYS = tuple(field.name for field in fields(Stitches))


def save_mdp(mdp: TabularMDP, folder: Path) -> None:
    """Writes the MDP as the base of `folder`; refuses to replace one that is there."""
    facts = {name: getattr(mdp, name) for name in _MDP_FACTS}
    write_arrays(_base_path(folder), _BASE, {name: getattr(mdp, name) for name in _MDP_ARRAYS}, facts)


def save_round(stitches: Stitches, folder: Path, *, stitch_round: int) -> None:
    """Writes what a round added, after the base and all rounds before it."""
    before = _round_path(folder, stitch_round - 1) if stitch_round > 1 else _base_path(folder)
    facts = {"stitch_round": stitch_round, "follows": read_facts(before)["checksum"]}
    arrays = {name: getattr(stitches, name) for name in _STITCH_ARRAYS}
    write_arrays(_round_path(folder, stitch_round), _ROUND, arrays, facts)


def load_mdp(folder: Path) -> TabularMDP:
    """The MDP of `folder` with all its rounds; raises `DataError` for files that are damaged, missing or mixed up."""
    arrays, facts = _read(_base_path(folder), _BASE, _MDP_ARRAYS)
    missing = [name for name in _MDP_FACTS if not isinstance(facts.get(name, ""), int | float | None)]
    if missing:
        raise DataError(f"a number for {missing[0]}", f"{facts.get(missing[0])!r}", file=str(_base_path(folder)))
    fields: dict[str, Any] = {**arrays, **{name: facts[name] for name in _MDP_FACTS}}
    mdp = TabularMDP(**fields)
    _demand(amiss_in_mdp(mdp), _base_path(folder))
    for stitch_round, path in enumerate(sorted(Path(folder).glob("round-*.safetensors")), start=1):
        if path != _round_path(folder, stitch_round):
            raise DataError(f"round {stitch_round} next", f"{path.name}", file=str(folder))
        follows = facts["checksum"]
        arrays, facts = _read(path, _ROUND, _STITCH_ARRAYS)
        if facts["follows"] != follows:
            raise DataError("a round that follows the files before it", "one of another MDP", file=str(path))
        stitches = Stitches(**arrays)
        _demand(amiss_in_stitches(stitches, mdp), path)
        mdp = add_stitches(mdp, stitches, stitch_round=stitch_round)
    return mdp


def load_round(folder: Path, stitch_round: int) -> Stitches:
    """What one round added; `load_mdp` is what checks it against the others."""
    return Stitches(**_read(_round_path(folder, stitch_round), _ROUND, _STITCH_ARRAYS)[0])


def _read(path: Path, kind: str, names: tuple[str, ...]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    arrays, facts = read_arrays(path, kind)
    missing = sorted(set(names) - set(arrays))
    if missing:
        raise DataError(f"the arrays {', '.join(names)}", f"no {', '.join(missing)}", file=str(path))
    return {name: arrays[name] for name in names}, facts


def _base_path(folder: Path) -> Path:
    return Path(folder) / "base.safetensors"


def _round_path(folder: Path, stitch_round: int) -> Path:
    return Path(folder) / f"round-{stitch_round:04d}.safetensors"


def _demand(amiss: str | None, path: Path) -> None:
    if amiss:
        raise DataError(amiss, "otherwise", file=str(path))
