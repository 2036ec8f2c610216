"""Array aliases with their shapes, structs of arrays, and the two protocols that every package shares.

Letters in shapes: N rows of a log, S states, E edges, D numbers in a state, A numbers in an action, W start states,
C stitches, K the most actions in a stitch, M members of the ensemble.
"""

from __future__ import annotations

from collections.abc import Sequence
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
TabularPolicy = Int[np.ndarray, "S"]
"""the edge taken in every state, `NO_EDGE` where there is none"""

ActionBounds = tuple[Float[np.ndarray, "A"], Float[np.ndarray, "A"]]
"""least and greatest value of each action dimension"""
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


def take(struct: Struct, rows: Any) -> Struct:
    """The given rows of every array of a dataclass of arrays."""
    return type(struct)(*(getattr(struct, field.name)[rows] for field in _fields(struct)))


def concat(structs: Sequence[Struct]) -> Struct:
    """Dataclasses of arrays, one after the other."""
    parts = (np.concatenate([getattr(one, field.name) for one in structs]) for field in _fields(structs[0]))
    return type(structs[0])(*parts)


def put(struct: Struct, rows: Any, others: Struct) -> Struct:
    """A copy of a dataclass of arrays in which `others` replace some rows."""
    arrays = [getattr(struct, field.name).copy() for field in _fields(struct)]
    for array, field in zip(arrays, _fields(struct), strict=True):
        array[rows] = getattr(others, field.name)
    return type(struct)(*arrays)


def _fields(struct: object) -> tuple[Any, ...]:
    return fields(struct)  # type: ignore[arg-type]  # typing has no bound for dataclasses
