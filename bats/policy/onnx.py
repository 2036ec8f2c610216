"""A policy as an ONNX file, for programs without Python: standardisation and clipping are inside.

observation [n, D] float32  ->  action [n, A] float32, and std [n, A] float32
                            ->  or action [n] int64, and probabilities [n, count] float32
                            ->  valid [n] bool: the policy answers this observation, as `Policy.valid` says
                            ->  support_distance [n] float32, as in Python, if the policy knows its support

Where `valid` is false, as for NaN, the action is the one for the mean observation, and `support_distance` is infinite:
every action is within the bounds, whatever comes in.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bats.config import FilePath, checked
from bats.errors import BatsError
from bats.policy.policy import MAX_LOG_STD, MIN_LOG_STD, Policy
from bats.policy.support import Support
from bats.storage.atomic import refuse_existing, write_atomic

OPSET = 17
"""version of ONNX's operators: old enough for the runtimes in use"""
IR_VERSION = 8
"""version of the file format that goes with it"""
CHECKED = 10_000
"""random observations that the file and the policy must answer alike"""
AGREEMENT = 1e-5
"""largest difference of actions, in halves of their range"""
FARTHEST = 1e18
"""distances beyond this are all the same: their squares do not fit into single precision"""
TIE = 1e-5
"""discrete actions whose probabilities are closer than this may be chosen either way"""
AWKWARD = (np.nan, np.inf, -np.inf, np.finfo(np.float32).max, np.finfo(np.float32).min, 1e-45, -0.0)
"""numbers that are compared besides, each in every place of an observation"""


