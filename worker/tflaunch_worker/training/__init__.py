"""Help training programs, with or without tflaunch.

For instance::

    from tflaunch_worker import training

    training.serve_if_server()
    strategy = training.strategy()

Everything is optional, and TensorFlow is imported only when it is needed.
"""

from tflaunch_worker.training.fitting import callbacks
from tflaunch_worker.training.progress import report
from tflaunch_worker.training.saving import checkpoint_dir, preemption, save_path
from tflaunch_worker.training.strategies import serve_if_server, strategy
from tflaunch_worker.training.task import CannotTrain, Task, is_chief, this_task, workers
from tflaunch_worker.training.together import BatchSizes, barrier, batch_sizes, everyone, sharded

__all__ = [
    "BatchSizes",
    "CannotTrain",
    "Task",
    "barrier",
    "batch_sizes",
    "callbacks",
    "checkpoint_dir",
    "everyone",
    "is_chief",
    "preemption",
    "report",
    "save_path",
    "serve_if_server",
    "sharded",
    "strategy",
    "this_task",
    "workers",
]
