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
from bats.storage.tensors import write_tensors
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


FILE_DEFECTS: list[tuple[dict[str, object], str]] = [
    ({"states": np.array([[0.0], [np.nan]])}, "field 'states': expected finite numbers"),
    ({"action": np.array([[0.0], [np.inf]])}, "field 'action': expected finite numbers"),
    ({"action": np.zeros((3, 1))}, r"floats of shape \(E, A\) or integers of shape \(E\), found float64 of shape"),
    ({"first_edge": np.array([0, 1, 2], dtype=np.uint64)}, r"expected integers of shape \(S\+1\), found uint64"),
    ({"first_edge": np.array([0, 1])}, r"shape \(2,\) where S = 2"),
    ({"reward": np.array([0.0, np.inf])}, "field 'reward': expected finite numbers"),
    ({"reward": np.zeros((2, 2, 2))}, r"expected floats of shape \(E\)"),
    ({"reward": np.zeros(2, dtype=np.float16)}, "found float16"),
    ({"penalty": float("nan")}, "field 'penalty': expected finite numbers"),
    ({"penalty": "0"}, "field 'penalty': expected float, found '0'"),
    ({"penalty": -1.0}, "the penalty must not be negative"),
    ({"gamma": True}, "field 'gamma': expected float, found True"),
    ({"real_count": 2.0}, "field 'real_count': expected int, found 2.0"),
    ({"real_count": 10**400}, "field 'real_count': expected int, found 1000"),
    ({"action_count": -1}, "`action_count` must be positive"),
    ({"stitch_count": None}, "field 'stitch_count': expected int, found None"),
    ({"starts": 3}, r"field 'starts': expected integers of shape \(W\), found 3"),
    ({"gamma": np.array(0.9)}, "field 'gamma': expected float, found float64 of shape"),
]


@pytest.mark.parametrize(
    ("change", "message"), FILE_DEFECTS, ids=[f"{next(iter(change))}-{i}" for i, (change, _) in enumerate(FILE_DEFECTS)]
)
def test_an_mdp_that_is_not_what_its_annotations_say_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """Its checksum is right, as in a file that was made to do harm."""
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (1, 0, 0.0)])
    entries = {field.name: getattr(mdp, field.name) for field in fields(mdp)} | change
    arrays = {name: entry for name, entry in entries.items() if isinstance(entry, np.ndarray)}
    facts = {name: entry for name, entry in entries.items() if name not in arrays}
    write_tensors(tmp_path / "base.safetensors", "bats-mdp", arrays, facts)
    with pytest.raises(DataError, match=message):
        load_mdp(tmp_path)


def test_a_round_of_no_stitches_cannot_claim_a_billion_steps(tmp_path: Path) -> None:
    """An empty array has no bytes, however long its other axes are."""
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (1, 0, 0.0)])
    save_mdp(mdp, tmp_path)
    none, long = np.zeros(0, dtype=int), 10**9
    empty = {"action": (0, long, 1), "state": (0, long - 1, 1), "reward": (0, long), "planning_error": (0,)}
    arrays = dict.fromkeys(("source", "target", "length"), none) | {name: np.zeros(of) for name, of in empty.items()}
    write_tensors(tmp_path / "round-0001.safetensors", "bats-stitches", arrays, {})
    with pytest.raises(DataError, match="arrays that fit into the file"):
        load_mdp(tmp_path)
