"""Each loss on a few rows, with networks whose answers are worked out in the comments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bats.baselines.config import (
    AWACConfig,
    BCConfig,
    BEARConfig,
    BRACConfig,
    COMBOConfig,
    CQLConfig,
    IQLConfig,
    ReBRACConfig,
    SACConfig,
    TD3BCConfig,
)
from bats.baselines.core import Batch
from bats.baselines.methods import awac, bc, bear, brac_v, combo, cql, iql, rebrac, sac, td3_bc
from bats.baselines.networks import SoftPolicy, squared_error
from bats.networks.mlp import MLP
from tests.baselines.hand_made import (
    KEY,
    TWO_ROWS,
    close,
    gaussian,
    gaussian_of_one_std,
    jitted,
    linear,
    linear_critics,
    log_normal,
    log_squashed,
    noise,
    one_number_batch,
    push_model,
)


def slope(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """The gradient of a loss, as one compiled program."""
    return jitted(jax.grad(loss))


CRITICS = linear_critics((1.0, 2.0, 0.0), (0.0, 1.0, 1.0))
"""Q_1 = s + 2 a and Q_2 = a + 1; on `TWO_ROWS`, Q_1 = 2, -2 and Q_2 = 1.5, 0.5"""
STATES = np.array([1.0, -1.0])
ACTIONS = np.array([0.5, -0.5])
NEXT_STATES = np.array([0.0, 2.0])
DISCOUNTS = np.array([0.5, 0.0])
REWARDS = np.array([1.0, 2.0])


def both(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """What `CRITICS` answer."""
    return np.stack([states + 2 * actions, actions + 1])


def error(target: np.ndarray) -> float:
    """The squared error of both critics on `TWO_ROWS`."""
    return ((both(STATES, ACTIONS) - target) ** 2).sum(axis=0).mean()


def soft_policy(network: MLP, temperature: float = 1.0) -> SoftPolicy:
    return SoftPolicy(network, jnp.float32(math.log(temperature)))


def log_temperature_gradient(loss: object, actor: SoftPolicy) -> float:
    return float(slope(loss)(actor).log_temperature)  # type: ignore[arg-type, call-overload]


def test_squared_errors_are_summed_over_critics_and_averaged_over_rows() -> None:
    # critic 1 is off by 1 and 3, critic 2 by 0 and 2: (1 + 0 + 9 + 4) / 2
    predicted = jnp.array([[1.0, 3.0], [0.0, 2.0]])
    assert float(squared_error(predicted, jnp.zeros(2))) == close(7.0)


def test_cloning_is_the_negative_log_likelihood() -> None:
    # means 2 s + 0.1 = 2.1 and -1.9, std 0.5, actions 0.5 and -0.5: distances 3.2 and 2.8 std
    loss = jitted(bc.actor_loss)({"actor": gaussian(0.1, 0.5, slope=2.0)}, {}, TWO_ROWS, KEY, BCConfig())
    expected = 0.5 * (3.2**2 + 2.8**2) / 2 + math.log(0.5 * math.sqrt(2 * math.pi))
    assert float(loss) == close(expected)


def test_cloning_of_discrete_actions_is_the_cross_entropy() -> None:
    # logits (s, 0): probabilities of action 0 are e/(e+1) in state 1 and 1/(e+1) in state -1
    batch = replace(TWO_ROWS, actions=jnp.array([0, 1]), next_actions=jnp.array([0, 1]))
    loss = jitted(bc.actor_loss)({"actor": linear([[1.0, 0.0]], [0.0, 0.0])}, {}, batch, KEY, BCConfig())
    assert float(loss) == close(-math.log(math.e / (math.e + 1)))


@pytest.mark.parametrize("entropy_bonus", [True, False])
def test_sac_targets_have_the_smaller_value_and_the_entropy(entropy_bonus: bool) -> None:
    networks = {"actor": soft_policy(gaussian(0.2, 0.5), temperature=0.1), "critics": CRITICS}
    loss = jitted(sac.critic_loss)(
        networks, {"critics": CRITICS}, TWO_ROWS, KEY, SACConfig(entropy_bonus=entropy_bonus)
    )
    raw = 0.2 + 0.5 * noise(KEY, 2, 1)[:, 0]
    # y = r + discount (min(s' + 2 a', a' + 1) - 0.1 log pi(a')), with a' = tanh(raw)
    value = both(NEXT_STATES, np.tanh(raw)).min(axis=0) - 0.1 * entropy_bonus * log_squashed(raw, 0.2, 0.5)
    assert float(loss) == close(error(REWARDS + DISCOUNTS * value))


def test_sac_policies_descend_temperature_times_log_probability_minus_the_smaller_value() -> None:
    networks = {"actor": soft_policy(gaussian(0.2, 0.5)), "critics": CRITICS}
    loss = jitted(sac.actor_loss)(networks, {}, TWO_ROWS, KEY, SACConfig(temperature=0.1))
    raw = 0.2 + 0.5 * noise(KEY, 2, 1)[:, 0]
    expected = (0.1 * log_squashed(raw, 0.2, 0.5) - both(STATES, np.tanh(raw)).min(axis=0)).mean()
    assert float(loss) == close(expected)


@pytest.mark.parametrize(("std", "sign"), [(1.0, 1), (0.01, -1)])
def test_the_temperature_falls_where_the_entropy_is_above_its_target(std: float, sign: int) -> None:
    """A tanh of a normal number with std 1 has an entropy of 0.6, with std 0.01 one of -3.2; the target is -1."""
    actor = soft_policy(gaussian(0.0, std), temperature=0.7)
    batch = one_number_batch(*[[0.0] * 100] * 4)

    def loss(own: SoftPolicy) -> jax.Array:
        return sac.actor_loss({"actor": own, "critics": CRITICS}, {}, batch, KEY, SACConfig())

    raw = std * noise(KEY, 100, 1)[:, 0]
    gradient = log_temperature_gradient(loss, actor)
    assert gradient == close((-log_squashed(raw, 0.0, std) + 1).mean(), 1e-4)  # entropy minus -1
    assert np.sign(gradient) == sign


def test_a_given_temperature_is_not_trained() -> None:
    actor = soft_policy(gaussian(0.0, 0.5))

    def loss(own: SoftPolicy) -> jax.Array:
        return sac.actor_loss({"actor": own, "critics": CRITICS}, {}, TWO_ROWS, KEY, SACConfig(temperature=0.1))

    assert log_temperature_gradient(loss, actor) == 0


def test_td3_bc_weighs_values_by_alpha_over_their_mean_size() -> None:
    # pi = tanh(s): values Q_1 = s + 2 tanh(s) = 2.5231884 and -2.5231884, so that lambda = 2.5 / 2.5231884
    networks = {"actor": linear([[1.0]], [0.0]), "critics": CRITICS}
    action = np.tanh(STATES)
    value = STATES + 2 * action
    # the values cancel in the mean, so the loss is that of cloning alone ...
    loss = jitted(td3_bc.actor_loss)(networks, {}, TWO_ROWS, KEY, TD3BCConfig(alpha=2.5))
    assert float(loss) == close(((action - ACTIONS) ** 2).mean())
    # ... but not on the first row alone, where lambda Q = alpha
    first = jax.tree.map(lambda leaf: leaf[:1] if leaf.ndim else leaf, TWO_ROWS)
    loss = jitted(td3_bc.actor_loss)(networks, {}, first, KEY, TD3BCConfig(alpha=2.5))
    assert value[0] == close(2.5231884)
    assert float(loss) == close(-2.5 + (action[0] - 0.5) ** 2)


def test_td3_bc_holds_the_size_of_the_values_fixed() -> None:
    def loss(bias: jax.Array) -> jax.Array:
        networks = {"actor": MLP((jnp.ones((1, 1)),), (bias,), "relu"), "critics": CRITICS}
        return td3_bc.actor_loss(networks, {}, TWO_ROWS, KEY, TD3BCConfig())

    # d/db = mean of (1 - tanh^2) (-lambda 2 + 2 (tanh(s) - a))
    action = np.tanh(STATES)
    weight = 2.5 / np.abs(STATES + 2 * action).mean()
    expected = ((1 - action**2) * (-2 * weight + 2 * (action - ACTIONS))).mean()
    assert np.asarray(slope(loss)(jnp.zeros(1))) == close([expected])


def test_td3_targets_have_clipped_noise_and_clipped_actions() -> None:
    networks, targets = {"critics": CRITICS}, {"actor": linear([[1.0]], [0.3]), "critics": CRITICS}
    config = TD3BCConfig(target_noise=0.6, noise_limit=0.5)
    drawn = 0.6 * noise(KEY, 2, 1)[:, 0]
    assert np.any(np.abs(drawn) > 0.5)  # so that clipping matters
    # next states 0 and 2: target actions tanh(0.3) and tanh(2.3), plus noise within 0.5, within -1 ... 1
    actions = np.clip(np.tanh(NEXT_STATES + 0.3) + np.clip(drawn, -0.5, 0.5), -1, 1)
    target = REWARDS + DISCOUNTS * both(NEXT_STATES, actions).min(axis=0)
    assert float(jitted(td3_bc.critic_loss)(networks, targets, TWO_ROWS, KEY, config)) == close(error(target))


def test_rebrac_penalises_distances_in_targets_and_policy() -> None:
    batch = replace(TWO_ROWS, next_actions=jnp.array([[0.25], [-0.75]]))
    config = ReBRACConfig(policy_penalty=0.3, critic_penalty=0.2, target_noise=0.0)
    actor = linear([[1.0]], [0.3])
    networks, targets = {"actor": actor, "critics": CRITICS}, {"actor": actor, "critics": CRITICS}
    # y = r + discount (min Q(s', tanh(s' + 0.3)) - 0.2 (tanh(s' + 0.3) - a')^2), a' the next logged action
    actions = np.tanh(NEXT_STATES + 0.3)
    value = both(NEXT_STATES, actions).min(axis=0) - 0.2 * (actions - [0.25, -0.75]) ** 2
    loss = jitted(rebrac.critic_loss)(networks, targets, batch, KEY, config)
    assert float(loss) == close(error(REWARDS + DISCOUNTS * value))
    # 0.3 (tanh(s + 0.3) - a)^2 - min Q / mean |min Q|
    actions = np.tanh(STATES + 0.3)
    value = both(STATES, actions).min(axis=0)
    expected = (0.3 * (actions - ACTIONS) ** 2 - value / np.abs(value).mean()).mean()
    assert float(jitted(rebrac.actor_loss)(networks, targets, batch, KEY, config)) == close(expected)


VALUE = linear([[1.0]], [0.5])
"""V = s + 0.5; on `TWO_ROWS`, V = 1.5, -0.5 and min Q = 1.5, -2, so that the advantages are 0 and -1.5"""


def test_iql_values_descend_the_expectile_loss() -> None:
    # advantages with V lower by 1: 1 and -0.5, so that 0.7 1^2 and 0.3 0.5^2
    networks = {"value": linear([[1.0]], [-0.5])}
    loss = jitted(iql.value_loss)(networks, {"critics": CRITICS}, TWO_ROWS, KEY, IQLConfig(expectile=0.7))
    assert float(loss) == close((0.7 * 1.0 + 0.3 * 0.25) / 2)


def test_iql_critics_descend_to_the_value_of_the_next_state() -> None:
    # next states 0 and 2: V = 0.5 and 2.5, the second row ends: y = 1 + 0.5 * 0.5 and 2
    networks = {"value": VALUE, "critics": CRITICS}
    loss = jitted(iql.critic_loss)(networks, {}, TWO_ROWS, KEY, IQLConfig())
    assert float(loss) == close(error(np.array([1.25, 2.0])))


def test_iql_weights_are_exponential_and_capped_at_100() -> None:
    # V = 2 s: advantages 1.5 - 2 and -2 + 2; V = 2 s - 2: 1.5 and 2, with beta 3 weights e^4.5 = 90.02 and 100
    actor, targets = gaussian_of_one_std(0.0, 0.5), {"critics": CRITICS}
    likelihood = log_normal(ACTIONS, np.tanh(0.0), 0.5)
    for constant, weight in ((0.0, [math.exp(-1.5), 1.0]), (-2.0, [math.exp(4.5), 100.0])):
        networks = {"actor": actor, "value": linear([[2.0]], [constant])}
        loss = jitted(iql.actor_loss)(networks, targets, TWO_ROWS, KEY, IQLConfig(inverse_temperature=3.0))
        assert float(loss) == close(-(np.array(weight) * likelihood).mean())


def test_iql_clones_with_the_tanh_of_the_mean() -> None:
    networks = {"actor": gaussian_of_one_std(0.3, 0.5, slope=1.0), "value": VALUE}
    loss = jitted(iql.actor_loss)(networks, {"critics": CRITICS}, TWO_ROWS, KEY, IQLConfig(inverse_temperature=0.0))
    assert float(loss) == close(-log_normal(ACTIONS, np.tanh(STATES + 0.3), 0.5).mean())


def test_iql_of_discrete_actions_looks_its_values_up() -> None:
    # Q_1 = (s, 2 s), Q_2 = (0, 1): for actions 0 and 1 in states 1 and -1 the smaller ones are 0 and -2
    critics = MLP((jnp.array([[[1.0, 2.0]], [[0.0, 0.0]]]),), (jnp.array([[[0.0, 0.0]], [[0.0, 1.0]]]),), "relu")
    batch = replace(TWO_ROWS, actions=jnp.array([0, 1]), next_actions=jnp.array([0, 1]))
    networks = {"value": linear([[0.0]], [-1.0]), "actor": linear([[1.0, 0.0]], [0.0, 0.0]), "critics": critics}
    targets = {"critics": critics}
    config = IQLConfig(expectile=0.7, inverse_temperature=1.0)
    # advantages 1 and -1
    assert float(jitted(iql.value_loss)(networks, targets, batch, KEY, config)) == close((0.7 + 0.3) / 2)
    # targets 1 - 0.5 and 2; values of critic 1 are 1 and -2, of critic 2 they are 0 and 1
    expected = (0.5**2 + 4.0**2 + 0.5**2 + 1.0**2) / 2
    assert float(jitted(iql.critic_loss)(networks, targets, batch, KEY, config)) == close(expected)
    # both actions have the probability e / (e + 1)
    weight = (math.e + 1 / math.e) / 2
    assert float(jitted(iql.actor_loss)(networks, targets, batch, KEY, config)) == close(
        -weight * math.log(math.e / (math.e + 1))
    )


def test_awac_weights_logged_actions_by_their_advantage_over_the_policys() -> None:
    networks = {"actor": gaussian_of_one_std(0.3, 0.5), "critics": CRITICS}
    own = np.clip(0.3 + 0.5 * noise(KEY, 2, 1)[:, 0], -1, 1)
    gap = both(STATES, ACTIONS).min(axis=0) - both(STATES, own).min(axis=0)
    likelihood = log_normal(ACTIONS, 0.3, 0.5)
    for temperature in (2.0, 0.01):
        weight = np.minimum(np.exp(gap / temperature), 100)
        loss = jitted(awac.actor_loss)(networks, {}, TWO_ROWS, KEY, AWACConfig(temperature=temperature))
        assert float(loss) == close(-(weight * likelihood).mean())
    assert weight.max() == 100  # the last one is capped


def test_awac_targets_are_of_the_policys_actions() -> None:
    networks = {"actor": gaussian_of_one_std(0.3, 0.5), "critics": CRITICS}
    own = np.clip(0.3 + 0.5 * noise(KEY, 2, 1)[:, 0], -1, 1)
    target = REWARDS + DISCOUNTS * both(NEXT_STATES, own).min(axis=0)
    loss = jitted(awac.critic_loss)(networks, {"critics": CRITICS}, TWO_ROWS, KEY, AWACConfig())
    assert float(loss) == close(error(target))


def constant_critics(first: float, second: float) -> MLP:
    return linear_critics((0.0, 0.0, first), (0.0, 0.0, second))


def test_the_soft_maximum_divides_by_the_density_of_each_action() -> None:
    """Where Q is 0, it is the log of the sum of 1 / density: uniform actions have the density 1/2."""
    config = CQLConfig(sampled_actions=3)
    policy = gaussian(0.2, 0.5, slope=0.3)
    found = jitted(cql.soft_maximum)(
        constant_critics(0.0, 7.0), policy, TWO_ROWS.states, TWO_ROWS.next_states, KEY, config
    )
    _, own_key, next_key = jax.random.split(KEY, 3)
    inverse = np.full(2, 3 * 2.0)
    for key, states in ((own_key, STATES), (next_key, NEXT_STATES)):
        mean = 0.3 * states + 0.2
        inverse += np.exp(-log_squashed(mean + 0.5 * noise(key, 3, 2, 1)[..., 0], mean, 0.5)).sum(axis=0)
    assert np.asarray(found) == close(np.stack([np.log(inverse), np.log(inverse) + 7]))


def test_the_soft_maximum_estimates_the_log_of_an_integral() -> None:
    """Of exp(2 a) over -1 ... 1: sinh(2), times the number of actions, as the docstring says."""
    config, critics = CQLConfig(sampled_actions=20_000), linear_critics((0.0, 2.0, 0.0), (0.0, 2.0, 0.0))
    found = jitted(cql.soft_maximum)(critics, gaussian(0.2, 0.7), TWO_ROWS.states, TWO_ROWS.next_states, KEY, config)
    assert np.asarray(found) - math.log(60_000) == pytest.approx(np.full((2, 2), math.log(math.sinh(2.0))), abs=0.02)


def unseen(batch: Batch, config: CQLConfig | COMBOConfig) -> np.ndarray:
    """The soft maximum that the critics' loss has, for a policy of mean 0.2 and std 0.5."""
    key = jax.random.fold_in(KEY, 1)
    return np.asarray(
        jitted(cql.soft_maximum)(CRITICS, gaussian(0.2, 0.5), batch.states, batch.next_states, key, config)
    )


