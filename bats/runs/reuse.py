"""Reusing a finished run for another reward, discount or tolerance: its model, and its graph where errors of stitches
are measured in the same way.

What a plan does depends neither on the rewards nor on the discount. So the dynamics stay as they are, only the reward
networks are learned again where the rewards differ, and stitching continues from the old stitches with their new
rewards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce

import numpy as np
from jaxtyping import Float

from bats.arrays import Indices, Progress, no_progress
from bats.config import Config
from bats.data.dataset import Dataset
from bats.errors import SettingError
from bats.graph.mdp import LOGGED, REUSED, TabularMDP
from bats.graph.relabel import prune, stitch_errors, with_gamma
from bats.model.ensemble import Dynamics, one_hot, predict_transitions
from bats.model.fit import Model, fit_rewards, load_model
from bats.runs.folder import RunFolder
from bats.runs.records import Header
from bats.runs.stages import setting_differences
from bats.stitching.history import History
from bats.stitching.records import Attempts, Outcome


def check_reuse(source: RunFolder, header: Header, config: Config) -> None:
    """Refuses to reuse a run whose model is another one."""
    source.summary()
    differences = source.header().differences(header, "transitions", "seed")
    differences += setting_differences(source.settings(), config, ["model"]).values()
    if differences:
        raise SettingError(f"{source.path} cannot be reused: {'; '.join(differences)}.")


def reused_model(source: RunFolder, dataset: Dataset, header: Header, *, progress: Progress = no_progress) -> Model:
    """The run's model, with the rewards of this log."""
    model = load_model(source.model)
    if source.header().rewards == header.rewards:
        return model
    return fit_rewards(model, dataset, seed=header.seed, progress=progress)


def reused_graph(log: TabularMDP, source: RunFolder, model: Model, header: Header, config: Config) -> TabularMDP:
    """The log's MDP with all stitches of the run whose errors are within the tolerance; the log's MDP alone where
    errors are measured in another way."""
    ways = [(one.metric, one.stitch.local_error) for one in (source.settings(), config)]
    if ways[0] != ways[1] or config.metric == "bisimulation":
        return log
    graph = source.load_graph()
    reward, logged = graph.reward.copy(), graph.stitch_round == LOGGED
    # the transitions are the same, so the logged edges are too, and in the same order
    reward[logged] = log.reward
    if source.header().rewards != header.rewards and not logged.all():
        reward[~logged] = _predicted_rewards(graph, np.flatnonzero(~logged), model.dynamics)
    # rounds of this run count from 1 again, and the old ones must not be taken for them
    stitch_round = np.where(logged, LOGGED, REUSED).astype(graph.stitch_round.dtype)
    graph = replace(with_gamma(graph, log.gamma), penalty=log.penalty, reward=reward, stitch_round=stitch_round)
    graph = replace(graph, starts=log.starts, start_weights=log.start_weights)
    return prune(graph, stitch_errors(graph) < config.stitch.tolerance)


def history_with_reused(mdp: TabularMDP, rounds: Iterable[Attempts]) -> History:
    """The history of saved rounds, in which pairs that a reused run has stitched count as accepted."""
    edges = np.flatnonzero((mdp.stitch_round == REUSED) & (mdp.source < mdp.real_count))  # the first of each stitch
    stitch = mdp.stitch[edges]
    target, length, zero = mdp.target[mdp.last_edge[stitch]], mdp.stitch_length[stitch], np.zeros(len(edges))
    reused = Attempts(mdp.source[edges], target, length, length, zero, zero, np.full(len(edges), Outcome.ACCEPTED))
    # how far apart these pairs are is not known, so success rates start anew
    return reduce(History.extended, rounds, History.of([reused], mdp.real_count).without_failures())


def _predicted_rewards(mdp: TabularMDP, edges: Indices, dynamics: Dynamics) -> Float[np.ndarray, "n"]:
    """The rewards that the model predicts for some edges, by the mean of its members."""
    actions = one_hot(mdp.action[edges], dynamics.kind.action_count)
    states, next_states = mdp.states[mdp.source[edges]], mdp.states[mdp.target[edges]]
    reward, continuing, _ = predict_transitions(dynamics, states, actions, next_states)
    return np.where(mdp.discount[edges] == 0, reward, continuing).astype(np.float64).mean(axis=0)
