"""Gymnasium's classic control tasks: controllers, functions of the observation only, and ways to place the tasks.

A function `place_…` puts an environment that was just reset into the state that an observation shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Float32

from bats.tasks.episodes import Environment

CART_POLE_GAINS = np.array([0.1, 0.5, 1.0, 1.0])
"""of the cart's position and speed and of the pole's angle and speed: positive ones, so that the cart also returns"""
ACROBOT_SHARE = 0.5
"""how much the speed of the first link counts; mean returns over 100 starts with 0, 0.5 and 1: -84.4, -78.7, -85.1"""


def swing_up(observation: np.ndarray) -> Float32[np.ndarray, "1"]:
    """Pendulum: brings the energy to that of standing upright, then holds the pendulum there with angle and speed.

    The observation is the cosine and the sine of the angle, 0 is upright, and the speed. The acceleration is
    15 sin(angle) + 3 torque, so 15 (cosine - 1) + speed²/2 is the energy, which is 0 when it stands upright.
    """
    cosine, sine, speed = map(float, observation)
    energy = 15 * (cosine - 1) + speed**2 / 2
    if cosine > 0.8 and abs(energy) < 8:
        torque = -10 * np.arctan2(sine, cosine) - 3 * speed
    else:
        torque = -energy * (1 if speed >= 0 else -1)
    return np.clip([torque], -2, 2).astype(np.float32)


def balance_cart_pole(observation: np.ndarray) -> np.int64:
    """Cart pole: pushes towards the side to which the pole falls."""
    return np.int64(CART_POLE_GAINS @ observation > 0)


def pump_acrobot(observation: np.ndarray) -> np.int64:
    """Acrobot: the torque of the second joint follows the motion that it adds energy to.

    Torque along the second link's speed adds energy; against the first link's speed it swings the two apart.
    """
    return np.int64(2 if observation[5] > ACROBOT_SHARE * observation[4] else 0)


def push_along(observation: np.ndarray) -> np.int64:
    """Mountain car with discrete actions: pushes in the direction in which the car is moving."""
    return np.int64(2 if observation[1] >= 0 else 0)


def place_pendulum(environment: Environment, observation: Float[np.ndarray, "3"]) -> Float32[np.ndarray, "3"]:
    """Pendulum: cosine and sine of the angle, and its speed."""
    cosine, sine, speed = map(float, observation)
    pendulum: Any = environment.unwrapped
    pendulum.state = np.array([np.arctan2(sine, cosine), speed])
    return pendulum._get_obs()


def place_cart_pole(environment: Environment, observation: Float[np.ndarray, "4"]) -> Float[np.ndarray, "4"]:
    """Cart pole: the observation is the state."""
    pole: Any = environment.unwrapped
    pole.state = observation.astype(np.float64)
    return observation


def place_acrobot(environment: Environment, observation: Float[np.ndarray, "6"]) -> Float32[np.ndarray, "6"]:
    """Acrobot: cosine and sine of both angles, and their speeds."""
    acrobot: Any = environment.unwrapped
    angles = np.arctan2(observation[[1, 3]], observation[[0, 2]])
    acrobot.state = np.concatenate([angles, observation[4:]]).astype(np.float64)
    return acrobot._get_ob()


def place_car(environment: Environment, observation: Float[np.ndarray, "2"]) -> Float32[np.ndarray, "2"]:
    """Both mountain cars: the observation is the state.

    The car with a force computes in single precision, as logs do, except for the state that it draws at the start of an
    episode. From any later row of a log the same actions therefore lead through exactly the same states.
    """
    car: Any = environment.unwrapped
    car.state = observation.astype(np.float32)
    return car.state.copy()
