"""The table of a log, the policy file of a training state, and logs that cannot be trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bats.baselines.catalogue import METHODS
from bats.baselines.config import BCConfig, TD3BCConfig
from bats.baselines.core import Batch
from bats.baselines.networks import mean_and_log_std
from bats.baselines.training import Scales, Trainer, best_episodes, check_log, joined, rows_used, sizes_of, table, train
from bats.data.dataset import Dataset
from bats.errors import DataError
from bats.policy.onnx import AGREEMENT, export_onnx
from bats.policy.policy import MIN_LOG_STD, Policy
from tests.baselines.hand_made import KEY, close, push_model
from tests.baselines.small_worlds import line_log, small_config, small_trainer


def three_episodes(*, discrete: bool = False) -> Dataset:
    """Rows 0 and 1, which terminate; 2 to 4; and 5. Actions are from 10 to 30; returns are 3, 12 and 5."""
    states = np.array([[0.0, 5.0], [1.0, 5.0], [0.0, 6.0], [2.0, 6.0], [4.0, 6.0], [9.0, 9.0]])
    after = np.array([[1.0, 5.0], [7.0, 5.0], [2.0, 6.0], [4.0, 6.0], [6.0, 6.0], [9.0, 8.0]])
    numbers = np.array([[10.0, 0.0], [30.0, 1.0], [20.0, 2.0], [15.0, 4.0], [25.0, 3.0], [30.0, 2.0]])
    return Dataset.from_arrays(
        states,
        np.array([0, 2, 1, 0, 1, 2]) if discrete else numbers,
        np.array([1.0, 2.0, 3.0, 4.0, 5.0, 5.0]),
        next_observations=after,
        terminations=np.array([0, 1, 0, 0, 0, 0]),
        episode_ends=np.array([0, 1, 0, 0, 1, 1]),
    )


def whole_batch(log: Dataset, **settings: Any) -> Batch:
    """All rows of a log, as its table and `Log.draw` give them, in the order of their rewards and states."""
    config = BCConfig(batch_size=500, gamma=0.9, **settings)
    rows = table(log, Scales.of(log, config), config)
    batch = joined([rows], sizes_of(log)).draw(jnp.int32(0), KEY, jnp.int32(0), config)
    order = np.unique(np.hstack([batch.rewards[:, None], batch.states]), axis=0, return_index=True)[1]
    return jax.tree.map(lambda leaf: np.asarray(leaf)[order] if leaf.ndim else leaf, batch)


def test_a_batch_has_the_rows_of_the_log() -> None:
    batch = whole_batch(log := three_episodes())
    assert np.asarray(batch.states) == close(log.observations)
    assert np.asarray(batch.next_states) == close(log.next_observations)
    assert np.asarray(batch.rewards) == close(log.rewards)
    assert np.asarray(batch.discounts) == close([0.9, 0.0, 0.9, 0.9, 0.9, 0.9])  # 0 where the task ended
    # from 10 ... 30 and 0 ... 4 to -1 ... 1
    scaled = np.array([[-1.0, -1.0], [1.0, -0.5], [0.0, 0.0], [-0.5, 1.0], [0.5, 0.5], [1.0, 0.0]])
    assert np.asarray(batch.actions) == close(scaled)
    # the action of the next row; at the end of an episode, of the row itself
    assert np.asarray(batch.next_actions) == close(scaled[[1, 1, 3, 4, 4, 5]])


def test_discrete_actions_stay_indices() -> None:
    batch = whole_batch(three_episodes(discrete=True))
    assert batch.actions.tolist() == [0, 2, 1, 0, 1, 2]
    assert batch.next_actions.tolist() == [2, 2, 0, 1, 1, 2]


def test_standardised_states_have_mean_0_and_std_1() -> None:
    log = line_log()
    batch = whole_batch(three_episodes(), normalize=True)
    assert np.asarray(batch.states).mean(axis=0) == close([0.0, 0.0])
    assert np.asarray(batch.states).std(axis=0) == close([1.0, 1.0])
    # differences far from 0 keep their digits
    far = replace(log, observations=log.observations + 1e6, next_observations=log.next_observations + 1e6)
    config = TD3BCConfig()
    near, moved = (table(part, Scales.of(part, config), config) for part in (log, far))
    assert moved == pytest.approx(near, abs=0.1)
    assert (moved[:, 4] - moved[:, 0]) == pytest.approx(near[:, 4] - near[:, 0], abs=1e-5)


def test_an_action_that_never_changes_is_0() -> None:
    log = line_log()
    constant = replace(log, actions=np.hstack([log.actions, np.full_like(log.actions, 3.0)]))
    rows = table(constant, Scales.of(constant, BCConfig()), BCConfig())
    assert np.all(rows[:, 2] == 0)
    trainer = Trainer.of(METHODS["bc"], small_config("bc", updates=1), [constant], [(0, 0)])
    assert np.all(trainer.policy(trainer.initial(), 0).predict(np.zeros((4, 1)))[:, 1] == 3.0)


@pytest.mark.parametrize(
    ("share", "rows"),
    [(1.0, [0, 1, 2, 3, 4, 5]), (0.7, [2, 3, 4, 5]), (0.6, [2, 3, 4]), (0.5, [2, 3, 4]), (0.01, [2, 3, 4])],
)
def test_the_best_episodes_are_those_with_the_largest_returns(share: float, rows: list[int]) -> None:
    """Returns 3, 12 and 5 of 2, 3 and 1 rows: as many whole episodes as the share has room for, one at least."""
    assert np.flatnonzero(best_episodes(three_episodes(), share)).tolist() == rows
    assert np.flatnonzero(rows_used(three_episodes(), BCConfig(best_share=share))).tolist() == rows


def actor_of(trainer: Trainer, states: Any) -> Any:
    actor = jax.tree.map(lambda leaf: leaf[0], states.networks["actor"])
    return getattr(actor, "network", actor)


def expected_actions(trainer: Trainer, states: Any, observations: np.ndarray) -> np.ndarray:
    """What the actor network answers, by the method's own rule."""
    scales, name = trainer.scales[0], trainer.method.name
    network = actor_of(trainer, states)
    outputs = np.asarray(network(jnp.asarray((observations - scales.mean) / scales.std, jnp.float32)), np.float64)
    if trainer.sizes.discrete:
        return outputs.argmax(axis=1)
    means = outputs[:, : trainer.sizes.actions]
    share = np.clip(means, -1, 1) if name in ("bc", "awac") else np.tanh(means)
    return scales.centre + scales.half * share


