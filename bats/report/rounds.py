"""How a run went: the model's errors, value and attempts round by round, and why attempts were refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bats.arrays import concat
from bats.errors import DataError
from bats.report import plots
from bats.report.contents import Contents, finite_number
from bats.report.html import Figure, Section, Table, in_words, name_in_words
from bats.stitching.records import Attempts, Outcome

OUTCOMES = {
    Outcome.ACCEPTED: ("accepted", plots.GREEN),
    Outcome.TOO_FAR: ("ends too far from its target", plots.YELLOW),
    Outcome.UNRELIABLE: ("model unreliable near the plan", plots.PINK),
    Outcome.TERMINATES: ("predicted to terminate", plots.PURPLE),
    Outcome.DIVERGES: ("prediction diverges", "#7b8490"),
}
"""label and colour of what becomes of an attempt"""
ERRORS = {"mean_absolute": plots.BLUE, "root_mean_square": plots.GREY, "largest": "#c9ced6"}
"""colour of each kind of error on the model's card"""
BINS = 60
DECADES = 3
"""the axis of errors reaches this many powers of 10 to either side of the tolerance"""
UNFOLDED = 12
"""longer tables stay folded, and longer axes without names"""


def model_section(run: Contents) -> Section:
    """The errors of one step on held-out rows."""
    card = run.model_card
    try:
        error, terminations = card["held_out_error"], card["kind"]["terminations"]
        errors = np.array([error[kind] for kind in ERRORS], dtype=np.float64).reshape(len(ERRORS), -1)
    except (KeyError, TypeError, ValueError, OverflowError) as reason:
        expected = f"three lists of numbers ({', '.join(ERRORS)}) and `terminations`"
        raise DataError(expected, f"something else ({reason})", file=str(run.path / "model.json")) from reason
    facts = {
        "held-out rows": in_words(card.get("held_out_rows")),
        "updates": in_words(card.get("updates")),
        "reward: mean absolute error": in_words(error.get("reward_mean_absolute")),
    }
    for name in ("reward_precision", "reward_recall", "termination_precision", "termination_recall"):
        share = finite_number(error.get(name))
        if share is not None:
            facts[name.replace("_", ": ")] = f"{share:.2%}"
    # without any termination in the log there is nothing that precision could be measured with
    if not terminations:
        facts["terminations"] = "none in the log"
    rows = [(run.dimension(i), *(f"{number:.4g}" for number in numbers)) for i, numbers in enumerate(errors.T)]
    return Section(
        "The model",
        "An ensemble of networks predicts the next state and the reward. Its errors were measured on rows of the log "
        "that were not used for training.",
        facts,
        figures=[model_errors(run, errors)],
        tables=[Table(("state component", *map(name_in_words, ERRORS)), rows)],
        folded=len(rows) > UNFOLDED,
    )


def model_errors(run: Contents, errors: Float[np.ndarray, "3 D"]) -> Figure:
    names = [plots.label(run.dimension(index)) for index in range(errors.shape[1])]
    # bars are placed by index, because two columns may have names that look the same
    x = list(range(len(names)))
    traces = [
        plots.bars(name_in_words(kind), x, plots.numbers(values), colour, "%{y:.3g}")
        for (kind, colour), values in zip(ERRORS.items(), errors, strict=True)
    ]
    ticks = {"tickvals": x, "ticktext": names} if len(names) <= UNFOLDED else {}
    layout = plots.axes("state component", "error", ticks, {"type": "log", "tickformat": "~g"})
    caption = "Error of the ensemble's mean prediction of the next state, in the units of the log."
    title = "One-step error by state component"
    return Figure("model-errors", title, caption, traces, layout | {"hovermode": "x unified"})


def rounds_sections(run: Contents) -> list[Section]:
    """Value and attempts by round, and the attempts by error and length; none for a run without rounds."""
    if not run.attempts:
        return []
    by_round, *others = attempts_figures(run.attempts, run.config.stitch.tolerance)
    figures, facts = [value_by_round({run.header.log: run}), by_round], rounds_facts(run)
    return [Section("Stitching", facts=facts, figures=figures), Section("Attempts", figures=others)]


def rounds_facts(run: Contents) -> dict[str, str]:
    return {
        "rounds": f"{len(run.records)}",
        "attempts": f"{run.tried:,}",
        "accepted": f"{run.accepted:,} ({run.accepted / max(run.tried, 1):.1%})",
        "penalty": f"{run.summary.penalty:.4g} of reward per unit of error",
    }


