"""Record the history of a run while it is supervised."""

from __future__ import annotations

import time
from contextlib import suppress

from tflaunch.core.job_state import Job, Phase
from tflaunch.explain.run_status import Status, TaskStatus
from tflaunch.features.history.history_writer import HistoryWriter
from tflaunch.runtime.loop import Run
from tflaunch.runtime.watchers import Found, Supervision, Watcher
from tflaunch.store.history import Figures, Moment


class HistoryRecorder(Watcher):
    """Records a moment every few seconds, and the last reports at the end."""

    def __init__(self, supervision: Supervision) -> None:
        self._supervision = supervision
        self._mailbox = supervision.mailbox
        self._job = supervision.job
        self._writer: HistoryWriter | None = None  # a run that ends at once needs none

    def watch(self, job: Job, now: float) -> None:
        """Begin when the tasks run."""
        self._job = job
        if self._writer is None and job.phase is Phase.RUNNING:
            self._writer = HistoryWriter(self._supervision.config.directory.path)
            self._mailbox.call_at(now + self._writer.interval, self._measure)

    def finish(self, run: Run) -> Found:
        """Record what tasks had reported when they exited."""
        found = {
            task: Figures(step=state.reached.step or None, metrics=dict(state.metrics))
            for task, state in run.job.tasks.items()
            if state.reached.step or state.metrics
        }
        self._add(found)
        return super().finish(run)

    def _measure(self) -> None:
        if self._job.phase is not Phase.ENDED and self._writer is not None:
            self._supervision.measured(self._take)
            self._mailbox.call_at(self._mailbox.now() + self._writer.interval, self._measure)

    def _take(self, status: Status) -> None:
        self._add({task.task: _figures(task) for task in status.tasks if task.rss_bytes is not None})

    def _add(self, figures: dict[str, Figures]) -> None:
        if figures and self._writer is not None:
            with suppress(OSError):  # a full disk costs points
                self._writer.add(Moment(time.time(), figures))


def _figures(task: TaskStatus) -> Figures:
    return Figures(
        task.step,
        task.steps_per_second,
        task.cpu_percent,
        task.rss_bytes,
        task.gpu_percent,
        task.gpu_bytes,
        task.metrics or {},
        task.total_steps,
    )
