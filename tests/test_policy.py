"""The policy as it is used: its answers, its files, its ONNX form, and what it says of strange observations."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bats.errors import BatsError, DataError, OutputError, SettingError
from bats.metric.scaled import ScaledMetric
from bats.policy.files import load_policy, save_policy
from bats.policy.onnx import export_onnx
from bats.policy.policy import Familiar, Policy
from bats.storage.tensors import read_arrays, write_arrays


def some_policy(*, action_count: int | None = None, familiar: Familiar | None = None, scale: float = 1.0) -> Policy:
    """Three numbers in, two out or one of several, with random weights."""
    rng = np.random.default_rng(0)
    sizes = (3, 16, 8, action_count or 4)
    weights = [rng.normal(0, scale / np.sqrt(i), (i, o)).astype(np.float32) for i, o in itertools.pairwise(sizes)]
    return Policy(
        weights=tuple(weights),
        biases=tuple(rng.normal(0, 0.1, size).astype(np.float32) for size in sizes[1:]),
        mean=np.array([1.0, -2.0, 1000.0], np.float32),
        deviation=np.array([0.5, 1.0, 20.0], np.float32),
        low=np.array([] if action_count else [-1.0, 0.0], np.float32),
        high=np.array([] if action_count else [1.0, 5.0], np.float32),
        action_count=action_count,
        familiar=familiar,
        card={"log": "made up", "seed": 0},
    )


def observations(count: int, policy: Policy, *, spread: float = 1.0) -> np.ndarray:
    noise = np.random.default_rng(1).standard_normal((count, len(policy.mean)))
    return (policy.mean + spread * policy.deviation * noise).astype(np.float32)


def test_one_linear_layer_answers_as_worked_out_by_hand() -> None:
    policy = Policy(
        weights=(np.array([[0.5, 0.0]], np.float32),),
        biases=(np.array([0.25, 0.0], np.float32),),
        mean=np.array([10.0], np.float32),
        deviation=np.array([2.0], np.float32),
        low=np.array([-4.0], np.float32),
        high=np.array([4.0], np.float32),
    )
    # (11 - 10) / 2 = 0.5, times 0.5 plus 0.25 is 0.5, of the half range 4 from the middle 0
    assert policy.predict([11.0]) == pytest.approx([2.0])
    assert policy.predict([10_000.0]) == pytest.approx([4.0])  # clipped
    assert policy.predict([[9.0], [11.0]]) == pytest.approx(np.array([[0.0], [2.0]]))
    mean, deviation = policy.distribution(np.array([[10_000.0]]))
    assert mean[0, 0] > 4  # not clipped yet
    assert deviation[0, 0] == pytest.approx(4 * np.exp(-2.0))  # the middle between the bounds


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_one_observation_gets_the_answer_that_it_gets_among_many(dtype: type) -> None:
    policy = some_policy()
    many = observations(50, policy).astype(dtype)
    answers = policy.predict(many)
    assert answers.shape == (50, 2)
    assert np.stack([policy.predict(one) for one in many]) == pytest.approx(answers, abs=1e-5)


def test_actions_stay_within_the_limits_drawn_or_not() -> None:
    policy = some_policy(scale=20.0)
    many, rng = observations(2000, policy, spread=5.0), np.random.default_rng(0)
    for actions in (policy.predict(many), policy.predict(many, deterministic=False, rng=rng)):
        assert np.all((actions >= policy.low) & (actions <= policy.high))
        assert np.any(actions == policy.low)
        assert np.any(actions == policy.high)


def test_drawn_actions_have_the_mean_and_deviation_that_they_should() -> None:
    policy = some_policy(scale=0.1)
    one = np.repeat(observations(1, policy), 40_000, axis=0)
    mean, deviation = policy.distribution(one[:1])
    drawn = policy.predict(one, deterministic=False, rng=np.random.default_rng(0))
    within = np.all((mean - 4 * deviation > policy.low) & (mean + 4 * deviation < policy.high))
    assert within, "the limits would disturb the figures"
    assert drawn.mean(axis=0) == pytest.approx(mean[0], abs=float(4 * deviation.max() / 200))
    assert drawn.std(axis=0) == pytest.approx(deviation[0], rel=0.02)
    again = policy.predict(one, deterministic=False, rng=np.random.default_rng(0))
    assert np.array_equal(drawn, again)


def test_discrete_actions_are_the_likeliest_or_drawn_by_their_probabilities() -> None:
    policy = some_policy(action_count=5)
    many = observations(200, policy)
    probabilities = policy.probabilities(many)
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(200), abs=1e-6)
    assert np.array_equal(policy.predict(many), probabilities.argmax(axis=1))
    assert policy.predict(many[0]).shape == ()
    drawn = policy.predict(np.repeat(many[:1], 40_000, axis=0), deterministic=False, rng=np.random.default_rng(0))
    assert np.bincount(drawn, minlength=5) / 40_000 == pytest.approx(probabilities[0], abs=0.01)
    with pytest.raises(SettingError, match="no mean"):
        policy.distribution(many)


@pytest.mark.parametrize("odd", [[1.0, 2.0], np.zeros((2, 4)), np.zeros((1, 2, 3)), ["a", "b", "c"], [1, np.nan, 2]])
def test_an_observation_of_the_wrong_kind_is_refused(odd: object) -> None:
    with pytest.raises(SettingError, match=r"3 numbers|finite"):
        some_policy().predict(odd)


def test_layers_that_do_not_fit_together_are_refused() -> None:
    policy = some_policy()
    with pytest.raises(SettingError, match="from 3 numbers to 4"):
        replace(policy, weights=policy.weights[1:], biases=policy.biases[1:])
    with pytest.raises(SettingError, match="`rng`"):
        policy.predict(np.zeros(3), deterministic=False)
    with pytest.raises(SettingError, match="nothing is strange"):
        policy.strangeness(np.zeros(3))


def test_strangeness_is_below_1_in_the_log_and_grows_off_it() -> None:
    rng = np.random.default_rng(0)
    logged = rng.normal(size=(5000, 3)).astype(np.float32)
    metric = ScaledMetric(np.array([1.0, 2.0, 0.0], np.float32))  # the last number does not count
    policy = some_policy(familiar=Familiar.measured(logged, metric, seed=0))
    others = rng.normal(size=(5000, 3))
    assert np.mean(policy.strangeness(others) <= 1) == pytest.approx(0.99, abs=0.01)
    away = np.array([[far, 0.0, 0.0] for far in (0.0, 5.0, 10.0, 20.0)])
    strange = policy.strangeness(away)
    assert strange[0] < 1 < strange[1] < strange[2] < strange[3]
    assert policy.strangeness([0.0, 0.0, 1e6]) == pytest.approx(strange[0])
    actions, told = policy.predict(away, with_strangeness=True)
    assert np.array_equal(told, strange)
    assert np.array_equal(actions, policy.predict(away))


def test_in_a_world_of_few_states_the_next_state_is_as_far_as_the_limit() -> None:
    logged = np.repeat(np.arange(10.0, dtype=np.float32)[:, None], 100, axis=0)
    familiar = Familiar.measured(logged, ScaledMetric(np.ones(1, np.float32)), seed=0)
    assert familiar.limit == 1.0
    assert familiar.distance(np.array([[3.0], [12.0]])) == pytest.approx([0.0, 3.0])


@pytest.mark.parametrize("action_count", [None, 5])
def test_a_saved_policy_answers_the_same_where_jax_cannot_be_imported(tmp_path: Path, action_count: int | None) -> None:
    logged = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    familiar = Familiar.measured(logged, ScaledMetric(np.ones(3, np.float32)), seed=0)
    policy = some_policy(action_count=action_count, familiar=familiar)
    save_policy(policy, tmp_path / "policy.safetensors")
    many = observations(100, policy)
    np.save(tmp_path / "many.npy", many)
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "import numpy as np; from bats.policy.files import load_policy\n"
        "actions, strange = load_policy('policy.safetensors').predict(np.load('many.npy'), with_strangeness=True)\n"
        "np.savez('answers.npz', actions=actions, strange=strange)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    answers = np.load(tmp_path / "answers.npz")
    assert np.array_equal(answers["actions"], policy.predict(many))
    assert np.array_equal(answers["strange"], policy.strangeness(many))
    card = json.loads((tmp_path / "policy.json").read_text())
    assert card["log"] == "made up"
    assert card["hidden"] == [16, 8]
    assert load_policy(tmp_path / "policy.safetensors").card == policy.card


def test_files_that_are_no_policies_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    save_policy(some_policy(), path)
    with pytest.raises(OutputError, match="exists already"):
        save_policy(some_policy(), path)
    arrays, facts = read_arrays(path, "bats-policy")
    told = {name: fact for name, fact in facts.items() if name not in ("format", "version", "checksum")}
    less = {name: array for name, array in arrays.items() if name != "bias.1"}
    write_arrays(tmp_path / "less.safetensors", "bats-policy", less, told)
    write_arrays(tmp_path / "other.safetensors", "bats-model", arrays, told)
    for name in ("less", "other", "missing"):
        with pytest.raises(DataError, match=name):
            load_policy(tmp_path / f"{name}.safetensors")


@pytest.mark.parametrize("action_count", [None, 5])
def test_the_onnx_file_answers_like_the_policy(tmp_path: Path, action_count: int | None) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = some_policy(action_count=action_count, scale=2.0)
    difference = export_onnx(policy, tmp_path / "policy.onnx")
    assert difference is not None
    assert difference <= 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    many = observations(10_000, policy)
    action, second = session.run(None, {"observation": many})
    if action_count is None:
        assert action == pytest.approx(policy.predict(many), abs=1e-5 * 2.5)
        assert np.any(action == policy.high)  # clipping is inside
        assert second == pytest.approx(policy.distribution(many)[1], rel=1e-4)
    else:
        assert np.mean(action == policy.predict(many)) > 0.9999
        assert second == pytest.approx(policy.probabilities(many), abs=1e-5)
    assert session.run(["action"], {"observation": many[:1]})[0].shape == action[:1].shape


def test_an_onnx_file_that_would_answer_otherwise_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("bats.policy.onnx._difference", lambda policy, content: 0.1)
    with pytest.raises(BatsError, match=r"by 0\.1"):
        export_onnx(some_policy(), tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()
