"""Saving and loading an MDP: one base file and one small file per round of stitches.

    folder/base.safetensors             the MDP before stitching
    folder/round-0001.safetensors       what round 1 added
    folder/round-0002.safetensors       …

Loading replays the rounds, so twenty rounds cost twenty times what they added and one copy of the log. Each round
carries the checksum of the file before it, so that files of two MDPs cannot be mixed.
"""

from __future__ import annotations

from pathlib import Path

from bats.config import FilePath, checked
from bats.errors import DataError
from bats.graph.mdp import Stitches, TabularMDP, add_stitches, mdp_defect, stitches_defect
from bats.storage.tensors import read_facts, read_struct, write_struct

_BASE, _ROUND = "bats-mdp", "bats-stitches"


def save_mdp(mdp: TabularMDP, folder: Path) -> None:
    """Writes the MDP as the base of `folder`; refuses to replace one."""
    write_struct(base_path(checked("folder", FilePath, folder)), _BASE, checked("mdp", TabularMDP, mdp))


def save_round(stitches: Stitches, folder: Path, *, stitch_round: int) -> None:
    """Writes what a round added, after the base and all rounds before it."""
    before = round_path(folder, stitch_round - 1) if stitch_round > 1 else base_path(folder)
    follows = read_facts(before)["checksum"]
    write_struct(round_path(folder, stitch_round), _ROUND, stitches, stitch_round=stitch_round, follows=follows)


def load_mdp(folder: Path) -> TabularMDP:
    """The MDP of `folder` with all its rounds; `DataError` for files that are damaged, missing or mixed up."""
    path = base_path(checked("folder", FilePath, folder))
    mdp, facts = read_struct(TabularMDP, path, _BASE)
    _refuse(mdp_defect(mdp), path)
    for stitch_round, path in enumerate(sorted(Path(folder).glob("round-*.safetensors")), start=1):
        if path != round_path(folder, stitch_round):
            raise DataError(f"the file of round {stitch_round}", f"{path.name}", file=str(folder))
        previous = facts["checksum"]
        stitches, facts = read_struct(Stitches, path, _ROUND)
        if facts.get("follows") != previous:
            raise DataError("a round of the same MDP as the files before it", "a round of another MDP", file=str(path))
        _refuse(stitches_defect(stitches, mdp), path)
        mdp = add_stitches(mdp, stitches, stitch_round=stitch_round)
    return mdp


def load_round(folder: Path, stitch_round: int) -> Stitches:
    """What one round added, unchecked against the others; `load_mdp` checks that."""
    return read_struct(Stitches, round_path(folder, stitch_round), _ROUND)[0]


def base_path(folder: Path) -> Path:
    return Path(folder) / "base.safetensors"


def round_path(folder: Path, stitch_round: int) -> Path:
    return Path(folder) / f"round-{stitch_round:04d}.safetensors"


def _refuse(defect: str | None, path: Path) -> None:
    if defect:
        raise DataError("a valid saved MDP", f"an invalid one ({defect})", file=str(path))
