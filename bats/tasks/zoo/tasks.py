"""The tasks of the zoo, with the returns that `python -m benchmarks.zoo` measures."""

from __future__ import annotations

import math
from dataclasses import replace

import gymnasium
import numpy as np

from bats.arrays import RowFlags
from bats.data.dataset import Dataset
from bats.tasks import mountain_car
from bats.tasks.zoo import box2d, classic_control, mujoco
from bats.tasks.zoo.skill import ControlTask, Goal, SkillCollector

SWIMMER_GOAL = 180.0


def ended(log: Dataset) -> RowFlags:
    """Where the goal ends the task."""
    return log.terminations


def landed(log: Dataset) -> RowFlags:
    """Where the lander comes to rest, for which it earns 100."""
    return log.terminations & (log.rewards > 50)


def upright(log: Dataset) -> RowFlags:
    """Where the pendulum is within 0.3 of upright and slower than 1."""
    return (log.next_observations[:, 0] > math.cos(0.3)) & (np.abs(log.next_observations[:, 2]) < 1)


def at_target(log: Dataset) -> RowFlags:
    """Where the fingertip is within 0.01 of the target and slower than 1."""
    distance = np.linalg.norm(log.next_observations[:, 8:], axis=1)
    return (distance < 0.01) & (np.abs(log.next_observations[:, 6:8]).max(axis=1) < 1)


def lasting(environment: str) -> Goal:
    """Where an episode reaches the time limit of its environment."""
    limit = gymnasium.spec(environment).max_episode_steps

    def lasted(log: Dataset) -> RowFlags:
        lengths = np.bincount(log.episode_numbers)
        return log.episode_ends & ~log.terminations & (lengths[log.episode_numbers] == limit)

    return lasted


def earning(least: float) -> Goal:
    """Where an episode ends that has earned this much."""
    return lambda log: log.episode_ends & (log.episode_returns[log.episode_numbers] >= least)


PENDULUM = ControlTask(
    name="pendulum",
    environment="Pendulum-v1",
    controller=classic_control.swing_up,
    goal=upright,
    goal_summary="upright and slow",
    random_return=-1242.6,
    reference_return=-155.7,
    set_state=classic_control.place_pendulum,
)
MOUNTAIN_CAR = ControlTask(
    name=mountain_car.TASK,
    environment=mountain_car.ENVIRONMENT,
    controller=mountain_car.expert_action,
    goal=ended,
    goal_summary="the top of the hill",
    random_return=-33.33,
    reference_return=95.6,
    set_state=classic_control.place_car,
)
"""its log is the paper's, which is made otherwise"""
ZOO = (
    SkillCollector(PENDULUM),
    SkillCollector(replace(PENDULUM, name="pendulum-random"), largest_skill=0.0),
    SkillCollector(
        ControlTask(
            name="cartpole",
            environment="CartPole-v1",
            controller=classic_control.balance_cart_pole,
            goal=lasting("CartPole-v1"),
            goal_summary="500 steps",
            random_return=21.64,
            reference_return=500.0,
            set_state=classic_control.place_cart_pole,
        )
    ),
    SkillCollector(
        ControlTask(
            name="acrobot",
            environment="Acrobot-v1",
            controller=classic_control.pump_acrobot,
            goal=ended,
            goal_summary="the tip one length above the base",
            random_return=-498.9,
            reference_return=-81.99,
            set_state=classic_control.place_acrobot,
        ),
        skill_power=6,  # a little skill is enough to reach the goal
    ),
    SkillCollector(
        ControlTask(
            name="mountain-car-discrete",
            environment="MountainCar-v0",
            controller=classic_control.push_along,
            goal=ended,
            goal_summary="the top of the hill",
            random_return=-200.0,
            reference_return=-119.2,
            set_state=classic_control.place_car,
        )
    ),
    SkillCollector(
        ControlTask(
            name="lunar-lander",
            environment="LunarLander-v3",
            controller=box2d.land,
            goal=landed,
            goal_summary="at rest on the ground",
            random_return=-190.3,
            reference_return=275.2,
        )
    ),
    SkillCollector(
        ControlTask(
            name="lunar-lander-continuous",
            environment="LunarLanderContinuous-v3",
            controller=box2d.land_smoothly,
            goal=landed,
            goal_summary="at rest on the ground",
            random_return=-220.1,
            reference_return=278.0,
        )
    ),
    SkillCollector(
        ControlTask(
            name="inverted-pendulum",
            environment="InvertedPendulum-v5",
            controller=mujoco.balance_pendulum,
            goal=lasting("InvertedPendulum-v5"),
            goal_summary="1,000 steps",
            random_return=5.04,
            reference_return=1000.0,
            set_state=mujoco.place_pendulum,
        )
    ),
    SkillCollector(
        ControlTask(
            name="inverted-double-pendulum",
            environment="InvertedDoublePendulum-v5",
            controller=mujoco.balance_double_pendulum,
            goal=lasting("InvertedDoublePendulum-v5"),
            goal_summary="1,000 steps",
            random_return=46.39,
            reference_return=9350.6,
            set_state=mujoco.place_double_pendulum,
        ),
        skill_power=1,  # a few random actions are enough to fall
    ),
    SkillCollector(
        ControlTask(
            name="reacher",
            environment="Reacher-v5",
            controller=mujoco.reach,
            goal=at_target,
            goal_summary="the fingertip at the target and slow",
            random_return=-42.91,
            reference_return=-3.77,
            set_state=mujoco.place_reacher,
        )
    ),
    SkillCollector(
        ControlTask(
            name="swimmer",
            environment="Swimmer-v5",
            controller=mujoco.swim,
            goal=earning(SWIMMER_GOAL),
            goal_summary="a return of at least 180",
            random_return=0.88,
            reference_return=358.1,
            set_state=mujoco.place_swimmer,
        ),
        rows=100_000,
    ),
)