def wide_log(*, discrete: bool = False) -> Dataset:
    """States of three numbers, some of them large, and two actions between -3 and 7, or one of four."""
    rng = np.random.default_rng(0)
    states = rng.normal(size=(200, 3)) * [1.0, 20.0, 0.1] + [0.0, 1000.0, 0.0]
    actions = rng.integers(0, 4, 200) if discrete else rng.uniform([-3.0, 0.0], [7.0, 1.0], (200, 2))
    return Dataset.from_arrays(
        states, actions, rng.normal(size=200), next_observations=states + 0.1, episode_ends=np.arange(200) % 10 == 9
    )


HEADS = [*((name, False) for name in METHODS if name != "combo"), ("bc", True), ("iql", True)]


@pytest.mark.parametrize(("name", "discrete"), HEADS)
def test_an_exported_policy_answers_as_its_network(name: str, discrete: bool, tmp_path: Path) -> None:
    """In NumPy and in ONNX; COMBO's policy is SAC's."""
    log = wide_log(discrete=discrete)
    config = small_config(name, normalize=True, hidden=(16,))
    trainer = Trainer.of(METHODS[name], config, [log], [(0, 7)])
    # larger outputs than new networks have, so that tanh and clipping matter
    states = jax.tree.map(lambda leaf: 3 * leaf if leaf.dtype == jnp.float32 else leaf, trainer.initial())
    policy = trainer.policy(states, 0)
    observations = log.observations.astype(np.float32)
    expected = expected_actions(trainer, states, observations)
    if discrete:
        assert np.mean(policy.predict(observations) == expected) > 0.99  # but for ties to rounding
    else:
        assert policy.predict(observations) == pytest.approx(expected, abs=1e-3)
        assert np.ptp(policy.predict(observations), axis=0) == pytest.approx([10.0, 1.0], rel=0.3)
    assert policy.card["method"] == name
    assert policy.card["seed"] == 7
    assert policy.card["updates"] == 0
    pytest.importorskip("onnxruntime")
    assert export_onnx(policy, tmp_path / "policy.onnx") <= AGREEMENT


@pytest.mark.parametrize("name", ["td3-bc", "rebrac"])
def test_a_policy_without_a_std_has_the_smallest(name: str) -> None:
    trainer = small_trainer(name)
    _, std = trainer.policy(trainer.initial(), 0).distribution(np.zeros((3, 1), np.float32))
    assert std / 12 == pytest.approx(np.full((3, 1), np.exp(MIN_LOG_STD)), rel=1e-3)


def test_a_policy_with_a_std_has_the_networks() -> None:
    trainer = small_trainer("sac")
    states, rows = trainer.initial(), np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    mean, log_std = mean_and_log_std(actor_of(trainer, states), jnp.asarray(rows))
    found = trainer.policy(states, 0).distribution(rows)
    assert found[0] / 12 == pytest.approx(np.asarray(mean), abs=1e-3)
    assert found[1] / 12 == pytest.approx(np.exp(log_std), rel=1e-3)


