"""What it costs, in the model, to leave the states that the log shows.

Members of an ensemble may agree and still be wrong where there are no data: on a way through a wall, for example, that
the log never touched. Stitches, which were checked one by one, may lead out of the log's own support, so the states
that the graph's policy visits belong to it too.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bats.networks.training import rows_on_device
from bats.policy.support import Support

VISITED = 50_000
"""states that the graph's policy visits which belong to the support besides those of the log; of more, a sample"""
INNER, OUTER = 0.8, 2.0
"""distances from the support, in its limit, between which the cost of being there rises"""
RESOLUTION = 3e-3
"""smallest limit, as a share of the largest distance from the mean: differences of squares have no more digits"""
BLOCK = 256
"""states that are compared with the sample at once, to need little memory"""
OUTSIDE_COST = 3.0
"""what a step at the outer distance or beyond costs, in steps of delay"""


class SupportCost(eqx.Module):
    """What it costs to leave the states of the log and those that the graph's policy visits."""

    sample: Float[Array, "K D"]
    """embedded in the metric of the support, relative to their mean"""
    squares: Float[Array, "K"]
    """their squared lengths; infinite where the sample is filled up"""
    centre: Float[Array, "D"]
    weight: Float[Array, "D"]
    limit: Float[Array, ""]
    cost: Float[Array, ""]

    @classmethod
    def of(
        cls, support: Support, visited: Float[np.ndarray, "v D"], *, step_value: float, rng: np.random.Generator
    ) -> SupportCost:
        """With the states that the graph's policy visits; `step_value` is the reward that a step of delay costs."""
        visited = visited if len(visited) <= VISITED else rng.choice(visited, VISITED, replace=False)
        sample = np.concatenate([support.sample, visited * support.weight])
        centre = sample.mean(axis=0)  # small numbers lose fewer digits in the squares
        sample = sample - centre
        squares = (sample**2).sum(axis=1)
        limit = max(support.limit, RESOLUTION * math.sqrt(squares.max()))
        others = (jnp.asarray(part, jnp.float32) for part in (centre, support.weight, limit, OUTSIDE_COST * step_value))
        return cls(rows_on_device(sample), rows_on_device(squares, fill=np.inf), *others)

    def __call__(self, states: Float[Array, "*some D"]) -> Float[Array, "*some"]:
        def squared(point: Float[Array, "D"]) -> Float[Array, ""]:
            """The squared distance to the nearest state."""
            products = jnp.matmul(self.sample, point, precision=jax.lax.Precision.HIGHEST)
            return (self.squares - 2 * products).min() + point @ point

        points = (states * self.weight - self.centre).reshape(-1, states.shape[-1])
        distance = jnp.sqrt(jnp.maximum(jax.lax.map(squared, points, batch_size=BLOCK), 0.0)) / self.limit
        beyond = jnp.clip((distance - INNER) / (OUTER - INNER), 0.0, 1.0)
        return self.cost * beyond.reshape(states.shape[:-1])
