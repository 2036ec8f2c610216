"""The penalty and the tolerance of a finished graph, chosen by what its policy is worth at least."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from bats.bounds.choose_penalty import judged_options, options
from bats.config import ChoiceConfig, Config
from bats.data.dataset import Dataset
from bats.errors import SettingError
from bats.graph.mdp import Stitches, TabularMDP, add_stitches, from_dataset
from bats.metric.scaled import ScaledMetric
from bats.model.fit import HeldOut
from bats.model.local_error import LocalError
from bats.report.page import write_report
from bats.runs.folder import RunFolder
from bats.runs.pipeline import fit
from bats.stitching.acceptance import Learned
from tests.report_pages import Parsed
from tests.small_runs import SMALL, walks
from tests.test_certificate import GAMMA, conveyor, held_out

EPISODES, STEPS, RICH = 30, 20, 0.9
CHOICE = replace(
    SMALL,
    gamma=GAMMA,
    penalty=0.0,
    choice=ChoiceConfig(penalties=(100.0,), tolerances=(0.2,)),
    stitch=replace(SMALL.stitch, tolerance=10.0),
    bisimulation=replace(SMALL.bisimulation, updates=400, hidden=(16,)),
)


def two_ways() -> TabularMDP:
    """On a line that pays where it comes to be: episodes that stay near 0, one near 0.9, and a stitch there from each.

    Half of the stitches have an error of 0.1, the others of 0.5.
    """
    poor = np.linspace(0.0, 0.1, EPISODES)[:, None] + 0.005 * np.arange(STEPS + 1)
    places = np.concatenate([poor, [RICH + 0.005 * np.arange(STEPS + 1)]])
    before, after = places[:, :-1].reshape(-1, 1), places[:, 1:].reshape(-1, 1)
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
    joining = Stitches.judged_by_one(
        source=source,
        target=np.full(EPISODES, target),
        length=np.ones(EPISODES, dtype=np.int64),
        action=(mdp.states[target] - mdp.states[source])[:, None],
        state=np.zeros((EPISODES, 0, 1)),
        reward=np.full((EPISODES, 1), RICH),
        planning_error=np.where(np.arange(EPISODES) % 2, 0.1, 0.5),
    )
    return add_stitches(mdp, joining, stitch_round=1)


def relied_on(*, miss: float) -> tuple[Learned, HeldOut]:
    """A model whose every step goes wrong by so much, and rows that show it."""
    model, metric = conveyor(), ScaledMetric(np.ones(1, dtype=np.float32))
    rows = held_out(model, miss=miss, stretches=200)
    judging = rows.halves()[0]
    local = LocalError.measured(metric, judging.observations, judging.next_observations, judging.predicted_next)
    return Learned(model, metric, (np.array([-1.0]), np.array([1.0])), local), rows


def judged(*, miss: float, config: Config = CHOICE) -> dict[tuple[float, float | None], float]:
    found = judged_options(two_ways(), 1.0, *relied_on(miss=miss), config, seed=0)
    lower = [option.lower for option in found]
    assert lower == sorted(lower, reverse=True)
    assert all(option.stitches == (EPISODES // 2 if option.tolerance == 0.2 else EPISODES) for option in found)
    return {(option.penalty, option.tolerance): option.lower for option in found}


def test_the_runs_own_settings_come_first_and_none_twice() -> None:
    config = Config(penalty=3.0, choice=ChoiceConfig(penalties=(1.0, 3.0), tolerances=(0.2,)))
    assert options(config) == [(3.0, None), (3.0, 0.2), (1.0, None), (1.0, 0.2)]
    assert options(Config(penalty=3.0)) == [(3.0, None)]


def test_a_model_that_is_right_is_trusted_and_every_stitch_is_taken() -> None:
    found = judged(miss=0.0)
    assert next(iter(found)) == (0.0, None)
    assert found[0.0, None] > found[0.0, 0.2] > found[100.0, 0.2]  # half have no stitch, none takes it
    stays = two_ways()
    assert found[100.0, 0.2] >= 0.9 * float(stays.start_weights @ stays.states[stays.starts, 0])


def test_a_model_that_is_far_off_makes_the_dear_penalty_the_best() -> None:
    found = judged(miss=1.0)  # a whole unit off: a stitch may lead anywhere on the line
    assert next(iter(found))[0] == 100.0  # which no stitch is worth
    assert found[100.0, None] > found[0.0, 0.2] > found[0.0, None]


def test_what_is_chosen_does_not_depend_on_whose_own_it_is() -> None:
    turned = replace(CHOICE, penalty=100.0, choice=replace(CHOICE.choice, penalties=(0.0,)))
    found = judged(miss=0.0, config=turned)
    assert next(iter(found)) == (0.0, None)


def test_with_too_few_rows_to_trust_any_stitch_keeping_to_the_log_is_best() -> None:
    learned, rows = relied_on(miss=0.0)
    few = HeldOut(*(getattr(rows, part.name)[:20] for part in fields(HeldOut)))
    found = judged_options(two_ways(), 1.0, learned, few, CHOICE, seed=0)
    assert found[0].penalty == 100.0
    assert found[0].lower > 0 == min(option.lower for option in found)


def test_without_a_metric_of_value_the_runs_own_settings_stand() -> None:
    alone = replace(CHOICE, bisimulation=replace(CHOICE.bisimulation, held_out=0.001))
    (only,) = judged_options(two_ways(), 1.0, *relied_on(miss=0.0), alone, seed=0)  # nothing left to calibrate it with
    assert (only.penalty, only.tolerance, only.lower) == (0.0, None, -math.inf)


def test_a_run_ends_with_the_best_option_and_the_report_shows_all(tmp_path: Path) -> None:
    config = replace(SMALL, choice=ChoiceConfig(penalties=(30.0,), tolerances=(1.0,)))
    result = fit(walks(), config, folder=tmp_path / "run")
    assert len(result.options) == 4
    ended = RunFolder(tmp_path / "run").finished()
    assert (ended.penalty, ended.tolerance) == (result.options[0].penalty, result.options[0].tolerance)
    assert any(timing.stage == "choosing" for timing in result.timings)
    text = " ".join(Parsed(write_report(tmp_path / "run", tmp_path / "page.html").read_text()).text)
    assert "penalty, the best first" in text
    assert fit(walks(), SMALL, folder=tmp_path / "plain").options == ()


@pytest.mark.parametrize("wrong", [{"penalties": (-1.0,)}, {"penalties": (math.inf,)}, {"tolerances": (0.0,)}])
def test_options_that_mean_nothing_are_refused(wrong: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        ChoiceConfig(**wrong)  # type: ignore[arg-type]


def test_with_the_learned_metric_there_is_nothing_to_choose() -> None:
    with pytest.raises(SettingError, match="nothing to choose"):
        Config(metric="bisimulation", choice=ChoiceConfig(penalties=(1.0,)))
