"""Reports of when tasks last spoke and of where their processes are, also before a hung task is ended."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, ClassVar

from tflaunch_worker.agent.calls import Call
from tflaunch_worker.agent.services import AgentParts, Service
from tflaunch_worker.agent.task import Task
from tflaunch_worker.features.hang.evidence import EvidenceCollector, Facts


class TaskEvidence(Service):
    """Finds out where tasks are."""

    CALLS: ClassVar = {"find_signs": {}, "gather_evidence": {}}

    def __init__(self, agent: AgentParts) -> None:
        super().__init__(agent)
        self._collector = EvidenceCollector(agent.loop)

    def find_signs(self, call: Call, message: dict[str, Any]) -> None:
        """Tell when each task last wrote or reported something, which costs next to nothing."""
        for name in self.agent.pids():
            self._tell(call, name)
        call.answer()

    def gather_evidence(self, call: Call, message: dict[str, Any]) -> None:
        """Tell, too, where the processes of each task are."""
        self._collector.ask(self.agent.pids, partial(self._answer, call))

    def _answer(self, call: Call, facts: Facts) -> None:
        for name, processes in facts.items():
            self._tell(call, name, processes=processes)
        call.answer()

    def _tell(self, call: Call, name: str, **more: Any) -> None:
        task = self.agent.tasks[name]
        silence = None if task.spoke_at is None else self.agent.loop.now() - task.spoke_at
        known = {"task": name, "attempt": task.attempt, "silence": silence}
        call.tell(**known, progress=task.progress() or None, **more)

    def look_at_hang(self, task: Task, looked: Callable[[], None]) -> None:
        """Wait until all tasks are sampled, for which the supervisor asks meanwhile."""
        self._collector.ask(self.agent.pids, lambda _: looked())
