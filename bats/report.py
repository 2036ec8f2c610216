"""A finished run as one HTML page for people: what was in the log, what was learned, tried and found.

The page needs no network and no other file, and everything in it follows from the run's folder. Two or more runs make
a page that sets them side by side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from bats.errors import SettingError
from bats.mdp import LOGGED
from bats.records import WALKED
from bats.report_data import Story, entries, read_story
from bats.report_maps import plane_of, value_map, walks_over_log
from bats.report_page import Figure, Page, Section, Table, Tile, told, write_page
from bats.report_plots import (
    judged,
    model_errors,
    returns,
    tried_by_error,
    tried_by_length,
    tried_by_round,
    value_by_round,
)
from bats.rollouts import stitched_share

NAME = "report.html"
UNFOLDED = 12
"""longer tables stay folded until asked for"""


def write_report(run: Path, out: Path | None = None, *, overwrite: bool = False) -> Path:
    """Writes the report of a finished run, by default as `report.html` beside its folder's other files."""
    story = read_story(Path(run))
    out = story.path / NAME if out is None else Path(out)
    write_page(_page(story), out, overwrite=overwrite)
    return out


def compare_reports(runs: Sequence[Path], out: Path, *, overwrite: bool = False) -> Path:
    """Writes a page that sets finished runs side by side."""
    if len(runs) < 2:
        raise SettingError(f"To compare takes two runs or more; got {len(runs)}.")
    stories = [read_story(Path(run)) for run in runs]
    write_page(_comparison(stories, _names(stories)), Path(out), overwrite=overwrite)
    return Path(out)


def _page(story: Story) -> Page:
    sections = [_log(story), _model(story), *_rounds(story), _maps(story), _returns(story)]
    sections += [_evaluation(story), _policy(story), _times(story), _settings(story)]
    return Page(
        title=f"{story.log}: stitched and solved",
        subtitle=f"Best Action Trajectory Stitching, seed {story.seed}, folder {story.path.resolve().name}",
        tiles=_tiles(story),
        sections=tuple(section for section in sections if section is not None),
        footer=f"Made by bats-rl {version('bats-rl')} from a run of version {story.package}. This file loads nothing.",
    )


def _tiles(story: Story) -> tuple[Tile, ...]:
    ended, walked = story.ended, story.walked
    discounted = f"discount {ended.gamma:g}"
    share = stitched_share(walked.mdp, walked.walks)
    accepted = sum(each.accepted for each in story.rounds)
    return (
        Tile("Best with stitches", f"{ended.value:.6g}", f"value at the starts, {discounted}", main=True),
        Tile("Best in the log alone", f"{ended.log_value:.6g}", f"value at the starts, {discounted}"),
        Tile("As logged", f"{ended.logged_value:.6g}", f"value at the starts, {discounted}"),
        Tile("Stitched steps", f"{share:.1%}", f"of the policy's first {WALKED} steps"),
        Tile(
            "Stitches", f"{walked.kept:,}", "all accepted" if accepted == walked.kept else f"of {accepted:,} accepted"
        ),
    )


def _log(story: Story) -> Section:
    mdp, card = story.walked.mdp, story.log_card
    logged = mdp.stitch_round == LOGGED
    states, rewards = mdp.states[: mdp.real_count], mdp.reward[logged]
    facts = {} if card is None else {"rows": f"{card.rows:,}", "episodes": f"{card.episodes:,}"}
    kind = f"one of {mdp.action_count}" if mdp.action_count is not None else _numbers(mdp.action.shape[1])
    facts |= {
        "distinct states": f"{mdp.real_count:,}",
        "distinct transitions": f"{int(logged.sum()):,}",
        "start states": f"{len(mdp.starts):,}",
        "a state is": _numbers(states.shape[1]),
        "an action is": kind,
        "rewards": f"{rewards.min():g} to {rewards.max():g}, mean {rewards.mean():.4g}",
        "endings": f"{int(np.count_nonzero(mdp.discount[logged] == 0)):,} transitions",
    }
    rows = [
        (story.dimension(number), f"{low:.4g}", f"{mean:.4g}", f"{high:.4g}")
        for number, (low, mean, high) in enumerate(
            zip(states.min(axis=0), states.mean(axis=0, dtype=np.float64), states.max(axis=0), strict=True)
        )
    ]
    tables = [Table(("number of the state", "least", "mean", "greatest"), tuple(rows))]
    if card is not None and card.notes:
        tables.append(
            Table(("kind", "note"), tuple((note.kind, note.text) for note in card.notes), "from reading it", True)
        )
    many = len(rows) > UNFOLDED
    return Section("What was in the log", facts=tuple(facts.items()), tables=tuple(tables), folded=many)


