"""The policies that a fit compares, and which of them it keeps.

    bats          the clone of the stitched graph's policy
    log           a clone of the whole log
    best-tenth    a clone of the episodes with the largest returns that make up a tenth of the log

Where stitching does not help, a plain clone of the log may be the better policy. All are bounded in the same way, with
the same model and calibration, and the one with the best lower bound is the policy of the run. Lower bounds that are
alike decide nothing, as where a log is too small for bounds; then the highest value in the model does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bats.arrays import Progress
from bats.bounds.certificate import Certificate
from bats.config import CloningConfig
from bats.data.dataset import Dataset
from bats.policy.cloning import clone
from bats.policy.demonstrations import best_episodes, logged_rows
from bats.policy.policy import Policy
from bats.policy.support import Support

ALIKE = 0.01
"""lower bounds that differ by no more than this share of the range of possible values are alike"""
FEWER_UPDATES = 4
"""a clone of logged rows is trained with this part of the updates: it only has to show whether stitching is worth it"""


def clone_log(
    log: Dataset, share: float, config: CloningConfig, support: Support, *, seed: int, progress: Progress
) -> Policy:
    """Clones the logged rows, or those of the best episodes."""
    rows = np.flatnonzero(best_episodes(log, share))
    config = replace(config, updates=max(config.updates // FEWER_UPDATES, 1))
    policy = clone(logged_rows(log, rows), config, seed=seed, progress=progress)
    return replace(policy, support=support, card={**policy.card, "log": log.name, "share_cloned": share})


def best_candidate(certificates: Mapping[str, Certificate]) -> str:
    """The name of the policy with the best lower bound, and of those alike with the highest value in the model."""
    best = max(one.comparable_lower for one in certificates.values())
    alike = [
        name for name, one in certificates.items() if best - one.comparable_lower <= ALIKE * (one.ceiling - one.floor)
    ]
    return max(alike, key=lambda name: certificates[name].in_model.value)
