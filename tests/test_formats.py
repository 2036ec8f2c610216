"""Every way in and out of a log says the same thing."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bats.data.dataset import Dataset
from bats.data.formats.load import ColumnMap, load_dataset, write_hdf5, write_minari
from bats.errors import BatsError, DataError, OutputError
from tests.logs import as_columns, assert_same, folder_bytes, small_log, write_arrays, write_csv, write_parquet

FRESH = itertools.count()


@pytest.fixture(autouse=True)
def minari_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "minari"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    return folder


@st.composite
def logs(draw: st.DrawFn) -> dict[str, Any]:
    """Logs of every kind: with and without next states and flags, one action or several, single and double."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = draw(st.integers(3, 30))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    states = rng.normal(size=(rows + 1, draw(st.integers(1, 3)))).astype(dtype).round(1)
    discrete = draw(st.booleans())
    actions = rng.integers(0, 3, rows) if discrete else rng.normal(size=(rows, 2)).astype(dtype)
    share = draw(st.sampled_from([0.0, 0.2, 0.6]))
    return {
        "observations": states[:-1],
        "actions": actions,
        "rewards": rng.normal(size=rows).astype(dtype),
        "next_observations": states[1:] if draw(st.booleans()) else None,
        "terminations": (rng.random(rows) < share) | (np.arange(rows) < 2),
        "timeouts": rng.random(rows) < share if draw(st.booleans()) else None,
        "action_count": 5 if discrete and draw(st.booleans()) else None,
        "timeout_rule": draw(st.sampled_from(["auto", "trust", "ignore"])),
    }


@given(log=logs())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_our_hdf5_gives_back_the_same_log(log: dict[str, Any], tmp_path: Path) -> None:
    dataset = Dataset.from_arrays(**log)
    write_hdf5(dataset, tmp_path / "log.hdf5", overwrite=True)
    assert_same(load_dataset(tmp_path / "log.hdf5"), dataset)


@given(log=logs())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_our_minari_data_sets_give_back_the_same_log(log: dict[str, Any]) -> None:
    import minari

    name = f"some/log{next(FRESH)}-v0"
    dataset = Dataset.from_arrays(**log)
    write_minari(dataset, name)
    assert_same(load_dataset(f"minari:{name}"), dataset)
    theirs = minari.load_dataset(name)
    assert (theirs.total_steps, theirs.total_episodes) == (len(dataset), dataset.episode_count)
    episodes = list(theirs.iterate_episodes())
    np.testing.assert_array_equal(np.concatenate([one.observations[:-1] for one in episodes]), dataset.observations)
    np.testing.assert_array_equal(np.concatenate([one.actions for one in episodes]), dataset.actions)
    np.testing.assert_array_equal(np.concatenate([one.terminations for one in episodes]), dataset.terminations)
    assert all(one.terminations[-1] != one.truncations[-1] for one in episodes)


def test_chosen_starts_survive_in_hdf5(tmp_path: Path) -> None:
    dataset = load_dataset(small_log()).with_starts([3, 5, 20], [1, 2, 1])
    write_hdf5(dataset, tmp_path / "log.h5")
    assert_same(load_dataset(tmp_path / "log.h5"), dataset)


