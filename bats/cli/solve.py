"""`bats-rl solve`: a log's MDP solved exactly, or a finished run solved again under other settings."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from jaxtyping import Float
from rich.console import Console

from bats.arrays import EdgeActions, Progress
from bats.cli.export import refuse_existing
from bats.cli.output import print_facts, print_line, print_solution
from bats.data.dataset import Dataset
from bats.errors import OutputError, SettingError
from bats.graph import files as mdp_files
from bats.graph.mdp import from_dataset
from bats.graph.relabel import RewardFunction, goal_reward
from bats.graph.rollouts import stitched_share, undiscounted_return, walk
from bats.graph.solve import policy_iteration, start_value
from bats.policy.files import policy_paths, save_policy
from bats.runs.folder import RunFolder
from bats.runs.solve_again import Changes, Resolved, resolve

ShownProgress = Callable[[], AbstractContextManager[Progress]]
"""shows how far something has come, while a block lasts"""

GAMMA = 0.99
"""discount of a log's MDP, where none is given"""
STEPS = 1000
"""of the walks that returns are counted over, where no number is given"""
FOR_RUNS_ONLY = ("penalty", "tolerance", "reward", "goal", "radius", "steps", "policy")


@dataclass(frozen=True)
class Under:
    """The settings that an MDP is solved under."""

    gamma: Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")] = None
    """discount of one step; by default 0.99 for a log, and the run's own for a run"""
    dead_end_value: Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")] = None
    """what a state is worth whose future the log does not show; by default 0 for a log, the run's own for a run"""
    penalty: Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")] = None
    """runs only: price of a stitch's error, in the unit that the run was made with"""
    tolerance: Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")] = None
    """runs only: drop stitches with a larger error"""
    reward: Annotated[str | None, tyro.conf.arg(metavar="MODULE:FUNCTION", help_behavior_hint="")] = None
    """runs only: another reward, a function of arrays (states, actions, next states); modules here are found"""
    goal: Annotated[str | None, tyro.conf.arg(metavar="X,Y,…", help_behavior_hint="")] = None
    """runs only: reward 1 where the next state's first numbers are near these, else 0 (--goal=-1,2 if negative)"""
    radius: Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")] = None
    """with --goal: how near"""
    steps: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """runs only: steps that undiscounted returns are counted over; by default 1000"""
    save: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """folder to save the MDP in; `bats.load_mdp` reads it"""
    policy: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """runs only: clone the policy that was found, as `fit` does, and write it here (.safetensors)"""


class Stopwatch:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - begun

    def __str__(self) -> str:
        return ", ".join(f"{stage} {spent:.2f}" for stage, spent in self.seconds.items())


def solve_log(read: Callable[[], Dataset], under: Under, out: Console) -> None:
    """Reads a log, solves its MDP and tells."""
    odd = [name for name in FOR_RUNS_ONLY if getattr(under, name) is not None]
    if odd:
        raise SettingError(f"--{odd[0]} is for the folder of a run, made by `bats-rl fit`; this is a log.")
    _check_outputs(under)
    watch = Stopwatch()
    with watch.timing("read"):
        dataset = read()
    with watch.timing("build"):
        mdp = from_dataset(dataset, gamma=GAMMA if under.gamma is None else under.gamma)
    dead_end_value = 0.0 if under.dead_end_value is None else under.dead_end_value
    with watch.timing("solve"):
        solution = policy_iteration(mdp, dead_end_value=dead_end_value)
    if under.save is not None:
        mdp_files.save_mdp(mdp, under.save)
    facts = {
        "best value at the starts": f"{start_value(mdp, solution.value):.6g} (discount {mdp.gamma:g})",
        "rounds of policy iteration": f"{solution.rounds}",
        "seconds": str(watch),
    }
    print_solution(dataset, mdp, facts | _saved(under.save), dead_end_value, out)


