"""The run of a baseline as one HTML page: losses, returns of its snapshots, the log, times and settings."""

from __future__ import annotations

from importlib.metadata import version
from itertools import cycle
from pathlib import PurePath
from typing import Any

from bats.baselines.folder import BaselineFolder
from bats.data.formats.fields import shortened
from bats.report import plots
from bats.report.html import Figure, Page, Section, Table, Tile, in_words
from bats.runs.records import seconds_by_stage
from bats.storage.json_records import flatten, read_json, to_plain


def baseline_page(run: BaselineFolder) -> Page:
    """The page of a finished run."""
    end, header, card = run.finished(), run.header(), run.log_card()
    settings = [(name, in_words(value)) for name, value in flatten(to_plain(run.settings()))]
    seconds = sum(seconds_by_stage(run.timings()).values())
    shared = "" if end.together == 1 else f", for {end.together} runs that were trained together"
    log = {"read from": header.log, "rows": f"{card.rows:,}", "episodes": f"{card.episodes:,}"}
    for kind, names in (("state", card.observation_names), ("action", card.action_names)):
        log |= {f"components of the {kind}": shortened(names)} if names else {}
    notes = [(note.kind, note.text) for note in card.notes]
    sections = [
        _training_section(run),
        _evaluation_section(run),
        Section("The log", facts=log, tables=[Table(("kind", "note"), notes, words=True)] if notes else ()),
        Section("Times", facts={"training": f"{seconds:.1f} s{shared}"}),
        Section("Settings", tables=[Table(("setting", "value"), settings, words=True)], folded=True),
    ]
    return Page(
        title=f"{PurePath(header.log).name or header.log}: {header.method}",
        subtitle=f"A baseline without bounds or verdict; seed {header.seed}, folder {run.path.resolve().name}",
        tiles=_tiles(run),
        sections=[section for section in sections if section is not None],
        footer=f"Written by bats-rl {version('bats-rl')}. This page makes no network requests.",
    )


def _tiles(run: BaselineFolder) -> list[Tile]:
    end = run.finished()
    tiles = [Tile("Updates", f"{end.updates:,}", end.divergence or "training ended as planned")]
    if run.evaluation.exists():
        found = read_json(run.evaluation).get("cloned", {})
        for name, title in (("score", "Score of the last policy"), ("mean_return", "Mean return of the last policy")):
            if isinstance(found.get(name), float):
                tiles.insert(0, Tile(title, f"{found[name]:.5g}", main=not tiles[1:]))
    return tiles


def _training_section(run: BaselineFolder) -> Section:
    snapshots = run.snapshots()
    names = snapshots[-1].losses if snapshots else {}
    updates = [snapshot.update for snapshot in snapshots]
    traces = [
        plots.scatter(
            name,
            updates,
            [snapshot.losses[name] for snapshot in snapshots],
            "update %{x:,}: %{y:.4g}<extra></extra>",
            mode="lines+markers",
            line={"color": colour},
        )
        for name, colour in zip(names, cycle(plots.PALETTE))
    ]
    layout = plots.axes("update", "mean loss since the last snapshot") | plots.LEGEND
    caption = "Different losses cannot be compared. If the loss of the critics grows without end, training diverges."
    figure = Figure("losses", "Losses", caption, traces, layout)
    text = "Snapshots of the policy are kept at equal intervals. The last one is the result; nothing was selected."
    return Section("Training", text, figures=[figure] if traces else ())


def _evaluation_section(run: BaselineFolder) -> Section | None:
    """Returns of the snapshots in an environment; None where they were not evaluated."""
    points = run.curve()
    if not points:
        return None
    scored = all(point.score is not None for point in points)
    values = [(point.score, point.score_low, point.score_high) for point in points]
    if not scored:
        values = [(point.mean_return, point.low, point.high) for point in points]
    figure = Figure(
        "curve",
        "Returns of the snapshots",
        f"Means of {points[-1].episodes} episodes with 95% intervals.",
        [curve_trace("policy", [point.update for point in points], values, plots.ORANGE)],
        plots.axes("update", "score" if scored else "mean return"),
    )
    text = "The environment was used only for measuring: the result is the last policy, whatever the others earn."
    return Section("Learning curve", text, figures=[figure])


def curve_trace(name: str, updates: list[int], values: list[tuple[Any, Any, Any]], colour: str) -> dict[str, Any]:
    """Means with the ends of their intervals, by the number of updates."""
    ends = {
        "type": "data",
        "symmetric": False,
        "array": [high - mean for mean, _, high in values],
        "arrayminus": [mean - low for mean, low, _ in values],
        "thickness": 1,
    }
    hover = "update %{x:,}: %{y:.4g}<extra></extra>"
    means = [mean for mean, _, _ in values]
    line = {"color": colour}
    return plots.scatter(name, updates, means, hover, mode="lines+markers", line=line, error_y=ends)