def cql_networks(critics: MLP, multiplier: float = 1.0) -> dict[str, object]:
    factor = jnp.float32(math.log(multiplier))
    return {"actor": soft_policy(gaussian(0.2, 0.5)), "critics": cql.ConservativeCritics(critics, factor)}


def test_cql_adds_the_gap_between_other_and_logged_actions() -> None:
    config = CQLConfig(alpha=0.3, target_gap=None, sampled_actions=3)
    networks = cql_networks(CRITICS)
    plain = jitted(sac.critic_loss)(cql.plain(networks), {"critics": CRITICS}, TWO_ROWS, KEY, config)
    loss = jitted(cql.critic_loss)(networks, networks, TWO_ROWS, KEY, config)
    gap = (unseen(TWO_ROWS, config) - both(STATES, ACTIONS)).mean(axis=1)
    assert float(loss - plain) == close(0.3 * gap.sum())


@pytest.mark.parametrize(("target_gap", "sign"), [(0.5, -1), (50.0, 1)])
def test_cqls_multiplier_rises_while_the_gap_exceeds_its_target(target_gap: float, sign: int) -> None:
    config = CQLConfig(alpha=0.3, target_gap=target_gap, sampled_actions=3)
    networks = cql_networks(CRITICS, multiplier=2.0)

    def loss(own: cql.ConservativeCritics) -> jax.Array:
        return cql.critic_loss({**networks, "critics": own}, networks, TWO_ROWS, KEY, config)

    gap = (unseen(TWO_ROWS, config) - both(STATES, ACTIONS)).mean(axis=1)
    gradient = slope(loss)(networks["critics"])
    # d/d log m of -m 0.3 (mean gap - target)
    assert float(gradient.log_multiplier) == close(-2.0 * 0.3 * (gap - target_gap).mean())
    assert np.sign(float(gradient.log_multiplier)) == sign
    # the critics descend m 0.3 gap, whatever the target
    fixed = replace(config, alpha=0.6, target_gap=None)
    expected = slope(lambda own: cql.critic_loss({**networks, "critics": own}, networks, TWO_ROWS, KEY, fixed))(
        networks["critics"]
    )
    assert np.asarray(gradient.network.weights[0]) == close(expected.network.weights[0])


