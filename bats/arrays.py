"""Array aliases with their shapes, structs of arrays, and the two protocols that every package shares.

Letters in shapes: N rows of a log, S states, E edges, D numbers in a state, A numbers in an action, W start states,
C stitches, K the most actions in a stitch, M members of the ensemble.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

Observations = Float[np.ndarray, "N D"]
Actions = Float[np.ndarray, "N A"] | Int[np.ndarray, "N"]
"""continuous actions, or the index of a discrete one"""
RowNumbers = Float[np.ndarray, "N"]
RowFlags = Bool[np.ndarray, "N"]

States = Float[np.ndarray, "S D"]
StateValues = Float[np.ndarray, "S"]
StateFlags = Bool[np.ndarray, "S"]
EdgeValues = Float[np.ndarray, "E"]
EdgeActions = Float[np.ndarray, "E A"] | Int[np.ndarray, "E"]
Indices = Int[np.ndarray, "n"]
"""some states, edges or rows, by number"""
TabularPolicy = Int[np.ndarray, "S"]
"""the edge taken in every state, `NO_EDGE` where there is none"""

ActionBounds = tuple[Float[np.ndarray, "A"], Float[np.ndarray, "A"]]
"""least and greatest value of each action dimension"""
Arrays = dict[str, np.ndarray]
"""arrays by name"""
Numbers = TypeVar("Numbers")
Struct = TypeVar("Struct")


@runtime_checkable
class Metric(Protocol):
    """Embeds states; their distance is the Euclidean distance of the embeddings. NumPy gives NumPy, JAX gives JAX."""

    def embed(self, states: Numbers) -> Numbers: ...


@runtime_checkable
class Progress(Protocol):
    """Called with how far a long job has come. The command line draws it; the library itself never prints."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...


def no_progress(stage: str, done: int, total: int) -> None:
    """Ignores progress."""


def field_values(struct: object) -> dict[str, Any]:
    """The values of a dataclass by the names of its fields."""
    return {field.name: getattr(struct, field.name) for field in fields(struct)}  # type: ignore[arg-type]


def short_repr(struct: object) -> str:
    """A dataclass in one line, with the types and shapes of its arrays instead of their numbers."""
    parts = (
        f"{name}={value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else f"{name}={value!r}"
        for name, value in field_values(struct).items()
    )
    return f"{type(struct).__name__}({', '.join(parts)})"


def take(struct: Struct, rows: Any) -> Struct:
    """The given rows of every array of a dataclass of arrays."""
    return type(struct)(*(array[rows] for array in field_values(struct).values()))


def concat(structs: Sequence[Struct]) -> Struct:
    """Dataclasses of arrays, one after the other."""
    parts = zip(*(field_values(struct).values() for struct in structs), strict=True)
    return type(structs[0])(*map(np.concatenate, parts))


def put(struct: Struct, rows: Any, others: Struct) -> Struct:
    """A copy of a dataclass of arrays in which `others` replace some rows."""
    arrays = {name: array.copy() for name, array in field_values(struct).items()}
    for name, array in field_values(others).items():
        arrays[name][rows] = array
    return type(struct)(**arrays)


def padded_length(count: int) -> int:
    """The next of four lengths per power of two.

    A program is compiled for every shape, and stays in memory. Arrays of many different lengths share few programs if
    they are filled up to such a length.
    """
    step = max(2 ** (count.bit_length() - 3), 1)
    return -(-count // step) * step


def in_batches(compute: Callable[..., Any], size: int, *arrays: np.ndarray, axis: int = 0) -> list[np.ndarray]:
    """The results of a compiled function on batches of one or more rows, put together along `axis`.

    The last batch is filled up with repeats, because every batch size would be compiled anew.
    """
    count = len(arrays[0])
    batches = [np.resize(np.arange(first, min(first + size, count)), size) for first in range(0, count, size)]
    parts = zip(*(compute(*(array[rows] for array in arrays)) for rows in batches), strict=True)
    return [np.concatenate([np.asarray(one) for one in part], axis).take(range(count), axis) for part in parts]