def export_onnx(policy: Policy, path: Path | str, *, overwrite: bool = False) -> float | None:
    """Writes the policy's deterministic actions as ONNX, after comparing the file with the policy.

    Returns the largest difference over 10,000 random observations; None where onnxruntime is not installed to compare.
    """
    policy, path = checked("policy", Policy, policy), Path(checked("path", FilePath, path))
    overwrite = checked("overwrite", bool, overwrite)
    refuse_existing(path, overwrite=overwrite)
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
    helper, kinds = onnx.helper, onnx.TensorProto
    graph = _Graph()
    standardised = graph.add("Sub", "observation", graph.constant(policy.mean))
    standardised = graph.add("Div", standardised, graph.constant(policy.std))
    # a comparison with NaN is false
    close = graph.add("LessOrEqual", graph.add("Abs", standardised), graph.constant(policy.input_limit))
    all_close = graph.add("ReduceMin", graph.add("Cast", close, to=kinds.FLOAT), axes=[1], keepdims=1)
    is_valid = graph.add("Cast", all_close, to=kinds.BOOL)
    hidden = graph.add("Where", is_valid, standardised, graph.constant(np.float32(0)))
    for layer, (weight, bias) in enumerate(zip(policy.weights, policy.biases, strict=True)):
        hidden = graph.add("MatMul", hidden, graph.constant(weight))
        hidden = graph.add("Add", hidden, graph.constant(bias))
        if layer < len(policy.weights) - 1:
            silu = policy.activation == "silu"
            hidden = graph.add("Mul", hidden, graph.add("Sigmoid", hidden)) if silu else graph.add("Relu", hidden)
    if policy.action_count is not None:
        graph.add("ArgMax", hidden, name="action", axis=1, keepdims=0)
        graph.add("Softmax", hidden, name="probabilities", axis=1)
        outputs = {"action": (kinds.INT64, ["n"]), "probabilities": (kinds.FLOAT, ["n", policy.action_count])}
    else:
        _add_gaussian(graph, policy, hidden)
        outputs = {name: (kinds.FLOAT, ["n", len(policy.low)]) for name in ("action", "std")}
    graph.add("Squeeze", is_valid, graph.constant(np.array([1])), name="valid")
    outputs["valid"] = (kinds.BOOL, ["n"])
    if policy.support is not None:
        _add_support(graph, policy.support, is_valid, onnx)
        outputs["support_distance"] = (kinds.FLOAT, ["n"])
    model = helper.make_model(
        helper.make_graph(
            graph.nodes(onnx),
            "policy",
            [helper.make_tensor_value_info("observation", kinds.FLOAT, ["n", len(policy.mean)])],
            [helper.make_tensor_value_info(name, *form) for name, form in outputs.items()],
            [onnx.numpy_helper.from_array(array, name) for name, array in graph.constants.items()],
        ),
        producer_name="bats-rl",
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    model.ir_version = IR_VERSION
    return model


def _add_gaussian(graph: _Graph, policy: Policy, outputs: str) -> None:
    """The outputs hold mean and raw log-std side by side; adds the bounded action, and the std before any tanh."""
    half = graph.constant((policy.high - policy.low) / 2)
    count = len(policy.low)
    first, middle, last, axis = (graph.constant(np.array([index], np.int64)) for index in (0, count, 2 * count, 1))
    mean = graph.add("Slice", outputs, first, middle, axis)
    mean = graph.add("Mul", graph.add("Tanh", mean) if policy.squashed else mean, half)
    mean = graph.add("Add", mean, graph.constant((policy.high + policy.low) / 2))
    graph.add("Min", graph.add("Max", mean, graph.constant(policy.low)), graph.constant(policy.high), name="action")
    share = graph.add("Sigmoid", graph.add("Slice", outputs, middle, last, axis))
    span = graph.constant(np.float32(MAX_LOG_STD - MIN_LOG_STD))
    log_std = graph.add("Add", graph.add("Mul", share, span), graph.constant(np.float32(MIN_LOG_STD)))
    graph.add("Mul", graph.add("Exp", log_std), half, name="std")


def _add_support(graph: _Graph, support: Support, is_valid: str, onnx: Any) -> None:
    """Adds the distance of each observation to the nearest state of the sample, in units of the limit.

    One observation at a time, so that the memory does not grow with their number. Differences are squared, and not
    multiplied out as in Python: in single precision, little would be left of a small distance.
    """
    weight = support.weight.astype(np.float64)
    # distances are between numbers relative to the middle of the sample, because these have more digits
    middle = support.sample.mean(axis=0, dtype=np.float64) / np.where(weight > 0, weight, 1.0) * (weight > 0)
    with np.errstate(over="ignore", invalid="ignore"):
        middle, scale = middle.astype(np.float32), (weight / support.limit).astype(np.float32)
        sample = ((support.sample - middle * weight) / support.limit).astype(np.float32)
    if not all(np.isfinite(numbers).all() for numbers in (middle, scale, sample)):
        raise BatsError("The distances of the support do not fit into single precision, so ONNX cannot compute them.")
    states = graph.constant(sample.T)
    known = graph.add("Where", is_valid, "observation", graph.constant(middle))
    points = graph.add("Mul", graph.add("Sub", known, graph.constant(middle)), graph.constant(scale))
    column, ones = graph.constant(np.array([1])), graph.constant(np.ones((1, len(weight))))
    count = graph.add("Gather", graph.add("Shape", points), graph.constant(np.int64(0)))

    each = _Graph("each_")
    each.add("Identity", "go_on", name="goes_on")
    point = each.add("Unsqueeze", each.add("Gather", points, "row"), column)
    difference = each.add("Sub", states, point)
    squares = each.add("MatMul", ones, each.add("Mul", difference, difference))
    each.add("ReduceMin", squares, name="square", keepdims=0)
    helper, kinds = onnx.helper, onnx.TensorProto
    inputs, results = (
        [helper.make_tensor_value_info(name, kind, []) for name, kind in entries.items()]
        for entries in ({"row": kinds.INT64, "go_on": kinds.BOOL}, {"goes_on": kinds.BOOL, "square": kinds.FLOAT})
    )
    body = helper.make_graph(each.nodes(onnx), "nearest", inputs, results)
    distance = graph.add("Sqrt", graph.add("Loop", count, "", body=body))
    graph.add("Where", "valid", distance, graph.constant(np.float32(np.inf)), name="support_distance")


class _Graph:
    """Operations in order, each named after its position, and their constants."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.constants: dict[str, np.ndarray] = {}
        self.operations: list[tuple[str, tuple[str, ...], str, dict[str, Any]]] = []

    def constant(self, array: np.ndarray | np.generic) -> str:
        values = np.asarray(array)
        name = f"constant_{len(self.constants)}"
        self.constants[name] = values if values.dtype == np.int64 else values.astype(np.float32)
        return name

    def add(self, kind: str, *inputs: str, name: str | None = None, **settings: Any) -> str:
        name = name or f"{self.prefix}{kind.lower()}_{len(self.operations)}"
        self.operations.append((kind, inputs, name, settings))
        return name

    def nodes(self, onnx: Any) -> list[Any]:
        return [
            onnx.helper.make_node(kind, inputs, [name], **settings) for kind, inputs, name, settings in self.operations
        ]


def _largest_difference(policy: Policy, content: bytes) -> float | None:
    """The largest difference between the answers of a file's content and of the policy."""
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    size = len(policy.mean)
    noise = np.random.default_rng(0).standard_normal((CHECKED, size))
    typical = (policy.mean + 2 * noise * policy.std).astype(np.float32)
    awkward = np.repeat(policy.mean[None], len(AWKWARD) * size, axis=0)
    awkward[np.arange(len(awkward)), np.arange(len(awkward)) % size] = np.repeat(np.array(AWKWARD, np.float32), size)
    return largest_difference(policy, session, np.concatenate([typical, awkward]))


def largest_difference(policy: Policy, session: Any, observations: np.ndarray) -> float:
    """The largest difference between the answers of an ONNX session and of its policy to float32 observations.

    It is of actions in halves of their range, or of probabilities. Rounding grows with an observation's distance from
    the mean, so differences are divided by that distance in std where it exceeds 1. Infinite if an answer is another
    altogether.
    """
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"observation": observations}), strict=True))
    valid = policy.valid(observations)
    known = np.where(valid[:, None], observations, policy.mean)
    far = np.maximum(np.abs((known - policy.mean) / policy.std).max(axis=1), 1.0)
    agrees = found["valid"] == valid
    if policy.action_count is None:
        half = np.maximum((policy.high - policy.low) / 2, np.finfo(np.float32).tiny)
        differs = np.abs((found["action"] - policy.predict(known)) / half).max(axis=1)
    else:
        probabilities, rows = policy.probabilities(known), np.arange(len(known))
        chosen = probabilities[rows, policy.predict(known)], probabilities[rows, found["action"]]
        agrees &= chosen[0] - chosen[1] <= TIE * far
        differs = np.abs(found["probabilities"] - probabilities).max(axis=1)
    if policy.support is not None:
        agrees &= _same_distance(policy.support, np.where(valid, policy.support_distance(known), np.inf), found)
    return float(np.where(agrees, differs / far, np.inf).max())


def _same_distance(support: Support, distance: np.ndarray, found: dict[str, np.ndarray]) -> np.ndarray:
    """Whether distances are the same, except for the rounding of their numbers to single precision."""
    extent = np.ptp(support.sample, axis=0).max() / support.limit
    rounding = 10 * np.finfo(np.float32).eps * np.sqrt(len(support.weight))
    one, other = (np.minimum(numbers, FARTHEST) for numbers in (distance, found["support_distance"]))
    return np.abs(one - other) <= rounding * (one + extent)
