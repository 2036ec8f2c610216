"""The tasks that this package is evaluated on: environments, logs and reference scores.

Importing it registers the environments with Gymnasium. MuJoCo is imported only when an environment that needs it is
made.
"""

import gymnasium

from bats.tasks.catalogue import TASKS, collect, collect_published, find_task, normalised_score, task_of_log
from bats.tasks.maze2d.log import write_published
from bats.tasks.maze2d.maps import MAZES
from bats.tasks.worlds import EPISODE_STEPS, WORLDS

__all__ = ["TASKS", "collect", "collect_published", "find_task", "normalised_score", "task_of_log", "write_published"]

_MAZE_CLASS, _WORLD_CLASS = "bats.tasks.maze2d.environment:Maze2dEnv", "bats.tasks.worlds:WorldEnv"
for _maze in MAZES:
    _arguments = {"maze": _maze.name}
    gymnasium.register(_maze.environment, _MAZE_CLASS, max_episode_steps=_maze.episode_steps, kwargs=_arguments)
for _, _id, _world in WORLDS:
    gymnasium.register(_id, _WORLD_CLASS, max_episode_steps=EPISODE_STEPS, kwargs={"shape": _world.shape})
