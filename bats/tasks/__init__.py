"""The tasks this package is judged on: environments, logs and reference scores. Importing it registers them.

MuJoCo is imported only when an environment or a log that needs it is made.
"""

from bats.tasks.catalogue import TASK_NAMES, TASKS, Task, collect, collect_published, find_task, task_of_log
from bats.tasks.maze2d import normalised_score, write_published
from bats.tasks.maze2d.environment import register_mazes
from bats.tasks.worlds import register_worlds

__all__ = [
    "TASKS",
    "TASK_NAMES",
    "Task",
    "collect",
    "collect_published",
    "find_task",
    "normalised_score",
    "task_of_log",
    "write_published",
]

register_mazes()
register_worlds()
