"""D4RL's maze2d: the same physics, maps, rewards, starts and scores, and logs collected in the same way."""

from bats.tasks.maze2d.environment import Maze2dEnv
from bats.tasks.maze2d.log import collect_maze
from bats.tasks.maze2d.maps import MAZES, Maze, find_maze, stratified_starts
from bats.tasks.maze2d.starts import label_starts

__all__ = ["MAZES", "Maze", "Maze2dEnv", "collect_maze", "find_maze", "label_starts", "stratified_starts"]
