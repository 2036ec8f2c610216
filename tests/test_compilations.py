"""The count of compiled programs that other tests rely on."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tests.compilations import compilations


def test_a_program_is_counted_when_it_is_compiled_and_not_when_it_is_called_again() -> None:
    @jax.jit
    def doubled(numbers: jax.Array) -> jax.Array:
        return 2 * numbers

    three, four = jnp.ones(3), jnp.ones(4)
    with compilations() as first:
        doubled(three)
        doubled(three)
    assert first == ["jit(doubled)"]
    with compilations() as second:
        doubled(three)
        doubled(four)
    assert second == ["jit(doubled)"]
