"""Measurements of this host's tasks, regular and on demand: usage, progress, and where their processes are.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping

    from tflaunch_worker.agent.calls import Call
    from tflaunch_worker.agent.host import Host
    from tflaunch_worker.agent.progress import Progress
    from tflaunch_worker.agent.supervisor_link import SupervisorLink
    from tflaunch_worker.agent.task import Task
    from tflaunch_worker.event_loop import Loop
    from tflaunch_worker.inspect.evidence import Facts
    from tflaunch_worker.inspect.usage import Figures


class HostMeasurements:
    """Measures the tasks of this host, and tells the supervisor. Implements the observer of `Task`."""

    def __init__(self, loop: Loop, host: Host, link: SupervisorLink, tasks: Mapping[str, Task]) -> None:
        """Measure nothing yet; ``tasks`` are the latest attempts of the tasks, by name."""
        self._loop = loop
        self._host = host
        self._link = link
        self._tasks = tasks
        self._progress: dict[str, Progress] = {}
        self._vitals = host.vitals(self._tell_vitals)
        self._memory_call: Call | None = None

    def begin(self, task: Task, progress: Progress | None) -> None:
        """Measure a task that is about to start."""
        self._vitals.add(task.name, task.attempt, lambda: task.pid)
        if progress is not None:
            self._progress[task.name] = progress

    def end(self, name: str) -> None:
        """Measure a task no longer: it is gone."""
        self._vitals.remove(name)
        progress = self._progress.pop(name, None)
        if progress is not None:
            progress.close()

    # ---- for the supervisor

    def watch_memory(self, call: Call, message: dict[str, Any]) -> None:
        """Tell the memory of the tasks at intervals, the first time with how it has grown so far."""
        self._memory_call = call
        self._vitals.resend_history()

    def measure(self, call: Call, message: dict[str, Any]) -> None:
        """Answer with the tasks' resource usage and progress."""
        self._host.measurer.ask(self._pids, lambda figures: self._answer_measures(call, figures))

    def gather_evidence(self, call: Call, message: dict[str, Any]) -> None:
        """Tell where the processes of each task are."""
        with_use = bool(message.get("with_use"))
        answer = partial(self._answer_evidence, call, with_use)
        self._host.evidence_collector.ask(self._pids, answer, message.get("between"), with_use)

    def _pids(self) -> dict[str, int]:
        """Return the pids of the live tasks by name."""
        return {name: task.pid for name, task in self._tasks.items() if task.pid and not task.is_gone}

    def _answer_measures(self, call: Call, figures: Figures) -> None:
        tasks: dict[str, dict[str, object]] = {}
        for name, known in figures.items():
            tasks[name] = {"attempt": self._tasks[name].attempt, **known}
            refused = self._host.fence.counts.get(name)
            if refused:
                tasks[name]["refused"] = refused
            progress = self._known_progress(self._tasks[name])
            if progress:
                tasks[name]["progress"] = progress
        call.answer(time=self._loop.now(), tasks=tasks)

    def _tell_vitals(self, known: dict[str, Any]) -> bool:
        """Report a regular measurement; return whether it could be sent."""
        call = self._memory_call
        if call is None or not call.is_open or self._link.has_unsent:
            return False  # it is not worth waiting for
        call.tell(time=self._loop.now(), **known)
        return True

    def _answer_evidence(self, call: Call, with_use: bool, facts: Facts) -> None:
        now = self._loop.now()
        host = self._host.cpu_use() if with_use else {}
        for name, processes in facts.items():
            task = self._tasks[name]
            silence = None if task.wrote_at is None else now - task.wrote_at
            known = {"task": name, "attempt": task.attempt, "silence": silence, "processes": processes, **host}
            call.tell(**known, progress=self._known_progress(task) or None)
        call.answer()

    # ---- for tasks

    def evidence(self, pid: int) -> str:
        """Return what this host knows about why a process was killed."""
        known = self._host.evidence(pid)
        return "; ".join(filter(None, [known, self._vitals.growth()])) if known else ""

    def reached(self, task: Task) -> dict[str, object]:
        """Return the training progress of a task: step, epoch and metrics, as far as known."""
        if task.name in self._progress:
            self._progress[task.name].read_rest()
        known = self._known_progress(task)
        counts = {name: int(value) for name in ("step", "epoch") if isinstance(value := known.get(name), (int, float))}
        return {**counts, "metrics": known.get("metrics") or {}}

    def look_at_tasks(self, done: Callable[[], None]) -> None:
        """Call ``done`` once it is known where the tasks are; the supervisor asks for that at the same time."""
        self._host.evidence_collector.ask(self._pids, lambda _: done())

    def _known_progress(self, task: Task) -> dict[str, object]:
        """Return a task's reported progress, or else the progress that its Keras output shows."""
        reported = self._progress[task.name].known() if task.name in self._progress else {}
        return reported or task.shown_progress()
