"""An exported ONNX file answers like its policy, and is not written if it does not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from bats.errors import BatsError
from bats.policy.onnx import export_onnx
from tests.policy.policies import observations, some_policy


@pytest.mark.parametrize("action_count", [None, 5])
def test_the_onnx_file_answers_like_the_policy(tmp_path: Path, action_count: int | None) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = some_policy(action_count=action_count, scale=2.0)
    difference = export_onnx(policy, tmp_path / "policy.onnx")
    assert difference is not None
    assert difference <= 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["action", "probabilities" if action_count else "std"]
    many = observations(10_000, policy)
    action, second = session.run(None, {"observation": many})
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
