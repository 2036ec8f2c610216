"""The paper's figure on the mountain car, in four panels.

actions along a stitched rollout        the same rollout in the phase plane: log, graph, replay, model
errors of the graph's values            certified lower bound by position and velocity
"""

from __future__ import annotations

import numpy as np

from bats.studies.car_findings import Findings, VariantFindings
from bats.studies.car_rollouts import CarRollout
from bats.studies.car_values import LowerBound
from bats.studies.drawing import GREY, STYLE, Axes, Figure, rc_context
from bats.tasks.mountain_car import EXPERT_FORCE

BLUE, ORANGE, GREEN, PINK, GOLD = "#2f74b5", "#e4572e", "#0b6e3f", "#ee7fbf", "#d9a400"
LIGHT_BLUE, LIGHT_GREY = "#9cc6ee", "#c3c9d2"
COLOURS = (BLUE, ORANGE, "#7d6bb3", GREEN, GOLD)
"""of the variants"""
ERROR_TICKS = (-100, -30, -10, -3, -1, -0.3, 0, 0.3, 1, 3, 10, 30, 100)
GOAL = 0.45
POSITIONS, VELOCITIES = (-1.25, 0.6), (-0.075, 0.075)


def draw_findings(findings: Findings) -> Figure:
    """The figure with its four panels."""
    with rc_context(STYLE):
        figure = Figure(figsize=(11, 9))
        panels = figure.subplots(2, 2)
        figure.subplots_adjust(left=0.07, right=0.97, bottom=0.11, top=0.93, wspace=0.2, hspace=0.5)
        _draw_actions(panels[0, 0], findings.rollout)
        _draw_phase_plane(panels[0, 1], findings)
        _draw_value_errors(panels[1, 0], findings.variants)
        _draw_lower_bound(panels[1, 1], findings.bound)
    return figure


def _draw_actions(axes: Axes, rollout: CarRollout) -> None:
    steps = np.arange(len(rollout.actions))
    axes.step(steps, rollout.actions, where="mid", color=LIGHT_BLUE, linewidth=1)
    for name, colour, chosen in (("the log", BLUE, ~rollout.stitched), ("a stitch", ORANGE, rollout.stitched)):
        axes.scatter(steps[chosen], rollout.actions[chosen], s=14, color=colour, label=f"step of {name}", zorder=3)
    axes.axhline(EXPERT_FORCE, color=GREY, linestyle=":", linewidth=1, label="force of the expert")
    axes.axhline(-EXPERT_FORCE, color=GREY, linestyle=":", linewidth=1)
    remark = f"{len(steps)} steps, {rollout.stitched.mean():.0%} of them on stitches"
    axes.set(xlabel="step", ylabel="force", ylim=(-1.1, 1.1))
    _annotate(axes, "Actions along a stitched rollout", remark)


def _draw_phase_plane(axes: Axes, findings: Findings) -> None:
    rollout = findings.rollout
    # thousands of marks are an image within an SVG file, which would otherwise be many times as large
    axes.plot(*findings.log_states.T, ".", markersize=2, color=LIGHT_GREY, label="the log", rasterized=True)
    axes.plot(*findings.failed_episode.T, color=GOLD, linewidth=0.8, label="a failed episode")
    # three paths that nearly coincide: the wide and light ones first, so that all are visible
    axes.plot(*rollout.graph.T, color=LIGHT_BLUE, linewidth=7, label="the graph")
    axes.plot(*rollout.model.T, color=PINK, linewidth=3, label="the model")
    axes.plot(*rollout.replay.T, color=GREEN, linewidth=1.5, linestyle=":", label="the true car")
    axes.plot(*rollout.graph[0], "o", markersize=5, color="black", label="the first state")
    _show_plane(axes)
    remark = "the same actions in graph, model and car, from a state of a failed episode"
    _annotate(axes, "The same rollout in the phase plane", remark)


def _draw_value_errors(axes: Axes, variants: tuple[VariantFindings, ...]) -> None:
    axes.axhline(0, color=GREY, linewidth=0.8)
    for variant, colour in zip(variants, COLOURS, strict=False):
        errors = variant.values.errors()
        for kind, line, label in (("actions", "-", variant.label), ("clone", "--", None)):
            error = np.sort(errors[kind])
            percent = (np.arange(len(error)) + 0.5) / len(error) * 100
            axes.plot(percent, error, color=colour, linestyle=line, linewidth=2, label=label)
    # in the legend, colours stand for variants and lines for policies
    for line, label in (("-", "the graph's actions"), ("--", "the cloned policy")):
        axes.plot([], [], color="black", linestyle=line, linewidth=1.2, label=label)
    # linear up to about a quarter and logarithmic beyond, so that errors of a tenth and of a hundred are both visible
    axes.set_yscale("asinh", linear_width=0.25)
    low, high = axes.get_ylim()
    axes.set_yticks([tick for tick in ERROR_TICKS if low <= tick <= high])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set(xlabel="percent of the states, sorted by error", ylabel="error", xlim=(0, 100))
    remark = f"value in the graph less true return, discounted, in {len(variants[0].values.graph)} states"
    _annotate(axes, "Errors of the graph's values", remark)


def _draw_lower_bound(axes: Axes, bound: LowerBound) -> None:
    mesh = axes.pcolormesh(bound.positions, bound.velocities, bound.mean.T, cmap="viridis", rasterized=True)
    axes.figure.colorbar(mesh, ax=axes, pad=0.02)
    _show_plane(axes)
    remark = f"of the graph's policy; at the starts {bound.start_lower:.1f} of {bound.start_value:.1f}"
    _annotate(axes, "Certified lower bound on the value", remark)


def _show_plane(axes: Axes) -> None:
    """The phase plane with the goal, the same part of it in both panels."""
    axes.axvline(GOAL, color=GREY, linestyle="--", linewidth=1)
    axes.text(GOAL - 0.02, 0.9 * VELOCITIES[1], "goal", color=GREY, horizontalalignment="right")
    axes.set(xlabel="position", ylabel="velocity", xlim=POSITIONS, ylim=VELOCITIES)


def _annotate(axes: Axes, title: str, remark: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=18)
    axes.text(0, 1.02, remark, fontsize=8.5, transform=axes.transAxes, color=GREY)
    if axes.get_legend_handles_labels()[0]:  # under the panel, where it covers no curve
        axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.13), ncols=3, columnspacing=1.2, fontsize=8.5)
