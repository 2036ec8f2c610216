"""What comes first in a report: deploy or hold, and bounds on the policy's value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise, permutations

import numpy as np

from bats.bounds.certificate import Certificate, Option
from bats.bounds.sandwich import StartValue
from bats.report import plots
from bats.report.contents import Contents, evenly_spaced
from bats.report.html import Figure, Section, Table, side_by_side
from bats.runs.records import COMPARED, POLICY_NAMES

MAX_STARTS = 2000
"""drawn one by one, at most"""
MARGIN = 0.05
"""room on both sides of what is drawn, as a share of it"""
TITLE = "Deploy or hold"
NO_CERTIFICATE = "no certificate"
ELSEWHERE = "of a policy that is not in this folder (put its file into policies/)"


def verdict_section(run: Contents) -> Section | None:
    """The verdict, the numbers that it is based on, and the bounds as bars; None for a run without a certificate."""
    certificate = run.certificate
    if certificate is None:
        return None
    policies = {"the cloned policy": certificate.clone, "the graph's policy": certificate.graph}
    possible = certificate.floor, certificate.ceiling
    return Section(
        TITLE,
        certificate.verdict[:1].upper() + certificate.verdict[1:],
        certificate.facts(),
        figures=[bounds_figure(policies, certificate.logged_value, possible), bounds_by_start(certificate)],
        tables=[_factors_table(certificate), *([_options_table(run.options)] if run.options else [])],
        folded=True,
    )


def selection_section(run: Contents) -> Section | None:
    """The policies that the run compared, and which of them is its policy; None where there was one alone."""
    compared = {name: one for name in COMPARED if (one := run.variants.get(name)) is not None}
    if len(compared) < 2:
        return None
    rows = [
        (
            POLICY_NAMES[name],
            f"{one.clone.lower:.6g}",
            f"{one.clone.upper:.6g}",
            f"{one.comparable_lower:.6g}",
            f"{one.in_model.value:.6g}",
            f"{one.in_model.disagreement:.6g}",
            f"{one.in_model.leaves_support:.1%}",
            "this run's policy" if name == run.summary.policy else "",
        )
        for name, one in compared.items()
    ]
    text = (
        f"This run's policy is {POLICY_NAMES[run.summary.policy]}. The policy with the best lower bound is kept. For "
        "this comparison, all bounds have the same calibration factors. If the lower bounds differ by at most 1% of "
        "the range of possible values, the values in the model (not bounds) decide: a clone of the log is kept only if "
        "its value is higher, both as it is and minus the disagreement of the ensemble members. The improved policy "
        "is kept only for its lower bound."
    )
    bounds = ("lower bound", "upper bound", "lower bound, same factors")
    heading = ("policy", *bounds, "value in the model", "disagreement", "rollouts that leave the support", "")
    return Section("Policies that were compared", text, tables=[Table(heading, rows, words=True)])


def variants_section(run: Contents) -> Section | None:
    """Further policies and certificates of the same run; None where there are none."""
    variants = {name: one for name, one in run.variants.items() if name not in COMPARED}
    if not variants:
        return None
    rows = [
        (name, "", "", f"{NO_CERTIFICATE} under this name")
        if certificate is None
        else (
            name,
            f"{certificate.clone.lower:.6g}",
            f"{certificate.clone.upper:.6g}",
            certificate.verdict if certificate.policy in run.policies else f"{ELSEWHERE}: {certificate.verdict}",
        )
        for name, certificate in variants.items()
    ]
    text = "These policies and certificates were added to the finished run with bats-rl clone and bats-rl certify."
    table = Table(("name", "lower bound", "upper bound", "verdict"), rows, words=True)
    return Section("Further policies and certificates", text, tables=[table])


def verdicts_section(runs: Mapping[str, Contents]) -> Section | None:
    """The verdicts side by side, and whether a run is certified to be better than the one before it."""
    certificates = {name: run.certificate for name, run in runs.items() if run.certificate is not None}
    if not certificates:
        return None
    # all runs have a column, those without a certificate too
    columns = {name: {"verdict": NO_CERTIFICATE} for name in runs}
    columns |= {name: {"verdict": one.verdict, **one.facts()} for name, one in certificates.items()}
    # one line can only stand for runs of the same log
    logged = {one.logged_value for one in certificates.values()}
    figure = bounds_figure(
        {name: one.clone for name, one in certificates.items()},
        logged.pop() if len(logged) == 1 else None,
        (min(one.floor for one in certificates.values()), max(one.ceiling for one in certificates.values())),
    )
    tasks = {name: run.task for name, run in runs.items()}
    text = " ".join(_better_of(pair, certificates, tasks) for pair in pairwise(certificates))
    return Section(TITLE, text, figures=[figure], tables=[side_by_side(columns)])


def _better_of(names: tuple[str, str], certificates: Mapping[str, Certificate], tasks: Mapping[str, object]) -> str:
    """Whether one of two runs is certified to be better, in a sentence; bounds of different tasks say nothing."""
    both = " and ".join(names)
    if tasks[names[0]] != tasks[names[1]]:
        return f"{both} have different logs or discounts, so their bounds cannot be compared."
    for name, other in permutations(names):
        if certificates[name].is_better_than(certificates[other]):
            gain = certificates[name].gain_over(certificates[other])
            return f"{name} is certified to be better than {other}, by at least {gain:.4g} in value at the starts."
    return f"The bounds of {both} overlap, so neither run is certified to be better."


def bounds_figure(policies: Mapping[str, StartValue], logged: float | None, possible: tuple[float, float]) -> Figure:
    """A bar per policy from its lower to its upper bound; the value of the log is a line."""
    positions = list(range(len(policies)))[::-1]  # Plotly counts from below
    colours = (plots.ORANGE, plots.BLUE) if len(policies) == 2 else plots.PALETTE
    traces, labels = [], []
    for (name, value), position, colour in zip(policies.items(), positions, cycle(colours)):
        label, hover = plots.label(name), f"at least {value.lower:.5g}, at most {value.upper:.5g}<extra></extra>"
        base, length = plots.numbers(np.array([value.lower, value.upper - value.lower]), 12)
        bar = plots.bars(label, [length], [position], colour, hover, base=[base], orientation="h", width=0.5)
        # the outline keeps a bar of no length visible
        traces.append(bar | {"marker": {"color": colour, "line": {"color": colour, "width": 2}}})
        labels.append(f"{label}<br>{value.lower:.4g} to {value.upper:.4g}")
    # the axis shows all that rewards allow, so that the length of a bar says how much is known
    values = [*possible, *(end for value in policies.values() for end in (value.lower, value.upper))]
    values += [] if logged is None else [logged]
    room = MARGIN * (max(values) - min(values)) or max(abs(min(values)), 1.0)
    visible = min(values) - room, max(values) + room
    rows = {"tickvals": positions, "ticktext": labels, "range": [-0.6, len(policies) - 0.4], "showgrid": False}
    layout = plots.axes("discounted value at the starts", "", {"range": list(visible)}, rows | {"zeroline": False})
    layout["showlegend"] = False
    if logged is not None:
        layout |= plots.vertical_line(logged, f"value of the log {logged:.4g}", visible)
    caption = f"Possible values are {possible[0]:.4g} to {possible[1]:.4g}; a bar over this whole range gives no "
    caption += "information. A policy should be deployed only if its bar lies to the right of the value of the log."
    return Figure("bounds", "Lower and upper bounds", caption, traces, layout)


def bounds_by_start(certificate: Certificate) -> Figure:
    """The bounds at every start, in the order of the clone's lower bounds."""
    at = certificate.at_starts
    order = np.lexsort((at.clone_upper, at.clone_lower))
    order = order[evenly_spaced(len(order), MAX_STARTS)]
    x = list(range(1, len(order) + 1))
    traces = []
    for name, values, colour, symbol in (
        ("graph's policy: upper bound", at.graph_upper, plots.GREY, "triangle-down"),
        ("graph's policy: lower bound", at.graph_lower, plots.GREY, "triangle-up"),
        ("cloned policy: upper bound", at.clone_upper, plots.BLUE, "triangle-down"),
        ("cloned policy: lower bound", at.clone_lower, plots.ORANGE, "triangle-up"),
    ):
        marker, hover = {"color": colour, "size": 5, "symbol": symbol}, f"{name} %{{y:.5g}}<extra></extra>"
        traces.append(plots.scatter(name, x, plots.numbers(values[order]), hover, marker=marker))
    layout = plots.axes("starts, sorted by the lower bound of the cloned policy", "discounted value") | plots.LEGEND
    caption = "Wide bounds at a start mean that the value of the policy from this start is not well known."
    if len(order) < len(at.starts):
        caption += f" The plot shows {len(order):,} of {len(at.starts):,} starts."
    return Figure("bounds-by-start", "Bounds at every start", caption, traces, layout)


def _factors_table(certificate: Certificate) -> Table:
    factors = {"stitches": certificate.graph_factors, "cloned policy": certificate.clone_factors}
    rows = [(name, f"{one.value:.4g}", f"{one.reward:.4g}", f"{one.windows:,}") for name, one in factors.items()]
    heading = ("factors for", "errors of values", "errors of rewards", "held-out windows")
    purpose = "so that they cover the true errors on held-out rows"
    return Table(heading, rows, f"factors by which the error estimates are multiplied {purpose}")


def _options_table(options: Sequence[Option]) -> Table:
    rows = []
    for option in options:
        tolerance = "any" if option.tolerance is None else f"{option.tolerance:g}"
        lower = f"{option.lower:.4g}" if np.isfinite(option.lower) else "not known"
        rows.append((f"{option.penalty:g}", tolerance, f"{option.stitches:,}", lower))
    heading = ("penalty (best first)", "tolerance", "stitches", "lower bound of the graph's policy")
    return Table(heading, rows, "penalties and tolerances that were compared")
