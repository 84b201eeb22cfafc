"""Find out from TF_CONFIG alone which task this is; without it, the only one.

Nothing here imports TensorFlow.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

_EXAMPLE = '{"cluster": {"worker": ["h1:2222", "h2:2222"]}, "task": {"type": "worker", "index": 0}}'


class CannotTrain(RuntimeError):  # noqa: N818 - programs that train know this name
    """Raised when training cannot start or go on: a sentence with the remedy."""


class Task(NamedTuple):
    """This process' place in its job.

    ``role`` is "" without a cluster; ``sizes`` holds the number of tasks of each role.
    """

    role: str = ""
    task_index: int = 0
    sizes: tuple[tuple[str, int], ...] = ()

    def count(self, *roles: str) -> int:
        """Return the number of tasks in the cluster that have one of these roles."""
        return sum(size for role, size in self.sizes if role in roles)

    @property
    def name(self) -> str:
        """Name of the task in tflaunch, such as ``worker:1``; "" without a cluster."""
        return f"{self.role}:{self.task_index}" if self.role else ""

    @property
    def has_servers(self) -> bool:
        """Whether variables are on parameter servers and the chief controls the training."""
        return self.count("ps") > 0

    @property
    def is_server(self) -> bool:
        """Whether the chief gives this task its work: a ps, or a worker beside a ps."""
        return self.role == "ps" or (self.role == "worker" and self.has_servers)


def this_task() -> Task:
    """Return the task that TF_CONFIG assigns to this process.

    Raises:
        CannotTrain: TF_CONFIG is not valid for TensorFlow's TFConfigClusterResolver.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text.strip():
        return Task()
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        sizes = tuple((str(role), len(members)) for role, members in cluster.items())
        role, index = str(task.get("type", "")), int(task.get("index", 0))
    except (ValueError, TypeError, AttributeError):
        raise CannotTrain(f"TF_CONFIG is not a cluster and a task: write it like {_EXAMPLE}.") from None
    if sizes and not role:
        raise CannotTrain(f"TF_CONFIG does not say which task this is: write it like {_EXAMPLE}.")
    return Task(role, index, sizes)


def is_chief() -> bool:
    """Return whether this task leads: a chief, else worker 0, or the only task.

    An evaluator does not lead. TensorFlow's multi_worker_util.is_chief treats it as a chief, because no other task
    writes to its directories.
    """
    task = this_task()
    if task.role == "worker":
        return task.task_index == 0 and not task.count("chief")
    return task.role in ("", "chief")


def workers() -> int:
    """Return the number of training tasks, with a training chief; 1 without a cluster."""
    task = this_task()
    roles = ("worker",) if task.has_servers else ("chief", "worker")
    return task.count(*roles) or 1
