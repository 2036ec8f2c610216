"""The learned bisimulation metric: its targets by hand, closed forms, and files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bats.arrays import Metric
from bats.config import BisimulationConfig
from bats.errors import DataError, OutputError, SettingError
from bats.graph.mdp import TabularMDP
from bats.graph.solve import first_edges
from bats.metric import bisimulation
from bats.metric.bisimulation import (
    LATENT,
    BisimulationMetric,
    learn_bisimulation,
    load_metric,
    pair_targets,
    save_metric,
)
from bats.metric.policy_steps import PolicySteps
from bats.networks.training import Problem, TrainingState
from tests.compilations import compilations
from tests.crafted import rewrite
from tests.mdps import mdp_from_edges
from tests.oracles.exact_bisimulation import bisimulation_distances

SMALL = BisimulationConfig(hidden=(32, 32), updates=1000, batch_size=16, horizon=20, caution=1.0)
LENGTH = 12


@pytest.fixture(autouse=True, scope="module")
def all_states_are_fitted_to() -> Iterator[None]:
    """So few states are all needed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bisimulation, "HELD_OUT", 0.0)
        yield


def chain(*, shortcut: bool = False) -> TabularMDP:
    """0 → 1 → … → 11 ⟲, with reward 1 for each step at the end alone; a shortcut leads from 5 to 7."""
    last = LENGTH - 1
    edges = [(state, min(state + 1 + (shortcut and state == 5), last), float(state == last)) for state in range(LENGTH)]
    return mdp_from_edges(LENGTH, edges, gamma=0.9)


def learned(
    mdp: TabularMDP, config: BisimulationConfig = SMALL, seed: int = 0, **settings: object
) -> BisimulationMetric:
    steps = PolicySteps.of(mdp, first_edges(mdp))
    return learn_bisimulation(steps, config, seed=seed, **settings)  # type: ignore[arg-type]


def distances(metric: Metric, mdp: TabularMDP) -> np.ndarray:
    embedded = metric.embed(mdp.states)
    return np.linalg.norm(embedded[:, None] - embedded, axis=-1)


def largest_error(metric: Metric, mdp: TabularMDP) -> float:
    """The largest error of a distance, as a share of the largest distance."""
    exact = bisimulation_distances(mdp, first_edges(mdp))
    return float(np.abs(distances(metric, mdp) - exact).max() / exact.max())


@pytest.fixture(scope="module")
def chain_metric(all_states_are_fitted_to: None) -> BisimulationMetric:
    return learned(chain())


def test_distances_along_a_chain_are_learned(chain_metric: BisimulationMetric) -> None:
    # state i waits for 11 - i steps: d(i, j) = |0.9^(11-i) - 0.9^(11-j)| / 0.1, so 0 and 11 are 6.86 apart
    value = 0.9 ** np.arange(LENGTH - 1, -1, -1) / 0.1
    exact = np.abs(value[:, None] - value)
    assert exact == pytest.approx(bisimulation_distances(chain(), first_edges(chain())))
    assert np.all(np.abs(distances(chain_metric, chain()) - exact) <= 0.03 * exact.max())


def test_a_termination_is_learned_as_reward_0_for_ever() -> None:
    # 0 → … → 8 costs 1 in each step, and the last step terminates: the distance to the end is the cost that is left
    mdp = mdp_from_edges(9, [(state, state + 1, -1.0) for state in range(8)], ends=(7,), gamma=0.9)
    metric = learned(mdp)
    assert largest_error(metric, mdp) < 0.04
    from_origin = np.linalg.norm(metric.embed(mdp.states), axis=1)  # the embedding of after termination
    assert from_origin == pytest.approx((1 - 0.9 ** np.arange(8, -1, -1)) / 0.1, abs=0.2)


def untrained_targets(mdp: TabularMDP, horizon: int, **settings: float) -> tuple[np.ndarray, np.ndarray]:
    """The targets of all pairs before any update, in units of value, and the embeddings of the states by then."""
    steps = PolicySteps.of(mdp, first_edges(mdp), **settings)
    targets: list[np.ndarray] = []

    def no_training(
        problem: Problem, state: TrainingState, rows: object, draw: Callable[..., object]
    ) -> Iterator[object]:
        found = eqx.filter_jit(pair_targets)(state.params.copy, rows, jnp.arange(len(steps)), horizon)
        targets.append(np.asarray(found))
        return iter(())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bisimulation, "train", no_training)
        metric = learn_bisimulation(steps, replace(SMALL, horizon=horizon), seed=0)
    return targets[0] * float(metric.scale), metric.embed(steps.states)


