"""Methods that add a term to SAC's losses are SAC where the term has no weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bats.baselines.config import TD3BCConfig
from bats.baselines.core import Sizes
from bats.baselines.methods import brac_v, combo, cql, sac, td3_bc
from tests.baselines.hand_made import KEY, TWO_ROWS, close, jitted, push_model
from tests.baselines.small_worlds import small_config

ROWS = TWO_ROWS.actions.shape[0]
BATCH = replace(TWO_ROWS, update=jnp.int32(10**6))
"""after every warm start"""
SAME = {"temperature": None, "entropy_bonus": True, "batch_size": ROWS, "hidden": (8,), "critic_hidden": (8,)}
LOGGED_ROWS = small_config("combo", beta=0.0, real_share=1.0, **SAME)
REDUCED = [
    (cql, small_config("cql", alpha=0.0, target_gap=None, **SAME)),
    (cql, small_config("cql", alpha=0.0, target_gap=5.0, **SAME)),
    (brac_v, small_config("brac-v", penalty=0.0, **SAME)),
    (combo, LOGGED_ROWS),
]


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize(("module", "config"), REDUCED)
def test_without_its_term_a_method_has_sacs_losses_and_gradients(module: Any, config: Any) -> None:
    networks = module.METHOD.new_networks(Sizes(1, 1, discrete=False), config, KEY)
    plain = {name: cql.plain(networks)[name] for name in ("actor", "critics")}
    for name, loss in (("critics", sac.critic_loss), ("actor", sac.actor_loss)):
        own_loss = module.METHOD.groups[name].loss

        @jitted
        def gradient(loss: Any, networks: Any, name: str = name) -> Any:
            return jax.value_and_grad(lambda own: loss({**networks, name: own}, networks, BATCH, KEY, config))(
                networks[name]
            )

        value, slope = gradient(loss, plain)
        own_value, own_slope = gradient(own_loss, networks)
        assert float(own_value) == close(value, 1e-6)
        own_slope, slope = (flat(getattr(part, "network", part)) for part in (own_slope, slope))
        assert own_slope == close(slope, 1e-6)


def test_combo_of_logged_rows_alone_makes_no_rollouts() -> None:
    assert combo.with_rollouts({}, BATCH, push_model(), KEY, LOGGED_ROWS) is BATCH


def test_td3_bc_of_a_large_alpha_moves_the_policy_as_td3_does() -> None:
    networks = td3_bc.new_networks(Sizes(1, 1, discrete=False), small_config("td3-bc"), KEY)

    def td3(actor: Any) -> jax.Array:
        actions = jnp.tanh(actor(BATCH.states))
        return -networks["critics"](jnp.concatenate([BATCH.states, actions], axis=1))[0].mean()

    def own(actor: Any, alpha: float) -> jax.Array:
        return td3_bc.actor_loss({**networks, "actor": actor}, {}, BATCH, KEY, TD3BCConfig(alpha=alpha))

    wanted = flat(jitted(jax.grad(td3))(networks["actor"]))
    angles = []
    for alpha in (1e-3, 1e3):
        found = flat(jitted(jax.grad(own))(networks["actor"], alpha))
        angles.append(found @ wanted / np.linalg.norm(found) / np.linalg.norm(wanted))
    assert angles[1] == pytest.approx(1.0, abs=1e-3)
    assert angles[0] < 0.99