def brac_networks(policy: MLP, behaviour: MLP) -> dict[str, object]:
    return {"actor": soft_policy(policy), "behaviour": soft_policy(behaviour), "critics": CRITICS}


def test_bracs_divergence_is_0_where_the_policy_is_the_logs() -> None:
    for mean in (0.2, 9.0):  # also where tanh has no digits left
        policy = gaussian(mean, 0.5, slope=0.3)
        found = jitted(brac_v.divergence)(brac_networks(policy, policy), TWO_ROWS.states, KEY, BRACConfig())
        assert np.asarray(found) == close([0.0, 0.0])


def test_bracs_divergence_is_that_of_normal_distributions() -> None:
    """Tanh is one-to-one, so it changes no divergence: log(s2/s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2."""
    networks = brac_networks(gaussian(0.2, 0.5), gaussian(-0.1, 0.8))
    found = jitted(brac_v.divergence)(networks, TWO_ROWS.states, KEY, BRACConfig(sampled_actions=100_000))
    exact = math.log(0.8 / 0.5) + (0.5**2 + 0.3**2) / (2 * 0.8**2) - 0.5
    assert np.asarray(found) == pytest.approx([exact, exact], abs=0.01)


def test_brac_lowers_targets_by_the_divergence() -> None:
    networks, config = brac_networks(gaussian(0.2, 0.5), gaussian(-0.1, 0.8)), BRACConfig(penalty=0.3)
    loss = jitted(brac_v.critic_loss)(networks, {"critics": CRITICS}, TWO_ROWS, KEY, config)
    raw = 0.2 + 0.5 * noise(KEY, 2, 1)[:, 0]
    value = both(NEXT_STATES, np.tanh(raw)).min(axis=0)
    drawn = 0.2 + 0.5 * noise(jax.random.fold_in(KEY, 1), 4, 2, 1)[..., 0]
    penalty = (log_normal(drawn, 0.2, 0.5) - log_normal(drawn, -0.1, 0.8)).mean(axis=0)
    # y = r + discount (min Q(s', a') - 0.3 D(s')); there is no entropy, because its temperature is 0
    assert float(loss) == close(error(REWARDS + DISCOUNTS * (value - 0.3 * penalty)))


