"""Watch the steps of a live run.

Steps come from what the program reports (`training.progress`), or else from Keras' progress line. An agent notes when
a report arrives, so its time is known more precisely than the interval at which we ask.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tflaunch.client.status import status_of_supervisor
from tflaunch.explain.run_status import Status

_INTERVAL = 0.6  # seconds; a supervisor reuses a measurement for half a second
_SHORTEST = 5.0  # seconds of a measurement, so that the time of a report is precise enough
_PATIENCE = 30.0  # seconds without a step, after which a message says how steps become known
_EXAMPLES = "examples"
"""The metric with the number of examples in a step of all workers."""

HOW_STEPS = (
    "steps are read from progress.report() and progress.callback() of tflaunch_worker.training, or from the progress "
    "line of Keras (verbose=1)"
)


class Wanted(NamedTuple):
    """How much of a run is measured: ``steps`` after ``warm_up`` steps; ``limit`` is in seconds from its start."""

    steps: int
    warm_up: int
    limit: float


class Report(NamedTuple):
    """A report of a step, and when it arrived, in seconds since the epoch."""

    step: float
    at: float


class StepWatcher:
    """Watches one run, until it has taken enough steps or has ended by itself (``has_ended``).

    Until then, ``reports`` are those of new steps, ``examples`` what the last one tells of the examples in a step, and
    ``started`` is when the run began, in seconds since the epoch.
    """

    def __init__(self, directory: Path, wanted: Wanted) -> None:
        """Prepare to watch the run in a directory."""
        self._directory = directory
        self._wanted = wanted
        self._task = ""
        self.reports: list[Report] = []
        self.examples: float | None = None
        self.started = 0.0
        self.has_ended = False

    def watch(self, say: Callable[[str], None]) -> None:
        """Watch until there is enough, the run ends, or its time is over; ``say`` shows how steps become known.

        Raises:
            TflaunchError: the supervisor does not answer.
        """
        until, hint_at = time.monotonic() + self._wanted.limit, time.monotonic() + _PATIENCE
        while time.monotonic() < until and not self._is_enough():
            status = status_of_supervisor(self._directory)
            if status is None or status.exit_code is not None:
                self.has_ended = True
                return
            self._note(status)
            if not self.reports and time.monotonic() > hint_at:
                hint_at = math.inf
                forming = "" if status.forming is None else "the cluster has not formed; "
                say(f"no step yet: {forming}{HOW_STEPS}")
            time.sleep(_INTERVAL)

    def measured(self) -> tuple[Report, Report] | None:
        """Return the first and last report of the measurement, None without two; a short run has no warm-up."""
        if not self.reports:
            return None
        first, last = self.reports[0], self.reports[-1]
        begin = next((each for each in self.reports if each.step >= first.step + self._wanted.warm_up), last)
        begin = first if self.has_ended and begin is last else begin
        return (begin, last) if last.at > begin.at else None

    def _is_enough(self) -> bool:
        ends = self.measured()
        if ends is None:
            return False
        begin, last = ends
        return last.step - begin.step >= self._wanted.steps and last.at - begin.at >= _SHORTEST

    def _note(self, status: Status) -> None:
        """Note a new step of the task that was the first to report any."""
        self.started, now = status.started, time.time()
        for task in status.tasks:
            if task.step is None or task.task != (self._task or task.task):
                continue
            self._task = task.task
            self.examples = (task.metrics or {}).get(_EXAMPLES) or None
            if not self.reports or task.step > self.reports[-1].step:
                self.reports.append(Report(task.step, now - (task.progress_age or 0.0)))
