"""The learning curve of a baseline: the returns of its snapshots in an environment, which chose nothing."""

from __future__ import annotations

from bats.arrays import Progress, field_values, no_progress
from bats.baselines.folder import BaselineFolder, CurvePoint
from bats.evaluation.comparison import compare


def learning_curve(
    folder: BaselineFolder,
    environment: str,
    *,
    episodes: int | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> tuple[CurvePoint, ...]:
    """The returns of all snapshots of a finished run.

    Those that were evaluated before, in this environment and with this number of episodes, are not evaluated again.
    """
    known = {
        point.update: point
        for point in folder.curve()
        if point.environment == environment and episodes in (None, point.episodes)
    }
    snapshots = folder.snapshots()
    for number, snapshot in enumerate(snapshots):
        progress("evaluating snapshots", number, len(snapshots))
        if snapshot.update not in known:
            policy = folder.load_snapshot(snapshot.update)
            estimate = compare(policy, environment, episodes=episodes, seed=seed).cloned
            known[snapshot.update] = CurvePoint(snapshot.update, environment, **field_values(estimate))
            folder.save_curve(tuple(known[update] for update in sorted(known)))
    progress("evaluating snapshots", len(snapshots), len(snapshots))
    return folder.curve()
