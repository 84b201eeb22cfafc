"""Profiles of the tasks of this host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tflaunch_worker.agent import orders
from tflaunch_worker.agent.services import Service
from tflaunch_worker.features.profile import stack_samples
from tflaunch_worker.schema import number

if TYPE_CHECKING:
    from tflaunch_worker.agent.calls import Call
    from tflaunch_worker.agent.services import AgentParts

LEAST_SECONDS, MOST_SECONDS = 0.1, 600.0
"""The shortest and longest time for which a task is profiled."""


class HostProfiles(Service):
    """Makes the profiles that the supervisor asks for."""

    CALLS: ClassVar = {
        "profile_task": {
            "task": orders.task,
            "attempt": orders.attempt,
            "seconds": number(LEAST_SECONDS, MOST_SECONDS),
        }
    }

    def __init__(self, agent: AgentParts) -> None:
        super().__init__(agent)
        self._running: set[Call] = set()

    def profile_task(self, call: Call, message: dict[str, Any]) -> None:
        """Sample the Python stacks of a task, and answer with them or with a problem."""
        task = self.agent.tasks.get(message["task"])
        if task is None or task.attempt != message["attempt"] or task.is_gone or not task.pid:
            call.answer(problem="it does not run")
            return

        def done(sampler: stack_samples.StackSampler) -> None:
            self._running.discard(call)
            call.answer(sampler.result, problem=sampler.problem)

        def cancel() -> None:
            self._running.discard(call)
            sampler.cancel()

        seconds = message["seconds"]
        sampler = stack_samples.StackSampler(self.agent.loop, task.pid, seconds, lambda: len(self._running), done)
        self._running.add(call)
        call.when_ended = cancel
