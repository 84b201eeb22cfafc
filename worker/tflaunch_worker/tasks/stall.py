"""Silence: how long a task has written nothing. The supervisor judges; this only tells.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tflaunch_worker.loop import Loop, Timer
    from tflaunch_worker.supervisor_link import Client
    from tflaunch_worker.tasks.task import Task


class Silence:
    """Says ``task_silent`` when nothing was written for so long, and ``task_spoke`` when that is over."""

    def __init__(self, loop: Loop, seconds: float, task: Task, client: Client) -> None:
        self._loop = loop
        self._seconds = seconds
        self._about = {"task": task.name, "attempt": task.attempt}
        self._client = client
        self._spoke_at = loop.now()
        self._is_silent = False
        self._timer: Timer = loop.at(self._spoke_at + seconds, self._look)

    def is_broken(self) -> None:
        """The task has written something."""
        self._spoke_at = self._loop.now()
        if self._is_silent:
            self._is_silent = False
            self._client.say("task_spoke", **self._about)
            self._timer = self._loop.at(self._spoke_at + self._seconds, self._look)

    def end(self) -> None:
        """The task is gone."""
        self._timer.cancel()

    def _look(self) -> None:
        due = self._spoke_at + self._seconds
        if self._loop.now() < due:
            self._timer = self._loop.at(due, self._look)
        else:
            self._is_silent = True
            self._client.say("task_silent", **self._about)
