"""What a state is worth, by a network: first as in the graph, then as the policy's own rollouts in the model return."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bats.graph.solve import Solution
from bats.improvement.regression import Rows, regress
from bats.networks.inference import mean_and_std
from bats.networks.mlp import MLP, new_mlp
from bats.networks.training import Problem, Schedule

HIDDEN = (256, 256)
LEARNING_RATE, WARM_UP = 1e-3, 0.02
UPDATES, FURTHER_UPDATES = 2000, 1000
"""for the graph's values and the first returns, and for the returns of each later turn"""


class Critic(eqx.Module):
    """A network of the values of states."""

    network: MLP
    mean: Float[Array, "D"]
    std: Float[Array, "D"]
    value_mean: Float[Array, ""]
    value_std: Float[Array, ""]
    limits: Float[Array, "2"]
    """smallest and largest possible value"""

    def __call__(self, states: Float[Array, "*some D"]) -> Float[Array, "*some"]:
        values = self.network((states - self.mean) / self.std)[..., 0] * self.value_std + self.value_mean
        return jnp.clip(values, self.limits[0], self.limits[1])


def critic_of_graph(
    solution: Solution, visited: Int[np.ndarray, "v"], limits: tuple[float, float], *, step_value: float, seed: int
) -> Critic:
    """The values of the states that the graph's policy visits, of which `visited` is a sample.

    The other states of the graph are left out: where nothing was stitched, a state is worth what the log happened to do
    there, and the nearest states may be worth much more or less.
    """
    mean, std = mean_and_std(solution.mdp.states[: solution.mdp.real_count])
    value_mean, value_std = solution.value[visited].mean(), max(float(solution.value[visited].std()), step_value)
    network = new_mlp((len(mean), *HIDDEN, 1), jax.random.key(seed))
    scales = (jnp.asarray(part, jnp.float32) for part in (mean, std, value_mean, value_std, np.array(limits)))
    return fitted(Critic(network, *scales), solution.mdp.states[visited], solution.value[visited], UPDATES, seed=seed)


def fitted(
    critic: Critic, states: Float[np.ndarray, "n D"], values: Float[np.ndarray, "n"], updates: int, *, seed: int
) -> Critic:
    """The critic after training on some states and their values."""
    inputs = (states - np.asarray(critic.mean)) / np.asarray(critic.std)
    targets = (values - np.asarray(critic.value_mean)) / np.asarray(critic.value_std)
    problem = Problem(_loss, Schedule(LEARNING_RATE, updates, WARM_UP), None, evaluate_every=updates)
    return replace(critic, network=regress(problem, critic.network, inputs, targets[:, None], seed=seed))


def _loss(network: MLP, rows: Rows, batch: Array, _: None) -> Float[Array, ""]:
    return ((network(rows.inputs[batch]) - rows.targets[batch]) ** 2).mean()
