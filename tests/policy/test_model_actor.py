"""A policy that acts in the model."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from bats.model.ensemble import one_hot
from bats.policy.model_actor import ModelActor
from tests.policy.policies import observations, some_policy


@pytest.mark.parametrize("action_count", [None, 4])
def test_in_the_model_the_clone_acts_as_it_predicts(action_count: int | None) -> None:
    policy = some_policy(action_count=action_count, scale=3.0)
    states = observations(50, policy)
    actions = np.asarray(ModelActor.of(policy).act(jnp.asarray(states)[None]))[0]
    np.testing.assert_allclose(actions, one_hot(policy.predict(states), action_count), atol=1e-4)


def test_noise_is_in_halves_of_the_range_and_actions_stay_within_their_bounds() -> None:
    actor = ModelActor.of(some_policy())
    states = jnp.asarray(observations(50, some_policy()))[None]
    means = actor.outputs(states)[..., :2]
    expected = jnp.clip(actor.centre + actor.half * (jnp.clip(means, -1, 1) + 0.25), actor.low, actor.high)
    np.testing.assert_allclose(actor.act(states, jnp.full((1, 50, 2), 0.25)), expected, rtol=1e-5)
    np.testing.assert_allclose(actor.act(states, jnp.full((1, 50, 2), 100.0)), jnp.broadcast_to(actor.high, (1, 50, 2)))
