"""The part of a report that comes first: deploy or hold, and what the policy is worth at least and at most."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, pairwise
from typing import Any

import numpy as np

from bats.bounds.certificate import Certified, Worth
from bats.report.contents import Story, evenly
from bats.report.html import Figure, Section, Table, plain_numbers, plot_text
from bats.report.rounds import LOG_ALONE, LOGGED, SEVERAL, STITCHED, titled, upright
from bats.stitching.records import Option

MOST_STARTS = 2000
"""starts that are drawn one by one"""
MARGIN = 0.05
"""room on both sides of what is drawn, as a share of it"""
DEPLOY, HOLD = "Deploy", "Hold"


def verdict_section(story: Story) -> Section | None:
    """The verdict in words, and the numbers that it rests on."""
    found = story.certificate
    if found is None:
        return None
    said, card = found.verdict, found.card
    facts = (
        ("verdict", DEPLOY if said.deploy else HOLD),
        ("worth at least", f"{said.lower:.6g}"),
        ("worth at most", f"{said.upper:.6g}"),
        ("the log earned", f"{said.logged_value:.6g}"),
        ("rests on stitches", f"{said.share_on_stitches:.1%}"),
        ("starts within the data", f"{said.coverage:.1%}"),
        ("width of the bounds", f"{said.width:.1%}"),
        ("confidence", f"{card.confidence:.0%}"),
    )
    bars = [("the cloned policy", card.clone), ("doing as the graph says", card.graph)]
    figures = (worth(bars, said.logged_value, (card.floor, card.ceiling)), by_start(found))
    tables = (_factors(found), *([_options(story.options)] if story.options else []))
    return Section("Deploy or hold", _in_words(found), facts, figures=figures, tables=tables, folded=True)


def comparison_section(stories: Sequence[Story], names: Sequence[str]) -> Section | None:
    """The verdicts side by side, and which run is sure to be better than the one before it."""
    known = [(story, name) for story, name in zip(stories, names, strict=True) if story.certificate is not None]
    if not known:
        return None
    columns = [_column(story.certificate) for story in stories]
    rows = tuple((name, *(column.get(name, "") for column in columns)) for name in _column(known[0][0].certificate))
    found = [each.certificate for each, _ in known if each.certificate is not None]
    bars = [(name, each.card.clone) for each, (_, name) in zip(found, known, strict=True)]
    ends = min(each.card.floor for each in found), max(each.card.ceiling for each in found)
    alike = {each.verdict.logged_value for each in found}
    figure = worth(bars, alike.pop() if len(alike) == 1 else None, ends)
    return Section(
        "Deploy or hold",
        " ".join(_better(*earlier, *later) for earlier, later in pairwise(known)),
        figures=(figure,),
        tables=(Table(("", *names), rows, words=True),),
    )


def worth(bars: Sequence[tuple[str, Worth]], logged: float | None, ends: tuple[float, float]) -> Figure:
    """A bar a policy from what it is worth at least to what at most; the logged value is a line."""
    places = list(range(len(bars)))[::-1]  # Plotly counts from below
    colours = (STITCHED, LOG_ALONE) if len(bars) == 2 else SEVERAL
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": plot_text(name),
            "y": [place],
            "base": plain_numbers(np.array([each.lower]), 12),
            "x": plain_numbers(np.array([each.upper - each.lower]), 12),
            "width": 0.5,
            # a bar of no width would not be seen without its line
            "marker": {"color": colour, "line": {"color": colour, "width": 2}},
            "hovertemplate": f"at least {each.lower:.5g}, at most {each.upper:.5g}<extra></extra>",
        }
        for (name, each), place, colour in zip(bars, places, cycle(colours))
    ]
    drawn = [*ends, *(end for _, each in bars for end in (each.lower, each.upper))]
    low, high = min(drawn), max(drawn)
    low, high = (min(low, logged), max(high, logged)) if logged is not None else (low, high)
    room = MARGIN * (high - low) or max(abs(low), 1.0)
    shown = low - room, high + room
    labels = [f"{plot_text(name)}<br>{each.lower:.4g} to {each.upper:.4g}" for name, each in bars]
    layout: dict[str, Any] = {
        "xaxis": titled("value at the starts, discounted", range=list(shown)),
        "yaxis": titled("", tickvals=places, ticktext=labels, range=[-0.6, len(bars) - 0.4], showgrid=False)
        | {"zeroline": False, "automargin": True},
        "showlegend": False,
    }
    if logged is not None:
        layout |= upright(logged, f"the log earned {logged:.4g}", shown)
    caption = (
        f"Rewards allow {ends[0]:.4g} to {ends[1]:.4g}: a bar that long says nothing. A policy is deployed if its "
    )
    caption += "bar lies to the right of what the log earned."
    return Figure("worth", "Worth at least and at most", caption, traces, layout)


def by_start(found: Certified) -> Figure:
    """The cloned policy's bounds at every start, the starts in the order of their lower bounds."""
    at = found.at_starts
    order = np.lexsort((at.clone_upper, at.clone_lower))
    order = order[evenly(len(order), MOST_STARTS)]
    place = list(range(1, len(order) + 1))
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": place,
            "y": plain_numbers(values[order]),
            "marker": {"color": colour, "size": 5, "symbol": symbol},
            "hovertemplate": f"{name} %{{y:.5g}}<extra></extra>",
        }
        for name, values, colour, symbol in (
            ("graph: at most", at.graph_upper, LOGGED, "triangle-down"),
            ("graph: at least", at.graph_lower, LOGGED, "triangle-up"),
            ("clone: at most", at.clone_upper, LOG_ALONE, "triangle-down"),
            ("clone: at least", at.clone_lower, STITCHED, "triangle-up"),
        )
    ]
    layout = {
        "xaxis": titled("starts, the worst first"),
        "yaxis": titled("value, discounted"),
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
    caption = "Each start by itself. Where the bounds of one are wide, episodes that begin there are a guess."
    if len(order) < len(at.starts):
        caption += f" {len(order):,} of {len(at.starts):,} starts are drawn."
    return Figure("worth-by-start", "Worth at every start", caption, traces, layout)


def _column(found: Certified | None) -> dict[str, str]:
    """What a run's certificate says, beside those of others."""
    if found is None:
        return {"verdict": "no certificate was made"}
    said = found.verdict
    return {
        "verdict": DEPLOY if said.deploy else HOLD,
        "worth at least": f"{said.lower:.6g}",
        "worth at most": f"{said.upper:.6g}",
        "the log earned": f"{said.logged_value:.6g}",
        "rests on stitches": f"{said.share_on_stitches:.1%}",
        "starts within the data": f"{said.coverage:.1%}",
        "width of the bounds": f"{said.width:.1%}",
        "why": " ".join(said.reasons) or "it is sure to earn more than the log did",
    }


def _in_words(found: Certified) -> str:
    said = found.verdict
    if said.deploy:
        return (
            f"Deploy. From the starts the cloned policy is worth at least {said.lower:.4g}, and the log earned "
            f"{said.logged_value:.4g}."
        )
    return " ".join((f"{HOLD}.", *said.reasons))


def _better(old: Story, old_name: str, new: Story, new_name: str) -> str:
    """Whether a run's clone is sure to be better than another's."""
    before, after = old.certificate, new.certificate
    if before is None or after is None:
        return ""
    if old.fingerprint != new.fingerprint or old.ended.gamma != new.ended.gamma:
        return f"{old_name} and {new_name} have different logs or discounts, and their bounds cannot be compared."
    if after.certainly_above(before):
        gain = after.gain_over(before)
        return f"{new_name} is sure to be better than {old_name} at the starts, by {gain:.4g} or more."
    if before.certainly_above(after):
        gain = before.gain_over(after)
        return f"{old_name} is sure to be better than {new_name} at the starts, by {gain:.4g} or more."
    return f"{old_name} and {new_name}: the bounds overlap, so neither is sure to be better at the starts."


def _factors(found: Certified) -> Table:
    """How far the model's own claims were off."""
    card = found.card
    rows = tuple(
        (what, f"{trust.value:.4g}", f"{trust.reward:.4g}", f"{trust.windows:,}")
        for what, trust in (("stitches", card.factors), ("the clone's actions", card.clone_factors))
    )
    heading = ("what the model claimed of", "value: times", "reward: times", "held-out stretches")
    return Table(heading, rows)


def _options(options: Sequence[Option]) -> Table:
    """What other penalties and tolerances of the finished graph came to; the first was taken."""
    rows = tuple(
        (
            f"{option.penalty:g}",
            "any" if option.tolerance is None else f"{option.tolerance:g}",
            f"{option.stitches:,}",
            f"{option.lower:.4g}" if np.isfinite(option.lower) else "not known",
        )
        for option in options
    )
    return Table(("penalty, the best first", "errors up to", "stitches", "worth at least, by the graph"), rows)
