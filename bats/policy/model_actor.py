"""A policy in JAX, to act in the model."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bats.networks.mlp import MLP
from bats.policy.policy import Policy


class ModelActor(eqx.Module):
    """A policy on the device, as the model takes its actions."""

    network: MLP
    mean: Float[Array, "D"]
    std: Float[Array, "D"]
    low: Float[Array, "A"]
    high: Float[Array, "A"]
    action_count: int | None = eqx.field(static=True)
    squashed: bool = eqx.field(static=True)

    @classmethod
    def of(cls, policy: Policy) -> ModelActor:
        numbers = policy.mean, policy.std, policy.low, policy.high
        weights, biases = (tuple(map(jnp.asarray, part)) for part in (policy.weights, policy.biases))
        mean, std, low, high = (jnp.asarray(array, jnp.float32) for array in numbers)
        network = MLP(weights, biases, policy.activation)
        return cls(network, mean, std, low, high, policy.action_count, policy.squashed)

    def outputs(self, states: Float[Array, "*some D"]) -> Float[Array, "*some outputs"]:
        """What the network gives for each state."""
        return self.network((states - self.mean) / self.std)

    def act(
        self, states: Float[Array, "*some D"], noise: Float[Array, "*some _"] | float = 0.0
    ) -> Float[Array, "*some A"]:
        """The policy's deterministic actions, as the dynamics take them.

        Noise is added to continuous actions within their bounds, in halves of the range, and clipped there again.
        """
        outputs = self.outputs(states)
        if self.action_count is not None:
            return jax.nn.one_hot(outputs.argmax(axis=-1), self.action_count)
        mean = jnp.split(outputs, 2, axis=-1)[0]
        mean = jnp.tanh(mean) if self.squashed else jnp.clip(mean, -1.0, 1.0)
        return jnp.clip(self.centre + self.half * (mean + noise), self.low, self.high)

    @property
    def centre(self) -> Float[Array, "A"]:
        return (self.high + self.low) / 2

    @property
    def half(self) -> Float[Array, "A"]:
        return (self.high - self.low) / 2
