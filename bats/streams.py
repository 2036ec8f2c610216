"""Random streams: one seed drives a run, and every use of chance has a stream of its own."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What the random numbers are for. Two uses never share a stream."""

    MODEL_SPLIT = 1
    MODEL_BATCHES = 2
    STITCHING_ROUND = 3
    CLONED_STARTS = 4
    CLONING_SPLIT = 5
    RECOVERY_STARTS = 6
    METRIC_UNIT = 7
    HELD_OUT_WINDOWS = 8
    CLONE_ROLLOUTS = 9
    ERROR_FACTORS = 10
    METRIC_CALIBRATION = 11
    GRAPH_ROLLOUTS = 12
    SUPPORT_SAMPLE = 13
    STUDY_VALUES = 14
    STUDY_ROLLOUTS = 15
    ONLINE_EPISODES = 16
    ONLINE_ACTIONS = 17
    ONLINE_EVALUATIONS = 18
    MODEL_ROLLOUTS = 19
    IMPROVEMENT = 20


def generator(seed: int, stream: Stream, *position: int) -> np.random.Generator:
    """The generator of a stream, or of one position in it, such as a round."""
    return np.random.default_rng([seed, int(stream), *position])
