"""What a study compares: methods by their names, and the tasks of each study. Nothing here needs JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bats.baselines.config import CONFIGS, Baseline, BCConfig, CQLConfig, ReBRACConfig
from bats.config import Config, Count, Settings
from bats.errors import SettingError
from bats.presets import preset
from bats.tasks.catalogue import find_task
from bats.tasks.zoo.tasks import MOUNTAIN_CAR, ZOO

BATS, BATS_PAPER = "bats", "bats-paper"
"""with the settings of the study, and with those that the paper has for the task"""
BEST_TENTH = "bc-best-tenth"
BASELINES: dict[str, Baseline] = {name: kind() for name, kind in CONFIGS.items()} | {
    BEST_TENTH: BCConfig(best_share=0.1)
}
ROBOT_BASELINES: dict[str, Baseline] = BASELINES | {
    "cql": CQLConfig(target_gap=None),
    "rebrac": ReBRACConfig(
        batch_size=1024, learning_rate=1e-3, critic_learning_rate=1e-3, policy_penalty=0.05, critic_penalty=0.5
    ),
}
"""CORL's settings for D4RL's medium-replay logs (ReBRAC's are those of hopper), where they differ from the mazes'"""
METHOD_NAMES = (*BASELINES, BATS, BATS_PAPER)


@dataclass(frozen=True)
class Study:
    """What a study compares where nothing else is chosen."""

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    updates: int | None = None
    """of every baseline; none: each method's own number"""
    by_log: bool = False
    """the results also say what each log earned, and how far the methods come from there to the reference"""


ROBOT_TASKS = ("hopper-mixed", "walker2d-mixed", "halfcheetah-mixed")
ZOO_TASKS = (*(collector.task.name for collector in ZOO), MOUNTAIN_CAR.name, *ROBOT_TASKS)
STUDIES = {
    "maze2d": Study(("maze2d-umaze", "maze2d-medium", "maze2d-large"), (*CONFIGS, BATS)),
    "mujoco": Study(ROBOT_TASKS, METHOD_NAMES),
    "zoo": Study(ZOO_TASKS, ("bc", BEST_TENTH, "iql", BATS), updates=50_000, by_log=True),
}


@dataclass(frozen=True)
class ComparisonConfig(Settings):
    """What is compared."""

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: Count = 3
    """runs of each method and task, with seeds 0, 1, …; all on the log of seed 0"""
    updates: Count | None = None
    """of every baseline; none: each method's own number"""
    rows: Count | None = None
    """of every log; none: each task's usual number"""
    episodes: Count | None = None
    """per snapshot; none: each task's usual starts"""
    preset: str = "default"
    """of BATS"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_methods(self.methods)
        for task in self.tasks:
            find_task(task)
        if len(set(self.tasks)) < len(self.tasks):
            raise SettingError(f"The tasks {', '.join(self.tasks)} contain one of them twice.")
        for method in self.methods:
            if method in (BATS, BATS_PAPER):
                for task in self.tasks:
                    self.of_bats(method, task)

    def of_baseline(self, method: str, task: str) -> Baseline:
        """The settings of a baseline on a task."""
        return baseline_settings(method, self.updates, ROBOT_BASELINES if task in ROBOT_TASKS else BASELINES)

    def of_bats(self, method: str, task: str) -> Config:
        """The settings of BATS on a task."""
        if method == BATS:
            return preset(self.preset)
        return preset(f"paper-{task.removeprefix('maze2d-').removesuffix('-mixed')}")


def baseline_settings(
    method: str, updates: int | None = None, baselines: Mapping[str, Baseline] = BASELINES
) -> Baseline:
    """The settings of a baseline with some number of updates, or with its own."""
    return baselines[method] if updates is None else replace(baselines[method], updates=updates)


def check_methods(methods: Sequence[str]) -> None:
    """Refuses names that are unknown or occur twice."""
    for method in methods:
        if method not in METHOD_NAMES:
            raise SettingError(f"There is no method called '{method}'; known: {', '.join(METHOD_NAMES)}.")
    if len(set(methods)) < len(methods):
        raise SettingError(f"The methods {', '.join(methods)} contain one of them twice.")
