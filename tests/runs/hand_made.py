"""Run folders made by hand from a graph of three states, for the tests of folders and of solving again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bats.config import Config
from bats.graph.mdp import Stitches, TabularMDP
from bats.runs.folder import RunFolder
from bats.runs.records import VERSION, Header, Summary
from bats.stitching.records import Attempts, Outcome, RoundRecord
from tests.mdps import mdp_from_edges

CHAIN = mdp_from_edges(3, [(0, 1, 0.0), (1, 2, 0.0), (2, 2, 1.0)])
"""with discount 0.9 the values are 8.1, 9 and 10"""
PENALTY_STEPS = 0.5
PENALTY = PENALTY_STEPS * 0.1 * 1.9
"""half a step in reward, where values range over 1.9"""
HEADER = Header(VERSION, "0.2.0", "log.hdf5", transitions="abc", rewards="def", starts="ghi", seed=0)
CONFIG = Config(gamma=0.9, penalty_steps=PENALTY_STEPS)


def shortcuts(errors: list[float]) -> Stitches:
    """Stitches of one action from the first state to the last, with value 9 but for their errors."""
    count = len(errors)
    return Stitches(
        source=np.zeros(count, dtype=int),
        target=np.full(count, 2),
        length=np.ones(count, dtype=int),
        action=np.zeros((count, 1, 1)),
        state=np.zeros((count, 0, 1)),
        reward=np.zeros((count, 1)),
        planning_error=np.array(errors, dtype=np.float32),
    )


def attempts(errors: list[float]) -> Attempts:
    """Attempts that were all accepted."""
    count = len(errors)
    ones = np.ones(count, dtype=int)
    outcome = np.full(count, Outcome.ACCEPTED)
    return Attempts(0 * ones, 2 * ones, ones, ones, np.ones(count), np.array(errors), outcome)


def record(number: int) -> RoundRecord:
    return RoundRecord(number, 1, 1, 1, 1, {}, 0.1, 8.1, 8.1 + number / 10, 0.5, 3, 3 + number, 3)


def add_round(run: RunFolder, number: int, errors: list[float] | None = None) -> None:
    errors = [number / 10] if errors is None else errors
    records = tuple(record(each) for each in range(1, number + 1))
    run.add_round(number, shortcuts(errors), attempts(errors), records)


def summary(rounds: int, *, dead_end_value: float = 0.0, penalty: float = PENALTY) -> Summary:
    return Summary(
        rounds=rounds,
        gamma=0.9,
        penalty=penalty,
        penalty_steps=PENALTY_STEPS,
        tolerance=None,
        dead_end_value=dead_end_value,
        logged_value=8.1,
        logged_dead_end_weight=0.0,
        log_value=8.1,
        value=9.0,
        metric=(1.0,),
        policy="bats",
    )


def hand_made_run(path: Path, *rounds: list[float], mdp: TabularMDP = CHAIN, dead_end_value: float = 0.0) -> RunFolder:
    """A finished run with one round for each list of errors."""
    run = RunFolder(path)
    with run.claimed(HEADER, CONFIG):
        run.save_base(mdp)
        for number, errors in enumerate(rounds, 1):
            add_round(run, number, errors)
        run.finish(summary(len(rounds), dead_end_value=dead_end_value))
    return run
