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
    """A tree of the template's form with the given arrays, which must have the same names and shapes."""
    dynamic, static = eqx.partition(template, eqx.is_array)
    leaves, form = jax.tree_util.tree_flatten_with_path(dynamic)
    filled = []
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path)
        if name not in arrays or arrays[name].shape != leaf.shape:
            found = f"shape {arrays[name].shape}" if name in arrays else "no such array"
            raise DataError(f"an array {name} of shape {leaf.shape}", found, file=file)
        filled.append(jnp.asarray(arrays[name], leaf.dtype))
    return eqx.combine(jax.tree_util.tree_unflatten(form, filled), static)
