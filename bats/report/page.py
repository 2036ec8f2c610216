"""A finished run as one HTML page for people: what was in the log, what was learned, tried and found.

The page needs no network and no other file, and everything in it follows from the run's folder. Two or more runs make
a page that sets them side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path, PurePath

import numpy as np

from bats.errors import SettingError
from bats.graph.mdp import LOGGED
from bats.graph.rollouts import stitched_share
from bats.report.contents import Story, finite, read_story
from bats.report.html import Figure, Page, Section, Table, Tile, told, write_page
from bats.report.maps import plane_of, value_map, walks_over_log
from bats.report.policy import candidates_section, evaluation_section, policy_section, returns, returns_section
from bats.report.rounds import model_errors, tried_by_error, tried_by_length, tried_by_round, value_by_round
from bats.report.verdict import comparison_section, verdict_section
from bats.stitching.records import WALKED

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
    sections = [
        verdict_section(story),
        _log(story),
        _model(story),
        *_rounds(story),
        _maps(story),
        returns_section(story),
    ]
    sections += [candidates_section(story), policy_section(story), evaluation_section(story)]
    sections += [_times(story), _settings(story)]
    return Page(
        title=f"{_short(story.log)}: stitched and solved",
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
        *_played(story),
    )


def _played(story: Story) -> Iterator[Tile]:
    """What the cloned policy earned in the environment, where that is known."""
    score, mean = (finite(story.cloned.get(name)) for name in ("score", "mean_return"))
    earned = "" if mean is None else f"mean return {mean:.6g}, not discounted"
    if score is not None:
        yield Tile("Cloned policy's score", f"{score:.1f}", earned or "normalised")
    elif mean is not None:
        yield Tile("Cloned policy", f"{mean:.6g}", "mean return, not discounted")


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
    text = f"Read from {story.log}."
    return Section("What was in the log", text, tuple(facts.items()), tables=tuple(tables), folded=many)


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
    return Section(
        "What the model learned", text, tuple(facts.items()), figures=(figure,), tables=(table,), folded=many
    )


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


def _times(story: Story) -> Section | None:
    if not story.timings:
        return None
    spent = _spent(story)
    facts = {stage: f"{seconds:.1f} s" for stage, seconds in spent.items()}
    facts["together"] = f"{sum(spent.values()):.1f} s"
    return Section("How long it took", facts=tuple(facts.items()))


def _settings(story: Story) -> Section:
    rows = (("seed", str(story.seed)), *((name, told(value)) for name, value in story.settings.items()))
    return Section("Settings", tables=(Table(("setting", "value"), rows, words=True),), folded=True)


def _comparison(stories: Sequence[Story], names: Sequence[str]) -> Page:
    facts = [_compared(story) for story in stories]
    known = dict.fromkeys(name for fact in facts for name in fact)
    rows = [(name, *(fact.get(name, "not known") for fact in facts)) for name in known]
    settings = [{"seed": story.seed} | story.settings for story in stories]
    every = list(dict.fromkeys(name for each in settings for name in each))
    differing = [name for name in every if len({told(each.get(name)) for each in settings}) > 1]
    changed = tuple((name, *(told(each.get(name)) for each in settings)) for name in differing)
    table = Table(("", *names), tuple(rows), words=True)
    figures: tuple[Figure, ...] = (value_by_round(stories, names), returns(stories, names))
    judged = comparison_section(stories, names)
    sections = [] if judged is None else [judged]
    sections += [Section("Side by side", tables=(table,)), Section("Curves", figures=figures)]
    if changed:
        sections.append(Section("Settings that differ", tables=(Table(("setting", *names), changed, words=True),)))
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
    ended, walked, earned = story.ended, story.walked, story.earned
    facts = {
        "log": _short(story.log),
        "best with stitches": f"{ended.value:.6g}",
        "best in the log alone": f"{ended.log_value:.6g}",
        "as logged": f"{ended.logged_value:.6g}",
        "discount": f"{ended.gamma:g}",
        "mean return in the graph": f"{earned.mean_return:.6g}",
        "steps of a walk": f"{earned.steps:,}",
        "walks cloned": f"{int(np.count_nonzero(earned.kept)):,} of {len(earned.kept):,}",
    }
    for name, label in (("mean_return", "cloned: mean return"), ("score", "cloned: score")):
        number = finite(story.cloned.get(name))
        if number is not None:
            facts[label] = f"{number:.6g}"
    return facts | {
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


def _short(log: str) -> str:
    """A log's name without the folders it lies in."""
    return PurePath(log).name or log


def _spent(story: Story) -> dict[str, float]:
    """Seconds by stage."""
    spent: dict[str, float] = {}
    for timing in story.timings:
        spent[timing.stage] = spent.get(timing.stage, 0.0) + timing.seconds
    return spent


def _numbers(count: int) -> str:
    return "one number" if count == 1 else f"{count} numbers"
