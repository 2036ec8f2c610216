"""An exported ONNX file answers like its policy, and is not written if it does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bats.errors import BatsError, SettingError
from bats.policy.onnx import AGREEMENT, AWKWARD, export_onnx, largest_difference
from bats.policy.policy import Policy
from bats.policy.support import Support
from tests.policy.policies import observations, some_policy, some_support


def exported(policy: Policy, path: Path) -> Any:
    """A session of the exported policy."""
    onnxruntime = pytest.importorskip("onnxruntime")
    assert export_onnx(policy, path) <= AGREEMENT
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run(session: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs of a session by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"observation": rows}), strict=True))


def assert_actions(policy: Policy, actions: np.ndarray) -> None:
    if policy.action_count is None:
        assert np.all((actions >= policy.low) & (actions <= policy.high))
    else:
        assert np.all((actions >= 0) & (actions < policy.action_count))


@pytest.mark.parametrize("action_count", [None, 5])
def test_the_onnx_file_answers_like_the_policy(tmp_path: Path, action_count: int | None) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = some_policy(action_count=action_count, scale=2.0)
    difference = export_onnx(policy, tmp_path / "policy.onnx")
    assert difference is not None
    assert difference <= 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    names = ["action", "probabilities" if action_count else "std", "valid"]
    assert [output.name for output in session.get_outputs()] == names
    many = observations(10_000, policy)
    action, second, valid = session.run(None, {"observation": many})
    assert valid.all()
    if action_count is None:
        assert action == pytest.approx(policy.predict(many), abs=1e-5 * 2.5)
        assert np.any(action == policy.high)  # clipping is part of the file
        assert second == pytest.approx(policy.distribution(many)[1], rel=1e-4)
    else:
        assert np.mean(action == policy.predict(many)) > 0.9999
        assert second == pytest.approx(policy.probabilities(many), abs=1e-5)
    assert session.run(["action"], {"observation": many[:1]})[0].shape == action[:1].shape


def test_an_onnx_file_that_would_answer_otherwise_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("bats.policy.onnx.AGREEMENT", -1.0)
    with pytest.raises(BatsError, match=r"differs from the policy by .*, so it was not written"):
        export_onnx(some_policy(), tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()


def test_without_onnx_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BatsError, match=r"pip install 'bats-rl\[onnx\]'"):
        export_onnx(some_policy(), tmp_path / "policy.onnx")


def test_without_onnxruntime_the_file_is_written_and_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert export_onnx(some_policy(), tmp_path / "policy.onnx") is None
    assert (tmp_path / "policy.onnx").exists()


@pytest.mark.parametrize("action_count", [None, 5])
def test_whatever_comes_in_an_action_comes_out_and_whether_it_is_the_policy_s(
    tmp_path: Path, action_count: int | None
) -> None:
    policy = some_policy(action_count=action_count, support=some_support())
    session = exported(policy, tmp_path / "policy.onnx")
    rows = observations(4 * len(AWKWARD), policy)
    rows[::4, 1] = AWKWARD
    found = run(session, rows)
    assert np.array_equal(found["valid"], policy.valid(rows))
    assert np.flatnonzero(~found["valid"]).tolist() == [0, 4, 8, 12, 16]  # NaN, infinite, the largest numbers
    assert all(np.isfinite(found[name]).all() for name in found if name != "support_distance")
    assert_actions(policy, found["action"])
    refused = rows[~found["valid"]]
    assert np.all(found["support_distance"][~found["valid"]] == np.inf)
    at_mean = policy.predict(policy.mean)
    for row, action in zip(refused, found["action"][~found["valid"]], strict=True):
        assert action == pytest.approx(at_mean, abs=1e-5)
        with pytest.raises(SettingError, match="must be finite and within"):
            policy.predict(row)
    assert all(len(output) == 0 for output in run(session, rows[:0]).values())


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("width", [1, 3, 20])
def test_the_distance_from_the_log_is_the_same_as_in_python(tmp_path: Path, width: int, offset: float) -> None:
    rng = np.random.default_rng(0)
    states = (offset + rng.normal(size=(1000, width)).cumsum(axis=0)).astype(np.float32)
    weight = rng.uniform(0.1, 10.0, width).astype(np.float32) * (np.arange(width) != 1)  # the second does not count
    policy = Policy(
        weights=(rng.normal(size=(width, 3)).astype(np.float32),),
        biases=(np.zeros(3, np.float32),),
        mean=states.mean(axis=0),
        std=states.std(axis=0),
        low=np.zeros(0, np.float32),
        high=np.zeros(0, np.float32),
        action_count=3,
        support=Support.of(states, weight, rng),
    )
    session = exported(policy, tmp_path / "policy.onnx")
    rows = np.concatenate([states[:200], states[:200] + rng.normal(0, 3.0, (200, width))]).astype(np.float32)
    distance = run(session, rows)["support_distance"]
    expected = policy.support_distance(rows)
    np.testing.assert_allclose(distance, expected, rtol=1e-3, atol=1e-3)
    assert np.any(expected < 1)
    assert np.any(expected > 1)


def every_pattern(count: int, policy: Policy, rng: np.random.Generator) -> np.ndarray:
    """Observations with every class of 32-bit patterns among typical numbers, in one place or in all."""
    shape = (count, len(policy.mean))
    typical = (policy.mean + 2 * policy.std * rng.standard_normal(shape)).astype(np.float32)
    bits, sign = rng.integers(0, 2**32, shape, dtype=np.uint32), rng.integers(0, 2, shape, dtype=np.uint32) << 31
    payload = rng.integers(1, 2**22, shape, dtype=np.uint32)
    patterns = [
        bits,
        sign,  # zeros
        sign | (bits & 0x007FFFFF),  # subnormal
        sign | 0x7F7FFFFF,  # the largest
        sign | 0x7F800000,  # infinite
        sign | 0x7FC00000 | payload,  # quiet NaN
        sign | 0x7F800000 | payload,  # signalling NaN
        sign | ((bits >> 8) % 255 << 23),  # powers of two
        typical.view(np.uint32) ^ (np.uint32(1) << (bits % 32)),  # one bit flipped
    ]
    awkward = np.choose(rng.integers(0, len(patterns), shape), patterns).view(np.float32)
    kind = rng.integers(0, 3, count)
    one = np.arange(shape[1]) == rng.integers(0, shape[1], (count, 1))
    return np.where((kind == 1)[:, None] & one | (kind == 2)[:, None], awkward, typical)


@pytest.mark.slow
@pytest.mark.parametrize("action_count", [None, 5])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_million_observations_get_an_action_or_a_refusal_and_the_same_one_from_both(
    tmp_path: Path, action_count: int | None, scale: float
) -> None:
    policy = some_policy(action_count=action_count, support=some_support(), scale=scale)
    session = exported(policy, tmp_path / "policy.onnx")
    rows = every_pattern(10**6 // 4, policy, np.random.default_rng(0))  # a quarter for each case
    found, valid = run(session, rows), policy.valid(rows)
    assert np.array_equal(found["valid"], valid)
    assert 0.3 < valid.mean() < 0.9
    assert not valid[~np.isfinite(rows).all(axis=1)].any()
    assert_actions(policy, found["action"])
    assert_actions(policy, policy.predict(rows[valid]))
    assert largest_difference(policy, session, rows) <= AGREEMENT
    for row in np.flatnonzero(~valid)[:1000]:
        with pytest.raises(SettingError, match="must be finite and within"):
            policy.predict(rows[row])


def test_a_support_that_single_precision_cannot_hold_is_not_exported(tmp_path: Path) -> None:
    support = Support(np.array([[1e30] * 3, [0.0] * 3]), np.ones(3), 1e-30)
    with pytest.raises(BatsError, match="do not fit into single precision"):
        export_onnx(some_policy(support=support), tmp_path / "policy.onnx")
