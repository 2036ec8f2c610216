"""Trees of JAX arrays as named arrays, for `storage.tensors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bats.errors import DataError

Tree = TypeVar("Tree")


def tree_arrays(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree by their path in it."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_array))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def fill_tree(template: Tree, arrays: Mapping[str, np.ndarray], *, file: str) -> Tree:
    """A tree of the template's form with the given arrays, which must have its names, shapes and kinds of numbers."""
    dynamic, static = eqx.partition(template, eqx.is_array)
    leaves, form = jax.tree_util.tree_flatten_with_path(dynamic)
    filled = []
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path)
        array = arrays.get(name)
        if array is None or array.shape != leaf.shape or array.dtype.kind != leaf.dtype.kind:
            found = "no such array" if array is None else f"{array.dtype} of shape {array.shape}"
            raise DataError(f"an array {name}, {leaf.dtype} of shape {leaf.shape}", found, file=file)
        with np.errstate(over="ignore"):
            filled.append(array.astype(leaf.dtype))
        if not np.isfinite(filled[-1]).all():
            raise DataError(f"finite numbers in the array {name}", "NaN or infinity", file=file)
    return eqx.combine(jax.tree_util.tree_unflatten(form, map(jnp.asarray, filled)), static)