def test_our_own_files_have_exact_ends_that_are_not_reported_as_timeouts(tmp_path: Path) -> None:
    states = np.arange(13.0)[:, None]
    log = {"observations": states[:-1], "next_observations": states[1:], "actions": np.zeros((12, 1))}
    dataset = load_dataset(log | {"rewards": np.zeros(12), "episode": np.arange(12) // 4})
    write_hdf5(dataset, tmp_path / "log.hdf5")
    write_minari(dataset, "exact-v0")
    for source in (tmp_path / "log.hdf5", "minari:exact-v0"):
        for rule in ("auto", "trust", "ignore"):
            again = load_dataset(source, timeout_rule=rule)
            assert_same(again, dataset)
            assert not any("timeout" in note.text for note in again.notes)


def test_names_of_numbers_come_from_the_columns_and_survive(tmp_path: Path) -> None:
    log = small_log()
    columns = {
        "speed": log["observations"][:, 0],
        "grüße\x1b[2J": log["observations"][:, 1],
        "pedal": log["actions"][:, 0],
    }
    columns["gain"] = log["rewards"]
    mapped = ColumnMap(("speed", "grüße\x1b[2J"), ("pedal",), "gain")
    for source in (write_csv(tmp_path / "log.csv", columns), write_parquet(tmp_path / "log.parquet", columns)):
        dataset = load_dataset(source, columns=mapped)
        assert dataset.observation_names == ("speed", r"grüße\x1b[2J")  # a terminal must not obey a name
        assert dataset.action_names == ("pedal",)
    assert dataset.with_starts([3]).observation_names == dataset.observation_names
    write_hdf5(dataset, tmp_path / "log.hdf5")
    write_minari(dataset, "named-v0")
    for again in (load_dataset(tmp_path / "log.hdf5"), load_dataset("minari:named-v0")):
        assert (again.observation_names, again.action_names) == (dataset.observation_names, dataset.action_names)
    write_hdf5(load_dataset(log), tmp_path / "nameless.hdf5")
    assert load_dataset(tmp_path / "nameless.hdf5").observation_names is None


def test_names_may_stand_beside_the_arrays_of_a_dictionary_or_an_npz_file(tmp_path: Path) -> None:
    log = small_log()
    for names in (["angle", "speed"], np.array(["angle", "speed"]), np.array([b"angle", b"speed"])):
        named: dict[str, Any] = log | {"observation_names": names, "action_names": ["torque"]}
        np.savez(tmp_path / "log.npz", **named)
        for source in (named, tmp_path / "log.npz"):
            dataset = load_dataset(source)
            assert dataset.observation_names == ("angle", "speed")
            assert dataset.action_names == ("torque",)
            assert not any("not used" in note.text for note in dataset.notes)
            assert_same(dataset, load_dataset(log))
    for odd, message in (
        (["angle"], r"expected 2 names, one for each component, found \('angle',\)"),
        ([1, 2], "expected texts, found an array of type int64"),
    ):
        with pytest.raises(DataError, match=f"field 'observation_names': {message}"):
            load_dataset(log | {"observation_names": odd})


def test_columns_of_a_dictionary_are_a_table() -> None:
    log = small_log()
    trips = np.repeat(np.array(["a", "b", "c"], dtype=object), 8)
    columns: dict[str, Any] = {
        "angle": log["observations"][:, 0],
        "speed": list(log["observations"][:, 1]),
        "torque": log["actions"][:, 0],
        "gain": log["rewards"],
        "trip": trips,
        "colour": trips,
    }
    mapped = "observations=angle,speed actions=torque rewards=gain episode=trip"
    dataset = load_dataset(columns, columns=mapped)
    assert (dataset.observation_names, dataset.action_names) == (("angle", "speed"), ("torque",))
    fields = {name: log[name] for name in ("observations", "actions", "rewards")}
    assert_same(dataset, load_dataset(fields | {"episode": trips.astype(str)}))
    assert any("Fields that are not used: 'colour'" in note.text for note in dataset.notes)
    for change, message in (
        ({"speed": [0.0]}, "field 'observations': expected columns of equal length, found"),
        (
            {"trip": np.where(np.arange(24) == 5, None, trips)},
            "field 'episode', row 5: expected an id in every row, found none",
        ),
        ({"gain": trips}, "field 'rewards': expected numbers, found an array of type object"),
    ):
        with pytest.raises(DataError, match=message):
            load_dataset(columns | change, columns=mapped)
    with pytest.raises(DataError, match="expected a column 'speed', found only"):
        load_dataset({"angle": [0.0, 1.0]}, columns=mapped)


def test_notes_survive_in_our_own_files_and_say_where_they_come_from(tmp_path: Path) -> None:
    log = {name: small_log()[name] for name in ("observations", "actions", "rewards", "terminations")}
    dataset = load_dataset(log | {"goal": np.zeros(3)})
    assert {note.kind for note in dataset.notes} == {"fact", "decision", "problem"}
    write_hdf5(dataset, tmp_path / "log.hdf5")
    write_minari(dataset, "noted-v0")
    expected = [(note.kind, f"In the original log: {note.text}") for note in dataset.notes]
    for source in (tmp_path / "log.hdf5", "minari:noted-v0"):
        again = load_dataset(source)
        assert [(note.kind, note.text) for note in again.notes] == expected
        write_hdf5(again, tmp_path / "again.hdf5", overwrite=True)
        assert load_dataset(tmp_path / "again.hdf5").notes == again.notes


def test_damaged_notes_are_shown_and_never_obeyed(tmp_path: Path) -> None:
    lines = [b"decision: clear \x1b[2J the screen", b"joke: ha", b"\xff\xfe", b"", b"problem: " + b"x" * 9000] + [
        b"fact: y"
    ] * 500
    own = {"bats/version": np.int64(1), "bats/notes": np.array(lines)}
    notes = load_dataset(write_arrays(tmp_path / "log.hdf5", small_log() | own)).notes
    assert [note.kind for note in notes[:5]] == ["decision", "fact", "fact", "fact", "problem"]
    assert notes[0].text == "In the original log: clear \\x1b[2J the screen"
    assert notes[1].text == "In the original log: joke: ha"
    assert len(notes) == 100
    assert all(note.text.isprintable() and len(note.text) < 2100 for note in notes)


def test_our_hdf5_is_a_d4rl_file(tmp_path: Path) -> None:
    log = small_log(dtype=np.float32)
    write_hdf5(load_dataset(log), tmp_path / "log.hdf5")
    with h5py.File(tmp_path / "log.hdf5") as file:
        assert file["observations"].dtype == np.float32
        np.testing.assert_array_equal(file["next_observations"][:], log["next_observations"])
        np.testing.assert_array_equal(file["terminals"][:], log["terminations"])
        np.testing.assert_array_equal(file["timeouts"][:], log["timeouts"])


def test_all_formats_of_one_log_are_equal(tmp_path: Path) -> None:
    log = small_log()
    reference = load_dataset(log)
    columns = as_columns(log)
    np.savez(tmp_path / "plain.npz", **log)
    np.savez_compressed(tmp_path / "packed.npz", **{name: np.asfortranarray(values) for name, values in log.items()})
    sources = [
        write_arrays(tmp_path / "log.hdf5", log),
        write_csv(tmp_path / "log.csv", columns),
        write_parquet(tmp_path / "log.parquet", columns),
        *(tmp_path / "plain.npz", tmp_path / "packed.npz"),
    ]
    for source in sources:
        assert_same(load_dataset(source), reference)
        assert load_dataset(str(source)).name == str(source)


def test_d4rl_names_and_ours_are_the_same() -> None:
    log = small_log()
    renamed = {"terminations": "terminals", "timeouts": "truncations"}
    assert_same(load_dataset({renamed.get(name, name): values for name, values in log.items()}), load_dataset(log))


def test_fields_not_used_are_noted(tmp_path: Path) -> None:
    log = small_log()
    extra = {"infos/goal": np.zeros((24, 2)), "infos/qpos": np.zeros(3), "metadata/policy/weight": np.zeros((2, 2))}
    dataset = load_dataset(write_arrays(tmp_path / "log.hdf5", log | extra))
    assert_same(dataset, load_dataset(log))
    text = "Fields that are not used: 'infos/goal', 'infos/qpos', 'metadata/policy/weight'."
    assert text in [note.text for note in dataset.notes]
    in_memory = load_dataset(log | {"goal": np.zeros(3)})
    assert "Fields that are not used: 'goal'." in [note.text for note in in_memory.notes]


def test_very_long_names_are_cut_and_very_many_are_counted() -> None:
    dataset = load_dataset(small_log() | {"x" * 10**6: np.zeros(3)} | {f"y{index}": np.zeros(3) for index in range(99)})
    (text,) = (note.text for note in dataset.notes if note.text.startswith("Fields that are not used"))
    assert len(text) < 1000
    assert text.endswith(" and 70 more.")


def test_a_group_of_someone_elses_called_bats_is_only_noted(tmp_path: Path) -> None:
    log = small_log()
    dataset = load_dataset(write_arrays(tmp_path / "log.hdf5", log | {"bats/starts": np.arange(3)}))
    assert_same(dataset, load_dataset(log))
    assert "Fields that are not used: 'bats/starts'." in [note.text for note in dataset.notes]


def test_big_endian_halves_and_odd_true_bytes_are_understood(tmp_path: Path) -> None:
    log = small_log() | {"rewards": np.arange(24, dtype=np.float16)}
    other = log | {"observations": log["observations"].astype(">f8")}
    other["terminations"] = np.where(log["terminations"], 7, 0).astype(np.uint8).view(bool)
    np.savez(tmp_path / "log.npz", **other)
    assert_same(load_dataset(write_arrays(tmp_path / "log.hdf5", other)), load_dataset(log))
    assert_same(load_dataset(tmp_path / "log.npz"), load_dataset(log))


def test_large_files_are_read_in_parts_that_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bats.data.formats import csv, hdf5, npz, parquet

    monkeypatch.setattr(hdf5, "BLOCK_BYTES", 64)
    monkeypatch.setattr(npz, "BLOCK_BYTES", 50)
    monkeypatch.setattr(csv, "BLOCK_CHARACTERS", 200)
    monkeypatch.setattr(parquet, "BATCH_ROWS", 7)
    log = small_log()
    sources = [tmp_path / "log.hdf5", tmp_path / "packed.hdf5", tmp_path / "log.npz"]
    write_arrays(sources[0], log)
    with h5py.File(sources[1], "w") as file:
        for name, values in log.items():
            file.create_dataset(name, data=values, compression="gzip", chunks=(5, *values.shape[1:]))
    np.savez(sources[2], **log)
    sources.append(write_csv(tmp_path / "log.csv", as_columns(log)))
    sources.append(write_parquet(tmp_path / "log.parquet", as_columns(log)))
    for source in sources:
        steps: list[tuple[str, int, int]] = []
        dataset = load_dataset(source, progress=lambda *step, steps=steps: steps.append(step))
        assert_same(dataset, load_dataset(log))
        assert len(steps) > 3
        assert steps[-1][0].startswith(f"reading {source.name}")
        assert steps[-1][1] == steps[-1][2] >= 24
        assert all(0 < done <= total for _, done, total in steps[3:])


class TestColumns:
    """Tables whose columns are named by the user, or recognised."""

    def test_a_map_is_read_from_one_line(self) -> None:
        columns = ColumnMap.parse("observations=x,y actions=u rewards=r episode=ep")
        assert columns == ColumnMap(("x", "y"), ("u",), "r", episode="ep")

    def test_names_with_spaces_and_commas_stand_in_quotes(self) -> None:
        text = """observations='Pos X',"Pos, Y",driver's  actions=u rewards="r" terminals=d truncations='' """
        columns = ColumnMap.parse(text)
        assert columns == ColumnMap(("Pos X", "Pos, Y", "driver's"), ("u",), "r", terminations="d", timeouts="")

    def test_a_map_may_be_a_text_or_a_dictionary(self, tmp_path: Path) -> None:
        log = small_log()
        columns = {"Pos X": log["observations"][:, 0], "Pos Y": log["observations"][:, 1], "u": log["actions"][:, 0]}
        source = write_csv(tmp_path / "log.csv", columns | {"r": log["rewards"], "over": log["terminations"]})
        mapped = ColumnMap(("Pos X", "Pos Y"), ("u",), "r", terminations="over")
        expected = load_dataset(source, columns=mapped)
        text = "observations='Pos X','Pos Y' actions=u rewards=r terminals=over"
        assert_same(load_dataset(source, columns=text), expected)
        by_field = {"observations": ["Pos X", "Pos Y"], "actions": "u", "rewards": ("r",), "terminals": "over"}
        assert_same(load_dataset(source, columns=by_field), expected)

    def test_columns_are_recognised_by_number_not_by_letter(self) -> None:
        names = [f"observations_{index}" for index in (10, 2, 0, 1)] + ["actions", "rewards", "terminals"]
        columns = ColumnMap.recognise(names)
        assert columns.observations == tuple(f"observations_{index}" for index in (0, 1, 2, 10))
        assert (columns.actions, columns.terminations, columns.timeouts) == (("actions",), "terminals", None)

    @pytest.mark.parametrize("suffix", ["csv", "parquet"])
    def test_own_names_and_text_ids(self, tmp_path: Path, suffix: str) -> None:
        log = small_log()
        columns = {"note": np.full(24, "hm, so"), "x": log["observations"][:, 0], "y": log["observations"][:, 1]}
        columns |= {"u": log["actions"][:, 0], "r": log["rewards"], "over": log["terminations"]}
        columns["run"] = np.array([f"run {7 - row // 8}" for row in range(24)])
        write = write_csv if suffix == "csv" else write_parquet
        source = write(tmp_path / f"log.{suffix}", columns)
        mapped = ColumnMap.parse("observations=x,y actions=u rewards=r terminations=over episode=run")
        dataset = load_dataset(source, columns=mapped)
        ids = np.repeat([7, 6, 5], 8)
        same = {name: log[name] for name in ("observations", "actions", "rewards", "terminations")} | {"episode": ids}
        assert_same(dataset, load_dataset(same))
        assert np.flatnonzero(dataset.episode_ends).tolist() == [7, 14, 21]
        assert "Fields that are not used: 'note'." in [note.text for note in dataset.notes]

    def test_csv_may_have_words_quotes_blank_lines_and_a_mark_in_front(self, tmp_path: Path) -> None:
        rows = [
            '"observations","actions",rewards,terminations',
            "0.5,1,0,False",
            "",
            '"1.5",0,1e0,FALSE',
            "2.5,2,3,true",
        ]
        (tmp_path / "log.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(rows).encode() + b"\r\n\r\n")
        dataset = load_dataset(tmp_path / "log.csv", timeout_rule="ignore")
        assert dataset.observations[:, 0].tolist() == [0.5, 1.5, 2.5]
        assert (dataset.actions.tolist(), dataset.action_count) == ([1, 0, 2], 3)
        assert dataset.terminations.tolist() == [False, False, True]

    def test_whole_numbers_in_csv_are_discrete_unless_said_otherwise(self, tmp_path: Path) -> None:
        columns = {"observations": np.arange(6.0), "actions": np.arange(6) % 2, "rewards": np.zeros(6)}
        source = write_csv(tmp_path / "log.csv", columns)
        assert load_dataset(source).action_count == 2
        assert load_dataset(source, discrete=False).actions.shape == (5, 1)
        texts = [note.text for note in load_dataset(source).notes if "integers" in note.text]
        assert len(texts) == 1
        assert "--actions continuous" in texts[0]
        assert not any("integers" in note.text for note in load_dataset(source, discrete=False).notes)
        columns["actions"] = np.array([0.0, 1, 0, 1, 0, 1])
        assert load_dataset(write_csv(tmp_path / "points.csv", columns)).action_count is None

    @pytest.mark.parametrize(("row", "value"), [(17, "-1"), (17, "0.5"), (0, "-1"), (1, "0.5")])
    def test_one_action_that_is_no_index_is_noted(self, tmp_path: Path, row: int, value: str) -> None:
        lines = [f"{row},{row % 3},0" for row in range(40)]
        lines[row] = f"{row},{value},0"
        (tmp_path / "log.csv").write_text("\n".join(["observations,actions,rewards", *lines]))
        dataset = load_dataset(tmp_path / "log.csv")
        assert dataset.action_count is None
        texts = [note.text for note in dataset.notes if note.kind == "decision" and "integers" in note.text]
        assert len(texts) == 1
        assert f"except in 1 row (first: row {row}, value {value}, line {row + 2})" in texts[0]
        assert "--actions discrete (discrete=True)" in texts[0]
        with pytest.raises(
            DataError, match=rf"field 'actions', row {row}: expected a non-negative integer, found {value}"
        ):
            load_dataset(tmp_path / "log.csv", discrete=True)

    def test_actions_that_could_be_indices_but_for_their_type_are_noted(self, tmp_path: Path) -> None:
        log = {"observations": np.arange(40.0), "rewards": np.zeros(40), "actions": np.arange(40) % 3 * 1.0}
        odd = np.where(np.arange(40) == 7, 1.5, log["actions"])
        whole = "Actions are whole numbers, but not of an integer type, so they are read as continuous."
        for actions, line, expected in (
            (log["actions"], ", line 9", whole),
            (odd, ", line 9", "except in 1 row (first: row 7, value 1.5{line}), so all are read as continuous."),
        ):
            changed = log | {"actions": actions}
            sources: list[Any] = [changed, write_csv(tmp_path / "log.csv", changed)]
            sources += [write_arrays(tmp_path / "log.hdf5", changed), tmp_path / "log.npz"]
            np.savez(tmp_path / "log.npz", **changed)
            for source in sources:
                dataset = load_dataset(source)
                assert dataset.action_count is None
                place = line if str(source).endswith("csv") else ""
                (text,) = (note.text for note in dataset.notes if note.text.startswith("Actions"))
                assert expected.format(line=place) in text
                assert "--actions discrete" in text
                assert not any(note.text.startswith("Actions") for note in load_dataset(source, discrete=False).notes)
        # what was decided when a file of this package was written is not decided again
        write_hdf5(load_dataset(log), tmp_path / "own.hdf5")
        assert not any(note.text.startswith("Actions") for note in load_dataset(tmp_path / "own.hdf5").notes)
        for varied in (np.linspace(0, 2, 40), np.zeros(40), -log["actions"]):
            assert not any(note.text.startswith("Actions") for note in load_dataset(log | {"actions": varied}).notes)

    def test_actions_that_are_numbers_and_begin_with_a_whole_one_are_not_noted(self, tmp_path: Path) -> None:
        (tmp_path / "log.csv").write_text("observations,actions,rewards\n0,0,0\n1,0.25,0\n2,-0.5,0\n3,0.1,0\n")
        assert not any("integers" in note.text for note in load_dataset(tmp_path / "log.csv").notes)

    def test_list_columns_are_vectors(self, tmp_path: Path) -> None:
        import pyarrow

        log = small_log()
        columns = {
            "observation.state": pyarrow.array(log["observations"].tolist()),
            "action": pyarrow.array(log["actions"].tolist(), pyarrow.list_(pyarrow.float64(), 1)),
            "next.reward": log["rewards"],
            "episode_index": np.arange(24) // 8,
        }
        source = write_parquet(tmp_path / "log.parquet", columns)
        mapped = ColumnMap.parse(
            "observations=observation.state actions=action rewards=next.reward episode=episode_index"
        )
        same = {name: log[name] for name in ("observations", "actions", "rewards")} | {"episode": np.arange(24) // 8}
        dataset = load_dataset(source, columns=mapped)
        assert_same(dataset, load_dataset(same))
        assert dataset.observation_names == ("observation.state[0]", "observation.state[1]")
        assert dataset.action_names == ("action",)

    @pytest.mark.parametrize("suffix", ["csv", "parquet"])
    def test_a_table_of_very_many_columns_is_read_in_linear_time(self, tmp_path: Path, suffix: str) -> None:
        columns = {f"observations_{index}": np.arange(4.0) for index in range(20_000)}
        columns |= {"actions": np.full(4, 0.5), "rewards": np.arange(4.0)}
        source = (write_csv if suffix == "csv" else write_parquet)(tmp_path / f"log.{suffix}", columns)
        code = f"""
import time, bats
bats.validate(bats.load_dataset({{"observations": [0.0] * 4, "actions": [0.0] * 4, "rewards": [0.0] * 4}}))
began = time.perf_counter()
print(bats.validate(bats.load_dataset({str(source)!r})).facts["observations"], "in", time.perf_counter() - began)
"""
        # in a process of its own, where no shapes are checked
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        facts, seconds = ended.stdout.split(" in ")
        assert facts == "20,000 components (float64)"
        assert float(seconds) < 5  # it takes one; with a search through all names for each name, ten to twenty


class TestEpisodeIds:
    def test_an_id_ends_an_episode_even_where_the_states_go_on(self) -> None:
        states = np.arange(7.0)[:, None]
        log = {"observations": states[:-1], "next_observations": states[1:], "actions": np.zeros((6, 1))}
        log |= {"rewards": np.zeros(6), "episode": np.array([4, 4, 9, 9, 9, 1])}
        assert np.flatnonzero(load_dataset(log).episode_ends).tolist() == [1, 4, 5]
        for rule in ("trust", "ignore"):  # timeouts are not what it rests on
            assert np.flatnonzero(load_dataset(log, timeout_rule=rule).episode_ends).tolist() == [1, 4, 5]

    def test_an_id_outranks_timeouts(self) -> None:
        log = small_log() | {"episode": np.arange(24) // 8, "timeouts": np.arange(24) % 3 == 0}
        dataset = load_dataset(log)
        assert np.flatnonzero(dataset.episode_ends).tolist() == [7, 15, 23]
        assert [note.text for note in dataset.notes] == [
            "3 episode ids: each episode ends where the id changes.",
            "Timeouts are ignored, because the episode ids say where episodes end.",
        ]

    @pytest.mark.parametrize("with_next", [True, False])
    def test_ids_are_never_reported_as_timeouts_or_guesses(self, with_next: bool) -> None:
        log = small_log() | {"episode": np.arange(24) // 8, "terminations": np.arange(24) % 8 == 7}
        del log["timeouts"]
        if not with_next:
            del log["next_observations"]
        dataset = load_dataset(log)
        assert np.flatnonzero(dataset.episode_ends).tolist() == [7, 15, 23]
        assert not any(word in note.text for note in dataset.notes for word in ("timeout", "guess"))

    def test_an_id_that_comes_back_is_a_problem(self) -> None:
        log = small_log() | {"episode": np.arange(24) // 8 % 2}
        text = "Episode ids reappear 1 time after a different id; are the rows in order?"
        assert text in [note.text for note in load_dataset(log).notes if note.kind == "problem"]


class TestMinari:
    """Compared with Minari's own writer and loader."""

    @staticmethod
    def write_theirs(name: str, observations: object, space: object, *, first: int = 0) -> None:
        import gymnasium
        import minari

        def piece(values: object, rows: slice) -> object:
            if isinstance(values, dict):
                return {key: piece(inner, rows) for key, inner in values.items()}
            if isinstance(values, tuple):
                return tuple(piece(inner, rows) for inner in values)
            return values[rows]

        episodes = [
            minari.data_collector.EpisodeBuffer(
                id=number,
                observations=piece(observations, slice(start, start + 5)),
                actions=np.arange(4) % 3 + first,
                rewards=np.arange(4.0) + start,
                terminations=np.array([False, False, False, number == 0]),
                truncations=np.array([False, False, False, number == 1]),
                infos={"speed": np.zeros(5)},
            )
            for number, start in enumerate((0, 5, 10))
        ]
        with pytest.warns(UserWarning, match="is set to None|env_spec is None"):
            minari.create_dataset_from_buffers(
                name, episodes, observation_space=space, action_space=gymnasium.spaces.Discrete(3, start=first)
            )

    def test_dictionaries_are_laid_side_by_side_in_sorted_order(self) -> None:
        import minari
        from gymnasium.spaces import Box, Dict

        rng = np.random.default_rng(0)
        space = Dict({"velocity": Box(-9, 9, (3,)), "goal": Box(-9, 9, (2,)), "more": Dict({"x": Box(-9, 9, (1,))})})
        parts = {"velocity": rng.random((15, 3)), "goal": rng.random((15, 2)), "more": {"x": rng.random((15, 1))}}
        self.write_theirs("their/own-v0", parts, space)
        dataset = load_dataset("minari:their/own-v0")
        theirs = list(minari.load_dataset("their/own-v0").iterate_episodes())
        for number, episode in enumerate(theirs):
            seen = episode.observations
            flat = np.concatenate([seen["goal"], seen["more"]["x"], seen["velocity"]], axis=1)
            rows = slice(4 * number, 4 * number + 4)
            np.testing.assert_array_equal(dataset.observations[rows], flat[:-1])
            np.testing.assert_array_equal(dataset.next_observations[rows], flat[1:])
            np.testing.assert_array_equal(dataset.actions[rows], episode.actions)
            np.testing.assert_array_equal(dataset.rewards[rows], episode.rewards)
        assert np.flatnonzero(dataset.episode_ends).tolist() == [3, 7, 11]
        assert np.flatnonzero(dataset.terminations).tolist() == [3]
        texts = [note.text for note in dataset.notes]
        assert "observations consist of several parts, in this order: goal (2), more/x (1), velocity (3)." in texts
        assert "Fields that are not used: 'infos/speed'." in texts
        assert "1 episode had no flag at the end; a timeout was assumed." in texts
        velocity = ("velocity[0]", "velocity[1]", "velocity[2]")
        assert dataset.observation_names == ("goal[0]", "goal[1]", "more/x", *velocity)
        assert dataset.action_names is None

    def test_tuples_and_actions_that_do_not_begin_at_zero(self, minari_folder: Path) -> None:
        from gymnasium.spaces import Box, Tuple

        parts = tuple(np.full((15, 1), float(index)) for index in range(11))
        self.write_theirs("numbered-v3", parts, Tuple([Box(-99, 99, (1,))] * 11), first=1)
        dataset = load_dataset(minari_folder / "numbered-v3")
        assert dataset.observations[0].tolist() == list(range(11))
        assert (dataset.actions[:4].tolist(), dataset.action_count) == ([0, 1, 2, 0], 3)
        assert_same(load_dataset(minari_folder / "numbered-v3" / "data"), dataset)

    def test_rows_that_do_not_follow_one_another_become_episodes(self) -> None:
        from dataclasses import replace

        log = load_dataset(small_log())
        gap = replace(log, episode_ends=np.zeros(24, dtype=bool))  # by hand: our own checks would not let it pass
        write_minari(gap, "gap-v0")
        np.testing.assert_array_equal(load_dataset("minari:gap-v0").episode_ends, log.episode_ends)
        np.testing.assert_array_equal(load_dataset("minari:gap-v0").next_observations, log.next_observations)

    def test_an_existing_data_set_is_refused_and_untouched(self, minari_folder: Path) -> None:
        dataset = load_dataset(small_log())
        write_minari(dataset, "once-v0", author="someone", description="a log")
        before = folder_bytes(minari_folder)
        with pytest.raises(OutputError, match=r"once-v0 exists already; choose another name or version"):
            write_minari(dataset, "once-v0")
        assert folder_bytes(minari_folder) == before

    @pytest.mark.parametrize("name", ["noversion", "../up-v0", "", "a b-v0", "x/y-v0", "/root-v0", "ok/-v"])
    def test_names_that_minari_could_not_load_are_refused(self, name: str, minari_folder: Path) -> None:
        with pytest.raises(OutputError, match="is not a valid Minari name"):
            write_minari(load_dataset(small_log()), name)
        assert not minari_folder.exists()

    def test_a_disk_too_full_is_refused_at_once(self, minari_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = shutil.disk_usage("/")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        with pytest.raises(
            OutputError, match=r"full-v0 may need 12\d,\d{3} bytes, but the disk has only 1,000 free bytes"
        ):
            write_minari(load_dataset(small_log()), "full-v0")
        assert folder_bytes(minari_folder) == {}

    def test_a_failure_half_way_leaves_nothing(self, minari_folder: Path) -> None:
        def full_disk(stage: str, done: int, total: int) -> None:
            if done:
                raise OSError(28, "No space left on device")

        with pytest.raises(OutputError, match=r"half-v0 could not be written: .*No space left on device"):
            write_minari(load_dataset(small_log()), "some/half-v0", progress=full_disk)
        assert folder_bytes(minari_folder) == {}


def test_a_failure_half_way_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(handle: int) -> None:
        raise OSError(28, "No space left on device")

    dataset = load_dataset(small_log())
    write_hdf5(dataset, tmp_path / "log.hdf5")
    before = folder_bytes(tmp_path)
    with pytest.raises(OutputError, match=r"log.hdf5 exists already"):
        write_hdf5(dataset, tmp_path / "log.hdf5")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OutputError, match=r"log.hdf5 could not be written: No space left on device"):
        write_hdf5(dataset, tmp_path / "log.hdf5", overwrite=True)
    assert folder_bytes(tmp_path) == before


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_a_disk_that_runs_full_leaves_the_old_file(tmp_path: Path) -> None:
    """In a process of its own: the HDF5 library would take the whole process down, if it ever saw the full disk."""
    write_hdf5(load_dataset(small_log()), tmp_path / "log.hdf5")
    before = folder_bytes(tmp_path)
    code = f"""
import resource, signal, bats
dataset = bats.load_dataset({str(tmp_path / "log.hdf5")!r})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
try:
    bats.write_hdf5(dataset, {str(tmp_path / "log.hdf5")!r}, overwrite=True)
except bats.BatsError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip().endswith("log.hdf5 could not be written: File too large.")
    assert folder_bytes(tmp_path) == before


def test_values_in_other_files_are_never_fetched(tmp_path: Path) -> None:
    log = small_log()
    secret = write_arrays(tmp_path / "secret.hdf5", log)
    with h5py.File(tmp_path / "links.hdf5", "w") as file:
        for name, values in log.items():
            if name != "timeouts":
                file[name] = values
        file["timeouts"] = h5py.ExternalLink(str(secret), "timeouts")
        file["elsewhere"] = h5py.SoftLink("/timeouts")
        file.create_group("round")["again"] = file["/"]
    dataset = load_dataset(tmp_path / "links.hdf5")
    texts = [note.text for note in dataset.notes]
    assert "'timeouts' was not used: it is a link, and links are not followed." in texts
    assert "Fields that are not used: 'elsewhere'." in texts

    with h5py.File(tmp_path / "virtual.hdf5", "w") as file:
        for name, values in log.items():
            if name != "rewards":
                file[name] = values
        layout = h5py.VirtualLayout((24,), np.float64)
        layout[:] = h5py.VirtualSource(str(secret), "rewards", (24,))
        file.create_virtual_dataset("rewards", layout)
    (tmp_path / "raw.bin").write_bytes(log["rewards"].tobytes())
    with h5py.File(tmp_path / "external.hdf5", "w") as file:
        for name, values in log.items():
            if name != "rewards":
                file[name] = values
        file.create_dataset("rewards", (24,), np.float64, external=[(str(tmp_path / "raw.bin"), 0, 192)])
    for name in ("virtual.hdf5", "external.hdf5"):
        message = "field 'rewards': expected values in this file, found values stored in other files"
        with pytest.raises(DataError, match=message):
            load_dataset(tmp_path / name)


def test_missing_extras_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_parquet(tmp_path / "log.parquet", as_columns(small_log()))
    dataset = load_dataset(source)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(BatsError, match=r"pip install 'bats-rl\[parquet\]'"):
        load_dataset(source)
    with pytest.raises(BatsError, match=r"needs minari .*: pip install 'bats-rl\[minari\]'$"):
        write_minari(dataset, "log-v0")


def test_what_minari_itself_lacks_is_named(minari_folder: Path) -> None:
    """In a process of its own: Minari looks for what its storage needs once, when the first is made."""
    code = """
import sys, numpy, bats
dataset = bats.load_dataset({"observations": numpy.zeros(3), "actions": numpy.zeros(3), "rewards": numpy.zeros(3)})
sys.modules["PIL"] = None
try:
    bats.write_minari(dataset, "log-v0")
except bats.BatsError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("Writing Minari data sets needs PIL ")
    assert ended.stdout.strip().endswith("pip install 'bats-rl[minari]' pillow")
    assert folder_bytes(minari_folder) == {}


def test_reading_imports_neither_pyarrow_nor_minari(tmp_path: Path) -> None:
    source = write_arrays(tmp_path / "log.hdf5", small_log())
    code = f"import sys, bats; bats.load_dataset({str(source)!r})"
    code += "; print({'pyarrow', 'minari'} & {*sys.modules})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


@pytest.mark.parametrize("user_block", [0, 512])
@pytest.mark.parametrize("size", ["chunks", "incompressible"])
@pytest.mark.parametrize(
    "packing",
    [
        {"compression": "gzip"},
        {"compression": "gzip", "shuffle": True, "fletcher32": True},
        {"compression": "lzf"},
        {"compression": "lzf", "shuffle": True, "fletcher32": True},
        {"shuffle": True},
        {"fletcher32": True},
    ],
    ids=lambda packing: "+".join(map(str, packing.values())),
)
def test_hdf5_with_every_compression_is_read(
    packing: dict[str, Any], size: str, user_block: int, tmp_path: Path
) -> None:
    log = small_log(400)
    if size == "chunks":
        log["observations"] = np.round(log["observations"])
    with h5py.File(tmp_path / "log.hdf5", "w", userblock_size=user_block) as file:
        for name, values in log.items():
            file.create_dataset(name, data=values, chunks=(150, *values.shape[1:]), **packing)
    assert_same(load_dataset(tmp_path / "log.hdf5"), load_dataset(log))
