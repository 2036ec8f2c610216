"""Cloning a finished run: seconds, and what the policy earns in the true environment.

    python -m benchmarks.cloning maze2d-umaze --run runs/umaze                       collects the log anew
    python -m benchmarks.cloning maze2d-umaze --run runs/umaze --log umaze.hdf5      or reads it
    python -m benchmarks.cloning maze2d-umaze --run runs/umaze --save policy.safetensors

The run is one that `benchmarks.stitching --run` or `bats-rl fit` has finished. Episodes begin in the stratified starts
that everybody is judged on; the environment judges and chooses nothing.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from bats.cloning import CloningConfig, clone
from bats.config import preset
from bats.dataset import Dataset
from bats.demonstrations import RolloutConfig, demonstrate
from bats.evaluate import Evaluation, evaluate, interval, judged_starts
from bats.formats import load_dataset
from bats.pipeline import Result, fit
from bats.policy import Familiar, Policy
from bats.policy_files import save_policy
from bats.tasks import collect
from bats.tasks.maze2d import Maze, find_maze


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--run", type=Path, required=True, help="folder of a finished run")
    parser.add_argument("--log", type=Path, help="the log that it is a run of, to collect none")
    parser.add_argument("--preset", default="default", help="the configuration of the run")
    parser.add_argument("--seed", type=int, default=0, help="of the run, of cloning and of the starts")
    parser.add_argument("--updates", type=int, default=CloningConfig().updates)
    parser.add_argument("--save", type=Path, help="file to keep the policy in")
    options = parser.parse_args()
    maze = find_maze(options.task)
    log = collect(options.task, seed=0) if options.log is None else load_dataset(options.log)
    result = fit(log, preset(options.preset), seed=options.seed, folder=options.run)
    policy = cloned(result, log, maze, options)
    if options.save is not None:
        save_policy(policy, options.save)
    began = time.perf_counter()
    starts = judged_starts(maze, seed=options.seed)
    judged = evaluate(policy, maze.environment, starts=starts, record=True)
    print(f"figure {maze.name}_evaluating {time.perf_counter() - began:.1f} s")
    tell(judged, maze, policy)


def cloned(result: Result, log: Dataset, maze: Maze, options: argparse.Namespace) -> Policy:
    """The policy of a run, with what was cloned told on the way."""
    rollouts = RolloutConfig(steps=maze.episode_steps)
    shown = demonstrate(result.mdp, result.solution, result.metric, rollouts, seed=options.seed)
    share = np.quantile(shown.share, [0.01, 0.1, 0.5])
    print(
        f"{maze.task}: {np.count_nonzero(shown.kept):,} of {len(shown.kept):,} walks kept at a cut of {shown.cut:.4f} "
        f"(shares {share[0]:.3f}, {share[1]:.3f}, {share[2]:.3f} at 1, 10 and 50%), {len(shown):,} states"
    )
    promised = float(result.mdp.start_weights @ shown.returns)
    print(f"figure {maze.name}_promised_score {maze.normalised_score(promised):.2f} score")
    began = time.perf_counter()
    policy = clone(shown, CloningConfig(updates=options.updates), seed=options.seed)
    print(f"figure {maze.name}_cloning {time.perf_counter() - began:.1f} s")
    return replace(policy, familiar=Familiar.measured(log.observations, result.metric, seed=options.seed))


def tell(judged: Evaluation, maze: Maze, policy: Policy) -> None:
    """The score with its interval, and where episodes lose."""
    assert judged.scores is not None
    inside = np.stack([maze.at_goal(episode.observations[1:]) for episode in judged.episodes])
    came = inside.any(axis=1)
    steps = np.where(came, inside.argmax(axis=1), maze.episode_steps)
    strange = policy.strangeness(np.concatenate([episode.observations for episode in judged.episodes]))
    low, high = interval(judged.scores)
    figures = [
        ("score", judged.score, "score"),
        ("score_low", low, "score"),
        ("score_high", high, "score"),
        ("return", judged.mean_return, "return"),
        ("arrived", float(came.mean()), "share"),
        ("arrival", float(steps.mean()), "steps"),
        ("goal_time", float(inside.sum() / np.maximum(maze.episode_steps - steps, 0).sum()), "share"),
        ("strange_steps", float(np.mean(strange > 1)), "share"),
    ]
    for kind, value, unit in figures:
        print(f"figure {maze.name}_{kind} {value:.6g} {unit}", flush=True)


if __name__ == "__main__":
    main()