@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_a_target_sums_the_reward_differences_of_the_rollouts_and_then_the_metrics_own_distance(horizon: int) -> None:
    # 0 → 1 → 2 → 3 → 4 ⟲ with rewards 1, 0, 2, 0, 0 and 5 ⟲ with reward 1 for ever
    mdp = mdp_from_edges(6, [(0, 1, 1.0), (1, 2, 0.0), (2, 3, 2.0), (3, 4, 0.0), (4, 4, 0.0), (5, 5, 1.0)], gamma=0.5)
    targets, embedded = untrained_targets(mdp, horizon)
    # 0 against 5: |1 - 1| + 1/2 |0 - 1| + 1/4 |2 - 1|; by then 0 has come to 1, 2 or 3, and 5 is still in 5
    rewards = (0.0, 0.5, 0.75)[horizon - 1]
    rest = np.linalg.norm(embedded[horizon] - embedded[5])
    assert targets[0, 5] == pytest.approx(rewards + 0.5**horizon * rest, abs=1e-5)


def test_after_a_termination_all_rewards_are_0_and_the_embedding_is_the_origin() -> None:
    # 0 has reward 3 and terminates, though the log continues from 1 elsewhere; 2 has rewards 1, 1, 1, …
    mdp = mdp_from_edges(3, [(0, 1, 3.0), (1, 1, 7.0), (2, 2, 1.0)], ends=(0,), gamma=0.5)
    targets, embedded = untrained_targets(mdp, 3)
    # |3 - 1| + 1/2 |0 - 1| + 1/4 |0 - 1|, then 1/8 of the distance of 2 from the origin
    assert targets[0, 2] == pytest.approx(2.75 + np.linalg.norm(embedded[2]) / 8, abs=1e-5)


def test_a_dead_end_has_the_target_of_a_state_that_earns_its_interest() -> None:
    # 8 is the value of 4 in every step
    mdp = mdp_from_edges(2, [(0, 0, 1.0)], gamma=0.5)
    targets, embedded = untrained_targets(mdp, 2, dead_end_value=8.0)
    assert targets[0, 1] == pytest.approx(3 + 1.5 + np.linalg.norm(embedded[0] - embedded[1]) / 4, abs=1e-5)


def test_the_same_seed_gives_the_same_metric_and_compiles_nothing_anew(chain_metric: BisimulationMetric) -> None:
    calls: list[tuple[int, int]] = []
    with compilations() as names:
        again = learned(chain(), progress=lambda stage, done, total: calls.append((done, total)))
    assert names == []
    assert calls == [(500, 1000), (1000, 1000)]
    assert np.array_equal(again.embed(chain().states), chain_metric.embed(chain().states))
    other = learned(chain(), seed=1)
    assert not np.allclose(other.embed(chain().states), chain_metric.embed(chain().states))


def test_numpy_and_jax_embed_alike_and_gradients_are_right(chain_metric: BisimulationMetric) -> None:
    assert isinstance(chain_metric, Metric)
    states = np.linspace(0, 11, 24).reshape(2, 3, 4, 1)
    embedded = chain_metric.embed(states)
    assert isinstance(embedded, np.ndarray)
    assert embedded.shape == (2, 3, 4, LATENT)
    by_jax = eqx.filter_jit(lambda metric, points: metric.embed(points))(chain_metric, jnp.asarray(states))
    assert np.asarray(by_jax) == pytest.approx(embedded, abs=1e-5)
    gradient = jax.jit(jax.jacrev(chain_metric.embed))(jnp.array([5.0]))[:, 0]
    by_hand = (chain_metric.embed(np.array([5.05])) - chain_metric.embed(np.array([4.95]))) / 0.1
    assert np.asarray(gradient) == pytest.approx(by_hand, rel=0.02, abs=1e-3)


