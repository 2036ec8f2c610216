"""The values of a stitched graph beside what the true car earns, and a certified lower bound on them.

Four values of a state, all discounted:

    graph       of the graph's policy by the graph's own rewards, without penalties
    penalized   the same with penalties, which is what the graph was solved for
    actions     what the actions of the graph's rollout earn in the true car, played open loop
    clone       what the cloned policy earns in the true car

    graph - clone  =  (graph - actions)  +  (actions - clone)
    whole error       model and metric      cloning
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import binned_statistic_2d

from bats.arrays import Progress, no_progress
from bats.bounds.error_estimates import ErrorEstimator
from bats.bounds.graph_policy import bound_graph, unknown_errors
from bats.bounds.sandwich import ErrorBounds, sandwich
from bats.config import CertificateConfig
from bats.errors import DataError
from bats.evaluation.episodes import evaluate
from bats.graph.mdp import LOGGED
from bats.graph.rollouts import reachable, roll_out
from bats.graph.solve import policy_value, start_value
from bats.planning.context import PlanningContext
from bats.runs.result import Result
from bats.streams import Stream, generator
from bats.studies.car_rollouts import replay_actions
from bats.tasks.mountain_car import ENVIRONMENT, EPISODE_STEPS
from bats.tasks.zoo.classic_control import place_car

CELLS = (90, 70)
"""cells of position and of velocity over which the lower bound is averaged"""


@dataclass(frozen=True, eq=False)
class ValueErrors:
    """The four values of some states, and whether the car arrives from there."""

    state: Int[np.ndarray, "n"]
    """in the graph"""
    graph: Float[np.ndarray, "n"]
    penalized: Float[np.ndarray, "n"]
    actions: Float[np.ndarray, "n"]
    clone: Float[np.ndarray, "n"]
    actions_arrive: Bool[np.ndarray, "n"]
    actions_on_time: Bool[np.ndarray, "n"]
    """they arrive without a repeated last action"""
    clone_arrives: Bool[np.ndarray, "n"]

    def errors(self) -> dict[str, Float[np.ndarray, "n"]]:
        """How much too high the graph's values are for its own actions and for its clone, and what cloning adds."""
        return {
            "actions": self.graph - self.actions,
            "clone": self.graph - self.clone,
            "cloning": self.actions - self.clone,
        }


@dataclass(frozen=True, eq=False)
class LowerBound:
    """The certified lower bound on the value of the graph's policy."""

    mean: Float[np.ndarray, "P V"]
    """mean bound of the logged states in each cell of position and velocity, NaN where there are none"""
    positions: Float[np.ndarray, "P+1"]
    """edges of the cells"""
    velocities: Float[np.ndarray, "V+1"]
    start_lower: float
    start_value: float
    start_upper: float
    holds: float
    """share of the evaluated states in which the graph's actions earn at least the bound"""
    factor: float
    """calibration factor of value differences; infinite where the log is too small to say"""


def discounted_return(rewards: Float[np.ndarray, "T"], gamma: float) -> float:
    """r_0 + gamma r_1 + gamma^2 r_2 + …"""
    return float(rewards @ gamma ** np.arange(len(rewards)))


def sample_visited(result: Result, count: int) -> Int[np.ndarray, "n"]:
    """Up to `count` different real states that the graph's policy visits from the starts and from stitched states.

    These are the rollouts that are cloned. From the starts alone there are few states: their rollouts merge early, and
    most of their steps are on stitches, in states that were never logged.
    """
    mdp = result.mdp
    stitched = mdp.source[mdp.stitch_round != LOGGED]
    first_states = np.union1d(mdp.starts, stitched[stitched < mdp.real_count])
    visited = reachable(mdp, result.solution.policy, first_states)
    # only logged states with an action can be played from: imagined ones may not exist in the true car
    visited = visited[(visited < mdp.real_count) & (mdp.out_degree[visited] > 0)]
    return np.sort(generator(0, Stream.STUDY_VALUES).choice(visited, min(count, len(visited)), replace=False))


def measure_values(result: Result, count: int, *, progress: Progress = no_progress) -> ValueErrors:
    """Plays the graph's actions and the cloned policy from up to `count` visited states."""
    states = sample_visited(result, count)
    mdp, policy = result.mdp, result.solution.policy
    rollouts = roll_out(mdp, policy, states, EPISODE_STEPS)
    replayed = replay_actions(mdp, rollouts, states, progress=progress)
    starts = mdp.states[states]
    cloned = evaluate(
        result.graph_clone, ENVIRONMENT, starts=starts, set_state=place_car, record=True, progress=progress
    ).episodes
    dead_end_value = result.config.stitch.dead_end_value
    arrive = np.array([episode.terminated for episode in replayed])
    return ValueErrors(
        state=states,
        graph=policy_value(replace(mdp, penalty=0.0), policy, dead_end_value=dead_end_value)[states],
        penalized=result.solution.value[states],
        actions=np.array([discounted_return(episode.rewards, mdp.gamma) for episode in replayed]),
        clone=np.array([discounted_return(episode.rewards, mdp.gamma) for episode in cloned]),
        actions_arrive=arrive,
        actions_on_time=arrive & (np.array([len(episode) for episode in replayed]) <= rollouts.length),
        clone_arrives=np.array([episode.terminated for episode in cloned]),
    )


def measure_bound(result: Result, values: ValueErrors, *, progress: Progress = no_progress) -> LowerBound:
    """Bounds the graph's policy as a run certifies it, but from every logged state and not only from the starts.

    Also tells whether the bound holds in the states whose values were measured.
    """
    config, solution, seed, mdp = result.config, result.solution, result.seed, replace(result.mdp, penalty=0.0)
    first = np.flatnonzero(mdp.out_degree[: mdp.real_count] > 0)
    context = PlanningContext.of(result.model, result.metric, mdp, local_error=config.stitch.local_error)
    try:
        estimator = ErrorEstimator.of(solution, context, config, seed=seed, first_states=first, progress=progress)
        bounds, factors = bound_graph(solution, estimator, first_states=first)
        factor = factors.value
    except DataError:  # a log too small to estimate errors from: no stitch is trusted
        reward_range, factor = (config.certificate or CertificateConfig()).reward_range, math.inf
        bounds = sandwich(mdp, ErrorBounds(*unknown_errors(mdp), reward_range), solution.policy)
    # terminal states have value 0, which would show as a stripe of another colour along the goal
    running = np.flatnonzero(~mdp.always_terminal[: mdp.real_count])
    cells = binned_statistic_2d(*mdp.states[running].T, bounds.lower[running], bins=CELLS)
    return LowerBound(
        mean=cells.statistic,
        positions=cells.x_edge,
        velocities=cells.y_edge,
        start_lower=bounds.start.lower,
        # what the graph says, with the worst value at its dead ends as in the bound
        start_value=start_value(mdp, policy_value(mdp, solution.policy, dead_end_value=bounds.floor)),
        start_upper=bounds.start.upper,
        holds=float(np.mean(bounds.lower[values.state] <= values.actions)),
        factor=factor,
    )
