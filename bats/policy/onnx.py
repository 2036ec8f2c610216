"""A policy as an ONNX file, for programs that know nothing of Python: standardisation and clipping are inside.

observation [n, D] float32  ->  action [n, A] float32, and deviation [n, A] float32
                            ->  or action [n] int64, and probabilities [n, count] float32
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bats.errors import BatsError
from bats.policy.policy import GREATEST_LOG_DEVIATION, LEAST_LOG_DEVIATION, Policy
from bats.storage.atomic import atomic_path

OPERATORS = 17
"""version of ONNX's operators: old enough for the runtimes that are about"""
FORMAT = 8
"""version of the file format that goes with them"""
CHECKED = 10_000
"""random observations that the file and the policy must answer alike"""
AGREEMENT = 1e-5
"""of actions, in halves of the range between their limits"""
TIE = 1e-5
"""discrete actions whose log-odds are nearer than this may be chosen either way"""


def export_onnx(policy: Policy, path: Path | str, *, overwrite: bool = False) -> float | None:
    """Writes the policy's best answers as ONNX, once the file is known to answer like the policy.

    Returns the greatest difference found over 10,000 random observations; None where onnxruntime is not installed to
    look for one.
    """
    try:
        onnx: Any = import_module("onnx")
    except ImportError as error:
        raise BatsError("Writing ONNX needs the package onnx; `pip install 'bats-rl[onnx]'` brings it.") from error
    model = _model(policy, onnx)
    onnx.checker.check_model(model, full_check=True)
    content = model.SerializeToString()
    difference = _difference(policy, content)
    if difference is not None and not difference <= AGREEMENT:
        raise BatsError(f"The ONNX file would answer otherwise than the policy, by {difference:.2g}; nothing written.")
    with atomic_path(Path(path), overwrite=overwrite) as temporary:
        temporary.write_bytes(content)
    return difference


def _model(policy: Policy, onnx: Any) -> Any:
    helper, number, whole = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    graph = _Graph()
    hidden = graph.add("Sub", "observation", graph.constant(policy.mean))
    hidden = graph.add("Div", hidden, graph.constant(policy.deviation))
    for layer, (weight, bias) in enumerate(zip(policy.weights, policy.biases, strict=True)):
        hidden = graph.add("MatMul", hidden, graph.constant(weight))
        hidden = graph.add("Add", hidden, graph.constant(bias))
        if layer < len(policy.weights) - 1:
            hidden = graph.add("Mul", hidden, graph.add("Sigmoid", hidden))
    discrete = policy.action_count is not None
    if discrete:
        graph.add("ArgMax", hidden, to="action", axis=1, keepdims=0)
        graph.add("Softmax", hidden, to="probabilities", axis=1)
    else:
        _gaussian(graph, policy, hidden)
    second, width = ("probabilities", policy.action_count) if discrete else ("deviation", len(policy.low))
    action = (whole, ["n"]) if discrete else (number, ["n", width])
    model = helper.make_model(
        helper.make_graph(
            graph.nodes(helper),
            "policy",
            [helper.make_tensor_value_info("observation", number, ["n", len(policy.mean)])],
            [
                helper.make_tensor_value_info("action", *action),
                helper.make_tensor_value_info(second, number, ["n", width]),
            ],
            [onnx.numpy_helper.from_array(array, name) for name, array in graph.constants.items()],
        ),
        producer_name="bats-rl",
        opset_imports=[helper.make_opsetid("", OPERATORS)],
    )
    model.ir_version = FORMAT
    return model


def _gaussian(graph: _Graph, policy: Policy, outputs: str) -> None:
    """Mean and log-deviation, side by side in the outputs, as an action within its limits and a deviation."""
    half = graph.constant((policy.high - policy.low) / 2)
    count = len(policy.low)
    first, middle, last, axis = (graph.constant(np.array([each], np.int64)) for each in (0, count, 2 * count, 1))
    mean = graph.add("Mul", graph.add("Slice", outputs, first, middle, axis), half)
    mean = graph.add("Add", mean, graph.constant((policy.high + policy.low) / 2))
    above = graph.add("Max", mean, graph.constant(policy.low))
    graph.add("Min", above, graph.constant(policy.high), to="action")
    share = graph.add("Sigmoid", graph.add("Slice", outputs, middle, last, axis))
    span = graph.constant(np.float32(GREATEST_LOG_DEVIATION - LEAST_LOG_DEVIATION))
    log_deviation = graph.add("Add", graph.add("Mul", share, span), graph.constant(np.float32(LEAST_LOG_DEVIATION)))
    graph.add("Mul", graph.add("Exp", log_deviation), half, to="deviation")


class _Graph:
    """Operations in the order of their work, each named after its place, and the numbers they need."""

    def __init__(self) -> None:
        self.constants: dict[str, np.ndarray] = {}
        self._operations: list[tuple[str, tuple[str, ...], str, dict[str, int]]] = []

    def constant(self, array: np.ndarray | np.float32) -> str:
        held = np.asarray(array)
        name = f"constant_{len(self.constants)}"
        self.constants[name] = held if held.dtype == np.int64 else held.astype(np.float32)
        return name

    def add(self, kind: str, *inputs: str, to: str | None = None, **settings: int) -> str:
        name = to or f"{kind.lower()}_{len(self._operations)}"
        self._operations.append((kind, inputs, name, settings))
        return name

    def nodes(self, helper: Any) -> list[Any]:
        return [helper.make_node(kind, inputs, [to], **settings) for kind, inputs, to, settings in self._operations]


def _difference(policy: Policy, content: bytes) -> float | None:
    """The greatest difference between the answers of a file's content and of the policy."""
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    noise = np.random.default_rng(0).standard_normal((CHECKED, len(policy.mean)))
    observations = (policy.mean + 2 * noise * policy.deviation).astype(np.float32)
    action, second = session.run(["action", session.get_outputs()[1].name], {"observation": observations})
    if policy.action_count is None:
        half = np.maximum((policy.high - policy.low) / 2, np.finfo(np.float32).tiny)
        return _greatest((action - policy.predict(observations)) / half)
    probabilities = policy.probabilities(observations)
    rows = np.arange(CHECKED)
    chosen_otherwise = probabilities[rows, policy.predict(observations)] - probabilities[rows, action] > TIE
    return max(_greatest(second - probabilities), float(chosen_otherwise.any()))


def _greatest(difference: Float[np.ndarray, "n _"]) -> float:
    return float(np.abs(difference).max(initial=0.0))
