"""The learned bisimulation metric: targets by hand, closed forms, held-out states, and what calibration keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bats.arrays import Metric
from bats.errors import DataError, OutputError, SettingError
from bats.graph.mdp import TabularMDP
from bats.graph.solve import first_edges, policy_value
from bats.metric import bisimulation
from bats.metric.bisimulation import BisimulationConfig, BisimulationMetric, learn_bisimulation, pair_targets
from bats.metric.bisimulation_exact import bisimulation_distances
from bats.metric.bisimulation_files import load_metric, save_metric
from bats.metric.calibration import calibrated, held_out_pairs, pair_distances, pair_gaps
from bats.metric.policy_steps import Split, Transitions
from tests.mdps import mdp_from_edges

SMALL = BisimulationConfig(
    hidden=(32, 32), latent=2, updates=1000, batch_size=16, horizon=20, caution=1.0, held_out=0.0
)
LENGTH = 12


def chain() -> TabularMDP:
    """0 → 1 → … → 11 ⟲, paid 1 a step at the end alone."""
    edges = [(here, min(here + 1, LENGTH - 1), float(here == LENGTH - 1)) for here in range(LENGTH)]
    return mdp_from_edges(LENGTH, edges, gamma=0.9)


def steps(mdp: TabularMDP, **settings: object) -> Transitions:
    return Transitions.of(mdp, first_edges(mdp), **settings)


def learned(mdp: TabularMDP, config: BisimulationConfig = SMALL, **settings: object) -> BisimulationMetric:
    return learn_bisimulation(steps(mdp), config, gamma=mdp.gamma, seed=0, **settings)


def between(metric: Metric, mdp: TabularMDP) -> np.ndarray:
    places = metric.embed(mdp.states)
    return np.linalg.norm(places[:, None] - places, axis=-1)


def farthest_off(metric: Metric, mdp: TabularMDP) -> float:
    """The greatest error of a distance, as a share of the greatest distance."""
    exact = bisimulation_distances(mdp, first_edges(mdp))
    return float(np.abs(between(metric, mdp) - exact).max() / exact.max())


@pytest.fixture(scope="module")
def of_chain() -> BisimulationMetric:
    return learned(chain())


def test_distances_along_a_chain_are_learned(of_chain: BisimulationMetric) -> None:
    # state i waits for 11 - i steps: d(i, j) = |0.9^(11-i) - 0.9^(11-j)| / 0.1, so 0 and 11 lie 6.86 apart
    waiting = 0.9 ** np.arange(LENGTH - 1, -1, -1) / 0.1
    exact = np.abs(waiting[:, None] - waiting)
    assert exact == pytest.approx(bisimulation_distances(chain(), first_edges(chain())))
    assert np.all(np.abs(between(of_chain, chain()) - exact) <= 0.03 * exact.max())


def test_an_end_is_learned_as_nothing_for_ever() -> None:
    # 0 → … → 8 costs 1 a step, and the last of them ends: the end itself lies as far from a state as it has to pay
    edges = [(here, here + 1, -1.0) for here in range(8)]
    mdp = mdp_from_edges(9, edges, ends=(7,), gamma=0.9)
    metric = learned(mdp)
    assert farthest_off(metric, mdp) < 0.04
    size = np.linalg.norm(metric.embed(mdp.states), axis=1)  # from the origin, where all is over
    assert size == pytest.approx((1 - 0.9 ** np.arange(8, -1, -1)) / 0.1, abs=0.2)


def targets_of(mdp: TabularMDP, config: BisimulationConfig, **settings: float) -> tuple[np.ndarray, np.ndarray]:
    """The targets of all pairs before any update, in units of value, and the untrained places."""
    transitions = steps(mdp, **settings)
    every = np.arange(len(transitions))
    metric = bisimulation._untrained(transitions, every, config, Split(0, 0.0), gamma=mdp.gamma, seed=0)
    rows = bisimulation._on_device(transitions, metric)
    network = jax.tree.map(jnp.asarray, metric.network)
    learner = bisimulation._Learner(network, None, network)
    found = pair_targets(learner, rows, jnp.asarray(every), config.horizon, mdp.gamma)
    return np.asarray(found) * float(metric.scale), metric.embed(transitions.states)


@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_a_target_is_what_the_walks_are_paid_and_then_the_metrics_own_distance(horizon: int) -> None:
    # 0 → 1 → 2 → 3 → 4 ⟲ paid 1, 0, 2, 0, 0 and 5 ⟲ paid 1 for ever
    mdp = mdp_from_edges(6, [(0, 1, 1.0), (1, 2, 0.0), (2, 3, 2.0), (3, 4, 0.0), (4, 4, 0.0), (5, 5, 1.0)], gamma=0.5)
    targets, places = targets_of(mdp, replace(SMALL, horizon=horizon))
    # 0 against 5: |1 - 1| + 1/2 |0 - 1| + 1/4 |2 - 1|, then where they are: 0 is in 1, 2 or 3 by then, 5 in 5
    paid = (0.0, 0.5, 0.75)[horizon - 1]
    ahead = np.linalg.norm(places[horizon] - places[5])
    assert targets[0, 5] == pytest.approx(paid + 0.5**horizon * ahead, abs=1e-5)


def test_after_an_end_all_rewards_are_0_and_the_place_is_the_origin() -> None:
    # 0 is paid 3 and ends, though the log also knows a way on from 1; 2 is paid 1, 1, 1, …
    mdp = mdp_from_edges(3, [(0, 1, 3.0), (1, 1, 7.0), (2, 2, 1.0)], ends=(0,), gamma=0.5)
    targets, places = targets_of(mdp, replace(SMALL, horizon=3))
    # |3 - 1| + 1/2 |0 - 1| + 1/4 |0 - 1|, then 1/8 of the length of the place of 2
    assert targets[0, 2] == pytest.approx(2.75 + np.linalg.norm(places[2]) / 8, abs=1e-5)


def test_a_dead_end_is_paid_the_interest_of_its_worth() -> None:
    mdp = mdp_from_edges(2, [(0, 0, 1.0)], gamma=0.5)
    transitions = steps(mdp, dead_end_value=8.0)
    assert transitions.rewards.tolist() == [1.0, 4.0]  # 8 is what 4 a step is worth at a discount of a half
    assert transitions.following.tolist() == [0, 1]
    assert transitions.actions[1].tolist() == [0.0]
    targets, places = targets_of(mdp, replace(SMALL, horizon=2), dead_end_value=8.0)
    assert targets[0, 1] == pytest.approx(3 + 1.5 + np.linalg.norm(places[0] - places[1]) / 4, abs=1e-5)


def test_transitions_of_some_states_are_those_that_the_policy_comes_through() -> None:
    mdp = mdp_from_edges(6, [(0, 3, 1.0), (1, 2, 2.0), (3, 5, 3.0), (5, 3, 4.0), (4, 1, 5.0)])
    some = steps(mdp, from_states=np.array([0]))
    assert some.states[:, 0].tolist() == [0, 3, 5]
    assert some.following.tolist() == [1, 2, 1]
    assert some.rewards.tolist() == [1.0, 3.0, 4.0]
    assert len(steps(mdp)) == 6
    with pytest.raises(SettingError, match="states from 0 to 5"):
        steps(mdp, from_states=np.array([6]))
    with pytest.raises(SettingError, match="rows from 0 to 2"):
        replace(some, following=np.array([1, 2, 3]))


def test_discrete_actions_enter_one_hot() -> None:
    mdp = mdp_from_edges(3, [(0, 1, 0.0), (1, 2, 0.0)])
    discrete = replace(mdp, action=np.array([1, 0]), action_count=2)
    assert steps(discrete).actions.tolist() == [[0, 1], [1, 0], [0, 0]]


def test_a_state_stays_in_its_part_whatever_else_is_there() -> None:
    states = np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float32)
    split = Split(seed=3, held_out=0.2)
    parts = {part: split.rows(states, part) for part in ("fit", "calibrate", "test")}
    assert sorted(np.concatenate(list(parts.values()))) == list(range(4000))
    assert len(parts["calibrate"]) == pytest.approx(400, abs=80)
    assert len(parts["test"]) == pytest.approx(400, abs=80)
    assert np.array_equal(states[::-2][split.rows(states[::-2], "test")], states[parts["test"]][::-1][_odd(parts)])
    assert not np.array_equal(Split(seed=4, held_out=0.2).rows(states, "test"), parts["test"])


def _odd(parts: dict[str, np.ndarray]) -> np.ndarray:
    return parts["test"][::-1] % 2 == 1


def test_the_same_seed_gives_the_same_metric_and_another_another(of_chain: BisimulationMetric) -> None:
    told: list[tuple[int, int]] = []
    again = learned(chain(), progress=lambda stage, done, total: told.append((done, total)))
    assert told == [(500, 1000), (1000, 1000)]
    assert np.array_equal(again.embed(chain().states), of_chain.embed(chain().states))
    other = learn_bisimulation(steps(chain()), SMALL, gamma=0.9, seed=1)
    assert not np.allclose(other.embed(chain().states), of_chain.embed(chain().states))


def test_numpy_and_jax_embed_alike_and_gradients_are_right(of_chain: BisimulationMetric) -> None:
    assert isinstance(of_chain, Metric)
    states = np.linspace(0, 11, 24).reshape(2, 3, 4, 1)
    ours, theirs = of_chain.embed(states), of_chain.embed(jnp.asarray(states))
    assert isinstance(ours, np.ndarray)
    assert ours.shape == (2, 3, 4, 2)
    assert np.asarray(theirs) == pytest.approx(ours, abs=1e-5)
    inside = eqx.filter_jit(lambda embed, here: embed(here))(of_chain.embed, jnp.asarray(states))
    assert np.asarray(inside) == pytest.approx(ours, abs=1e-5)
    slope = jax.jacrev(of_chain.embed)(jnp.array([5.0]))[:, 0]
    by_hand = (of_chain.embed(np.array([5.05])) - of_chain.embed(np.array([4.95]))) / 0.1
    assert np.asarray(slope) == pytest.approx(by_hand, rel=0.02, abs=1e-3)


def test_a_saved_metric_embeds_and_splits_as_before(of_chain: BisimulationMetric, tmp_path: Path) -> None:
    saved = tmp_path / "metric.safetensors"
    save_metric(of_chain, saved)
    loaded = load_metric(saved)
    assert np.array_equal(loaded.embed(chain().states), of_chain.embed(chain().states))
    assert loaded.split == of_chain.split
    with pytest.raises(OutputError):
        save_metric(of_chain, saved)
    saved.write_bytes(saved.read_bytes()[:-8])
    with pytest.raises(DataError):
        load_metric(saved)


def test_going_on_from_another_metric_needs_fewer_updates(of_chain: BisimulationMetric) -> None:
    # the policy has found a way from 5 to 7, so that those before wait one step less
    edges = [(here, min(here + 1 + (here == 5), LENGTH - 1), float(here == LENGTH - 1)) for here in range(LENGTH)]
    changed = mdp_from_edges(LENGTH, edges, gamma=0.9)
    few = replace(SMALL, updates=15)
    afresh, continued = learned(changed, few), learned(changed, few, begin_from=of_chain)
    assert farthest_off(continued, changed) < 0.5 * farthest_off(afresh, changed)
    assert continued.split == of_chain.split
    assert continued.margin == 1
    with pytest.raises(SettingError, match="layers of"):
        learned(changed, replace(few, hidden=(16,)), begin_from=of_chain)


def test_a_latent_ensemble_can_make_the_last_step() -> None:
    metric = learned(chain(), replace(SMALL, members=2, member_hidden=(32,), horizon=30))
    assert farthest_off(metric, chain()) < 0.1


def plane() -> tuple[TabularMDP, Transitions, np.ndarray]:
    """A diagonal walk through 20 x 20 cells to a corner that pays 1 for ever."""
    cells = np.stack(np.meshgrid(np.arange(20), np.arange(20), indexing="ij"), axis=-1).reshape(-1, 2)
    target = np.minimum(cells + 1, 19) @ [20, 1]
    edges = [(here, int(there), float(there == 399)) for here, there in enumerate(target)]
    mdp = replace(mdp_from_edges(400, edges, gamma=0.95), states=cells.astype(np.float64))
    policy = first_edges(mdp)
    return mdp, Transitions.of(mdp, policy), policy_value(mdp, policy)


@pytest.fixture(scope="module")
def of_plane() -> BisimulationMetric:
    config = replace(SMALL, hidden=(64, 64), updates=1000, batch_size=64, caution=30.0, held_out=0.4)
    return learn_bisimulation(plane()[1], config, gamma=0.95, seed=0)


def test_calibration_bounds_the_share_of_pairs_and_no_smaller_stretch_would(of_plane: BisimulationMetric) -> None:
    _, transitions, values = plane()
    metric = calibrated(of_plane, transitions, values, share=0.95, seed=0)
    held = {
        kind: np.mean(pair_gaps(values, pairs) <= pair_distances(metric, transitions, pairs))
        for kind, pairs in held_out_pairs(metric, transitions, "calibrate", seed=0).items()
    }
    assert min(held.values()) >= 0.95
    assert min(held.values()) < 0.97  # the kind that needed most has no more than it needed
    seen = set(of_plane.split.rows(transitions.states, "fit"))
    for part in ("calibrate", "test"):
        for pairs in held_out_pairs(metric, transitions, part, seed=0).values():
            assert not seen & set(pairs.ravel())


def test_calibration_carries_over_to_states_that_neither_fitted_nor_calibrated(of_plane: BisimulationMetric) -> None:
    mdp, transitions, values = plane()
    metric = calibrated(of_plane, transitions, values, seed=0)
    exact = bisimulation_distances(mdp, first_edges(mdp))
    pairs = held_out_pairs(metric, transitions, "test", seed=0)["random"]
    distance, gap = pair_distances(metric, transitions, pairs), pair_gaps(values, pairs)
    assert np.mean(gap <= distance) >= 0.99
    assert np.median(distance[gap > 0] / gap[gap > 0]) <= 3
    assert np.corrcoef(distance, exact[tuple(pairs.T)])[0, 1] > 0.95


def test_equal_values_need_no_distance_and_others_some(of_plane: BisimulationMetric) -> None:
    _, transitions, values = plane()
    same = calibrated(of_plane, transitions, np.full(400, 7.0), seed=0)
    assert same.margin == of_plane.margin
    blind = eqx.tree_at(lambda metric: metric.scale, of_plane, np.float32(0) * of_plane.scale)
    with pytest.raises(DataError, match="tells states of different value apart"):
        calibrated(blind, transitions, values, seed=0)


def test_what_makes_no_sense_is_refused(of_chain: BisimulationMetric) -> None:
    for bad in (
        {"horizon": 0},
        {"members": -1},
        {"latent": 0},
        {"batch_size": 1},
        {"caution": 0.5},
        {"learning_rate": 0.0},
        {"following_rate": 0.0},
        {"held_out": 1.0},
    ):
        with pytest.raises(SettingError, match=next(iter(bad))):
            BisimulationConfig(**bad)
    with pytest.raises(SettingError, match="Discounts"):
        learn_bisimulation(steps(chain()), SMALL, gamma=0.8, seed=0)
    with pytest.raises(SettingError, match="share"):
        calibrated(of_chain, steps(chain()), np.zeros(LENGTH), share=1.0, seed=0)
    with pytest.raises(SettingError, match="12 values"):
        calibrated(of_chain, steps(chain()), np.zeros(3), seed=0)
    with pytest.raises(DataError, match="Hold out a larger share"):
        calibrated(of_chain, steps(chain()), np.zeros(LENGTH), seed=0)
