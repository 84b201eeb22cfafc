"""Profiles of the tasks of this host: have them made, and send them to the launcher part by part on request.

A profile is requested over a link, and discarded with it: the task, which writes it, is then asked to stop. What it has
written is removed as soon as it is open, so nothing is left behind when the agent dies, either.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os

from tflaunch_worker import offload
from tflaunch_worker.agent.left_files import PART, LeftFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Protocol

    from tflaunch_worker.agent.supervisor_link import SupervisorLink
    from tflaunch_worker.event_loop import Loop

    class Profile(Protocol):
        """A finished profile."""

        size: int

        def read(self, offset: int) -> bytes:
            """Return a part of it, empty if it can no longer be read."""

        def remove(self) -> None:
            """Free what it takes."""


LEAST_SECONDS, MOST_SECONDS = 0.1, 600.0
"""The shortest and longest time for which a task is profiled."""

MOST_BYTES = 2**32
"""The size of the largest profile."""


class ProfiledTask:
    """A living task.

    Args:
        pid: of its leading process.
        port: its port, 0 for none.
        is_listening: whether TensorFlow has opened the port.
        directory: the task's own.
        namespaces: descriptors of the namespaces in which it listens, () for the agent's.
    """

    def __init__(self, pid: int, port: int, is_listening: bool, directory: str, namespaces: tuple[int, ...]) -> None:
        self.pid = pid
        self.port = port
        self.is_listening = is_listening
        self.directory = directory
        self.namespaces = namespaces


class HostProfiles:
    """Makes the profiles that the supervisor asks for; each is known by a number that it chooses."""

    def __init__(self, loop: Loop, link: SupervisorLink, find_task: Callable[[str, int], ProfiledTask | None]) -> None:
        """Answer over ``link``; ``find_task`` returns a living attempt of a task."""
        self._loop = loop
        self._link = link
        self._find_task = find_task
        self._started = 0
        self._running: dict[int, Callable[[], None]] = {}
        self._tasks: dict[int, str] = {}
        self._is_busy: set[str] = set()
        self._finished: dict[int, Profile] = {}

    def obey(self, message: dict[str, Any]) -> None:
        """Obey an order about a profile."""
        request = message["request"]
        if message["kind"] == "profile_task":
            self._begin(request, message)
        elif message["kind"] == "read_profile":
            found = self._finished.get(request)
            part = b"" if found is None else found.read(message["offset"])
            self._link.answer_with(part, "profile_read", request=request, offset=message["offset"])
        else:
            self._forget(request)

    def end_task(self, task: str) -> None:
        """End the profile of a task that is being stopped, or is gone: it must not wait for its profiler."""
        for request in [number for number in self._running if self._tasks.get(number) == task]:
            self._refuse(request, "it was stopped")

    def forget_all(self) -> None:
        """End all profiles: the link is lost, or the agent leaves."""
        for request in [*self._running, *self._finished]:
            self._forget(request)

    def _forget(self, request: int) -> None:
        """End a profile, and free what it takes."""
        end = self._running.pop(request, None)
        if end is not None:
            end()
        finished = self._finished.pop(request, None)
        if finished is not None:
            finished.remove()
        self._tasks.pop(request, None)

    def _begin(self, request: int, message: dict[str, Any]) -> None:
        name, is_python = message["task"], message["stacks"]
        task = self._find_task(name, message["attempt"])
        if request in self._running or request in self._finished:
            raise ValueError(f"profile {request} exists")
        if task is None:
            self._refuse(request, "it does not run")
        elif name in self._is_busy:
            self._refuse(request, "it is being profiled already")
        elif is_python:
            self._tasks[request] = name
            self._running[request] = self._sample(request, task, message["seconds"])
        elif not task.port:
            self._refuse(request, "it has no port: TensorFlow starts the server that profiles it only in a cluster")
        elif not task.is_listening:
            self._refuse(request, "TensorFlow does not listen on its port yet")
        else:
            self._tasks[request] = name
            self._running[request] = self._record(request, name, task, message["seconds"])

    def _record(self, request: int, name: str, task: ProfiledTask, seconds: float) -> Callable[[], None]:
        """Have TensorFlow profile a task; return what ends that."""
        import shutil  # most runs are never profiled

        from tflaunch_worker.inspect import task_profile

        self._started += 1
        session = f"tflaunch-{os.getpid()}-{self._started}"
        directory = os.path.join(task.directory, session)
        server = task_profile.Server(task.port, task.namespaces)
        self._is_busy.add(name)

        def done(result: dict[str, str] | None) -> None:
            self._is_busy.discard(name)
            if request in self._running and self._running[request] is end:
                self._take_recorded(request, result)
            shutil.rmtree(directory, ignore_errors=True)

        def end() -> None:
            stop = lambda: task_profile.stop(server, session)  # noqa: E731
            offload.run_in_background(self._loop, stop, lambda _: None)

        work = lambda: task_profile.record(server, seconds, directory, session, name.replace(":", "-"))  # noqa: E731
        offload.run_in_background(self._loop, work, done)
        return end

    def _take_recorded(self, request: int, result: dict[str, str] | None) -> None:
        if result is None or "problem" in result:
            self._refuse(request, result["problem"] if result else "its profile could not be made")
            return
        try:
            profile = LeftFile(result["path"], MOST_BYTES)
        except (OSError, ValueError):
            self._refuse(request, "its profile cannot be read")
        else:
            self._finish(request, profile)

    def _sample(self, request: int, task: ProfiledTask, seconds: float) -> Callable[[], None]:
        """Sample the Python stacks of a task; return what ends that."""
        from tflaunch_worker.inspect.stack_samples import StackSampler  # most runs are never profiled

        def done(sampler: StackSampler) -> None:
            if sampler.problem:
                self._refuse(request, sampler.problem)
            else:
                self._finish(request, _SampledStacks(sampler.result))

        return StackSampler(self._loop, task.pid, seconds, lambda: len(self._running), done).cancel

    def _finish(self, request: int, profile: Profile) -> None:
        self._running.pop(request, None)
        self._finished[request] = profile
        self._link.answer("profiled", request=request, problem="", size=profile.size)

    def _refuse(self, request: int, problem: str) -> None:
        self._forget(request)
        self._link.answer("profiled", request=request, problem=problem, size=0)


class _SampledStacks:
    """A finished profile in memory."""

    def __init__(self, result: bytes) -> None:
        self.size = len(result)
        self._result = result

    def read(self, offset: int) -> bytes:
        """Return a part of it."""
        return self._result[offset : offset + PART]

    def remove(self) -> None:
        """Free it."""
        self._result = b""
