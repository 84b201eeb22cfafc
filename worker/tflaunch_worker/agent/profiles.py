"""Profiles of the tasks of this host: each is requested over a link, answered once, and discarded with the link.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from tflaunch_worker.agent.supervisor_link import SupervisorLink
    from tflaunch_worker.event_loop import Loop

LEAST_SECONDS, MOST_SECONDS = 0.1, 600.0
"""The shortest and longest time for which a task is profiled."""


class HostProfiles:
    """Makes the profiles that the supervisor asks for; each is known by a number that it chooses."""

    def __init__(self, loop: Loop, link: SupervisorLink, find_pid: Callable[[str, int], int]) -> None:
        """Answer over ``link``; ``find_pid`` returns the leading process of a task's attempt, 0 if it does not run."""
        self._loop = loop
        self._link = link
        self._find_pid = find_pid
        self._running: dict[int, Callable[[], None]] = {}

    def begin(self, message: dict[str, Any]) -> None:
        """Sample the Python stacks of a task, and answer with them or with a problem."""
        from tflaunch_worker.inspect.stack_samples import StackSampler  # most runs are never profiled

        request, pid = message["request"], self._find_pid(message["task"], message["attempt"])

        def done(sampler: StackSampler) -> None:
            del self._running[request]
            self._link.answer_with(sampler.result, "profiled", request=request, problem=sampler.problem)

        if request in self._running:
            raise ValueError(f"profile {request} is being made")
        if pid:
            sampler = StackSampler(self._loop, pid, message["seconds"], lambda: len(self._running), done)
            self._running[request] = sampler.cancel
        else:
            self._link.answer("profiled", request=request, problem="it does not run")

    def end(self, message: dict[str, Any]) -> None:
        """Stop making a profile that nobody waits for any more."""
        stop = self._running.pop(message["request"], None)
        if stop is not None:
            stop()

    def end_all(self) -> None:
        """Stop making profiles: the link is lost, or the agent leaves."""
        while self._running:
            self._running.popitem()[1]()