def test_many_states_are_embedded_in_blocks(chain_metric: BisimulationMetric, monkeypatch: pytest.MonkeyPatch) -> None:
    states = np.linspace(0, 11, 100)[:, None]
    whole = chain_metric.embed(states)
    monkeypatch.setattr(bisimulation, "EMBED_ROWS", 16)
    assert chain_metric.embed(states) == pytest.approx(whole, abs=1e-6)


def test_a_saved_metric_embeds_and_splits_as_before(chain_metric: BisimulationMetric, tmp_path: Path) -> None:
    path = tmp_path / "metric.safetensors"
    save_metric(chain_metric, path)
    loaded = load_metric(path)
    assert np.array_equal(loaded.embed(chain().states), chain_metric.embed(chain().states))
    assert loaded.split == chain_metric.split
    with pytest.raises(OutputError):
        save_metric(chain_metric, path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DataError):
        load_metric(path)


METRIC_DEFECTS: list[tuple[dict[str, object], str]] = [
    ({"mean": np.zeros((1, 1), np.float32)}, "`mean` must be an array of floats with 1 dimensions"),
    ({"mean": np.array([np.nan])}, "`mean` must have finite numbers"),
    ({"std": np.zeros(1)}, "`std` must have a positive number"),
    ({"std": np.ones(2)}, "`std` must have a positive number"),
    ({"scale": np.array(-1.0)}, "`scale` and `margin` must be positive"),
    ({"margin": np.array(np.nan)}, "`margin` must have finite numbers"),
    ({"margin": np.ones(1)}, "`margin` must be an array of floats with 0 dimensions"),
    ({"weight.0": np.full((1, 32), 1e37)}, "weights up to layer 1 are so large"),
    ({"weight.0": np.zeros((2, 32))}, "the first must take 1 inputs"),
    ({"layers": 0}, "At least one layer is needed"),
    ({"layers": "x"}, "found 'str' object"),
    ({"layers": 10**9}, "no entry 'weight.3'"),
    ({"seed": -1}, "`seed` must be from 0"),
    ({"seed": 1.5}, "'seed': expected int, found 1.5"),
    ({"held_out": float("nan")}, "'held_out': expected finite numbers"),
    ({"held_out": 1.5}, "`held_out` must be between 0 and 1"),
]


@pytest.mark.parametrize(
    ("change", "message"),
    METRIC_DEFECTS,
    ids=[f"{next(iter(change))}-{i}" for i, (change, _) in enumerate(METRIC_DEFECTS)],
)
def test_a_crafted_metric_is_refused(
    chain_metric: BisimulationMetric, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """Its checksum is right, as in a file that was made to do harm."""
    save_metric(chain_metric, tmp_path / "metric.safetensors")
    rewrite(tmp_path / "metric.safetensors", change)
    with pytest.raises(DataError, match=message):
        load_metric(tmp_path / "metric.safetensors")


def test_continuing_from_another_metric_needs_fewer_updates(chain_metric: BisimulationMetric) -> None:
    # with the shortcut, states up to 5 wait one step less
    changed, few = chain(shortcut=True), replace(SMALL, updates=10)
    afresh, continued = learned(changed, few), learned(changed, few, begin_from=chain_metric)
    assert largest_error(continued, changed) < 0.5 * largest_error(afresh, changed)
    assert continued.split == chain_metric.split
    assert continued.margin == 1
    with pytest.raises(SettingError, match=r"it has input size 1 and layers \[32, 32, 6\]"):
        learned(changed, replace(few, hidden=(16,)), begin_from=chain_metric)


def test_discounts_that_are_neither_gamma_nor_0_are_refused() -> None:
    steps = PolicySteps.of(chain(), first_edges(chain()))
    with pytest.raises(SettingError, match="Every discount must be"):
        learn_bisimulation(replace(steps, gamma=0.8), SMALL, seed=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"horizon": 0},
        {"hidden": (0,)},
        {"updates": 0},
        {"batch_size": 1},
        {"caution": 0.5},
        {"refresh_rounds": 0},
        {"refresh_updates": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        BisimulationConfig(**wrong)  # type: ignore[arg-type]
