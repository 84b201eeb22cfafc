"""Report tasks without output for a while; the supervisor decides which hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tflaunch_worker.agent.supervisor_link import SupervisorLink
    from tflaunch_worker.agent.task import Task
    from tflaunch_worker.event_loop import Loop, Timer


class StallWatch:
    """Reporter of silence: ``output_stalled`` after ``seconds``, ``output_resumed``.

    The time counts from `begin`: a task that is forked from preloaded modules waits for their import before it starts.
    """

    def __init__(self, loop: Loop, seconds: float, task: Task, link: SupervisorLink) -> None:
        self._loop = loop
        self._seconds = seconds
        self._about = {"task": task.name, "attempt": task.attempt}
        self._link = link
        self._spoke_at = loop.now()
        self._is_silent = False
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Begin to watch, because the task has started."""
        self._spoke_at = self._loop.now()
        self._timer = self._loop.call_at(self._spoke_at + self._seconds, self._look)

    def note_output(self) -> None:
        """Note that the task has written output or progress."""
        self._spoke_at = self._loop.now()
        if self._is_silent:
            self._is_silent = False
            self._link.say("output_resumed", **self._about)
            self._timer = self._loop.call_at(self._spoke_at + self._seconds, self._look)

    def cancel(self) -> None:
        """Stop watching, because the task is gone."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        due = self._spoke_at + self._seconds
        if self._loop.now() < due:
            self._timer = self._loop.call_at(due, self._look)
        else:
            self._is_silent = True
            self._link.say("output_stalled", **self._about)
