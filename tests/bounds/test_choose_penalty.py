"""The penalty and the tolerance of a finished graph are chosen by the lower bound of its policy."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from bats.arrays import take
from bats.bounds.certificate import Option
from bats.bounds.choose_penalty import rank_options
from bats.config import Config, StitchConfig
from bats.data.dataset import Dataset
from bats.errors import DataError
from bats.graph.mdp import Stitches, TabularMDP, add_stitches, from_dataset
from bats.planning.context import PlanningContext
from tests.bounds.conveyor import GAMMA, VALUE_METRIC, held_out, planning_context

EPISODES, STEPS, RICH = 30, 20, 0.9
OPTIONS = [Option(penalty, tolerance) for penalty, tolerance in product((0.0, 100.0), (None, 0.2))]


@pytest.fixture(scope="module")
def graph() -> TabularMDP:
    """Episodes near 0 on a line whose reward is the position, one episode near 0.9, and a stitch there from each.

    Half of the stitches have an error of 0.1, the others of 0.5.
    """
    poor = np.linspace(0.0, 0.1, EPISODES)[:, None] + 0.005 * np.arange(STEPS + 1)
    path = np.concatenate([poor, [RICH + 0.005 * np.arange(STEPS + 1)]])
    before, after = path[:, :-1].reshape(-1, 1), path[:, 1:].reshape(-1, 1)
    log = Dataset.from_arrays(
        before,
        after - before,
        after[:, 0],
        next_observations=after,
        terminations=np.arange(len(after)) % STEPS == STEPS - 1,
        name="line",
    )
    mdp = from_dataset(log.with_starts(np.arange(EPISODES) * STEPS), gamma=GAMMA)
    source, target = mdp.starts[:EPISODES], np.argmin(np.abs(mdp.states[:, 0] - RICH))
    stitches = Stitches(
        source=source,
        target=np.full(EPISODES, target),
        length=np.ones(EPISODES, dtype=np.int64),
        action=(mdp.states[target] - mdp.states[source])[:, None],
        state=np.zeros((EPISODES, 0, 1)),
        reward=np.full((EPISODES, 1), RICH),
        planning_error=np.where(np.arange(EPISODES) % 2, 0.1, 0.5),
    )
    return add_stitches(mdp, stitches, stitch_round=1)


def model_of(*, error: float, rows: int | None = None) -> PlanningContext:
    """A model whose every step is wrong by `error`, with held-out rows that show it."""
    held = held_out(error=error, segments=200)
    return planning_context(held if rows is None else take(held, slice(rows)))


@pytest.fixture(autouse=True)
def exact_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact metric in place of a learned one."""
    monkeypatch.setattr("bats.bounds.error_estimates.learn_bisimulation", lambda *_, **__: VALUE_METRIC)
    monkeypatch.setattr("bats.bounds.error_estimates.calibrate", lambda metric, *_, **__: metric)


def ranked(
    graph: TabularMDP, context: PlanningContext, options: list[Option] = OPTIONS, *, penalty_unit: float = 1.0
) -> tuple[Option, ...]:
    config = Config(stitch=StitchConfig(tolerance=10.0))
    return rank_options(graph, options, context, config, penalty_unit=penalty_unit, seed=0)


def lower_bounds(options: tuple[Option, ...]) -> dict[tuple[float, float | None], float]:
    return {(option.penalty, option.tolerance): option.lower for option in options}


def test_the_best_lower_bound_comes_first_and_stitches_within_the_tolerance_are_counted(graph: TabularMDP) -> None:
    options = ranked(graph, model_of(error=0.0))
    lower = [option.lower for option in options]
    assert lower == sorted(lower, reverse=True)
    assert len(options) == 4
    assert all(option.stitches == (EPISODES // 2 if option.tolerance == 0.2 else EPISODES) for option in options)


def test_with_a_model_that_is_right_every_stitch_is_taken(graph: TabularMDP) -> None:
    options = ranked(graph, model_of(error=0.0))
    assert (options[0].penalty, options[0].tolerance) == (0.0, None)
    lower = lower_bounds(options)
    # with the tolerance half of the starts have no stitch; with the penalty none takes it
    assert lower[0.0, None] > lower[0.0, 0.2] > lower[100.0, 0.2]
    assert lower[100.0, 0.2] >= 0.9 * float(graph.start_weights @ graph.states[graph.starts, 0])


def test_with_a_model_that_is_far_off_the_high_penalty_is_best(graph: TabularMDP) -> None:
    options = ranked(graph, model_of(error=1.0))  # a whole unit off: a stitch may end anywhere on the line
    assert options[0].penalty == 100.0  # with which no stitch is taken
    lower = lower_bounds(options)
    assert lower[100.0, None] > lower[0.0, 0.2] > lower[0.0, None]


def test_the_best_option_does_not_depend_on_the_order_of_the_options(graph: TabularMDP) -> None:
    options = ranked(graph, model_of(error=0.0), OPTIONS[::-1])
    assert (options[0].penalty, options[0].tolerance) == (0.0, None)


def test_with_too_few_rows_to_rely_on_any_stitch_keeping_to_the_log_is_best(graph: TabularMDP) -> None:
    options = ranked(graph, model_of(error=0.0, rows=20))
    assert options[0].penalty == 100.0
    assert options[0].lower > 0 == min(option.lower for option in options)


def test_penalties_are_in_the_given_unit(graph: TabularMDP) -> None:
    options = [Option(0.0, None), Option(1.0, None)]
    in_hundreds = ranked(graph, model_of(error=0.0), options, penalty_unit=100.0)
    expected = lower_bounds(ranked(graph, model_of(error=0.0)))[100.0, None]
    assert lower_bounds(in_hundreds)[1.0, None] == expected


def test_where_the_log_is_too_small_for_a_metric_the_first_option_is_taken(
    graph: TabularMDP, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_small(*_: object, **__: object) -> None:
        raise DataError("more states", "3")

    monkeypatch.setattr("bats.bounds.error_estimates.learn_bisimulation", too_small)
    (only,) = ranked(graph, model_of(error=0.0))
    assert (only.penalty, only.tolerance, only.lower, only.stitches) == (0.0, None, -math.inf, EPISODES)