def test_brac_policies_descend_the_divergence_alone_at_first() -> None:
    networks = brac_networks(gaussian(0.2, 0.5), gaussian(-0.1, 0.8))
    config = BRACConfig(penalty=0.3, behaviour_updates=5, warm_start=3)
    penalty = jitted(brac_v.divergence)(networks, TWO_ROWS.states, jax.random.fold_in(KEY, 1), config).mean()
    value = both(STATES, np.tanh(0.2 + 0.5 * noise(KEY, 2, 1)[:, 0])).min(axis=0).mean()
    for update, expected in ((7, penalty), (8, 0.3 * penalty - value)):
        batch = replace(TWO_ROWS, update=jnp.int32(update))
        assert float(jitted(brac_v.actor_loss)(networks, {}, batch, KEY, config)) == close(expected)


def test_bracs_model_of_the_log_is_cloned_with_an_entropy() -> None:
    """At the start of training its temperature is 1."""
    networks = brac_networks(gaussian(0.2, 0.5), gaussian(-0.1, 0.8))
    loss = jitted(brac_v.behaviour_loss)(networks, {}, TWO_ROWS, KEY, BRACConfig())
    raw = -0.1 + 0.8 * noise(KEY, 2, 1)[:, 0]
    likelihood = log_squashed(np.arctanh(ACTIONS), -0.1, 0.8)
    assert float(loss) == close((log_squashed(raw, -0.1, 0.8) - likelihood).mean())


