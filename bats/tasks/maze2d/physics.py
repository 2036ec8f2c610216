"""One step of the ball in a maze, by MuJoCo, as D4RL's maze2d took it.

A ball of radius 0.1 and density 1000 (4.18879 kg) slides without friction in two directions, driven by two motors
of gear 100 at 100 steps a second. Away from walls, with u the action and v the velocity of one direction,

    v' = (v + 0.23873 u) / 1.0023873,        x' = x + 0.01 v'

(0.23873 = 100 / mass * 0.01 is the gain in velocity, 0.0023873 the damping, which MuJoCo applies implicitly).
Before the step velocities are clipped to 5, so that no observed speed exceeds (5 + 0.23873) / 1.0023873 = 5.2263.

D4RL ran on MuJoCo 2.1, and later versions changed what a contact with a wall does. Two settings bring it back:

- Margins of two geoms in contact once counted as the larger one and now (4.0) as their sum: the ball has none.
- The softness of a contact scales with `body_invweight0`, the inverse mass averaged over directions. It once
  counted the direction in which the ball cannot move, which makes it 2/3 of what MuJoCo says from version 3.0 on.

Steps are started without the last solution of the contact solver, so that the next state depends on the state and
the action alone, and any state of a log can be entered exactly.
"""

from __future__ import annotations

from math import copysign

from bats.tasks.maze2d.maps import Maze
from bats.tasks.simulator import import_mujoco

BALL_RADIUS = 0.1
SPEED_LIMIT = 5.0
ORIGIN = 1.2
"""where in MuJoCo's world the position (0, 0) lies; the wall of cell (i, j) is centred at (i + 1, j + 1)"""

_WALL = '<geom type="box" pos="{x} {y} 0" size="0.5 0.5 0.2"/>'
_MODEL = """
<mujoco model="maze2d">
  <compiler inertiafromgeom="true" angle="radian"/>
  <option timestep="0.01" gravity="0 0 0" iterations="20" integrator="Euler">
    <flag warmstart="disable"/>
  </option>
  <default>
    <joint damping="1" limited="false"/>
    <geom friction=".5 .1 .1" density="1000" margin="0.002" condim="1" contype="2" conaffinity="1"/>
  </default>
  <worldbody>
    <geom type="plane" pos="0 0 -0.1" size="20 20 0.1"/>
    {walls}
    <body name="ball" pos="{origin} {origin} 0">
      <geom type="sphere" size="{radius}" contype="1" margin="0"/>
      <joint name="row" type="slide" axis="1 0 0"/>
      <joint name="column" type="slide" axis="0 1 0"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="row" gear="100" ctrllimited="true" ctrlrange="-1 1"/>
    <motor joint="column" gear="100" ctrllimited="true" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""


def model_text(maze: Maze) -> str:
    """The maze as MuJoCo's XML."""
    walls = "\n    ".join(_WALL.format(x=i + 1, y=j + 1) for i, j in maze.walls)
    return _MODEL.format(walls=walls, origin=ORIGIN, radius=BALL_RADIUS)


class MazePhysics:
    """The step function of one maze. It holds MuJoCo's buffers, but nothing of one step survives into the next."""

    def __init__(self, maze: Maze) -> None:
        mujoco = import_mujoco()
        self._model = mujoco.MjModel.from_xml_string(model_text(maze))
        ball = self._model.body("ball").id
        self._model.body_invweight0[ball, 0] = 2 / 3 / self._model.body_mass[ball]
        self._data = mujoco.MjData(self._model)
        self._step = mujoco.mj_step
        self._position, self._velocity, self._control = self._data.qpos, self._data.qvel, self._data.ctrl

    def step(
        self, state: tuple[float, float, float, float], action: tuple[float, float]
    ) -> tuple[float, float, float, float]:
        """The state 0.01 s later. Plain floats in and out: collecting a log calls this once a row."""
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
