"""Rows in, Dataset out: the checks on entry and where episodes end, on logs small enough to follow by eye."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.data.dataset import Dataset
from bats.errors import DataError, printable


def chain(states: list[float]) -> np.ndarray:
    return np.array(states, dtype=np.float64)[:, None]


def make(states: list[float], **fields: object) -> Dataset:
    """A log of one-number states whose rewards and actions number its rows."""
    rows = len(states)
    return Dataset.from_arrays(chain(states), np.arange(rows)[:, None] + 0.5, np.arange(rows, dtype=float), **fields)


def transitions(data: Dataset) -> list[tuple[float, float, float]]:
    """(state, reward, next state) of every row; the reward is the number of the row in the log."""
    return list(zip(data.observations[:, 0], data.rewards, data.next_observations[:, 0], strict=True))


def text(data: Dataset) -> str:
    return " ".join(note.text for note in data.notes)


def test_without_next_states_the_following_row_is_the_next_state_and_the_last_row_is_lost() -> None:
    data = make([0, 1, 2, 3])
    assert transitions(data) == [(0, 0, 1), (1, 1, 2), (2, 2, 3)]
    assert data.episode_ends.tolist() == [False, False, True]
    assert data.starts.tolist() == [0]
    assert "1 row at the end of an episode had no logged next state and were left out" in text(data)


def test_timeouts_where_the_states_go_on_are_sub_goals_of_one_run_and_joined() -> None:
    states, flags = list(np.arange(8.0)), [False, False, True, False, True, False, False, False]
    auto = make(states, timeouts=flags)
    assert transitions(auto) == [(i, i, i + 1) for i in range(7)]
    assert auto.starts.tolist() == [0]
    assert "2 timeouts: 2 did not end an episode, because the states continue; 0 ended an episode." in text(auto)
    trusted = make(states, timeouts=flags, timeout_rule="trust")
    assert transitions(trusted) == [(0, 0, 1), (1, 1, 2), (3, 3, 4), (5, 5, 6), (6, 6, 7)]


def test_timeouts_before_a_jump_are_resets_and_one_that_lands_near_is_one_too() -> None:
    """Four resets; the one from 4 to 5 looks like a step, but the other flags show what flags mean in this log."""
    states = [0, 1, 2, 50, 51, 52, 2, 3, 4, 5, 6, 7, 90, 91, 92]
    flags = [state in (2, 52, 4, 7) and row not in (6,) for row, state in enumerate(states)]
    data = make([float(state) for state in states], timeouts=flags)
    assert (4.0, 5.0) not in {(state, after) for state, _, after in transitions(data)}
    assert data.episode_count == 5
    assert "4 timeouts: each ends an episode." in text(data)
    ignored = make([float(state) for state in states], timeouts=flags, timeout_rule="ignore")
    assert (52.0, 2.0) in {(state, after) for state, _, after in transitions(ignored)}


def test_where_states_repeat_a_flag_is_trusted_because_every_step_is_an_ordinary_one() -> None:
    """Two rooms with a wall between 2 and 3: joining the runs would walk through it."""
    data = make([0, 1, 2, 3, 4, 5] * 20, timeouts=[False, False, True, False, False, True] * 20)
    assert (2.0, 3.0) not in {(state, after) for state, _, after in transitions(data)}
    assert data.episode_count == 40
    assert "40 timeouts: each ends an episode." in text(data)


def test_a_jump_in_a_log_without_any_flags_is_reported_as_a_guess() -> None:
    states = [*np.arange(2000.0), *np.arange(2000.0)]
    data = make(states)
    assert data.episode_count == 2
    assert "the ends of episodes are guessed. 1 jump (more than" in text(data)
    assert [note.kind for note in data.notes].count("problem") == 1


def test_boundaries_are_found_however_short_the_episodes_are() -> None:
    """With one boundary in 200 rows, the longest steps of the log are the boundaries themselves."""
    states = [1000.0 * episode + state for episode in range(50) for state in range(200)]
    assert make(states).episode_count == 50
    none_flagged = make(states, timeouts=[False] * len(states))
    assert none_flagged.episode_count == 50
    assert "49 jumps (more than 3 times as long as the longest ordinary steps)" in text(none_flagged)


def test_where_the_last_row_is_flagged_too_flags_are_complete_and_a_long_step_ends_nothing() -> None:
    """Two episodes of 500 rows, each with a collision: a single step as long as a reset."""
    states = [1000.0 * (row >= 250) + row for row in range(500)] * 2
    flags = [row % 500 == 499 for row in range(1000)]
    assert make(states, timeouts=flags).episode_count == 2
    by_id = make(states, episode_ends=flags)
    assert by_id.episode_count == 2
    assert "The log marks no end of an episode at 2 unusually long steps." in text(by_id)
    # a log that was cut off may lack other flags as well
    cut = make(states[:-1], timeouts=flags[:-1])
    assert cut.episode_count == 4
    assert "Use `--timeouts trust` to end episodes only where a flag is." in text(cut)
    assert make(states[:-1], timeouts=flags[:-1], timeout_rule="trust").episode_count == 2


def test_flags_that_are_sub_goals_do_not_hide_resets() -> None:
    """A flag every 50 rows, the last row included, after which the states continue; three resets without a flag."""
    states = [100_000.0 * (row // 1260) + row for row in range(5000)]
    data = make(states, timeouts=[row % 50 == 49 for row in range(5000)])
    assert data.episode_count == 4
    assert "3 jumps" in text(data)


def test_a_switch_that_seldom_turns_is_no_boundary() -> None:
    rows = 20_000
    walk = np.random.default_rng(0).normal(size=(rows, 3)).cumsum(axis=0)
    switch = (np.arange(rows) // 2000 % 2)[:, None]
    data = Dataset.from_arrays(np.hstack([walk, switch]), np.zeros((rows, 1)), np.zeros(rows))
    assert data.episode_count == 1


def test_a_terminal_row_keeps_its_reward_though_its_next_state_was_never_logged() -> None:
    data = make([0, 1, 2, 50, 51], terminations=[False, False, True, False, False])
    assert transitions(data) == [(0, 0, 1), (1, 1, 2), (2, 2, 2), (50, 3, 51)]
    assert data.next_known.tolist() == [True, True, False, True]
    assert data.terminations.tolist() == [False, False, True, False]
    assert data.episode_ends.tolist() == [False, False, True, True]


def test_with_next_states_nothing_is_lost_and_an_episode_ends_where_they_do_not_continue() -> None:
    data = make([0, 1, 5, 6], next_observations=chain([1, 2, 6, 7]))
    assert transitions(data) == [(0, 0, 1), (1, 1, 2), (5, 2, 6), (6, 3, 7)]
    assert data.episode_ends.tolist() == [False, True, False, True]
    assert data.starts.tolist() == [0, 2]
    assert data.next_known.all()


def test_with_next_states_timeouts_that_all_continue_are_joined_unless_trusted() -> None:
    fields = {"next_observations": chain([1, 2, 3, 4]), "timeouts": [False, True, False, False]}
    assert make([0, 1, 2, 3], **fields).episode_ends.tolist() == [False, False, False, True]
    assert make([0, 1, 2, 3], **fields, timeout_rule="trust").episode_ends.tolist() == [False, True, False, True]


def test_with_next_states_timeouts_of_which_some_break_off_are_all_ends() -> None:
    """The second episode happens to begin where the first one ended; the last flag shows that flags are resets."""
    fields = {"next_observations": chain([1, 2, 3, 4]), "timeouts": [False, True, False, True]}
    assert make([0, 1, 2, 3], **fields).episode_ends.tolist() == [False, True, False, True]


def test_a_break_without_a_flag_is_reported_as_a_problem() -> None:
    data = make([0, 1, 5, 6], next_observations=chain([1, 2, 6, 7]), timeouts=[False, False, False, True])
    assert data.episode_ends.tolist() == [False, True, False, True]
    assert [note.kind for note in data.notes] == ["decision", "problem"]
    assert "1 row had a next state that differs from the state of the next row, but no flag" in text(data)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 60), st.integers(1, 5))
def test_dropping_next_states_loses_only_the_ends(seed: int, rows: int, episodes: int) -> None:
    """A log with its next states, and the same with timeouts instead, agree on all rows but those that end."""
    rng = np.random.default_rng(seed)
    walks = [1e3 * walk + rng.normal(size=(rows + 1, 2)).cumsum(axis=0) for walk in range(episodes)]
    states, after = np.concatenate([w[:-1] for w in walks]), np.concatenate([w[1:] for w in walks])
    flags = np.tile(np.arange(rows) == rows - 1, episodes)
    actions, rewards = rng.normal(size=(len(states), 1)), np.arange(len(states), dtype=float)
    whole = Dataset.from_arrays(states, actions, rewards, next_observations=after)
    bare = Dataset.from_arrays(states, actions, rewards, timeouts=flags, timeout_rule="trust")
    assert np.array_equal(whole.episode_ends, flags)
    assert np.array_equal(bare.rewards, whole.rewards[~flags])
    assert np.array_equal(bare.next_observations, whole.next_observations[~flags])
    assert bare.episode_count == whole.episode_count == episodes


def test_starts_are_rows_or_a_rule_with_equal_or_given_weights() -> None:
    data = make([0, 1, 2, 3, 4])
    assert data.with_starts(lambda states: states[:, 0] > 1).starts.tolist() == [2, 3]
    weighted = data.with_starts([0, 3], weights=[1, 3])
    assert weighted.start_weights.tolist() == [0.25, 0.75]
    assert data.with_starts([1, 2]).start_weights.tolist() == [0.5, 0.5]
    with pytest.raises(DataError, match="at least one start state, found none"):
        data.with_starts(lambda states: states[:, 0] > 99)
    with pytest.raises(DataError, match="row numbers from 0 to 3"):
        data.with_starts([0, 4])
    with pytest.raises(DataError, match="2 non-negative weights"):
        data.with_starts([0, 1], weights=[1, -1])


def test_integer_actions_are_discrete_unless_said_otherwise() -> None:
    states, rewards = chain([0, 1, 2]), [0.0, 0.0, 0.0]
    assert Dataset.from_arrays(states, [0, 2, 1], rewards).action_count == 3
    assert Dataset.from_arrays(states, [[0], [2], [1]], rewards, action_count=5).action_count == 5
    assert Dataset.from_arrays(states, [0, 2, 1], rewards, discrete=False).actions.tolist() == [[0.0], [2.0]]
    assert Dataset.from_arrays(states, [0.0, 2.0, 1.0], rewards, discrete=True).actions.tolist() == [0, 2]
    with pytest.raises(DataError, match=r"field 'actions', row 1: expected a non-negative integer, found 0\.5"):
        Dataset.from_arrays(states, [0.0, 0.5, 1.0], rewards, discrete=True)
    with pytest.raises(DataError, match="below 2, found 2"):
        Dataset.from_arrays(states, [0, 2, 1], rewards, action_count=2)
    with pytest.raises(DataError, match="one discrete action per row"):
        Dataset.from_arrays(states, np.zeros((3, 2), dtype=int), rewards, discrete=True)


def discrete_log(actions: np.ndarray, **fields: object) -> Dataset:
    return Dataset.from_arrays(np.arange(float(len(actions)))[:, None], actions, np.zeros(len(actions)), **fields)


@pytest.mark.parametrize("index", [1000, 50_000, 10**9, 2**31 - 1, 2**31, 2**63, 1e29])
def test_an_action_far_beyond_the_others_is_refused_with_its_row(index: float) -> None:
    actions = np.arange(80.0) % 3 if index == 1e29 else (np.arange(80) % 3).astype(np.uint64)
    actions[17] = index
    with pytest.raises(DataError) as caught:
        discrete_log(actions, discrete=True)
    message = f"field 'actions', row 17: expected an action index below 1,000, found {actions[17]}."
    hint = "The log has only 4 different actions. Number them 0, 1, 2, …, or read them as continuous "
    assert str(caught.value) == f"arrays: {message} {hint}(--actions continuous, in Python discrete=False)."


def test_action_indices_with_gaps_are_kept_and_wide_gaps_are_a_problem() -> None:
    few = discrete_log(np.array([0, 7, 7, 0, 7]))
    assert (few.action_count, few.actions.tolist()) == (8, [0, 7, 7, 0])
    assert [note.kind for note in few.notes if "index" in note.text] == []
    sparse = discrete_log(np.array([0, 1, 2, 0, 700, 1]))
    assert sparse.action_count == 701
    text = "Only 4 of the action indices from 0 to 700 occur; the largest is in row 4. Is it a mistake?"
    assert next(note.text for note in sparse.notes if note.kind == "problem").startswith(text)
    # 200 actions may leave out nine of ten indices, 20 actions may not
    assert discrete_log(np.arange(0, 2000, 10)).action_count == 1991
    with pytest.raises(DataError, match="row 10: expected an action index below 1,000, found 1000"):
        discrete_log(np.arange(0, 2000, 100))


def test_a_declared_number_of_actions_is_kept_up_to_a_limit() -> None:
    declared = discrete_log(np.array([0, 5000, 1]), action_count=10_000)
    assert (declared.action_count, len(declared.notes)) == (10_000, len(discrete_log(np.array([0, 1, 1])).notes))
    for count in (0, 10_001, 2**31):
        with pytest.raises(DataError, match="expected a number of discrete actions from 1 to 10,000, found"):
            discrete_log(np.array([0, 1, 1]), action_count=count)
    with pytest.raises(DataError, match="row 10000: expected an action index below 10,000, found 10000"):
        discrete_log(np.arange(12_000))


def test_precision_is_kept_and_the_coarser_of_two_wins() -> None:
    single, double = chain([0.1, 0.2, 0.3]).astype(np.float32), chain([0.2, 0.3, 0.4])
    assert Dataset.from_arrays(single, [[0.0]] * 3, [0.0] * 3).observations.dtype == np.float32
    mixed = Dataset.from_arrays(single, [[0.0]] * 3, [0.0] * 3, next_observations=double)
    assert mixed.next_observations.dtype == np.float32
    assert mixed.episode_ends.tolist() == [False, False, True]  # 0.2 in double meets 0.2 in single


FINE: dict[str, object] = {
    "observations": np.zeros((4, 2)),
    "actions": np.zeros((4, 1)),
    "rewards": np.zeros(4),
    "next_observations": np.zeros((4, 2)),
    "terminations": np.zeros(4, dtype=bool),
    "timeouts": np.zeros(4, dtype=bool),
}


def with_nan(rows: int, row: int, value: float = np.nan) -> np.ndarray:
    numbers = np.zeros((rows, 2))
    numbers[row, 1] = value
    return numbers


BAD: list[tuple[dict[str, object], str]] = [
    (
        {"observations": np.zeros((4, 2, 2))},
        r"field 'observations': expected a two-dimensional array.* found shape \(4, 2, 2\)",
    ),
    ({"observations": np.zeros((4, 0))}, r"two-dimensional.* found shape \(4, 0\)"),
    ({"observations": np.array(3.0)}, "an array with one entry per row, found a single number"),
    ({"observations": np.zeros((0, 2))}, "field 'observations': expected at least 2 rows, found 0"),
    ({"observations": np.zeros((1, 2))}, "expected at least 2 rows, found 1"),
    ({"observations": with_nan(4, 2)}, r"field 'observations', row 2: expected finite .* found nan in column 1"),
    ({"next_observations": with_nan(4, 3, np.inf)}, r"field 'next_observations', row 3: .* found inf in column 1"),
    ({"observations": with_nan(4, 0, 1e35)}, r"between -1e\+30 and 1e\+30, found 1e\+35"),
    ({"next_observations": np.zeros((4, 3))}, "expected 2 numbers per row, as in observations, found 3"),
    (
        {"next_observations": np.zeros((3, 2))},
        "field 'next_observations': expected 4 rows, as in observations, found 3",
    ),
    ({"actions": np.zeros((5, 1))}, "field 'actions': expected 4 rows, as in observations, found 5"),
    ({"actions": np.array(["left"] * 4)}, "field 'actions': expected numbers, found an array of type <U4"),
    ({"actions": np.array([None] * 4)}, "field 'actions': expected numbers, found an array of type object"),
    ({"actions": np.zeros((4, 1), dtype=complex)}, "expected numbers, found an array of type complex128"),
    ({"actions": [[0.0], [0.0, 1.0], [0.0], [0.0]]}, "field 'actions': expected rows of equal length"),
    ({"rewards": np.zeros((4, 2))}, r"field 'rewards': expected one number per row, found shape \(4, 2\)"),
    ({"rewards": np.array([0.0, 1.0, -np.inf, 0.0])}, "field 'rewards', row 2: .* found -inf"),
    ({"terminations": np.array([0, 1, 2, 0])}, r"field 'terminations', row 2: expected true or false .* found 2"),
    ({"timeouts": np.array([0.0, np.nan, 0.0, 0.0])}, "field 'timeouts', row 1: expected true or false .* found nan"),
    ({"timeouts": np.zeros((4, 3), dtype=bool)}, "field 'timeouts': expected one flag per row"),
]


@pytest.mark.parametrize(("fault", "message"), BAD, ids=lambda part: next(iter(part)) if isinstance(part, dict) else "")
def test_a_fault_is_reported_with_its_field_and_row(fault: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        Dataset.from_arrays(**{**FINE, **fault}, name="my log")
    assert str(caught.value).startswith("my log: ")


def test_a_log_of_ends_only_has_no_transition_to_offer() -> None:
    with pytest.raises(DataError, match="at least 2 rows with a known next state, found 0"):
        make([0, 1], timeouts=[True, True], timeout_rule="trust")


@given(st.text(), st.integers(1, 20))
def test_a_text_made_printable_stays_as_it_is_when_it_is_written_and_read_again(text: str, limit: int) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
    cut = printable(text, limit)
    assert cut.isprintable()
    assert len(cut) <= limit + 1
    assert printable(cut, limit) == cut