def test_brac_trains_the_model_of_the_log_first_and_all_else_later() -> None:
    config = BRACConfig(behaviour_updates=5)
    for name, group in brac_v.METHOD.groups.items():
        assert group.trains is not None
        due = [bool(group.trains(jnp.int32(update), config)) for update in (0, 4, 5, 9)]
        assert due == ([True, True, False, False] if name == "behaviour" else [False, False, True, True])


def test_the_kernel_distance_of_equal_samples_is_0() -> None:
    sample = jax.random.normal(KEY, (6, 3, 2))
    # the square root of 1e-6, which is added so that it has a slope
    assert np.asarray(jitted(bear.kernel_distance)(sample, sample[::-1], 50.0)) == pytest.approx(
        np.full(3, 1e-3), abs=3e-4
    )


def test_the_kernel_distance_of_two_points() -> None:
    # k(x, x) = k(y, y) = 1 and k(x, y) = exp(-d^2 / 100) with d^2 = 3^2 + 4^2: sqrt(2 - 2 exp(-0.25))
    one, other = jnp.zeros((5, 1, 2)), jnp.broadcast_to(jnp.array([3.0, 4.0]), (2, 1, 2))
    assert np.asarray(jitted(bear.kernel_distance)(one, other, 50.0)) == close(
        [math.sqrt(2 - 2 * math.exp(-0.25) + 1e-6)]
    )


