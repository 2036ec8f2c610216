"""An MDP on disk: a base and its rounds load to the same MDP, and damaged, missing or mixed files are refused."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from bats.data.dataset import Dataset
from bats.errors import DataError, OutputError
from bats.graph.files import load_mdp, load_round, save_mdp, save_round
from bats.graph.mdp import Stitches, TabularMDP, add_stitches, from_dataset
from tests.mdps import mdp_from_edges, random_stitches


def assert_equal(one: TabularMDP | Stitches, other: TabularMDP | Stitches) -> None:
    """Equal in every array and its type, and in every number."""
    for field in fields(one):
        first, second = getattr(one, field.name), getattr(other, field.name)
        np.testing.assert_array_equal(first, second, err_msg=field.name)
        assert getattr(first, "dtype", None) == getattr(second, "dtype", None), field.name


def random_log_mdp(rng: np.random.Generator, rows: int, *, width: int = 2, action_width: int = 1) -> TabularMDP:
    states = rng.normal(size=(rows, width)).astype(np.float32)
    log = Dataset.from_arrays(states, rng.normal(size=(rows, action_width)), rng.normal(size=rows))
    return from_dataset(log, gamma=0.95)


def save_rounds(folder: Path, *, seed: int = 0, rounds: int = 3) -> tuple[TabularMDP, list[Stitches]]:
    """An MDP and the rounds that it grew by, saved as it grew."""
    rng = np.random.default_rng(seed)
    mdp = random_log_mdp(rng, 300)
    save_mdp(mdp, folder)
    added = []
    for stitch_round in range(1, rounds + 1):
        added.append(random_stitches(mdp, rng))
        save_round(added[-1], folder, stitch_round=stitch_round)
        mdp = add_stitches(mdp, added[-1], stitch_round=stitch_round)
    return mdp, added


def test_a_base_and_its_rounds_load_to_the_same_mdp(tmp_path: Path) -> None:
    mdp, added = save_rounds(tmp_path / "mdp")
    assert_equal(load_mdp(tmp_path / "mdp"), mdp)
    for stitch_round, stitches in enumerate(added, start=1):
        assert_equal(load_round(tmp_path / "mdp", stitch_round), stitches)
    assert sorted(path.name for path in (tmp_path / "mdp").iterdir()) == [
        "base.safetensors",
        "round-0001.safetensors",
        "round-0002.safetensors",
        "round-0003.safetensors",
    ]


def test_a_round_takes_the_space_of_what_it_added_and_not_of_the_log(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    save_mdp(random_log_mdp(rng, 50_000, width=4, action_width=2), tmp_path)
    few = random_stitches(mdp_from_edges(2, [(0, 1, 0.0), (1, 0, 0.0)]), rng, count=20)
    few = replace(few, state=np.zeros((20, 2, 4)), action=np.zeros((20, 3, 2)))
    for stitch_round in range(1, 21):
        save_round(few, tmp_path, stitch_round=stitch_round)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    base = sizes.pop("base.safetensors")
    assert len(sizes) == 20
    assert sum(sizes.values()) < 0.1 * base


def test_saving_overwrites_nothing(tmp_path: Path) -> None:
    mdp, added = save_rounds(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(OutputError, match="exists already"):
        save_mdp(mdp, tmp_path)
    with pytest.raises(OutputError, match="exists already"):
        save_round(added[0], tmp_path, stitch_round=1)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_any_damaged_byte_is_noticed(tmp_path: Path) -> None:
    save_rounds(tmp_path)
    rng = np.random.default_rng(0)
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        for position in rng.integers(0, len(whole), size=25):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << rng.integers(0, 8)
            path.write_bytes(damaged)
            with pytest.raises(DataError, match=path.name):
                load_mdp(tmp_path)
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataError, match=path.name):
            load_mdp(tmp_path)
        path.write_bytes(whole)
    load_mdp(tmp_path)


def test_missing_rounds_and_rounds_of_another_mdp_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"base\.safetensors: expected a file saved by this package, found no such file"
    ):
        load_mdp(tmp_path)
    save_rounds(tmp_path / "a", seed=1)
    save_rounds(tmp_path / "b", seed=2)
    (tmp_path / "a" / "round-0002.safetensors").replace(tmp_path / "kept")
    with pytest.raises(DataError, match=r"expected the file of round 2, found round-0003"):
        load_mdp(tmp_path / "a")
    (tmp_path / "b" / "round-0002.safetensors").replace(tmp_path / "a" / "round-0002.safetensors")
    with pytest.raises(DataError, match="a round of another MDP"):
        load_mdp(tmp_path / "a")


def test_a_file_that_would_mislead_a_kernel_is_refused(tmp_path: Path) -> None:
    """Its checksum is right, as in a file that was made to do harm."""
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (1, 0, 0.0)])
    save_mdp(replace(mdp, target=np.array([1, 7], dtype=np.int32)), tmp_path / "base")
    with pytest.raises(DataError, match="every edge must lead to an existing state"):
        load_mdp(tmp_path / "base")
    save_mdp(mdp, tmp_path / "rounds")
    stitches = random_stitches(mdp, np.random.default_rng(0))
    save_round(replace(stitches, target=stitches.target + 7), tmp_path / "rounds", stitch_round=1)
    with pytest.raises(DataError, match="every target must be an existing real state"):
        load_mdp(tmp_path / "rounds")