def value_by_round(runs: Mapping[str, Contents]) -> Figure:
    """Value at the starts after each round; for a single run also that of the log, as lines."""
    traces = []
    for (name, run), colour in zip(runs.items(), cycle(plots.PALETTE)):
        # round 0 is the graph before stitching, which is more than the log if another run was reused
        before = run.records[0].value_before if run.records else run.summary.log_value
        values = np.array([before, *(record.value for record in run.records)])
        shares = np.array([0.0, *(record.stitched_share for record in run.records)])
        settings = {"mode": "lines+markers", "line": {"color": colour}, "customdata": plots.numbers(shares, 4)}
        hover = "round %{x}: %{y:.5g}, %{customdata:.1%} of the steps stitched<extra></extra>"
        label = "with stitches" if len(runs) == 1 else plots.label(name)
        traces.append(plots.scatter(label, list(range(len(values))), plots.numbers(values, 6), hover, **settings))
    rounds = max(len(run.records) for run in runs.values())
    if len(runs) == 1:
        (run,) = runs.values()
        for label, value, colour in (
            ("best in the log alone", run.summary.log_value, plots.BLUE),
            ("value of the log", run.logged_value, plots.GREY),
        ):
            settings = {"mode": "lines", "line": {"color": colour, "dash": "dash"}}
            y = plots.numbers(np.array([value, value]))
            traces.append(plots.scatter(label, [0, rounds], y, "%{y:.5g}", **settings))
    to_zero = {"rangemode": "tozero"}
    layout = plots.axes("round", "value at the starts", to_zero | _whole_ticks(rounds), to_zero)
    caption = "Mean discounted value of the start states after each round of stitching."
    if any(not run.config.penalize_rounds for run in runs.values()):
        caption += " Stitches are penalised, and some removed, only after the last round, so the final value is lower."
    return Figure("value-by-round", "Value over the rounds", caption, traces, layout)


def attempts_figures(rounds: Sequence[Attempts], tolerance: float) -> list[Figure]:
    """Attempts by round, by error and by length, in colours of their outcomes."""
    attempts, stacked = concat(rounds), {"hovermode": "x unified"} | plots.STACKED
    count, longest = len(rounds), int(attempts.length.max(initial=1))
    round_index = np.repeat(np.arange(count), [len(one) for one in rounds])
    traces = _stacked(list(range(1, count + 1)), attempts, round_index)
    layout = plots.axes("round", "attempts", _whole_ticks(count)) | stacked
    caption = "Outcomes of the plans that were tried in each round."
    by_round = Figure("attempts-by-round", "Accepted and rejected attempts", caption, traces, layout)
    traces = _stacked(list(range(1, longest + 1)), attempts, attempts.length - 1)
    layout = plots.axes("number of actions in the stitch", "attempts", _whole_ticks(longest)) | stacked
    by_length = Figure("attempts-by-length", "Attempts by length", "", traces, layout)
    return [by_round, attempts_by_error(attempts, tolerance), by_length]


def attempts_by_error(attempts: Attempts, tolerance: float) -> Figure:
    """On a logarithmic scale around the tolerance, because errors of refused attempts reach hundreds of tolerances."""
    # Plotly does not draw bars of equal width on a logarithmic axis, so the axis is one of powers with ticks in errors
    centre, largest = float(np.log10(tolerance)), 10.0**DECADES
    ratio = attempts.error.astype(np.float64) / tolerance
    beyond = int(np.count_nonzero(~(ratio <= largest)))  # where a prediction diverges, the error is not a number
    power = np.log10(np.clip(np.nan_to_num(ratio, nan=largest), 1 / largest, largest))
    edges = np.linspace(-DECADES, DECADES, BINS + 1)
    index = np.clip(np.searchsorted(edges, power, side="right") - 1, 0, BINS - 1)
    # the axis begins and ends at a power of 10, so that it has a tick at either end and one at the tolerance
    shown = range(math.floor(np.min(power, initial=-1)), math.ceil(np.max(power, initial=1)) + 1)
    visible = centre + shown[0], centre + shown[-1]
    labels = [f"{tolerance * 10.0**step:g}" for step in shown]
    ticks = {"tickvals": [centre + step for step in shown], "ticktext": labels, "range": list(visible)}
    layout = plots.axes("error, in units of the metric", "attempts", ticks) | plots.STACKED | {"bargap": 0}
    layout |= plots.vertical_line(centre, f"tolerance {tolerance:g}", visible)
    ranges = [f"{tolerance * 10**low:.2g} to {tolerance * 10**high:.2g}" for low, high in pairwise(edges)]
    settings = {"customdata": ranges, "hovertemplate": "error %{customdata}: %{y:,}"}
    traces = _stacked(plots.numbers(centre + (edges[:-1] + edges[1:]) / 2), attempts, index, **settings)
    caption = "The error of a stitch estimates how far from its target it ends."
    caption += f" The last bar includes {beyond:,} attempts with larger errors." if beyond else ""
    return Figure("attempts-by-error", "Attempts by error", caption, traces, layout)


def _stacked(
    x: Sequence[int | float | None], attempts: Attempts, index: Int[np.ndarray, "C"], **settings: Any
) -> list[dict[str, Any]]:
    """How many attempts have each index, as bars on top of each other, one colour per outcome that occurs."""
    counts = {outcome: np.bincount(index[attempts.outcome == outcome], minlength=len(x)) for outcome in OUTCOMES}
    return [
        plots.bars(label, x, counts[outcome].tolist(), colour, "%{y:,}") | settings
        for outcome, (label, colour) in OUTCOMES.items()
        if counts[outcome].any()
    ]


def _whole_ticks(largest: int) -> dict[str, Any]:
    """Ticks at whole numbers: where there are few, Plotly would put some in between."""
    return {"dtick": 1} if largest <= 10 else {}
