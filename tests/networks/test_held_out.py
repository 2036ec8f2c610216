"""Held-out splits: whole groups, every row once, and segments of about one length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.networks.held_out import SEGMENT, segments, split_groups
from tests.mdps import SEEDS


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(1, 200), st.integers(1, 30), st.integers(0, 5), st.integers(0, 5))
def test_every_row_is_in_one_part_and_groups_stay_whole(
    seed: int, rows: int, groups: int, first: int, second: int
) -> None:
    rng = np.random.default_rng(seed)
    group = 7 * rng.integers(0, groups, rows) - 3  # numbers need not be consecutive
    parts = split_groups(group, [first, second], rng)
    assert len(parts) == 3
    assert sorted(np.concatenate(parts).tolist()) == list(range(rows))
    members = [set(group[part].tolist()) for part in parts]
    assert not members[0] & members[1] | members[0] & members[2] | members[1] & members[2]
    count = len(set(group.tolist()))
    assert len(members[0]) == min(first, count)
    assert len(members[1]) == min(second, count - len(members[0]))
    assert all(np.all(np.diff(part) > 0) for part in parts)


def test_the_same_generator_state_gives_the_same_split_and_another_one_another() -> None:
    group = np.repeat(np.arange(50), 4)
    one, same, other = (split_groups(group, [10], np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_every_group_is_equally_likely_to_be_held_out() -> None:
    group, times = np.repeat(np.arange(10), 3), np.zeros(10)
    for seed in range(600):
        times[np.unique(group[split_groups(group, [3], np.random.default_rng(seed))[0]])] += 1
    assert times == pytest.approx(np.full(10, 180), abs=60)  # five standard deviations


@given(st.integers(1, 2000), st.integers(1, 60))
def test_segments_are_consecutive_and_about_equally_long(count: int, length: int) -> None:
    numbers = segments(count, length)
    assert len(numbers) == count
    assert numbers[0] == 0
    assert set(np.diff(numbers)) <= {0, 1}
    sizes = np.bincount(numbers)
    assert sizes.max() - sizes.min() <= 1
    assert min(length, count) <= sizes.min()
    assert sizes.max() < 2 * length or len(sizes) == 1


def test_segments_have_the_usual_length_unless_another_is_given() -> None:
    assert np.bincount(segments(10 * SEGMENT)).tolist() == [SEGMENT] * 10
    assert segments(SEGMENT - 1).tolist() == [0] * (SEGMENT - 1)
