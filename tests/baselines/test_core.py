"""The training loop: batches, targets, and that training is a function of the seed and the update's number alone."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.baselines.catalogue import METHODS
from bats.baselines.config import BCConfig
from bats.baselines.core import Log, TrainingState, advance
from bats.baselines.training import Trainer, joined, sizes_of
from bats.data.dataset import Dataset
from tests.baselines.small_worlds import EACH_METHOD, line_log, line_model, small_config, small_trainer, two_state_log


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_equal(one: Any, other: Any) -> None:
    for left, right in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_array_equal(left, right)


def advanced(trainer: Trainer, states: TrainingState, *counts: int) -> TrainingState:
    """The states after some updates, made in chunks."""
    keys = jnp.stack([jax.random.key(seed) for seed in trainer.seeds])
    logs = jnp.asarray(trainer.run_logs, jnp.int32)
    for count in counts:
        shared = (trainer.log, trainer.method, trainer.config)
        states = advance(shared, jnp.int32(count), states, keys, logs, trainer.models)
    return states


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(0, 5), st.lists(st.integers(1, 9), min_size=1))
def test_drawn_rows_are_rows_of_the_log_taken_apart(
    states: int, actions: int, discrete: bool, seed: int, lengths: list[int]
) -> None:
    """Only rows of the log asked for are drawn, and none of those that fill up its table."""
    rng, width = np.random.default_rng(seed), 1 if discrete else actions
    tables = []
    for count in lengths:
        parts = [rng.normal(size=(count, part)) for part in (states, width, 1, 1, states, width)]
        for index in (1, 5) if discrete else ():
            parts[index] = np.floor(np.abs(10 * parts[index]))
        parts[3] = parts[3] > 0
        tables.append(np.hstack(parts).astype(np.float32))
    length = max(lengths) + 2
    whole = np.full((len(tables), length, tables[0].shape[1]), np.nan, np.float32)
    for filled, table in zip(whole, tables, strict=True):
        filled[: len(table)] = table
    log = Log(jnp.asarray(whole), jnp.asarray(lengths, jnp.int32), states, width, discrete)
    number = seed % len(tables)
    batch = log.draw(jnp.int32(number), jax.random.key(seed), jnp.int32(7), BCConfig(batch_size=30, gamma=0.9))
    columns = [batch.actions, batch.rewards, batch.discounts / np.float32(0.9), batch.next_states, batch.next_actions]
    drawn = np.hstack([batch.states, *(np.asarray(column, np.float32).reshape(30, -1) for column in columns)])
    assert batch.actions.shape == ((30,) if discrete else (30, actions))
    known = {row.tobytes() for row in tables[number]}
    assert {row.tobytes() for row in drawn.astype(np.float32)} <= known
    assert int(batch.update) == 7


def test_every_row_is_drawn_equally_often() -> None:
    rows = np.zeros((50, 6), np.float32)
    rows[:, 2] = np.arange(50)  # rewards
    log = joined([rows], sizes_of(two_state_log()))
    batch = log.draw(jnp.int32(0), jax.random.key(0), jnp.int32(0), BCConfig(batch_size=100_000))
    counts = np.bincount(np.asarray(batch.rewards).astype(int), minlength=50)
    assert counts == pytest.approx(np.full(50, 2000), abs=250)  # 5.6 std


@pytest.mark.parametrize("name", EACH_METHOD)
def test_training_may_stop_after_any_update_and_go_on(name: str) -> None:
    """To the byte, and for any size of chunks."""
    trainer = small_trainer(name)
    begun = trainer.initial()
    whole = advanced(trainer, begun, 12)
    assert_equal(whole, advanced(trainer, begun, 5, 7))
    assert_equal(whole, advanced(trainer, begun, 1, 1, 10))
    assert int(whole.update[0]) == 12
    assert any(not np.array_equal(*pair) for pair in zip(leaves(begun), leaves(whole), strict=True))


def test_other_seeds_are_other_runs() -> None:
    one, other = (small_trainer("td3-bc", seeds=(seed,)) for seed in (0, 1))
    start = one.initial()
    before, after = (np.concatenate([leaf.ravel() for leaf in leaves(t.initial().networks)]) for t in (one, other))
    assert not np.array_equal(before, after)
    # and from the same networks, other batches
    networks = [leaves(advanced(trainer, start, 3).networks)[0] for trainer in (one, other)]
    assert not np.array_equal(*networks)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in METHODS if name != "td3-bc"]


@pytest.mark.parametrize("name", ["td3-bc", *SLOW])
def test_runs_trained_together_agree_with_each_alone(name: str) -> None:
    """To rounding, after a few updates; one of them on a log of another length."""
    logs, runs = [line_log(), shorter_log()], [(0, 0), (1, 5)]
    config, models = small_config(name), [line_model()] * 2 if METHODS[name].extend is not None else []
    together = Trainer.of(METHODS[name], config, logs, runs, models)
    reached = advanced(together, together.initial(), 5)
    for run, (number, seed) in enumerate(runs):
        alone = Trainer.of(METHODS[name], config, [logs[number]], [(0, seed)], models[:1])
        expected = advanced(alone, alone.initial(), 5)
        for one, other in zip(leaves(reached.networks), leaves(expected.networks), strict=True):
            assert one[run] == pytest.approx(other[0], rel=1e-4, abs=1e-5)


def shorter_log() -> Dataset:
    log = line_log()
    rows = slice(0, 1960)  # whose table has the same length, so that one program serves both
    parts = (log.observations[rows], log.actions[rows], log.rewards[rows])
    return Dataset.from_arrays(
        *parts, next_observations=log.next_observations[rows], episode_ends=log.episode_ends[rows]
    )


@pytest.mark.parametrize("name", ["td3-bc", "rebrac"])
def test_td3s_targets_and_policy_move_in_every_second_update(name: str) -> None:
    trainer = small_trainer(name)
    states = trainer.initial()
    moved = []
    for _ in range(4):
        after = advanced(trainer, states, 1)
        pairs = [(states.networks, after.networks), (states.targets, after.targets)]
        moved.append(
            [not np.array_equal(leaves(one[name])[0], leaves(other[name])[0]) for one, other in pairs for name in one]
        )
        states = after
    assert [*states.networks, *states.targets] == ["actor", "critics"] * 2
    assert moved == [[True, True, True, True], [False, True, False, False]] * 2


def test_targets_follow_by_the_target_rate() -> None:
    trainer = small_trainer("sac")
    begun = trainer.initial()
    after = advanced(trainer, begun, 1)
    for old, new, target in zip(
        *(leaves(tree["critics"]) for tree in (begun.targets, after.networks, after.targets)), strict=True
    ):
        assert target == pytest.approx(0.98 * old + 0.02 * new, abs=1e-6)


@pytest.mark.slow
def test_bears_multiplier_is_kept_within_its_limits_in_training() -> None:
    trainer = small_trainer("bear")
    begun = trainer.initial()
    pushed = eqx.tree_at(lambda states: states.networks["actor"].log_multiplier, begun, jnp.array([2.0]))
    after = advanced(trainer, pushed, 1)
    assert np.asarray(after.networks["actor"].log_multiplier) == pytest.approx([1.0])  # log of it: 10
