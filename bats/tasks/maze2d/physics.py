"""One step of the ball in a maze, by MuJoCo, as D4RL's maze2d took it.

A ball of radius 0.1 and density 1000 (4.18879 kg) slides without friction in two directions, driven by two motors
with gear 100 at 100 steps per second. Away from walls, with u the action and v the velocity in one direction,

    v' = (v + 0.23873 u) / 1.0023873,        x' = x + 0.01 v'

(0.23873 = 100 / mass * 0.01 is the gain in velocity, 0.0023873 the damping, which MuJoCo applies implicitly).
Before the step velocities are clipped to 5, so that no observed speed exceeds (5 + 0.23873) / 1.0023873 = 5.2263.

D4RL ran on MuJoCo 2.1, and later versions changed the contact with walls. Two settings restore the old behaviour:

- The margin of a contact was the larger margin of its two geoms and is now (4.0) their sum: the ball has none.
- The softness of a contact scales with `body_invweight0`, the inverse mass averaged over directions. The average once
  included the direction in which the ball cannot move, which makes it 2/3 of the value since MuJoCo 3.0.

The contact solver is not warm-started, so that the next state depends on the state and the action alone and any state
of a log can be entered exactly.
"""

from __future__ import annotations

from math import copysign
from pathlib import Path

from bats.tasks.common import import_mujoco
from bats.tasks.maze2d.maps import Maze

State = tuple[float, float, float, float]
"""row, column, row velocity, column velocity"""

BALL_RADIUS = 0.1
SPEED_LIMIT = 5.0
ORIGIN = 1.2
"""MuJoCo's coordinates of the position (0, 0); the wall of cell (i, j) is centred at (i + 1, j + 1)"""

_WALL = '<geom type="box" pos="{x} {y} 0" size="0.5 0.5 0.2"/>'
_MODEL = Path(__file__).with_name("model.xml").read_text()


class MazePhysics:
    """The step function of one maze. It owns MuJoCo's buffers, but no step depends on the one before."""

    def __init__(self, maze: Maze) -> None:
        mujoco = import_mujoco()
        walls = "\n    ".join(_WALL.format(x=i + 1, y=j + 1) for i, j in maze.walls)
        xml = _MODEL.format(walls=walls, origin=ORIGIN, radius=BALL_RADIUS)
        self._model = mujoco.MjModel.from_xml_string(xml)
        ball = self._model.body("ball").id
        # the inverse mass as MuJoCo 2.1 averaged it, see above
        self._model.body_invweight0[ball, 0] = 2 / 3 / self._model.body_mass[ball]
        self._data = mujoco.MjData(self._model)
        self._step = mujoco.mj_step
        # views of MuJoCo's buffers, which are slow to look up in every step
        self._position, self._velocity, self._control = self._data.qpos, self._data.qvel, self._data.ctrl

    def step(self, state: State, action: tuple[float, float]) -> State:
        """The state 0.01 s later. Plain floats are faster than arrays here, and a log calls this once per row."""
        x, y, u, v = state
        position, velocity, control = self._position, self._velocity, self._control
        position[0], position[1] = x, y
        velocity[0] = u if -SPEED_LIMIT <= u <= SPEED_LIMIT else copysign(SPEED_LIMIT, u)
        velocity[1] = v if -SPEED_LIMIT <= v <= SPEED_LIMIT else copysign(SPEED_LIMIT, v)
        control[0], control[1] = action  # MuJoCo clips them to [-1, 1]
        self._step(self._model, self._data)
        x, y = position.tolist()
        u, v = velocity.tolist()
        return x, y, u, v