def solve_run(path: Path, under: Under, shown: ShownProgress, out: Console) -> None:
    """Solves a finished run again, clones what was found where that was asked for, and tells."""
    reward = _reward(under)
    steps = STEPS if under.steps is None else under.steps
    if steps < 1:
        raise SettingError(f"`steps` must be at least 1; got {steps}.")
    _check_outputs(under)
    run, watch = RunFolder(path), Stopwatch()
    facts = run.finished()
    with watch.timing("load and solve"):
        found = resolve(run, Changes(under.gamma, under.penalty, under.tolerance, under.dead_end_value, reward))
    mdp = found.mdp
    with watch.timing("walk"):
        walks = walk(mdp, found.solution.policy, mdp.starts, steps)
        earned = float(mdp.start_weights @ undiscounted_return(mdp, walks))
    if under.save is not None:
        mdp_files.save_mdp(mdp, under.save)
    if under.policy is not None:
        with watch.timing("clone"), shown() as progress:
            _clone(run, found, under, under.policy, progress)
    told = {
        "value at the starts": f"{start_value(mdp, found.solution.value):.6g} (discount {mdp.gamma:g})",
        "value when the run ended": f"{facts.value:.6g} (discount {facts.gamma:g})",
        "undiscounted return": f"{earned:.6g} in {steps:,} steps at most",
        "stitched steps": f"{stitched_share(mdp, walks):.1%}",
        "stitches kept": f"{found.kept:,}",
        "penalty": f"{mdp.penalty:.6g} of reward per unit of error",
        "seconds": str(watch),
    }
    print_facts(f"{path}: solved exactly", told | _saved(under.save, under.policy), out)
    if all(getattr(under, each.name) is None for each in fields(Under)):
        print_line("nothing was asked to be otherwise: --help tells what can be", out)


def load_reward(name: str) -> RewardFunction:
    """The function called `package.module:function`; modules in the current folder are found too."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise SettingError(f"`reward` must be like package.module:function; got '{name}'.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(import_module(module), function)
    except Exception as error:  # a module of the user's may raise anything
        raise SettingError(f"The reward {name} could not be loaded: {type(error).__name__}: {error}.") from error

    def reward(
        states: Float[np.ndarray, "E D"], actions: EdgeActions, next_states: Float[np.ndarray, "E D"]
    ) -> np.ndarray:  # of whatever shape: `rewarded` looks at it
        try:
            return np.asarray(found(states, actions, next_states), dtype=np.float64)
        except Exception as error:
            raise SettingError(f"The reward {name} failed: {type(error).__name__}: {error}.") from error

    return reward


def _reward(under: Under) -> RewardFunction | None:
    if under.goal is None:
        if under.radius is not None:
            raise SettingError("--radius needs a --goal.")
        return None if under.reward is None else load_reward(under.reward)
    if under.reward is not None or under.radius is None:
        raise SettingError("--goal needs a --radius." if under.radius is None else "Give a --reward or a --goal.")
    try:
        goal = np.array([float(number) for number in under.goal.split(",")])
    except ValueError as error:
        raise SettingError(f"`goal` must be numbers with commas between; got '{under.goal}'.") from error
    return goal_reward(goal, under.radius)


def _clone(run: RunFolder, solved: Resolved, under: Under, file: Path, progress: Progress) -> None:
    """Clones the policy that was found and saves it; its card says what it was found under."""
    from bats.runs.pipeline import clone_resolved  # brings in JAX

    asked = {each.name: getattr(under, each.name) for each in fields(Under) if each.name not in ("save", "policy")}
    changed = {name: value for name, value in asked.items() if value is not None and name != "steps"}
    policy = clone_resolved(run, solved, progress=progress)
    save_policy(replace(policy, card={**policy.card, "solved_under": changed}) if changed else policy, file)


def _check_outputs(under: Under) -> None:
    """Complains about what would be overwritten, or cannot be written, before the work is done."""
    if under.save is not None:
        refuse_existing(under.save)
    if under.policy is not None:
        if under.policy.suffix != ".safetensors":
            raise OutputError(f"{under.policy}: it is written as .safetensors; `bats-rl export` makes .onnx of it.")
        refuse_existing(*policy_paths(under.policy))


def _saved(folder: Path | None, policy: Path | None = None) -> dict[str, str]:
    saved = {"saved in": folder, "policy cloned in": policy}
    return {name: str(place) for name, place in saved.items() if place is not None}