@pytest.mark.parametrize("name", ["iql", "awac"])
def test_one_std_for_all_states_begins_at_1(name: str) -> None:
    trainer = small_trainer(name)
    rows = np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    mean, std = trainer.policy(trainer.initial(), 0).distribution(rows)
    assert std / 12 == pytest.approx(np.ones((5, 1)), rel=1e-6)
    assert np.ptp(mean) > 0


def test_a_model_sees_states_and_actions_as_they_were_logged() -> None:
    # state 2 is 5 + 2 * 3 = 11 and action 0.5 is 1 + 0.5 * 4 = 3: the next state is 14, which is (14 - 5) / 3 = 3
    model = push_model(mean=5.0, std=3.0, centre=1.0, half=4.0)
    after, rewards, continues = model.step(jnp.array([[2.0]]), jnp.array([[0.5]]), KEY)
    assert np.asarray(after) == close([[3.0]])
    assert np.asarray(rewards) == close([140.0])
    assert np.asarray(continues) == close([0.5])


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("bc", "iql")])
def test_discrete_actions_are_refused_where_a_method_has_none(name: str) -> None:
    with pytest.raises(DataError, match=rf"continuous actions, which {name} needs.*3 discrete actions") as caught:
        check_log(METHODS[name], three_episodes(discrete=True))
    assert "bc and iql take discrete actions" in str(caught.value)


@pytest.mark.parametrize("name", METHODS)
def test_rewards_that_say_nothing_are_refused(name: str) -> None:
    log = line_log().with_rewards(np.full(len(line_log()), -1.0))
    if name == "bc":
        check_log(METHODS[name], log)
        return
    with pytest.raises(DataError, match="different rewards, found a reward of -1 in every row"):
        check_log(METHODS[name], log)


def test_a_constant_cost_until_the_end_is_a_reward() -> None:
    """With terminations, -1 in every row means: end as soon as possible. A reward of 0 still says nothing."""
    log = three_episodes()
    check_log(METHODS["iql"], log.with_rewards(np.full(6, -1.0)))
    with pytest.raises(DataError, match="different rewards, found a reward of 0"):
        check_log(METHODS["iql"], log.with_rewards(np.zeros(6)))


@pytest.mark.parametrize("name", ["td3-bc", "iql"])
def test_training_that_diverges_says_so(name: str) -> None:
    huge = line_log().with_rewards(1e25 * line_log().rewards)
    with pytest.raises(DataError, match=r"finite losses, found a loss of the \w+ of (inf|nan)") as caught:
        train(METHODS[name], huge, small_config(name), seed=0)
    assert "smaller learning rate" in str(caught.value)


def test_training_returns_a_policy_and_reports_its_progress() -> None:
    reports: list[tuple[str, int, int]] = []
    policy = train(
        METHODS["bc"],
        line_log(),
        small_config("bc", updates=45),
        seed=3,
        progress=lambda *report: reports.append(report),
    )
    assert isinstance(policy, Policy)
    assert policy.card["updates"] == 45
    assert reports[-1] == ("training bc", 45, 45)


def test_snapshots_are_at_equal_distances_and_the_last_is_the_end() -> None:
    trainer = small_trainer("bc", updates=45, snapshots=4)
    reached = list(trainer.train(trainer.initial()))
    assert [part.update for part in reached if part.is_snapshot] == [11, 22, 33, 45]
    # and from a later state, those that are left
    later = next(part for part in reached if part.update == 22)
    assert [part.update for part in trainer.train(later.states) if part.is_snapshot] == [33, 45]


def test_more_snapshots_than_updates_are_one_for_each() -> None:
    trainer = small_trainer("bc", updates=3, snapshots=20)
    assert [part.update for part in trainer.train(trainer.initial()) if part.is_snapshot] == [1, 2, 3]


def test_the_reward_of_a_termination_counts_even_where_its_next_state_was_not_logged() -> None:
    states, ended = np.arange(6.0)[:, None], np.array([False, False, True, False, False, True])
    log = Dataset.from_arrays(states, np.ones((6, 1)), 100.0 * ended, terminations=ended)
    assert not log.next_known.all()
    config = TD3BCConfig()
    rows = table(log, Scales.of(log, config), config)
    rewards, continues = rows[:, 2], rows[:, 3]
    assert np.count_nonzero(rewards == 100) == 2
    assert np.all(continues[rewards == 100] == 0)
    assert np.isfinite(rows).all()
