"""What a graph says its states are worth beside what the true car earns from them, and a lower bound on that.

From a state s, all discounted:

    graph       what the graph's policy earns by the graph's own account, without penalties
    charged     the same less what the penalties take off: the value that the graph was solved for
    actions     what its actions earn in the true car, played open loop
    clone       what the cloned policy earns in the true car

    graph - clone  =  graph - actions  +  actions - clone
    in all            model and metric    cloning

Where a walk ends in the graph and the true car is not quite there, the last action is kept up (`car_tracks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from bats.arrays import Progress, no_progress
from bats.bounds.certify import gather_evidence, nothing_known
from bats.bounds.error_estimates import Factors
from bats.bounds.graph_policy import CertificateConfig, bound_graph
from bats.bounds.sandwich import Bounds
from bats.data.dataset import Dataset
from bats.errors import DataError
from bats.evaluation.episodes import evaluate
from bats.graph.mdp import LOGGED
from bats.graph.rollouts import on_the_way, walk
from bats.graph.solve import policy_value
from bats.runs.pipeline import Result
from bats.stitching.acceptance import Learned
from bats.studies.car_tracks import replayed
from bats.tasks.episodes import Episode
from bats.tasks.mountain_car import EPISODE_STEPS, PlacedCar

AT_ONCE = 64
"""cars that are driven together"""


@dataclass(frozen=True, eq=False)
class ValueErrors:
    """The four values of some states."""

    number: Int[np.ndarray, "n"]
    """of each in the graph"""
    states: Float[np.ndarray, "n 2"]
    graph: Float[np.ndarray, "n"]
    charged: Float[np.ndarray, "n"]
    actions: Float[np.ndarray, "n"]
    clone: Float[np.ndarray, "n"]
    actions_arrive: Bool[np.ndarray, "n"]
    on_time: Bool[np.ndarray, "n"]
    """and within the graph's own number of steps"""
    clone_arrives: Bool[np.ndarray, "n"]

    @property
    def of_actions(self) -> Float[np.ndarray, "n"]:
        """What the graph promises too much of its own actions: the model's error, as the metric let it pass."""
        return self.graph - self.actions

    @property
    def of_clone(self) -> Float[np.ndarray, "n"]:
        """What it promises too much of the policy that was cloned from it."""
        return self.graph - self.clone

    @property
    def of_cloning(self) -> Float[np.ndarray, "n"]:
        """What cloning adds to the graph's own error."""
        return self.actions - self.clone


def discounted_return(rewards: Float[np.ndarray, "T"], gamma: float) -> float:
    """r_0 + gamma r_1 + gamma^2 r_2 + …"""
    return float(rewards @ gamma ** np.arange(len(rewards)))


def states_on_walks(result: Result, count: int, *, seed: int) -> Int[np.ndarray, "n"]:
    """Up to `count` different real states that the graph's policy passes, from the starts and from stitched states.

    Those are the walks that cloning looks at. From the starts alone they pass few: they run together soon, and most of
    their steps are on stitches, in states that nobody has seen.
    """
    mdp = result.mdp
    stitched = mdp.source[mdp.stitch_round != LOGGED]
    first = np.union1d(mdp.starts, stitched[stitched < mdp.real_count])
    met = on_the_way(mdp, result.solution.policy, first)
    met = met[(met < mdp.real_count) & (mdp.out_degree[met] > 0)]
    return np.sort(np.random.default_rng([seed, 11]).choice(met, min(count, len(met)), replace=False))


def value_errors(result: Result, states: Int[np.ndarray, "n"], *, progress: Progress = no_progress) -> ValueErrors:
    """Plays the graph's actions and the cloned policy from every state."""
    mdp, policy = result.mdp, result.solution.policy
    acted = replayed(mdp, walk(mdp, policy, states, EPISODE_STEPS), states, progress=progress)
    cars = [PlacedCar() for _ in range(min(AT_ONCE, len(states)))]
    try:
        cloned = evaluate(result.policy, cars, starts=mdp.states[states], record=True, progress=progress).episodes
    finally:
        for car in cars:
            car.close()
    worth = result.config.stitch.dead_end_value
    return ValueErrors(
        number=states,
        states=mdp.states[states],
        graph=policy_value(replace(mdp, penalty=0.0), policy, dead_end_value=worth)[states],
        charged=result.solution.value[states],
        actions=_returns([each.episode for each in acted], mdp.gamma),
        clone=_returns(cloned, mdp.gamma),
        actions_arrive=np.array([each.episode.terminated for each in acted]),
        on_time=np.array([each.on_time for each in acted]),
        clone_arrives=np.array([episode.terminated for episode in cloned]),
    )


def lower_bound(result: Result, log: Dataset, *, progress: Progress = no_progress) -> tuple[Bounds, Factors]:
    """What the graph's policy is worth at least and at most, as a run certifies it, but from every logged state.

    Also what the model's claims were multiplied by. Where the log is too small to say, no stitch is trusted.
    """
    config, choice = result.config, result.solution.policy
    mdp, asked = replace(result.mdp, penalty=0.0), config.certificate or CertificateConfig()
    first = np.flatnonzero(mdp.out_degree[: mdp.real_count] > 0)
    learned = Learned.of(result.model, result.metric, log, calibrate=config.stitch.calibrate)
    rows, seed = result.model.held_out, result.seed
    try:
        evidence = gather_evidence(mdp, choice, learned, rows, config, seed=seed, first_states=first, progress=progress)
    except DataError:
        return nothing_known(mdp, choice, asked)[0], Factors(math.inf, math.inf, 0)
    return bound_graph(mdp, choice, evidence, asked, seed=seed, first_states=first)


def _returns(episodes: Sequence[Episode], gamma: float) -> Float[np.ndarray, "n"]:
    return np.array([discounted_return(episode.rewards, gamma) for episode in episodes])
