"""`bats-rl export`: the policy of a run as ONNX or as a file of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from bats.cli.main import main
from bats.policy.files import load_policy
from tests.cli.lying_run import make_lying_run
from tests.cli.printed import error_text


@pytest.fixture
def run() -> Path:
    make_lying_run(Path("run"))
    return Path("run")


def test_a_policy_is_exported_as_onnx_that_answers_like_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    assert main(["export", str(run), "policy.onnx"]) == 0
    assert "wrote policy.onnx; its probabilities differ" in capsys.readouterr().out
    positions = np.arange(10.0, dtype=np.float32)[:, None]
    session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
    actions = session.run(["action"], {"observation": positions})[0]
    assert np.array_equal(actions, load_policy(run / "policy.safetensors").predict(positions))
    assert main(["export", str(run), "policy.onnx"]) == 2
    assert "policy.onnx exists already; choose another name or use --overwrite" in error_text(capsys)
    assert main(["export", "run/policy.safetensors", "policy.onnx", "--overwrite"]) == 0


def test_an_onnx_file_that_was_not_compared_is_said_to_be_one(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export", str(run), "policy.onnx"]) == 0
    assert "it was not compared with the policy: onnxruntime is not installed" in capsys.readouterr().out


def test_a_policy_is_copied_out_of_its_run_with_its_card(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "mine.safetensors"]) == 0
    assert Path("mine.safetensors").read_bytes() == (run / "policy.safetensors").read_bytes()
    assert Path("mine.json").read_bytes() == (run / "policy.json").read_bytes()
    assert "bats.load_policy('mine.safetensors').predict(observation)" in capsys.readouterr().out
    assert main(["export", str(run), "mine.safetensors"]) == 2
    assert "mine.safetensors exists already" in error_text(capsys)


def test_a_file_in_the_place_of_the_card_is_not_overwritten_unless_asked(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("notes.json").write_text("mine")
    assert main(["export", str(run), "notes.safetensors"]) == 2
    assert "notes.json exists already" in error_text(capsys)
    assert Path("notes.json").read_text() == "mine"
    assert main(["export", str(run), "notes.safetensors", "--overwrite"]) == 0


def test_an_unknown_format_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "policy.pt"]) == 2
    assert "policy.pt: a policy can only be written to a .onnx or .safetensors file" in error_text(capsys)
