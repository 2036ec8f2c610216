"""`validate` on logs whose faults were put there on purpose."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from bats.cli.main import main
from bats.data.checks import validate
from bats.data.dataset import Dataset
from bats.errors import DataError
from bats.graph.solve import logged_value


def log(rows: list[tuple[float, float, float, float]], **fields: object) -> Dataset:
    """A log of (state, action, reward, next state) rows."""
    table = np.array(rows, dtype=np.float64)
    return Dataset.from_arrays(table[:, :1], table[:, 1:2], table[:, 2], next_observations=table[:, 3:4], **fields)


def notes_of(dataset: Dataset, kind: str) -> str:
    return " ".join(note.text for note in validate(dataset).notes if note.kind == kind)


def test_the_table_counts_what_is_there() -> None:
    rows = [(0, 0.5, 1, 1), (1, -0.5, 0, 2), (7, 0, 3, 8), (8, 0, 0, 0)]
    facts = validate(log(rows, terminations=[False, False, False, True])).facts
    assert facts["rows"] == "4"
    assert facts["episodes"] == "2, each of 2 to 2 rows (median 2)"
    assert facts["terminations"] == "1; 1 truncated episode"
    assert facts["observations"] == "1 component (float64)"
    assert facts["rewards"] == "0 to 3, mean 1, 50.0% not zero"
    assert facts["distinct states"] == "5; 1 of them have no logged action"
    assert facts["start states"] == "2 distinct, in 2 rows"


def test_discrete_actions_are_declared_with_how_many_are_used() -> None:
    data = Dataset.from_arrays([[0.0], [1.0], [2.0]], [0, 2, 2], [0.0, 0.0, 1.0], action_count=4)
    assert validate(data).facts["actions"] == "discrete: 4 actions, 2 of them used"
    assert [column.name for column in validate(data).columns] == ["observation 0"]


def test_actions_that_occur_once_are_named() -> None:
    actions = [0, 1, 0, 1, 4, 2]
    data = Dataset.from_arrays(np.arange(6.0), actions, np.arange(6.0), next_observations=np.arange(1, 7.0))
    assert "Actions that occur in only one row, so little is known about them: 2, 4." in notes_of(data, "fact")
    assert "only one row, so" not in notes_of(log([(0, 0, 0, 1), (1, 1, 1, 2)]), "fact")


def test_an_action_index_far_beyond_the_others_is_named_with_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    lines = ["observations,actions,rewards", *(f"{row},{row % 3},0" for row in range(80))]
    file = tmp_path / "log.csv"
    for index, code in ((700, 0), (50_000, 2), (10**9, 2)):
        lines[18] = f"17,{index},0"
        file.write_text("\n".join(lines))
        assert main(["validate", str(file), "--quiet"]) == code
        printed = " ".join(" ".join(capsys.readouterr()).split())
        refused = f"row 17: expected an action index below 1,000, found {index}"
        assert (refused if code else "the largest is in row 17") in printed


def test_ranges_and_constants() -> None:
    columns = validate(log([(0, 5, 1, 1), (1, 5, 0, 4)])).columns
    assert [(c.name, c.min, c.mean, c.max, c.constant) for c in columns] == [
        ("observation 0", 0, 0.5, 1, False),
        ("action 0", 5, 5, 5, True),
    ]
    assert "Components that are constant in the whole log: action 0." in notes_of(
        log([(0, 5, 1, 1), (1, 5, 0, 4)]), "fact"
    )


def test_an_outcome_that_differs_is_a_problem_and_an_equal_one_is_not() -> None:
    same = [(0, 1, 0, 1), (1, 1, 1, 0), (0, 1, 0, 1), (1, 1, 1, 0)]
    assert "2 state-action pairs occurred more than once; each had the same outcome" in notes_of(log(same), "fact")
    assert "Exact duplicates of another row: 2 rows." in notes_of(log(same), "fact")
    assert notes_of(log(same), "problem") == ""
    other = [*same, (0, 1, 0, 9)]
    assert "2 state-action pairs occurred more than once; 1 of them (50.0%) had different outcomes" in notes_of(
        log(other), "problem"
    )
    rewarded = [*same, (0, 1, 7, 1)]
    assert "1 transition occurred several times with different rewards" in notes_of(log(rewarded), "problem")
    fresh = [(0, 1, 0, 1), (1, 1, 1, 2)]
    assert "No state-action pair occurs twice" in notes_of(log(fresh), "fact")


def bits(number: int, dtype: str) -> np.generic:
    return np.array(number, dtype=dtype.replace("f", "u")).view(dtype)[()]


EXTREMES: dict[str, tuple[list[object], list[object]]] = {
    "f8": ([0.0, -0.0, 1.0, 1e30, -1e30, 1e-160, 5e-324], [1.7e308, np.inf, np.nan, bits(0x7FF0000000000001, "f8")]),
    "f4": ([0.0, 1.0, 1e30, -1e30, 1e-45, 1.2e-38], [3.4e38, -np.inf, np.nan, bits(0x7F800001, "f4")]),
    "f2": ([0.0, 1.0, 6e-8, 65504, -65504], [np.inf, -np.inf, np.nan, bits(0x7C01, "f2")]),
    "i8": ([0, 1, -1, 2**31, 2**63 - 1, -(2**63)], []),
    "u8": ([0, 1, 2**63, 2**64 - 1], []),
    "i1": ([0, 1, -128, 127], []),
}
"""for each type, numbers that a log may have and others; the last NaN of each complains when it is converted"""


def extreme(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """A few of the extreme numbers of a random type, again and again; mostly those that a log may have."""
    dtype = str(rng.choice([*EXTREMES]))
    allowed, refused = (np.array(numbers, dtype=dtype) for numbers in EXTREMES[dtype])
    numbers = allowed if rng.random() < 0.8 else np.append(allowed, refused)
    return rng.choice(rng.choice(numbers, size=3), size=shape)


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_extreme_numbers_give_a_finite_table_or_an_error_and_never_a_warning(first: int) -> None:
    """Warnings are errors in all tests."""
    read = 0
    for seed in range(first, first + 250):
        rng = np.random.default_rng(seed)
        rows = int(rng.integers(3, 12))
        fields = {"observations": extreme(rng, rows, 2), "rewards": extreme(rng, rows)}
        fields["actions"] = extreme(rng, rows) if rng.random() < 0.5 else extreme(rng, rows, 2)
        if rng.random() < 0.5:
            fields["next_observations"] = extreme(rng, rows, 2)
        if rng.random() < 0.5:
            fields["timeouts"] = rng.random(rows) < 0.3
        with suppress(DataError):
            data = Dataset.from_arrays(**fields, discrete=[None, True, False][rng.integers(3)])
            columns = validate(data).columns
            assert all(np.isfinite([column.min, column.mean, column.max]).all() for column in columns)
            read += 1
            data.with_starts(np.arange(len(data)), extreme(rng, len(data))).with_rewards(extreme(rng, len(data)))
    assert read > 50


def test_numbers_that_overflow_in_a_narrow_type_are_refused_without_a_warning() -> None:
    halves = np.array([0.0, 1.0, np.inf], dtype=np.float16)
    with pytest.raises(DataError, match="field 'actions', row 2: expected finite numbers"):
        Dataset.from_arrays([[0.0], [1.0], [2.0]], halves, [0.0, 0.0, 1.0], discrete=True)
    data = Dataset.from_arrays([[0.0], [1.0], [2.0]], halves[:1].repeat(3), [0.0, 0.0, 1.0], discrete=True)
    with pytest.raises(DataError, match="field 'start_weights', row 0: expected finite numbers"):
        data.with_starts([0, 1], [1e308, 1e308])
    with pytest.raises(DataError, match="field 'start_weights': expected numbers, found an array of type <U1"):
        data.with_starts([0, 1], ["a", "b"])


def test_changes_too_small_to_divide_by_are_no_changes() -> None:
    states = np.zeros((40, 1), dtype=np.float32)
    states[1] = 1e-45
    assert Dataset.from_arrays(states, np.zeros((40, 1)), np.zeros(40)).episode_count == 1


def test_rows_out_of_order_show_as_episodes_of_one_row() -> None:
    shuffled = log([(4, 0, 0, 5), (1, 0, 1, 2), (3, 0, 0, 4), (0, 0, 0, 1)])
    assert "4 of 4 episodes had only a single row" in notes_of(shuffled, "problem")


def test_a_log_with_one_reward_only_is_a_problem() -> None:
    steady = [(0, 0, -1, 1), (1, 0, -1, 2)]
    assert "Every reward is -1 and no episode terminates" in notes_of(log(steady), "problem")
    assert "only the length of an episode matters" in notes_of(log(steady, terminations=[False, True]), "fact")


def test_the_decisions_of_the_reader_are_shown_too() -> None:
    data = Dataset.from_arrays([[0.0], [1.0], [2.0], [3.0]], [[0.0]] * 4, [0, 0, 1, 0], timeouts=[0, 1, 0, 0])
    assert "1 timeout: 1 did not end an episode, because the states continue" in notes_of(data, "decision")


def test_a_decision_that_collecting_reports_is_shown_by_validate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file = str(tmp_path / "maze.hdf5")
    assert main(["data", "collect", "maze2d-umaze", "--rows", "20000", "--out", file, "--quiet"]) == 0
    assert "1 decision made while reading the log; `bats-rl validate` shows" in capsys.readouterr().out
    assert main(["validate", file, "--quiet"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"decision: In the original log: [\d,]+ start states in \d+ cells", shown)


def test_the_logged_value_is_the_discounted_return_from_the_starts() -> None:
    # episodes (1, 2, 4) and (8): 1 + 2/2 + 4/4 = 3 and 8; from row 1: 2 + 4/2 = 4
    data = log([(0, 0, 1, 1), (1, 0, 2, 2), (2, 0, 4, 3), (9, 0, 8, 10)])
    assert logged_value(data, gamma=0.5, dead_end_value=0.0) == pytest.approx((3 + 8) / 2)
    weighted = data.with_starts([1, 3], weights=[3, 1])
    assert logged_value(weighted, gamma=0.5, dead_end_value=0.0) == pytest.approx((3 * 4 + 8) / 4)


def test_a_truncated_episode_continues_with_the_value_of_a_dead_end() -> None:
    # (1, 2) truncated and (8) terminated, a dead end of value 40: 1 + 2/2 + 40/4 = 12, and 8
    data = log([(0, 0, 1, 1), (1, 0, 2, 2), (9, 0, 8, 10)], terminations=[False, False, True])
    assert logged_value(data, gamma=0.5, dead_end_value=40.0) == pytest.approx((12 + 8) / 2)
