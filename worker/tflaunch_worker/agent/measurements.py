"""Measurements of this host's tasks: usage and progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping

if TYPE_CHECKING:
    from tflaunch_worker.agent.calls import Call
    from tflaunch_worker.agent.host import Host
    from tflaunch_worker.agent.progress import Progress
    from tflaunch_worker.agent.services import Services
    from tflaunch_worker.agent.task import Task
    from tflaunch_worker.event_loop import Loop
    from tflaunch_worker.inspect.usage import Figures


class HostMeasurements:
    """Measurements of this host's tasks for the supervisor; an observer of `Task`."""

    def __init__(self, loop: Loop, host: Host, tasks: Mapping[str, Task], services: Services) -> None:
        """Measure nothing yet; ``tasks`` are the latest attempts of the tasks, by name."""
        self._loop = loop
        self._host = host
        self._tasks = tasks
        self._services = services
        self._progress: dict[str, Progress] = {}

    def begin(self, task: Task, progress: Progress | None) -> None:
        """Measure a task that is about to start."""
        if progress is not None:
            self._progress[task.name] = progress

    def end(self, name: str) -> None:
        """Measure a task no longer: it is gone."""
        progress = self._progress.pop(name, None)
        if progress is not None:
            progress.close()

    # ---- for the supervisor

    def measure(self, call: Call, message: dict[str, Any]) -> None:
        """Answer with the tasks' resource usage and progress."""
        self._host.measurer.ask(self._services.agent.pids, lambda figures: self._answer_measures(call, figures))

    def _answer_measures(self, call: Call, figures: Figures) -> None:
        tasks: dict[str, dict[str, object]] = {}
        for name, known in figures.items():
            tasks[name] = {"attempt": self._tasks[name].attempt, **known}
            refused = self._host.fence.counts.get(name)
            if refused:
                tasks[name]["refused"] = refused
            progress = self.known_progress(self._tasks[name])
            if progress:
                tasks[name]["progress"] = progress
        call.answer(time=self._loop.now(), tasks=tasks)

    # ---- for tasks

    def evidence(self, pid: int) -> str:
        """Return why a process was killed, as far as a service knows it."""
        return self._services.explain_kill(pid)

    def reached(self, task: Task) -> dict[str, object]:
        """Return the progress of a task: step, epoch and metrics, as far as known."""
        if task.name in self._progress:
            self._progress[task.name].read_rest()
        known = self.known_progress(task)
        counts = {name: int(value) for name in ("step", "epoch") if isinstance(value := known.get(name), (int, float))}
        return {**counts, "metrics": known.get("metrics") or {}}

    def look_at_hang(self, task: Task, looked: Callable[[], None]) -> None:
        """Call ``looked`` once all services have looked at a task that hangs."""
        self._services.look_at_hang(task, looked)

    def known_progress(self, task: Task) -> dict[str, object]:
        """Return a task's reported progress, or else that in its Keras output."""
        reported = self._progress[task.name].known() if task.name in self._progress else {}
        return reported or task.last_output.progress_at(self._loop.now())
