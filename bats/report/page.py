"""A finished run as one HTML page, or several runs side by side: which sections there are, and in which order.

The page needs no network and no other file, and everything in it follows from the run's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path, PurePath

import numpy as np
from jaxtyping import Float

from bats.baselines.folder import BaselineFolder, method_of_run
from bats.config import FilePath, checked
from bats.data.episodes import plural
from bats.errors import SettingError
from bats.graph.mdp import LOGGED
from bats.graph.rollouts import stitched_share
from bats.report.baseline import baseline_page
from bats.report.contents import Contents
from bats.report.html import Page, Section, Table, Tile, render, side_by_side
from bats.report.maps import maps_section
from bats.report.policy import evaluation_section, policy_section, returns_figure, rollouts_section
from bats.report.rounds import UNFOLDED, model_section, rounds_facts, rounds_sections, value_by_round
from bats.report.verdict import selection_section, variants_section, verdict_section, verdicts_section
from bats.stitching.records import SHARE_STEPS
from bats.storage.atomic import write_text

NAME = "report.html"
NO_REQUESTS = "This page makes no network requests."


def write_report(run: Path | str, out: Path | str | None = None, *, overwrite: bool = False) -> Path:
    """Writes the report of a finished run, by default as `report.html` in its folder."""
    target, overwrite = checked("out", FilePath | None, out), checked("overwrite", bool, overwrite)
    path = checked("run", FilePath, run)
    baseline = method_of_run(path) is not None
    page = baseline_page(BaselineFolder(path)) if baseline else run_page(Contents(path))
    target = target or path / NAME
    write_text(target, render(page), overwrite=overwrite)
    return target


def compare_reports(runs: Sequence[Path | str], out: Path | str, *, overwrite: bool = False) -> Path:
    """Writes a page with finished runs side by side."""
    paths, target = checked("runs", tuple[FilePath, ...], runs), checked("out", FilePath, out)
    overwrite = checked("overwrite", bool, overwrite)
    if len(paths) < 2:
        raise SettingError(f"A comparison needs at least two runs; got {len(paths)}.")
    contents = [Contents(path) for path in paths]
    page = comparison_page(dict(zip(_names(contents), contents, strict=True)))
    write_text(target, render(page), overwrite=overwrite)
    return target


def run_page(run: Contents) -> Page:
    header, times = run.header, {**run.seconds, "total": sum(run.seconds.values())}
    # first what to do, then what happened in the order in which it happened, last what to look up
    sections = [
        verdict_section(run),
        selection_section(run),
        log_section(run),
        model_section(run),
        *rounds_sections(run),
        maps_section(run),
        rollouts_section(run),
        policy_section(run),
        variants_section(run),
        evaluation_section(run),
        Section("Times", facts={stage: f"{seconds:.1f} s" for stage, seconds in times.items()}),
        Section("Settings", tables=[Table(("setting", "value"), list(run.settings.items()), words=True)], folded=True),
    ]
    return Page(
        title=f"{_file_name(header.log)}: stitched and solved",
        subtitle=f"Best Action Trajectory Stitching, seed {header.seed}, folder {run.path.resolve().name}",
        tiles=run_tiles(run),
        sections=[section for section in sections if section is not None],
        footer=f"Written by bats-rl {version('bats-rl')} from a run of version {header.package}. {NO_REQUESTS}",
    )


def run_tiles(run: Contents) -> list[Tile]:
    tiles = value_tiles(run)
    score, mean = run.evaluated("score"), run.evaluated("mean_return")
    if score is not None:
        remark = "normalised" if mean is None else f"mean return {mean:.6g}, not discounted"
        tiles.append(Tile("Cloned policy's score", f"{score:.1f}", remark))
    elif mean is not None:
        tiles.append(Tile("Cloned policy", f"{mean:.6g}", "mean return, not discounted"))
    return tiles


def value_tiles(run: Contents) -> list[Tile]:
    """What is known of every run; a comparison shows the same numbers."""
    summary, stitched = run.summary, stitched_share(run.mdp, run.rollouts)
    remark = f"value at the starts, discount {summary.gamma:g}"
    return [
        Tile("Best with stitches", f"{summary.value:.6g}", remark, main=True),
        Tile("Best in the log alone", f"{summary.log_value:.6g}", remark),
        Tile("Value of the log", f"{run.logged_value:.6g}", remark),
        Tile("Stitched steps", f"{stitched:.1%}", f"of the policy's first {SHARE_STEPS} steps"),
        # some may have been dropped since, and a run that reuses another one has the other's too
        Tile("Stitches", f"{run.mdp.kept_stitches:,}", f"{run.accepted:,} accepted in all rounds"),
    ]


def log_section(run: Contents) -> Section:
    mdp, card, choices = run.mdp, run.log_card, run.mdp.action_count
    logged = mdp.stitch_round == LOGGED
    states, actions, rewards = mdp.states[: mdp.real_count], mdp.action[logged], mdp.reward[logged]
    named = f" ({card.action_names[0]})" if choices is not None and card.action_names else ""
    facts = {
        "rows": f"{card.rows:,}",
        "episodes": f"{card.episodes:,}",
        "distinct states": f"{mdp.real_count:,}",
        "distinct transitions": f"{np.count_nonzero(logged):,}",
        "start states": f"{len(mdp.starts):,}",
        "size of a state": plural(states.shape[1], "component"),
        "actions": plural(actions.shape[1], "component") if choices is None else f"{choices} discrete actions{named}",
        "rewards": f"{rewards.min():g} to {rewards.max():g}, mean {rewards.mean():.4g}",
        "terminations": plural(int(np.count_nonzero(mdp.discount[logged] == 0)), "transition"),
    }
    if run.header.reused is not None:
        facts["model and graph reused from"] = run.header.reused
    tables = [_ranges_table("state component", states, run.dimension)]
    if choices is None:
        tables.append(_ranges_table("action component", actions, run.action_dimension))
    if card.notes:
        notes = [(note.kind, note.text) for note in card.notes]
        tables.append(Table(("kind", "note"), notes, "notes from reading the log", words=True))
    text = f"Read from {run.header.log}."
    return Section("The log", text, facts, tables=tables, folded=states.shape[1] > UNFOLDED)


def _ranges_table(kind: str, values: Float[np.ndarray, "n _"], name: Callable[[int], str]) -> Table:
    ranges = zip(values.min(axis=0), values.mean(axis=0, dtype=np.float64), values.max(axis=0), strict=True)
    rows = [(name(index), *(f"{number:.4g}" for number in numbers)) for index, numbers in enumerate(ranges)]
    return Table((kind, "min", "mean", "max"), rows)


def comparison_page(runs: Mapping[str, Contents]) -> Page:
    facts = side_by_side({name: _compared_facts(run) for name, run in runs.items()}, "not known")
    settings = side_by_side({name: run.settings for name, run in runs.items()})
    # equal settings, which are most of them, would hide the few that explain a difference
    differing = [row for row in settings.rows if len(set(row[1:])) > 1]
    sections = [
        verdicts_section(runs),
        Section("Side by side", tables=[facts]),
        Section("Curves", figures=[value_by_round(runs), returns_figure(runs)]),
        Section("Settings that differ", tables=[replace(settings, rows=differing)]) if differing else None,
    ]
    values = {name: run.summary.value for name, run in runs.items()}
    best, remark = max(values.values()), "value at the starts with stitches"
    return Page(
        title=f"{len(runs)} runs compared",
        subtitle="Best Action Trajectory Stitching",
        tiles=[Tile(name, f"{value:.6g}", remark, main=value == best) for name, value in values.items()],
        sections=[section for section in sections if section is not None],
        footer=f"Written by bats-rl {version('bats-rl')}. {NO_REQUESTS}",
    )


def _compared_facts(run: Contents) -> dict[str, str]:
    selection = run.selection
    facts = {"log": _file_name(run.header.log), "discount": f"{run.summary.gamma:g}"}
    facts |= {tile.name.lower(): tile.number for tile in value_tiles(run)}
    facts |= {
        "mean return predicted by the graph": f"{run.mean_return:.6g}",
        "maximum steps of a rollout": f"{selection.steps:,}",
        "rollouts cloned": f"{np.count_nonzero(selection.kept):,} of {len(selection.kept):,}",
        **rounds_facts(run),
        "seconds": f"{sum(run.seconds.values()):.1f}",
    }
    for name, label in (("mean_return", "mean return of the cloned policy"), ("score", "score of the cloned policy")):
        number = run.evaluated(name)
        facts |= {} if number is None else {label: f"{number:.6g}"}
    return facts


def _names(runs: Sequence[Contents]) -> list[str]:
    """The folders' names, with enough of their paths to be different."""
    parts = [run.path.resolve().parts for run in runs]
    # with all parts the names are still equal only if one folder is given twice
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]


def _file_name(log: str) -> str:
    """A log's name without its folder."""
    return PurePath(log).name or log
