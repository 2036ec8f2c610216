"""A policy as an ONNX file, for programs without Python: standardisation and clipping are inside.

observation [n, D] float32  ->  action [n, A] float32, and std [n, A] float32
                            ->  or action [n] int64, and probabilities [n, count] float32
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bats.errors import BatsError
from bats.policy.policy import MAX_LOG_STD, MIN_LOG_STD, Policy
from bats.storage.atomic import write_atomic

OPSET = 17
"""version of ONNX's operators: old enough for the runtimes in use"""
IR_VERSION = 8
"""version of the file format that goes with it"""
CHECKED = 10_000
"""random observations that the file and the policy must answer alike"""
AGREEMENT = 1e-5
"""largest difference of actions, in halves of their range"""
TIE = 1e-5
"""discrete actions whose probabilities are closer than this may be chosen either way"""


def export_onnx(policy: Policy, path: Path | str, *, overwrite: bool = False) -> float | None:
    """Writes the policy's deterministic actions as ONNX, after comparing the file with the policy.

    Returns the largest difference over 10,000 random observations; None where onnxruntime is not installed to compare.
    """
    try:
        onnx: Any = import_module("onnx")
    except ImportError as error:
        raise BatsError("Writing ONNX needs the package onnx: pip install 'bats-rl[onnx]'.") from error
    model = _model(policy, onnx)
    onnx.checker.check_model(model, full_check=True)
    content = model.SerializeToString()
    difference = _largest_difference(policy, content)
    if difference is not None and not difference <= AGREEMENT:
        raise BatsError(f"The ONNX file differs from the policy by {difference:.2g}, so it was not written.")
    write_atomic(path, content, overwrite=overwrite)
    return difference


def _model(policy: Policy, onnx: Any) -> Any:
    helper, number, integer = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    graph = _Graph()
    hidden = graph.add("Sub", "observation", graph.constant(policy.mean))
    hidden = graph.add("Div", hidden, graph.constant(policy.std))
    for layer, (weight, bias) in enumerate(zip(policy.weights, policy.biases, strict=True)):
        hidden = graph.add("MatMul", hidden, graph.constant(weight))
        hidden = graph.add("Add", hidden, graph.constant(bias))
        if layer < len(policy.weights) - 1:
            hidden = graph.add("Mul", hidden, graph.add("Sigmoid", hidden))
    if policy.action_count is not None:
        graph.add("ArgMax", hidden, to="action", axis=1, keepdims=0)
        graph.add("Softmax", hidden, to="probabilities", axis=1)
        outputs = {"action": (integer, ["n"]), "probabilities": (number, ["n", policy.action_count])}
    else:
        _add_gaussian(graph, policy, hidden)
        outputs = {name: (number, ["n", len(policy.low)]) for name in ("action", "std")}
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node(kind, inputs, [to], **settings) for kind, inputs, to, settings in graph.operations],
            "policy",
            [helper.make_tensor_value_info("observation", number, ["n", len(policy.mean)])],
            [helper.make_tensor_value_info(name, *form) for name, form in outputs.items()],
            [onnx.numpy_helper.from_array(array, name) for name, array in graph.constants.items()],
        ),
        producer_name="bats-rl",
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    model.ir_version = IR_VERSION
    return model


def _add_gaussian(graph: _Graph, policy: Policy, outputs: str) -> None:
    """The outputs hold mean and raw log-std side by side; adds the clipped action and its std."""
    half = graph.constant((policy.high - policy.low) / 2)
    count = len(policy.low)
    first, middle, last, axis = (graph.constant(np.array([index], np.int64)) for index in (0, count, 2 * count, 1))
    mean = graph.add("Mul", graph.add("Slice", outputs, first, middle, axis), half)
    mean = graph.add("Add", mean, graph.constant((policy.high + policy.low) / 2))
    graph.add("Min", graph.add("Max", mean, graph.constant(policy.low)), graph.constant(policy.high), to="action")
    share = graph.add("Sigmoid", graph.add("Slice", outputs, middle, last, axis))
    span = graph.constant(np.float32(MAX_LOG_STD - MIN_LOG_STD))
    log_std = graph.add("Add", graph.add("Mul", share, span), graph.constant(np.float32(MIN_LOG_STD)))
    graph.add("Mul", graph.add("Exp", log_std), half, to="std")


class _Graph:
    """Operations in order, each named after its position, and their constants."""

    def __init__(self) -> None:
        self.constants: dict[str, np.ndarray] = {}
        self.operations: list[tuple[str, tuple[str, ...], str, dict[str, int]]] = []

    def constant(self, array: np.ndarray | np.float32) -> str:
        values = np.asarray(array)
        name = f"constant_{len(self.constants)}"
        self.constants[name] = values if values.dtype == np.int64 else values.astype(np.float32)
        return name

    def add(self, kind: str, *inputs: str, to: str | None = None, **settings: int) -> str:
        name = to or f"{kind.lower()}_{len(self.operations)}"
        self.operations.append((kind, inputs, name, settings))
        return name


def _largest_difference(policy: Policy, content: bytes) -> float | None:
    """The largest difference between the answers of a file's content and of the policy."""
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    noise = np.random.default_rng(0).standard_normal((CHECKED, len(policy.mean)))
    observations = (policy.mean + 2 * noise * policy.std).astype(np.float32)
    action, second = session.run(None, {"observation": observations})
    if policy.action_count is None:
        half = np.maximum((policy.high - policy.low) / 2, np.finfo(np.float32).tiny)
        return float(np.abs((action - policy.predict(observations)) / half).max())
    probabilities = policy.probabilities(observations)
    rows = np.arange(CHECKED)
    disagree = probabilities[rows, policy.predict(observations)] - probabilities[rows, action] > TIE
    return max(float(np.abs(second - probabilities).max()), float(disagree.any()))
