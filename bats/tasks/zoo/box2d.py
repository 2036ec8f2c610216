"""A controller for the lunar lander, with discrete and with continuous actions: a function of the observation only."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32

TILT_GAIN, DRIFT_GAIN, LARGEST_TILT = 0.95, 1.02, 0.4
"""of the position and the speed beside the pad; in radians"""
ANGLE_GAIN, SPIN_GAIN = 0.49, 0.48
SLOWEST_FALL, FALL_GAIN = 0.31, 0.28
"""speed of the fall at the ground, and by how much it may be faster per height"""
DEAD_ZONE = 0.05
"""side engines do not fire for less"""
ENGINE_GAIN = 10.0
NOTHING, LEFT, MAIN, RIGHT = range(4)


def land(observation: np.ndarray) -> np.int64:
    """The lander with discrete actions: one engine at a time, the one that is needed most."""
    lift, turn = _wanted(observation)
    if lift > max(abs(turn), 0):
        return np.int64(MAIN)
    return np.int64(LEFT if turn > DEAD_ZONE else RIGHT if turn < -DEAD_ZONE else NOTHING)


def land_smoothly(observation: np.ndarray) -> Float32[np.ndarray, "2"]:
    """The lander with continuous actions: main engine and side engines."""
    lift, turn = _wanted(observation)
    return np.clip([ENGINE_GAIN * lift, -ENGINE_GAIN * turn], -1, 1).astype(np.float32)


def _wanted(observation: np.ndarray) -> tuple[float, float]:
    """How much the fall has to be slowed down, and how much the lander has to turn to the left.

    It tilts towards the pad, and it may fall the faster the higher it is. Once a leg touches the ground it only slows
    down.
    """
    x, y, drift, climb, angle, spin, left_leg, right_leg = map(float, observation)
    if left_leg or right_leg:
        return -SLOWEST_FALL / 2 - climb, 0.0
    tilt = min(max(TILT_GAIN * x + DRIFT_GAIN * drift, -LARGEST_TILT), LARGEST_TILT)
    return -SLOWEST_FALL - FALL_GAIN * max(y, 0.0) - climb, ANGLE_GAIN * (tilt - angle) - SPIN_GAIN * spin
