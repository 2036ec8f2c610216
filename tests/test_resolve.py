"""What errors cost, and runs solved again, worked by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bats.errors import DataError
from bats.graph.mdp import Stitches, TabularMDP
from bats.graph.pricing import penalty_in_rewards
from bats.graph.solve import start_value
from bats.runs.folder import Finished, Identity, RunFolder
from bats.runs.solve_again import Changes, resolve
from tests.mdps import mdp_from_edges

CHAIN = mdp_from_edges(3, [(0, 1, 0.0), (1, 2, 0.0), (2, 2, 1.0)])
"""with discount 0.9 worth 8.1, 9 and 10"""
PRICE = 0.5 * 0.1 * 1.9
"""of half a step, where values range over 1.9"""


@dataclass(frozen=True)
class Did:
    round: int


def shortcuts(error: list[float]) -> Stitches:
    """Single actions from the first state to the last, worth 9 but for their errors."""
    count = len(error)
    return Stitches.judged_by_one(
        source=np.zeros(count, dtype=int),
        target=np.full(count, 2),
        length=np.ones(count, dtype=int),
        action=np.zeros((count, 1, 1)),
        state=np.zeros((count, 0, 1)),
        reward=np.zeros((count, 1)),
        planning_error=np.array(error, dtype=np.float32),
    )


def saved_run(path: Path, *errors: list[float]) -> RunFolder:
    """A finished run with one round for each list of errors."""
    run = RunFolder(path)
    with run.claimed(Identity("chain", "", 0, Did(0))):
        run.save_mdp(CHAIN)
        records: tuple[Did, ...] = ()
        for number, error in enumerate(errors, 1):
            records = (*records, Did(number))
            run.add_round(number, shortcuts(error), {"error": np.array(error)}, records)
        run.finish(Finished(len(errors), 0.9, 0.5, "step", PRICE, None, 0.0, 8.1, 8.1, 0.0, (1.0,)))
    return run


def value(run: RunFolder, changes: Changes) -> float:
    found = resolve(run, changes)
    return start_value(found.mdp, found.solution.value)


def test_a_penalty_in_steps_is_a_share_of_the_range_of_the_logs_values() -> None:
    assert penalty_in_rewards(CHAIN, 0.5, "step") == pytest.approx(PRICE)
    assert penalty_in_rewards(CHAIN, 0.5, "reward") == 0.5


@pytest.mark.parametrize(("rewards", "spread"), [((2.0, 2.0), 1.0), ((3.0, 7.0), 4.0)])
def test_where_all_values_are_equal_rewards_or_ones_stand_in(rewards: tuple[float, float], spread: float) -> None:
    flat = mdp_from_edges(1, [(0, 0, pay) for pay in rewards])
    assert penalty_in_rewards(flat, 2.0, "step") == pytest.approx(2.0 * 0.1 * spread)


def test_a_run_is_solved_again_under_other_settings(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", [0.5], [0.2, 1.0])
    assert value(run, Changes()) == pytest.approx(9 - 0.9 * PRICE * 0.2)
    assert value(run, Changes(penalty=0.0)) == pytest.approx(9)
    assert value(run, Changes(penalty=1e6)) == pytest.approx(8.1)  # no stitch is worth its price
    assert value(run, Changes(tolerance=0.1)) == pytest.approx(8.1)
    assert [resolve(run, Changes(tolerance=most)).kept for most in (0.1, 0.3, 0.7, 2.0)] == [0, 1, 2, 3]
    # at discount 0.5 values are 0.5, 1 and 2, so half a step is worth 0.5 * 0.5 * 1.5
    assert value(run, Changes(gamma=0.5)) == pytest.approx(1 - 0.5 * 0.375 * 0.2)


def test_another_reward_is_paid_on_every_edge_and_the_penalty_is_priced_by_it(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", [0.2])
    tenfold = Changes(reward=lambda states, actions, next_states: 10.0 * (states[:, 0] == 2))
    assert value(run, tenfold) == pytest.approx(10 * value(run, Changes()))
    assert resolve(run, tenfold).mdp.penalty == pytest.approx(10 * PRICE)


def test_dead_ends_are_worth_what_is_said(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    short: TabularMDP = mdp_from_edges(2, [(0, 1, 1.0)])
    with run.claimed(Identity("short", "", 0, Did(0))):
        run.save_mdp(short)
        run.finish(Finished(0, 0.9, 0.5, "step", 0.05, None, 2.0, 1.0, 1.0, 1.0, (1.0,)))
    assert value(run, Changes()) == pytest.approx(1 + 0.9 * 2)
    assert value(run, Changes(dead_end_value=-1.0)) == pytest.approx(1 - 0.9)


def test_only_a_finished_run_can_be_solved_again(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected the folder of a run, found none"):
        resolve(RunFolder(tmp_path), Changes())
    run = RunFolder(tmp_path / "run")
    with run.claimed(Identity("chain", "", 0, Did(0))), pytest.raises(DataError, match="expected a finished run"):
        resolve(run, Changes())
