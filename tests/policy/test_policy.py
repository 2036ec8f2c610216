"""The policy as it is used: what it answers, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bats.errors import SettingError
from bats.policy.policy import Policy
from bats.policy.support import Support
from tests.policy.policies import observations, some_policy, some_support

LARGEST_SINGLE = float(np.finfo(np.float32).max)


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


@pytest.mark.parametrize("action_count", [None, 5])
@pytest.mark.parametrize("number", [1e300, -1e300, 1.7e308, LARGEST_SINGLE, -LARGEST_SINGLE, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_observation_that_would_overflow_is_refused_with_its_row(
    action_count: int | None, number: float, dtype: type
) -> None:
    policy, rng = some_policy(action_count=action_count), np.random.default_rng(0)
    many = observations(4, policy).astype(dtype)
    with np.errstate(over="ignore"):
        many[2, 0] = number
    assert policy.valid(many).tolist() == [True, True, False, True]
    assert not policy.valid(many[2])
    details = policy.distribution if action_count is None else policy.probabilities
    calls = (policy.predict, details, lambda rows: policy.predict(rows, deterministic=False, rng=rng))
    for call in calls:
        with pytest.raises(SettingError, match=r"must be finite and within .* std of the mean; row 2 is \["):
            call(many)
    with pytest.raises(SettingError, match=r"must be finite and within .* std of the mean; \["):
        policy.predict(many[2])


@pytest.mark.parametrize("action_count", [None, 5])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 20.0, 1e6])
def test_up_to_the_limit_of_the_inputs_nothing_overflows(action_count: int | None, scale: float) -> None:
    policy, rng = some_policy(action_count=action_count, scale=scale), np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], (1000, 3))
    farthest = policy.mean + 0.999 * signs * policy.std.astype(np.float64) * policy.input_limit
    assert policy.valid(farthest).all()
    assert not policy.valid(1.01 * farthest).any()
    details = policy.distribution(farthest) if action_count is None else (policy.probabilities(farthest),)
    assert all(np.isfinite(numbers).all() for numbers in details)
    for actions in (policy.predict(farthest), policy.predict(farthest, deterministic=False, rng=rng)):
        if action_count is None:
            assert np.all((actions >= policy.low) & (actions <= policy.high))
        else:
            assert np.all((actions >= 0) & (actions < action_count))


def test_rows_of_different_lengths_and_numbers_beyond_double_precision_are_refused() -> None:
    for odd in ([[1.0, 2.0, 3.0], [1.0]], [10**400, 0, 0], np.full(3, np.finfo(np.longdouble).max)):
        with pytest.raises(SettingError, match=r"3 numbers|must be finite"):
            some_policy().predict(odd)


def test_a_policy_that_knows_the_names_of_its_numbers_uses_them_in_errors() -> None:
    policy = some_policy(support=some_support())
    named = replace(policy, card={"observation_names": ["angle", "speed", "torque"]})
    for many, place in (([[0.0, np.nan, 0.0]], ""), ([[0.0, 0.0, 0.0], [0.0, np.nan, np.inf]], "in row 1, ")):
        for call in (named.predict, named.support_distance):
            with pytest.raises(SettingError, match=rf"must be finite.*; {place}speed is nan\.$"):
                call(many)
    with pytest.raises(SettingError, match=r"of 3 numbers \(angle, speed, torque\) or an array of shape \(n, 3\)"):
        named.predict([1.0])
    for odd in (["angle"], "abc", None, [1, 2]):
        with pytest.raises(SettingError, match=r"one observation of 3 numbers or an array"):
            replace(policy, card={"observation_names": odd}).predict([1.0])


def test_an_observation_far_from_the_log_has_a_large_distance_and_one_that_is_not_finite_has_none() -> None:
    policy = some_policy(support=some_support())
    near, far, farther = policy.support_distance([[0.0, 0.0, 0.0], [1e30, 0.0, 0.0], [1.7e308, 0.0, -1.7e308]])
    assert near < 1 < far < farther < np.inf
    with pytest.raises(SettingError, match="must be finite; row 1"):
        policy.support_distance([[0.0, 0.0, 0.0], [0.0, np.nan, 0.0]])


def first_changed(arrays: tuple[np.ndarray, ...], number: float) -> tuple[np.ndarray, ...]:
    return (np.full_like(arrays[0], number), *arrays[1:])


GOOD = some_policy()
WRONG: dict[str, dict[str, Any]] = {
    r"`weights\[0\]` must have finite numbers": {"weights": first_changed(GOOD.weights, np.nan)},
    r"`biases\[0\]` must have finite numbers": {"biases": first_changed(GOOD.biases, np.inf)},
    r"weights up to layer 1 are so large": {"weights": first_changed(GOOD.weights, 1e36)},
    r"`mean` must have finite numbers": {"mean": np.full(3, np.nan)},
    r"`std` must have finite numbers": {"std": np.full(3, 1e39)},  # in single precision
    r"`std` must be positive": {"std": np.array([1.0, 0.0, 1.0])},
    r"`std` must be positive\.": {"std": np.array([1.0, -1.0, 1.0])},
    r"`low` must have finite numbers": {"low": np.full(2, -np.inf)},
    r"`low` must not exceed `high`": {"low": np.array([0.0, 6.0])},
    r"at most 1e\+37 in size": {"high": np.full(2, 3e38)},
    r"`mean` must be an array of floats with 1 dimensions; got float64 of shape \(3, 1\)": {"mean": np.zeros((3, 1))},
    r"`mean` must be an array of floats with 1 dimensions; got int64": {"mean": np.zeros(3, dtype=int)},
    r"`mean` must be an array of floats with 1 dimensions; got list": {"mean": [0.0, 0.0, 0.0]},
    r"`weights\[0\]` must be an array of floats with 2 dimensions": {"weights": (np.zeros(3), *GOOD.weights[1:])},
    r"At least one layer is needed": {"weights": (), "biases": ()},
    r"a bias for each weight; got 3 weights": {"biases": GOOD.biases[:2]},
    r"`action_count` must be a positive integer or None": {"action_count": -1},
    r"`action_count` must be a positive integer": {"action_count": 4.0},
    r"`action_count` must be a positive": {"action_count": True},
    r"`action_count` is for discrete ones": {"action_count": 4},
    r"`low` and `high` are for continuous actions": {"low": np.zeros(0), "high": np.zeros(0)},
    r"`support` must be of observations of 3 numbers": {"support": Support(np.zeros((2, 2)), np.ones(2), 1.0)},
    r"`card` must be a mapping": {"card": ["log"]},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_policy_that_could_not_act_is_refused(message: str) -> None:
    with pytest.raises(SettingError, match=message):
        replace(GOOD, **WRONG[message])


@pytest.mark.parametrize(
    ("sample", "weight", "limit"),
    [
        (np.zeros((0, 2)), np.ones(2), 1.0),
        (np.zeros((3, 2)), np.ones(3), 1.0),
        (np.full((3, 2), np.nan), np.ones(2), 1.0),
        (np.zeros((3, 2)), np.array([1.0, -1.0]), 1.0),
        (np.zeros((3, 2)), np.ones(2), 0.0),
        (np.zeros((3, 2)), np.ones(2), np.nan),
        (np.zeros((3, 2)), np.ones(2), np.inf),
        (np.zeros((3, 2)), np.ones(2), "1"),
        (np.zeros((3, 2)), np.ones(2), 1e-320),
        (np.zeros((3, 2)), np.ones(2), 10**400),
    ],
)
def test_a_support_that_measures_nothing_is_refused(sample: np.ndarray, weight: np.ndarray, limit: Any) -> None:
    with pytest.raises(SettingError, match="support"):
        Support(sample, weight, limit)


def test_a_policy_is_printed_in_one_line() -> None:
    assert repr(some_policy()) == ("Policy(3 numbers in, hidden layers: 16, 8, 2 continuous actions, no known support)")
    assert repr(some_policy(action_count=5, support=some_support())) == (
        "Policy(3 numbers in, hidden layers: 16, 8, one of 5 discrete actions, support of 150 states)"
    )
    assert repr(some_support()).startswith("Support(150 states of 3 numbers, limit ")