def test_the_kernel_distance_of_different_sample_sizes() -> None:
    # x = 0, y = 0 and 1, width 1/2: k = exp(-d^2); 1 + (2 + 2/e) / 4 - 2 (1 + 1/e) / 2 = (1 - 1/e) / 2
    found = jitted(bear.kernel_distance)(jnp.zeros((1, 1, 1)), jnp.array([0.0, 1.0])[:, None, None], 0.5)
    assert np.asarray(found) == close([math.sqrt((1 - math.exp(-1)) / 2 + 1e-6)])


def bear_networks(policy: MLP, log_multiplier: float = 0.0) -> dict[str, object]:
    """The autoencoder decodes every latent number to a raw action of 0.4, and encodes all as mean 1 and std 1."""
    encoder = linear([[0.0] * 4] * 2, [1.0, 1.0, 0.0, 0.0])
    decoder = linear([[0.0]] * 3, [0.4])
    actor = bear.ConstrainedPolicy(policy, jnp.float32(log_multiplier / bear.MULTIPLIER_SPEED))
    return {"behaviour": bear.Autoencoder(encoder, decoder), "critics": CRITICS, "actor": actor}


def test_bear_targets_are_three_quarters_pessimistic_and_the_best_of_ten() -> None:
    networks = bear_networks(gaussian(0.2, 0.5))
    loss = jitted(bear.critic_loss)(networks, networks, TWO_ROWS, KEY, BEARConfig())
    values = both(NEXT_STATES, np.tanh(0.2 + 0.5 * noise(KEY, 10, 2, 1)[..., 0]))
    mixed = 0.75 * values.min(axis=0) + 0.25 * values.max(axis=0)
    assert float(loss) == close(error(REWARDS + DISCOUNTS * mixed.max(axis=0)))


