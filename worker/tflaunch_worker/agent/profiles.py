"""Profiles of the tasks of this host.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from tflaunch_worker.agent.calls import Call
    from tflaunch_worker.event_loop import Loop
    from tflaunch_worker.inspect.stack_samples import StackSampler

LEAST_SECONDS, MOST_SECONDS = 0.1, 600.0
"""The shortest and longest time for which a task is profiled."""


class HostProfiles:
    """Makes the profiles that the supervisor asks for."""

    def __init__(self, loop: Loop, find_pid: Callable[[str, int], int]) -> None:
        """Make no profile yet; ``find_pid`` returns the leading process of a task's attempt, 0 if it does not run."""
        self._loop = loop
        self._find_pid = find_pid
        self._running: set[Call] = set()

    def profile(self, call: Call, message: dict[str, Any]) -> None:
        """Sample the Python stacks of a task, and answer with them or with a problem."""
        from tflaunch_worker.inspect.stack_samples import StackSampler  # most runs are never profiled

        pid = self._find_pid(message["task"], message["attempt"])
        if not pid:
            call.answer(problem="it does not run")
            return

        def done(sampler: StackSampler) -> None:
            self._running.discard(call)
            call.answer(sampler.result, problem=sampler.problem)

        def cancel() -> None:
            self._running.discard(call)
            sampler.cancel()

        sampler = StackSampler(self._loop, pid, message["seconds"], lambda: len(self._running), done)
        self._running.add(call)
        call.when_ended = cancel
