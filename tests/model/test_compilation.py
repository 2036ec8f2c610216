"""Programs are compiled once: the arrays that go into training have the same types as those that come out."""

from __future__ import annotations

import jax
import pytest

from bats.config import ModelConfig
from bats.model.ensemble import Kind, new_dynamics


@pytest.mark.parametrize("linear", [True, False])
def test_no_weight_is_weakly_typed(linear: bool) -> None:
    config = ModelConfig(members=2, elites=1, hidden=(4,), linear=linear)
    dynamics = new_dynamics(config, Kind(2, 1, None, True, False, True, True), jax.random.key(0))
    weights = jax.tree.leaves(dynamics)
    assert weights
    assert not [weight for weight in weights if weight.weak_type]