def test_bears_autoencoder_descends_error_and_half_of_the_divergence() -> None:
    # decoded actions tanh(0.4); latent numbers N(1, 1), whose divergence from N(0, 1) is 1/2
    loss = jitted(bear.behaviour_loss)(bear_networks(gaussian(0.0, 0.5)), {}, TWO_ROWS, KEY, BEARConfig())
    assert float(loss) == close(((math.tanh(0.4) - ACTIONS) ** 2).mean() + 0.5 * 0.5)


@pytest.mark.parametrize("update", [0, 7])
def test_bear_policies_descend_the_kernel_distance_alone_at_first(update: int) -> None:
    config = BEARConfig(warm_start=5, sampled_actions=4, threshold=0.05, kernel_width=2.0)
    networks = bear_networks(gaussian(0.2, 0.5), log_multiplier=math.log(3.0))
    batch = replace(TWO_ROWS, update=jnp.int32(update))

    def loss(own: bear.ConstrainedPolicy) -> jax.Array:
        return bear.actor_loss({**networks, "actor": own}, {}, batch, KEY, config)

    def expected(network: MLP) -> jax.Array:
        raw = network.biases[0][0] + 0.5 * jax.random.normal(jax.random.split(KEY)[0], (4, 2, 1))
        distance = bear.kernel_distance(raw, jnp.full((4, 2, 1), 0.4), 2.0).mean()
        first = jnp.tanh(raw[0, :, 0])
        value = jnp.minimum(STATES + 2 * first, first + 1).mean()
        return 3.0 * (distance - 0.05) - (0.0 if update < 5 else value)

    actor = networks["actor"]
    gradient, reference = slope(loss)(actor), slope(expected)(actor.network)  # type: ignore[attr-defined]
    assert float(gradient.network.biases[0][0]) == close(reference.biases[0][0], 1e-4)
    # the multiplier ascends its term: d/d log m of -m excess
    raw = 0.2 + 0.5 * noise(jax.random.split(KEY)[0], 4, 2, 1)
    distance = jitted(bear.kernel_distance)(jnp.asarray(raw, jnp.float32), jnp.full((4, 2, 1), 0.4), 2.0).mean()
    found = float(gradient.log_multiplier) / bear.MULTIPLIER_SPEED
    assert found == close(-3.0 * (distance - 0.05))


