"""Which task of a job this process is, from TF_CONFIG alone; without one it is the only task.

Nothing here imports TensorFlow.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

_EXAMPLE = '{"cluster": {"worker": ["h1:2222", "h2:2222"]}, "task": {"type": "worker", "index": 0}}'


class CannotTrain(RuntimeError):
    """Training cannot begin or go on like this: one sentence for the user, with the remedy."""


class Task(NamedTuple):
    """This process among those of its job.

    ``role`` is "" without a cluster; ``sizes`` is how many tasks each role has.
    """

    role: str = ""
    task_index: int = 0
    sizes: tuple[tuple[str, int], ...] = ()

    def count(self, *roles: str) -> int:
        """Return how many tasks of the cluster have one of these roles."""
        return sum(size for role, size in self.sizes if role in roles)

    @property
    def name(self) -> str:
        """The task as tflaunch calls it, such as ``worker:1``; "" without a cluster."""
        return f"{self.role}:{self.task_index}" if self.role else ""

    @property
    def has_servers(self) -> bool:
        """Whether variables live on parameter servers, and the chief drives."""
        return self.count("ps") > 0

    @property
    def is_server(self) -> bool:
        """Whether the chief gives this task its work: ps, and worker beside a ps."""
        return self.role == "ps" or (self.role == "worker" and self.has_servers)


def this_task() -> Task:
    """Return what TF_CONFIG says about this process.

    Raises:
        CannotTrain: TF_CONFIG is not what TensorFlow's TFConfigClusterResolver reads.
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
    """Whether this task leads: the chief, worker 0 where there is none, or the only task.

    An evaluator leads nobody. TensorFlow's multi_worker_util.is_chief calls it a chief, because nobody else
    writes where it does.
    """
    task = this_task()
    if task.role == "worker":
        return task.task_index == 0 and not task.count("chief")
    return task.role in ("", "chief")


def workers() -> int:
    """Return how many tasks train in this job, a chief that trains included; 1 without a cluster."""
    task = this_task()
    roles = ("worker",) if task.has_servers else ("chief", "worker")
    return task.count(*roles) or 1
