"""Small MuJoCo tasks: controllers, functions of the observation only, and ways to place the tasks.

A function `place_…` puts an environment that was just reset into the state that an observation shows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64

from bats.tasks.episodes import Environment

PENDULUM_GAINS = np.array([1.0, 10.0, 1.0, 2.0])
"""of the cart's position, the pole's angle, and their speeds"""
DOUBLE_PENDULUM_GAINS = np.array([0.213, 1.813, 5.569, 0.315, 0.902, 0.848])
"""of the cart's position, both angles, and their speeds: a linear-quadratic regulator of the task, linearised upright
by central differences, with costs 1, 10, 10, 0.1, 0.1, 0.1 of the squared state and 1 of the squared action"""
LINKS = 0.1, 0.11
"""lengths of the reacher's links, the second one up to the fingertip"""
REACHER_ANGLE_GAIN, REACHER_SPEED_GAIN = 0.3, 0.05
SWIMMER_RADIUS, SWIMMER_LAG = 1.1, 0.83
"""amplitude of the first joint, and how far the second one is behind it, in radians"""
SWIMMER_SPEED, SWIMMER_PULL, SWIMMER_GAIN, SWIMMER_STEERING = 6.5, 6.0, 0.65, 0.87
"""of the oscillation per second, towards its amplitude, of the joints' speeds, and of the heading; all six were found
by a random search of two minutes"""


def balance_pendulum(observation: np.ndarray) -> Float32[np.ndarray, "1"]:
    """Inverted pendulum: linear feedback."""
    return np.clip([PENDULUM_GAINS @ observation], -3, 3).astype(np.float32)


def balance_double_pendulum(observation: np.ndarray) -> Float32[np.ndarray, "1"]:
    """Inverted double pendulum: linear feedback. It observes sines and cosines of the angles and, last, a force."""
    position, sines, cosines, speeds = observation[:1], observation[1:3], observation[3:5], observation[5:8]
    state = np.concatenate([position, np.arctan2(sines, cosines), speeds])
    return np.clip([-DOUBLE_PENDULUM_GAINS @ state], -1, 1).astype(np.float32)


def reach(observation: np.ndarray) -> Float32[np.ndarray, "2"]:
    """Reacher: springs and dampers towards those joint angles that hold the fingertip at the target.

    There are two such pairs of angles, with the elbow on either side. The arm takes the one that is less far.
    """
    cosines, sines, target, speeds = observation[:2], observation[2:4], observation[4:6], observation[6:8]
    angles, (first, second) = np.arctan2(sines, cosines), LINKS
    bend = math.acos(np.clip((target @ target - first**2 - second**2) / (2 * first * second), -1, 1))
    turns = []
    for elbow in (bend, -bend):
        shoulder = math.atan2(target[1], target[0])
        shoulder -= math.atan2(second * math.sin(elbow), first + second * math.cos(elbow))
        # the shoulder may turn either way; the elbow has a limit behind the arm, so it does not go round
        turns.append(((shoulder - angles[0] + math.pi) % (2 * math.pi) - math.pi, elbow - angles[1]))
    turn = np.array(min(turns, key=lambda pair: max(map(abs, pair))))
    return np.clip(REACHER_ANGLE_GAIN * turn - REACHER_SPEED_GAIN * speeds, -1, 1).astype(np.float32)


def swim(observation: np.ndarray) -> Float32[np.ndarray, "2"]:
    """Swimmer: both joints follow an oscillation that needs no clock, because its phase is that of the joints.

    In the plane of the first angle and of the second without its part in phase, the wanted motion turns around the
    centre and is pulled to a circle. The centre moves with the heading, which steers.
    """
    centred = observation[1:3] - SWIMMER_STEERING * observation[0]
    lag = np.array([math.cos(SWIMMER_LAG), math.sin(SWIMMER_LAG)])
    x, y = centred[0], (centred[1] - lag[0] * centred[0]) / lag[1]
    radius = math.hypot(x, y) + 1e-6  # at rest in the centre there is no direction to pull to
    outward = SWIMMER_PULL * (SWIMMER_RADIUS - radius) / radius
    wanted = np.array([outward * x - SWIMMER_SPEED * y, outward * y + SWIMMER_SPEED * x])
    speeds = np.array([wanted[0], lag @ wanted])
    return np.clip(SWIMMER_GAIN * (speeds - observation[6:8]), -1, 1).astype(np.float32)


def place_pendulum(environment: Environment, observation: Float[np.ndarray, "4"]) -> Float64[np.ndarray, "4"]:
    """Inverted pendulum: positions and speeds of the cart and of the pole."""
    return _placed(environment, observation[:2], observation[2:])


def place_double_pendulum(environment: Environment, observation: Float[np.ndarray, "9"]) -> Float64[np.ndarray, "9"]:
    """Inverted double pendulum: the force, which is observed last, follows from the rest."""
    angles = np.arctan2(observation[1:3], observation[3:5])
    return _placed(environment, np.concatenate([observation[:1], angles]), observation[5:8])


def place_reacher(environment: Environment, observation: Float[np.ndarray, "10"]) -> Float64[np.ndarray, "10"]:
    """Reacher: the target rests, and the way to it, which is observed last, follows from the rest."""
    angles = np.arctan2(observation[2:4], observation[:2])
    speeds = np.concatenate([observation[6:8], [0.0, 0.0]])
    return _placed(environment, np.concatenate([angles, observation[4:6]]), speeds)


def place_swimmer(environment: Environment, observation: Float[np.ndarray, "8"]) -> Float64[np.ndarray, "8"]:
    """Swimmer: where it is in the plane is not observed and changes nothing."""
    return _placed(environment, np.concatenate([[0.0, 0.0], observation[:3]]), observation[3:])


def _placed(
    environment: Environment, positions: Float[np.ndarray, "p"], speeds: Float[np.ndarray, "v"]
) -> Float64[np.ndarray, "D"]:
    robot: Any = environment.unwrapped
    robot.set_state(positions.astype(np.float64), speeds.astype(np.float64))
    return robot._get_obs()