@pytest.mark.parametrize("limit", [-5.0, 10.0])
def test_bears_multiplier_stays_within_its_limits_and_can_come_back(limit: float) -> None:
    """A multiplier that had no slope beyond its limits would stay there for good."""
    assert bear.METHOD.groups["actor"].project is not None
    for distance in (0.0, 1.0, 100.0):
        outside = bear_networks(gaussian(0.2, 0.5), log_multiplier=limit + math.copysign(distance, limit))["actor"]
        inside = bear.METHOD.groups["actor"].project(outside)
        assert float(bear.MULTIPLIER_SPEED * inside.log_multiplier) == close(limit)
        networks = bear_networks(gaussian(0.2, 0.5))

        def loss(own: bear.ConstrainedPolicy, networks: dict[str, object] = networks) -> jax.Array:
            return bear.actor_loss({**networks, "actor": own}, {}, TWO_ROWS, KEY, BEARConfig(sampled_actions=2))

        assert float(slope(loss)(inside).log_multiplier) != 0


@pytest.mark.parametrize("length", [1, 2])
def test_combo_replaces_the_last_rows_by_rollouts_from_their_states(length: int) -> None:
    rows = 6
    states = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    batch = one_number_batch(states, np.linspace(-1, 1, rows), states, states + 0.5)
    config = COMBOConfig(batch_size=rows, real_share=1 / 3, rollout_length=length, gamma=0.9)
    networks = {"actor": soft_policy(gaussian(9.0, 0.01))}  # every action is 1
    found = jitted(combo.with_rollouts)(networks, batch, push_model(), KEY, config)
    for name in ("states", "actions", "rewards", "discounts", "next_states"):
        assert np.array_equal(getattr(found, name)[:2], getattr(batch, name)[:2])
    # from the states of rows 2, 3, ...; of two steps, from 2 and 3 to 3 and 4, then from there
    begun = np.array([2.0, 3.0, 4.0, 5.0] if length == 1 else [2.0, 3.0, 3.0, 4.0])
    assert np.asarray(found.states[2:, 0]) == close(begun)
    assert np.asarray(found.actions[2:, 0]) == close(np.ones(4))
    assert np.asarray(found.next_states[2:, 0]) == close(begun + 1)
    assert np.asarray(found.rewards[2:]) == close(10 * (begun + 1))
    assert np.asarray(found.discounts[2:]) == close(np.full(4, 0.45))  # gamma times the probability of going on


def test_combo_restarts_rollouts_after_a_termination() -> None:
    states = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    batch = one_number_batch(states, np.linspace(-1, 1, 6), states, states + 0.5)
    config = COMBOConfig(batch_size=6, real_share=1 / 3, rollout_length=2, gamma=0.9)
    networks = {"actor": soft_policy(gaussian(9.0, 0.01))}  # every action is 1
    found = jitted(combo.with_rollouts)(networks, batch, push_model(end_log_odds=20.0), KEY, config)
    assert np.asarray(found.states[2:, 0]) == close([2.0, 3.0, 2.0, 3.0])
    assert np.asarray(found.next_states[2:, 0]) == close([3.0, 4.0, 3.0, 4.0])
    assert np.asarray(found.discounts[2:]) == close(np.zeros(4))


def test_combo_lowers_rollouts_and_raises_logged_rows() -> None:
    batch = one_number_batch([1.0, -1.0, 0.5], [0.5, -0.5, 0.1], [1.0, 2.0, 0.0], [0.0, 2.0, 1.0])
    config = COMBOConfig(batch_size=3, real_share=2 / 3, beta=0.3, sampled_actions=3)
    networks = {"actor": soft_policy(gaussian(0.2, 0.5)), "critics": CRITICS}
    loss = jitted(combo.critic_loss)(networks, {"critics": CRITICS}, batch, KEY, config)
    plain = jitted(sac.critic_loss)(networks, {"critics": CRITICS}, batch, KEY, config)
    last: Batch = jax.tree.map(lambda leaf: leaf[2:] if leaf.ndim else leaf, batch)
    gap = unseen(last, config)[:, 0] - both(STATES, ACTIONS).mean(axis=1)
    assert float(loss - plain) == close(0.3 * gap.sum())