def _model(story: Story) -> Section | None:
    card = story.model
    kinds = ("mean_absolute", "root_mean_square", "largest")
    error = None if card is None else card.get("held_out_error")
    if card is None or not isinstance(error, dict) or not set(kinds) <= set(error):
        return None
    facts = {"held-out rows": told(card.get("held_out_rows")), "updates": told(card.get("updates"))}
    facts["reward: mean error"] = told(error.get("reward_mean_absolute"))
    for name in ("reward", "termination"):
        if f"{name}_precision" in error:
            facts[f"{name}: precision"] = f"{error[f'{name}_precision']:.2%}"
            facts[f"{name}: recall"] = f"{error[f'{name}_recall']:.2%}"
    if not card.get("terminations"):
        facts["terminations"] = "none in the log"
    rows = [
        (story.dimension(number), *(f"{amount:.4g}" for amount in amounts))
        for number, amounts in enumerate(zip(*(error[kind] for kind in kinds), strict=True))
    ]
    table = Table(("number of the state", "mean error", "root mean square", "largest"), tuple(rows))
    text = "An ensemble learned what an action does. It is judged on rows of the log that it never saw."
    figure, many = model_errors(story, error), len(rows) > UNFOLDED
    return Section("What the model learned", text, tuple(facts.items()), (figure,), (table,), folded=many)


def _rounds(story: Story) -> Iterator[Section]:
    if not story.rounds:
        return
    tried, accepted = (sum(getattr(each, name) for each in story.rounds) for name in ("tried", "accepted"))
    facts = (
        ("rounds", f"{len(story.rounds)}"),
        ("tried", f"{tried:,}"),
        ("accepted", f"{accepted:,} ({accepted / max(tried, 1):.1%})"),
        ("penalty", f"{story.ended.price:.4g} of reward per unit of error"),
    )
    figures = (value_by_round([story], [story.log]), tried_by_round(story))
    yield Section("Stitching, round by round", facts=facts, figures=figures)
    if tried:
        yield Section("What was tried", figures=(tried_by_error(story), tried_by_length(story)))


def _maps(story: Story) -> Section:
    plane = plane_of(story)
    return Section("Trajectories and values", figures=(walks_over_log(story, plane), value_map(story, plane)))


def _returns(story: Story) -> Section:
    earned, weights = story.walked.returns, story.walked.weights
    mean = float(weights @ earned)
    facts = (
        ("mean return", f"{mean:.6g}"),
        ("least", f"{earned.min():.6g}"),
        ("greatest", f"{earned.max():.6g}"),
        ("walks", f"{len(earned):,}"),
    )
    return Section("What the policy earns in the graph", facts=facts, figures=(returns([story], [story.log]),))


def _evaluation(story: Story) -> Section | None:
    """What was promised, what a replay of the walks and what the cloned policy earned, as columns side by side."""
    if not story.evaluation:
        return None
    columns = {_spoken(name): held for name, held in story.evaluation.items() if isinstance(held, dict)}
    facts = [(_spoken(name), told(held)) for name, held in story.evaluation.items() if not isinstance(held, dict)]
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [(_spoken(name), *(told(column.get(name, "")) for column in columns.values())) for name in names]
    figure = judged(columns)
    return Section(
        "Promised and kept",
        facts=tuple(facts),
        figures=() if figure is None else (figure,),
        tables=(Table(("", *columns), tuple(rows)),) if columns else (),
    )


