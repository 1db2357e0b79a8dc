"""Where tasks come from: sources, splits, the leak check, and weights that prefer hard tasks.

A source knows tasks only as records, never the worlds that make them. The one surprising choice: splits are
ranges of seeds, so an endless generator still has a held-out part that training can never reach.
"""

from palestra.tasks.jsonl import JsonlTasks, task_from_json, task_to_json, write_tasks
from palestra.tasks.ladder import ClimbRule, Ladder
from palestra.tasks.sources import SPLIT_RANGES, GeneratedTasks, TaskSource, check_leak
from palestra.tasks.weights import TaskWeights

__all__ = [
    "SPLIT_RANGES",
    "ClimbRule",
    "GeneratedTasks",
    "JsonlTasks",
    "Ladder",
    "TaskSource",
    "TaskWeights",
    "check_leak",
    "task_from_json",
    "task_to_json",
    "write_tasks",
]
