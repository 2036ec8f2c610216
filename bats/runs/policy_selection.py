"""The policies that a fit compares, and which of them it keeps.

    bats          the clone of the stitched graph's policy
    improved      the same after it was improved in the model
    log           a clone of the whole log
    best-tenth    a clone of the episodes with the largest returns that make up a tenth of the log

Where stitching does not help, a plain clone of the log may be the better policy. All are bounded in the same way, with
the same model, and the one with the best lower bound is the policy of the run. For this comparison all have the same
calibration factors; the bounds in their certificates have factors of their own.

Lower bounds that are alike decide nothing, as where a log is too small for bounds; then a clone of the log is only
preferred if its value in the model is higher, both as it is and minus the disagreement of the ensemble members. So
uncertainty counts against a policy: a clone that leaves the support of the log is not kept just because little is known
about it. The improved policy was made to have a high value in the model, so this value says little for it: it is only
preferred for a lower bound that is higher and says something.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bats.arrays import Progress
from bats.bounds.certificate import Certificate
from bats.config import CloningConfig, Config
from bats.data.dataset import Dataset
from bats.policy.cloning import clone
from bats.policy.demonstrations import best_episodes, logged_rows
from bats.policy.policy import Policy
from bats.policy.support import Support
from bats.runs.records import BATS, BEST_TENTH, COMPARED, IMPROVED

ALIKE_BOUNDS = 0.01
"""lower bounds that differ by no more than this share of the range of possible values are alike"""
UPDATES_DIVISOR = 4
"""a clone of logged rows has a quarter of the updates: it only has to show whether stitching is worth it"""


def policies_to_compare(log: Dataset, config: Config) -> tuple[str, ...]:
    """The policies to compare: without bounds nothing can be compared, and of one episode the best tenth is all."""
    if config.certificate is None:
        return (BATS,)
    compared = list(COMPARED)
    if config.improvement.turns == 0:
        compared.remove(IMPROVED)
    if log.episode_count == 1:
        compared.remove(BEST_TENTH)
    return tuple(compared)


def clone_log(
    log: Dataset, share: float, config: CloningConfig, support: Support, *, seed: int, progress: Progress
) -> Policy:
    """Clones the logged rows, or those of the best episodes."""
    rows = np.flatnonzero(best_episodes(log, share))
    config = replace(config, updates=max(config.updates // UPDATES_DIVISOR, 1))
    policy = clone(logged_rows(log, rows), config, seed=seed, progress=progress)
    return replace(policy, support=support, card={**policy.card, "log": log.name, "share_cloned": share})


def select_policy(certificates: Mapping[str, Certificate]) -> str:
    """The first policy, or one that is better than it; of several, the later ones only if better still."""
    first, *others = certificates
    best = first
    for name in others:
        better = has_better_bound if name == IMPROVED else is_better
        if all(better(certificates[name], certificates[other]) for other in {first, best}):
            best = name
    return best


def is_better(one: Certificate, other: Certificate) -> bool:
    """Whether a policy has a better lower bound than another or, where these are alike, a better value in the model."""
    gain = one.comparable_lower - other.comparable_lower
    if abs(gain) > ALIKE_BOUNDS * (one.ceiling - one.floor):
        return gain > 0
    return one.in_model.value > other.in_model.value and one.in_model.pessimistic > other.in_model.pessimistic


def has_better_bound(one: Certificate, other: Certificate) -> bool:
    """Whether a policy's lower bound says something, and is higher than that of another."""
    says_something = one.comparable_lower > one.floor + ALIKE_BOUNDS * (one.ceiling - one.floor)
    return says_something and one.comparable_lower > other.comparable_lower