def _policy(story: Story) -> Section | None:
    if not story.policy:
        return None
    rows = tuple((_spoken(name), told(value)) for name, value in entries(story.policy))
    return Section("The cloned policy", tables=(Table(("fact", "value"), rows),), folded=True)


def _times(story: Story) -> Section | None:
    if not story.timings:
        return None
    spent = _spent(story)
    facts = {stage: f"{seconds:.1f} s" for stage, seconds in spent.items()}
    facts["together"] = f"{sum(spent.values()):.1f} s"
    return Section("How long it took", facts=tuple(facts.items()))


def _settings(story: Story) -> Section:
    rows = (("seed", str(story.seed)), *((name, told(value)) for name, value in story.settings.items()))
    return Section("Settings", tables=(Table(("setting", "value"), rows),), folded=True)


def _comparison(stories: Sequence[Story], names: Sequence[str]) -> Page:
    facts = [_compared(story) for story in stories]
    rows = [(name, *(fact[name] for fact in facts)) for name in facts[0]]
    settings = [{"seed": story.seed} | story.settings for story in stories]
    every = list(dict.fromkeys(name for each in settings for name in each))
    differing = [name for name in every if len({told(each.get(name)) for each in settings}) > 1]
    changed = tuple((name, *(told(each.get(name)) for each in settings)) for name in differing)
    table = Table(("", *names), tuple(rows))
    figures: tuple[Figure, ...] = (value_by_round(stories, names), returns(stories, names))
    sections = [Section("Side by side", tables=(table,)), Section("Curves", figures=figures)]
    if changed:
        sections.append(Section("Settings that differ", tables=(Table(("setting", *names), changed),)))
    best = max(range(len(stories)), key=lambda number: stories[number].ended.value)
    return Page(
        title=f"{len(stories)} runs compared",
        subtitle="Best Action Trajectory Stitching",
        tiles=tuple(
            Tile(name, f"{story.ended.value:.6g}", "value at the starts with stitches", main=number == best)
            for number, (story, name) in enumerate(zip(stories, names, strict=True))
        ),
        sections=tuple(sections),
        footer=f"Made by bats-rl {version('bats-rl')}. This file loads nothing.",
    )


def _compared(story: Story) -> dict[str, str]:
    ended, walked = story.ended, story.walked
    return {
        "log": story.log,
        "best with stitches": f"{ended.value:.6g}",
        "best in the log alone": f"{ended.log_value:.6g}",
        "as logged": f"{ended.logged_value:.6g}",
        "discount": f"{ended.gamma:g}",
        f"mean return in {WALKED} steps": f"{float(walked.weights @ walked.returns):.6g}",
        "stitched steps": f"{stitched_share(walked.mdp, walked.walks):.1%}",
        "rounds": f"{len(story.rounds)}",
        "tried": f"{sum(each.tried for each in story.rounds):,}",
        "accepted": f"{sum(each.accepted for each in story.rounds):,}",
        "kept": f"{walked.kept:,}",
        "seconds": f"{sum(_spent(story).values()):.1f}",
    }


def _names(stories: Sequence[Story]) -> list[str]:
    """The folders' names; where two are the same, with as much of the path as tells them apart."""
    parts = [story.path.resolve().parts for story in stories]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]


def _spent(story: Story) -> dict[str, float]:
    """Seconds by stage."""
    spent: dict[str, float] = {}
    for timing in story.timings:
        spent[timing.stage] = spent.get(timing.stage, 0.0) + timing.seconds
    return spent


def _numbers(count: int) -> str:
    return "one number" if count == 1 else f"{count} numbers"


def _spoken(name: str) -> str:
    return re.sub(r"[_.]+", " ", name)
