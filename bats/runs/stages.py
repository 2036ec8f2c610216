"""The stages of a run and the settings that each depends on.

A stage is identified by these settings and those of the stages before it. Settings of stages that are not made yet may
change; settings of a stage that is made may not.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable

from bats.config import Config
from bats.storage.json_records import flatten, to_plain
from bats.storage.tensors import checksum

STAGES: dict[str, tuple[str, ...]] = {
    "model": ("model",),
    "stitching": ("gamma", "metric", "penalty_steps", "penalty", "penalize_rounds", "stitch"),
    "final graph": ("final_tolerance", "choice"),
    "policy": ("rollouts", "cloning"),
    "improvement": ("improvement",),
    "certificate": ("certificate", "bisimulation"),
}
"""the settings that each stage depends on, besides those of the stages before it"""


def stage_settings(config: Config, stage: str) -> tuple[str, ...]:
    """The settings, and groups of settings, that a stage of a run with this configuration depends on by itself."""
    if stage == "stitching" and config.metric == "bisimulation":
        return (*STAGES[stage], "bisimulation")
    if stage == "final graph" and (config.choice.penalties or config.choice.tolerances):
        return (*STAGES[stage], *STAGES["certificate"])  # options are ranked by their bounds
    return STAGES[stage]


def setting_differences(own: Config, other: Config, stages: Iterable[str]) -> dict[str, str]:
    """How another configuration differs, in words by the dotted name, in what some stages of a run depend on."""
    names = [name for stage in stages for name in stage_settings(own, stage)]
    old, new = (dict(flatten({name: to_plain(config)[name] for name in names})) for config in (own, other))
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return {name: f"its {name} is {old.get(name)}, not {new.get(name)}" for name in differing}


def stage_checksums(config: Config, stages: Container[str]) -> dict[str, str]:
    """The checksums of the settings that some stages depend on by themselves."""
    plain, sums = to_plain(config), {}
    for stage in STAGES:
        if stage in stages:
            own = {name: plain[name] for name in stage_settings(config, stage)}
            sums[stage] = checksum({}, json.dumps(own, sort_keys=True))
    return sums
