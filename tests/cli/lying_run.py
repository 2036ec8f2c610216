"""A finished run of a log that is wrong about one step, made by hand, for the tests of playing and exporting.

The log is of the chain, random moves from anywhere, but in it the step down from position 1 ends the task in the goal.
So the graph promises a return of 1 from everywhere, from positions 0 to 4 by way of that step, which truly leads to
position 0, far from any reward: only rollouts from position 5 on keep the promise.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bats.config import Config
from bats.data.dataset import Dataset
from bats.graph.mdp import from_dataset
from bats.graph.solve import logged_value, policy_iteration, start_value
from bats.policy.files import save_policy
from bats.policy.policy import Policy
from bats.policy.support import Support
from bats.runs.folder import RunFolder
from bats.runs.records import Header, Summary
from bats.tasks.worlds import CHAIN

GOAL = 9
TRUE_FROM = 5
"""the first position from which the shortest path to the goal is a true one"""
GAMMA = 0.95


def lying_log(episodes: int = 60, steps: int = 20) -> Dataset:
    rng = np.random.default_rng(0)
    rows = []
    for episode in range(episodes):
        position = np.array([[episode % GOAL]])
        for step in range(steps):
            action = rng.integers(2, size=1)
            after, reward, ended = CHAIN.step(position, action)
            if (int(position[0, 0]), int(action[0])) == (1, 0):
                after, reward, ended = np.array([[GOAL]]), np.ones(1), np.array([True])
            timeout = step == steps - 1 and not ended[0]
            rows.append((position[0, 0], action[0], reward[0], after[0, 0], ended[0], timeout))
            if ended[0]:
                break
            position = after
    positions, actions, rewards, after, ended, timeouts = (np.array(column) for column in zip(*rows, strict=True))
    return Dataset.from_arrays(
        positions[:, None].astype(np.float64),
        actions,
        rewards,
        next_observations=after[:, None].astype(np.float64),
        terminations=ended,
        timeouts=timeouts,
        action_count=2,
        name="chain-lying.hdf5",
    )


def clone_of_the_graph(log: Dataset) -> Policy:
    """A policy that acts as the graph's does: down below position 5, up from there."""
    return Policy(
        weights=(np.array([[0.0, 1.0]], np.float32),),
        biases=(np.array([0.0, 0.5 - TRUE_FROM], np.float32),),
        mean=np.zeros(1, np.float32),
        std=np.ones(1, np.float32),
        low=np.empty(0, np.float32),
        high=np.empty(0, np.float32),
        action_count=2,
        support=Support.of(log.observations, np.ones(1, np.float32), np.random.default_rng(0)),
        card={"log": log.name, "seed": 0},
    )


def make_lying_run(folder: Path) -> None:
    log = lying_log()
    assert len(np.unique(np.column_stack([log.observations, log.actions]), axis=0)) == 2 * GOAL  # everything was tried
    mdp = from_dataset(log, gamma=GAMMA)
    solution = policy_iteration(mdp)
    value = start_value(mdp, solution.value)
    run = RunFolder(folder)
    with run.claimed(Header.of(log, 0), Config(gamma=GAMMA)):
        run.describe_log(log)
        run.save_base(mdp)
        save_policy(clone_of_the_graph(log), run.policy)
        run.finish(
            Summary(
                rounds=0,
                gamma=GAMMA,
                penalty=0.0,
                penalty_steps=0.0,
                tolerance=None,
                dead_end_value=0.0,
                logged_value=logged_value(log, gamma=GAMMA, dead_end_value=0.0),
                logged_dead_end_weight=0.0,
                log_value=value,
                value=value,
                metric=(1.0,),
                policy="bats",
            )
        )
