"""D4RL's maze2d: the same physics, maps, rewards, starts and scores, and logs collected in the same way."""

from bats.tasks.maze2d.environment import Maze2dEnv
from bats.tasks.maze2d.log import MazeLog, collect_maze, write_published
from bats.tasks.maze2d.maps import MAZES, Maze, find_maze, normalised_score, stratified_starts
from bats.tasks.maze2d.starts import StartReport, label_starts
from bats.tasks.maze2d.waypoints import WaypointController

__all__ = [
    "MAZES",
    "Maze",
    "Maze2dEnv",
    "MazeLog",
    "StartReport",
    "WaypointController",
    "collect_maze",
    "find_maze",
    "label_starts",
    "normalised_score",
    "stratified_starts",
    "write_published",
]
