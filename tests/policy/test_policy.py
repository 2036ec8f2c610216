"""The policy as it is used: what it answers, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bats.errors import SettingError
from bats.policy.policy import Policy
from tests.policy.policies import observations, some_policy


def test_one_linear_layer_answers_as_worked_out_by_hand() -> None:
    policy = Policy(
        weights=(np.array([[0.5, 0.0]], np.float32),),
        biases=(np.array([0.25, 0.0], np.float32),),
        mean=np.array([10.0], np.float32),
        std=np.array([2.0], np.float32),
        low=np.array([-4.0], np.float32),
        high=np.array([4.0], np.float32),
    )
    # (11 - 10) / 2 = 0.5, times 0.5 plus 0.25 is 0.5, of the half range 4 from the centre 0
    assert policy.predict([11.0]) == pytest.approx([2.0])
    assert policy.predict([10_000.0]) == pytest.approx([4.0])  # clipped
    assert policy.predict([[9.0], [11.0]]) == pytest.approx(np.array([[0.0], [2.0]]))
    mean, std = policy.distribution(np.array([[10_000.0]]))
    assert mean[0, 0] > 4  # not clipped yet
    assert std[0, 0] == pytest.approx(4 * np.exp(-2.0))  # halfway between the smallest and the largest log-std


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_one_observation_gets_the_same_answer_as_among_many(dtype: type) -> None:
    policy = some_policy()
    many = observations(50, policy).astype(dtype)
    answers = policy.predict(many)
    assert answers.shape == (50, 2)
    assert np.stack([policy.predict(one) for one in many]) == pytest.approx(answers, abs=1e-5)


def test_actions_stay_within_their_bounds_whether_sampled_or_not() -> None:
    policy = some_policy(scale=20.0)
    many, rng = observations(2000, policy, spread=5.0), np.random.default_rng(0)
    for actions in (policy.predict(many), policy.predict(many, deterministic=False, rng=rng)):
        assert np.all((actions >= policy.low) & (actions <= policy.high))
        assert np.any(actions == policy.low)
        assert np.any(actions == policy.high)


def test_sampled_actions_have_the_mean_and_std_of_the_distribution() -> None:
    policy = some_policy(scale=0.1)
    one = np.repeat(observations(1, policy), 40_000, axis=0)
    mean, std = policy.distribution(one[:1])
    sampled = policy.predict(one, deterministic=False, rng=np.random.default_rng(0))
    within = np.all((mean - 4 * std > policy.low) & (mean + 4 * std < policy.high))
    assert within, "clipping would change the mean and the std"
    assert sampled.mean(axis=0) == pytest.approx(mean[0], abs=float(4 * std.max() / 200))
    assert sampled.std(axis=0) == pytest.approx(std[0], rel=0.02)
    again = policy.predict(one, deterministic=False, rng=np.random.default_rng(0))
    assert np.array_equal(sampled, again)


def test_discrete_actions_are_the_likeliest_or_sampled_by_their_probabilities() -> None:
    policy = some_policy(action_count=5)
    many = observations(200, policy)
    probabilities = policy.probabilities(many)
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(200), abs=1e-6)
    assert np.array_equal(policy.predict(many), probabilities.argmax(axis=1))
    assert policy.predict(many[0]).shape == ()
    sampled = policy.predict(np.repeat(many[:1], 40_000, axis=0), deterministic=False, rng=np.random.default_rng(0))
    assert np.bincount(sampled, minlength=5) / 40_000 == pytest.approx(probabilities[0], abs=0.01)
    with pytest.raises(SettingError, match="no mean"):
        policy.distribution(many)
    with pytest.raises(SettingError, match="Only discrete actions have probabilities"):
        some_policy().probabilities(many)


@pytest.mark.parametrize("odd", [[1.0, 2.0], np.zeros((2, 4)), np.zeros((1, 2, 3)), ["a", "b", "c"], [1, np.nan, 2]])
def test_an_observation_of_the_wrong_shape_or_type_is_refused(odd: object) -> None:
    with pytest.raises(SettingError, match=r"3 numbers|finite"):
        some_policy().predict(odd)


def test_layers_that_do_not_fit_together_are_refused() -> None:
    policy = some_policy()
    with pytest.raises(SettingError, match="must take 3 inputs, the last must give 4 outputs"):
        replace(policy, weights=policy.weights[1:], biases=policy.biases[1:])
    with pytest.raises(SettingError, match="must have the same length"):
        replace(policy, std=policy.std[1:])


def test_sampling_needs_a_generator_and_support_needs_a_sample_of_the_log() -> None:
    policy = some_policy()
    with pytest.raises(SettingError, match="`rng`"):
        policy.predict(np.zeros(3), deterministic=False)
    for call in (
        lambda: policy.support_distance(np.zeros(3)),
        lambda: policy.support_limit,
    ):
        with pytest.raises(SettingError, match="its support is not known"):
            call()
