"""Profiles of the tasks of this host: have them made, and send them to the launcher part by part on request.

A profile is requested over a link, and discarded with it. It is kept in memory, so nothing is left behind.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

from tflaunch_worker.agent.left_files import PART

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from tflaunch_worker.agent.supervisor_link import SupervisorLink
    from tflaunch_worker.event_loop import Loop

LEAST_SECONDS, MOST_SECONDS = 0.1, 600.0
"""The shortest and longest time for which a task is profiled."""

MOST_BYTES = 2**32
"""The size of the largest profile."""


class HostProfiles:
    """Makes the profiles that the supervisor asks for; each is known by a number that it chooses."""

    def __init__(self, loop: Loop, link: SupervisorLink, find_pid: Callable[[str, int], int]) -> None:
        """Answer over ``link``; ``find_pid`` returns the leading process of a task's attempt, 0 if it does not run."""
        self._loop = loop
        self._link = link
        self._find_pid = find_pid
        self._running: dict[int, Callable[[], None]] = {}
        self._finished: dict[int, bytes] = {}

    def obey(self, message: dict[str, Any]) -> None:
        """Obey an order about a profile."""
        request = message["request"]
        if message["kind"] == "profile_task":
            self._begin(request, message)
        elif message["kind"] == "read_profile":
            offset = message["offset"]
            part = self._finished.get(request, b"")[offset : offset + PART]
            self._link.answer_with(part, "profile_read", request=request, offset=offset)
        else:
            self._forget(request)

    def forget_all(self) -> None:
        """End all profiles: the link is lost, or the agent leaves."""
        for request in [*self._running, *self._finished]:
            self._forget(request)

    def _forget(self, request: int) -> None:
        """End a profile, and free what it takes."""
        end = self._running.pop(request, None)
        if end is not None:
            end()
        self._finished.pop(request, None)

    def _begin(self, request: int, message: dict[str, Any]) -> None:
        pid = self._find_pid(message["task"], message["attempt"])
        if request in self._running or request in self._finished:
            raise ValueError(f"profile {request} exists")
        if pid:
            self._running[request] = self._sample(request, pid, message["seconds"])
        else:
            self._refuse(request, "it does not run")

    def _sample(self, request: int, pid: int, seconds: float) -> Callable[[], None]:
        """Sample the Python stacks of a process; return what ends that."""
        from tflaunch_worker.inspect.stack_samples import StackSampler  # most runs are never profiled

        def done(sampler: StackSampler) -> None:
            if sampler.problem:
                self._refuse(request, sampler.problem)
            else:
                self._finish(request, sampler.result)

        return StackSampler(self._loop, pid, seconds, lambda: len(self._running), done).cancel

    def _finish(self, request: int, profile: bytes) -> None:
        self._running.pop(request, None)
        self._finished[request] = profile
        self._link.answer("profiled", request=request, problem="", size=len(profile))

    def _refuse(self, request: int, problem: str) -> None:
        self._forget(request)
        self._link.answer("profiled", request=request, problem=problem, size=0)
