"""Reusing a finished run for another reward, discount or tolerance: its model, and where the metric is the same its
graph.

What a plan does depends neither on the rewards nor on the discount. So the dynamics stay as they are, only the reward
networks are learned again where the rewards differ, and stitching continues from the old stitches with their new
rewards.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from bats.arrays import Progress, no_progress
from bats.config import Config
from bats.data.dataset import Dataset
from bats.errors import SettingError
from bats.graph.mdp import Stitches, TabularMDP, add_stitches
from bats.graph.relabel import prune, stitch_errors
from bats.model.ensemble import Dynamics, one_hot
from bats.model.fit import Model, fit_rewards, load_model
from bats.runs.folder import Header, RunFolder, setting_differences


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
    """The log's MDP with the stitches of the run, if their errors are in the same metric and within the tolerance."""
    if source.settings().metric != config.metric or config.metric == "bisimulation":
        return log
    same_rewards = source.header().rewards == header.rewards
    mdp = log
    for number, stitches in enumerate(source.stitches(), 1):
        if not same_rewards:
            stitches = _with_rewards(stitches, mdp, model.dynamics)
        mdp = add_stitches(mdp, stitches, stitch_round=number)
    return prune(mdp, stitch_errors(mdp) < config.stitch.tolerance)


def _with_rewards(stitches: Stitches, mdp: TabularMDP, dynamics: Dynamics) -> Stitches:
    """The stitches with the rewards that the model predicts along their imagined states."""
    count, longest = stitches.reward.shape
    steps = np.arange(longest)
    last = steps == stitches.length[:, None] - 1
    states = np.concatenate([mdp.states[stitches.source][:, None], stitches.state], axis=1)
    imagined = np.concatenate([stitches.state, np.zeros_like(states[:, :1])], axis=1)
    next_states = np.where(last[:, :, None], mdp.states[stitches.target][:, None], imagined)
    actions = one_hot(stitches.action, dynamics.kind.action_count)
    flat = (part.reshape(count * longest, -1) for part in (states, actions, next_states))
    transition = [dynamics.per_member(jnp.asarray(one, jnp.float32)) for one in flat]
    reward, continuing = (
        np.asarray(predict(*transition), np.float64).mean(axis=0).reshape(count, longest)
        for predict in (dynamics.reward, dynamics.continuing_reward)
    )
    terminates = last & mdp.always_terminal[stitches.target][:, None]
    used = steps < stitches.length[:, None]
    return replace(stitches, reward=np.where(used, np.where(terminates, reward, continuing), 0.0))
