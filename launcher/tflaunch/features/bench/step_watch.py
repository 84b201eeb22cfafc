"""Watch the steps of a live run, to measure its speed and its resource usage.

Steps come from what the program reports (`training.progress`), or else from Keras' progress line. An agent notes when
a report arrives, so its time is known more precisely than the interval at which we ask.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tflaunch.client.control_client import ControlClient, NoSupervisorError
from tflaunch.explain.run_status import Status, TaskStatus
from tflaunch.features.bench import scaling
from tflaunch.features.bench.scaling import HostUse, Measured, TaskUse
from tflaunch.features.hang.asking import ask_stacks
from tflaunch.features.hang.evidence import Evidence, Sampling
from tflaunch.plan.model import Plan

_INTERVAL = 0.6  # seconds; a supervisor reuses a measurement for half a second
_SHORTEST = 5.0  # seconds of a measurement, so that the time of a report is precise enough
_SAMPLES = 25  # of the stacks, after the measurement
_BETWEEN = 0.1  # seconds between the two looks of such a sample
_TRAINERS = ("chief", "worker")
_EXAMPLES = "examples"
"""The metric with the number of examples in a step of all workers."""
_PATIENCE = 30.0  # seconds without a step, after which a message says how steps become known

HOW_STEPS = (
    "steps are read from progress.report() and progress.callback() of tflaunch_worker.training, or from the progress "
    "line of Keras (verbose=1)"
)


class Wanted(NamedTuple):
    """How much of a run is measured: ``steps`` after ``warm_up`` steps; ``limit`` is in seconds from its start."""

    steps: int
    warm_up: int
    limit: float


class Watched(NamedTuple):
    """What was seen of a run.

    ``measured`` is None if it was not enough. ``seen``: the steps seen, None without any; ``has_ended``: before enough
    steps, by itself. ``start_up`` and ``trained``: seconds from the start to the first report, and from then on.
    """

    measured: Measured | None
    seen: float | None
    has_ended: bool
    start_up: float = 0.0
    trained: float = 0.0


class _Moment(NamedTuple):
    """A report of a step, and when it arrived, in seconds since the epoch."""

    step: float
    at: float


class _Snapshot(NamedTuple):
    """What tasks had used at a time, in seconds of the monotonic clock."""

    at: float
    evidence: Mapping[str, Evidence]


class StepWatcher:
    """Watches one run, until it has taken enough steps or has ended."""

    def __init__(self, directory: Path, plan: Plan, wanted: Wanted, say: Callable[[str], None]) -> None:
        """Prepare to watch a run that has begun.

        Args:
            directory: the run's directory.
            plan: its plan.
            wanted: how much is measured.
            say: shows a sentence while nothing else happens.
        """
        self._directory = directory
        self._plan = plan
        self._wanted = wanted
        self._say = say
        self._status: Status | None = None
        self._task = ""
        self._first: _Moment | None = None
        self._begin: _Moment | None = None
        self._last: _Moment | None = None
        self._before: _Snapshot | None = None
        self._after: _Snapshot | None = None
        self._gpus: dict[str, list[float]] = {}
        self._samples: dict[str, list[Evidence]] = {}

    def watch(self, examples: float | None) -> Watched:
        """Watch until there is enough, the run ends, or its time is over.

        Args:
            examples: the examples in a step of all workers; None to take them from the reports, if they have them.

        Raises:
            TflaunchError: the supervisor does not answer.
        """
        has_ended = False
        try:
            self._watch_steps()
        except NoSupervisorError:
            has_ended = True
        seen = None if self._first is None or self._last is None else self._last.step - self._first.step
        measured = self._measured(examples, has_ended)
        if self._first is None or self._status is None:
            return Watched(measured, seen, has_ended)
        start_up, trained = self._first.at - self._status.started, time.time() - self._first.at
        return Watched(measured, seen, has_ended, max(start_up, 0.0), max(trained, 0.0))

    def _watch_steps(self) -> None:
        until, hint_at = time.monotonic() + self._wanted.limit, time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            status = self._look()
            if self._begin is not None and self._before is None:
                self._before = self._snapshot()
            if self._is_enough():
                self._after = self._snapshot()
                self._sample_stacks(until)
                return
            if self._first is None and time.monotonic() > hint_at:
                hint_at = math.inf
                self._say(f"no step yet: {_forming(status)}{HOW_STEPS}")
            time.sleep(_INTERVAL)

    def _look(self) -> Status:
        """Ask for the status, and note the step and when it was reported."""
        client = ControlClient(self._directory)
        try:
            status = client.ask_status()
        finally:
            client.close()
        self._status, now = status, time.time()
        if status.exit_code is not None:
            raise NoSupervisorError("it has ended")
        task = self._reporter(status)
        if task is not None and task.step is not None:
            self._note(_Moment(task.step, now - (task.progress_age or 0.0)))
        for each in status.tasks:
            if each.gpu_percent is not None and self._begin is not None:
                self._gpus.setdefault(each.task, []).append(each.gpu_percent)
        return status

    def _reporter(self, status: Status) -> TaskStatus | None:
        """Return the task whose steps count: always the one that was the first to report any."""
        reporting = [task for task in status.tasks if task.step is not None]
        found = next((task for task in reporting if task.task == self._task), None) or next(iter(reporting), None)
        self._task = self._task or (found.task if found else "")
        return found

    def _note(self, moment: _Moment) -> None:
        if self._last is not None and moment.step <= self._last.step:
            return  # the same report again
        self._last = moment
        if self._first is None:
            self._first = moment
        if self._begin is None and moment.step >= self._first.step + self._wanted.warm_up:
            self._begin = moment

    def _is_enough(self) -> bool:
        if self._begin is None or self._last is None:
            return False
        return self._last.step - self._begin.step >= self._wanted.steps and self._last.at - self._begin.at >= _SHORTEST

    def _ask_stacks(self, *, with_use: bool) -> dict[str, Evidence]:
        client = ControlClient(self._directory)
        try:
            _, found, _ = ask_stacks(client, Sampling(_BETWEEN, with_use))
        finally:
            client.close()
        return {each.task: each for each in found}

    def _snapshot(self) -> _Snapshot:
        found = self._ask_stacks(with_use=True)
        return _Snapshot(time.monotonic(), found)

    def _sample_stacks(self, until: float) -> None:
        """Sample the stacks, after the measurement: this takes CPU time of the hosts."""
        try:
            for _ in range(_SAMPLES):
                for task, evidence in self._ask_stacks(with_use=False).items():
                    self._samples.setdefault(task, []).append(evidence)
                if time.monotonic() >= until + _PATIENCE:
                    return
        except NoSupervisorError:
            pass  # it has ended, with steps enough

    # ---- what was measured

    def _measured(self, examples: float | None, has_ended: bool) -> Measured | None:
        first, last, status = self._first, self._last, self._status
        begin = self._begin
        if has_ended and (begin is None or begin == last):
            begin = first  # a short training has no steps to discard
        if first is None or begin is None or last is None or status is None or last.step <= begin.step:
            return None
        task = next(task for task in status.tasks if task.task == self._task)
        examples = (task.metrics or {}).get(_EXAMPLES) if examples is None else examples
        rate = (last.step - begin.step) / (last.at - begin.at)
        training = None
        if has_ended:
            training = last.at - first.at
        elif task.total_steps:
            training = task.total_steps / rate
        return Measured(
            workers=sum(1 for each in self._plan.tasks if self._counts(each.role)),
            run=status.run,
            steps=last.step - begin.step,
            seconds=last.at - begin.at,
            start_up=max(first.at - status.started, 0.0),
            examples=examples,
            training=training,
            is_synchronous=self._plan.strategy != "parameter_server",
            tasks=tuple(self._use_of(each) for each in status.tasks if each.role != "sidecar"),
            hosts=tuple(self._host_uses(status)),
        )

    def _counts(self, role: str) -> bool:
        return role == "worker" or (role == "chief" and self._plan.strategy != "parameter_server")

    def _use_of(self, task: TaskStatus) -> TaskUse:
        gpus = self._gpus.get(task.task, [])
        use = TaskUse(task.task, task.host, gpu_percent=sum(gpus) / len(gpus) if gpus else None)
        shares = scaling.shares_of(self._samples.get(task.task, ())) if task.role in _TRAINERS else None
        if shares is not None:
            use = use._replace(input=shares[0], own=shares[1], place=shares[2])
        before, after, seconds = self._both(task.task)
        if before is None or after is None:
            return use
        return use._replace(
            cpu=_grown("cpu_seconds", before, after, seconds),
            cpu_wait=_grown("cpu_wait", before, after, seconds),
        )

    def _both(self, task: str) -> tuple[Evidence | None, Evidence | None, float]:
        if self._before is None or self._after is None:
            return None, None, 0.0
        seconds = self._after.at - self._before.at
        return self._before.evidence.get(task), self._after.evidence.get(task), max(seconds, 0.001)

    def _host_uses(self, status: Status) -> list[HostUse]:
        """Return what the hosts' cores did; names of hosts that are one machine are one host."""
        found = []
        for host in dict.fromkeys(task.host for task in status.tasks):
            here = [self._use_of(task) for task in status.tasks if task.host == host]
            before, after, seconds = self._both(here[0].task)
            if before is None or after is None or after.cores is None:
                continue
            used = sum(each.cpu or 0.0 for each in here)
            busy = ((after.busy_seconds or 0.0) - (before.busy_seconds or 0.0)) / seconds
            found.append(HostUse(host, after.cores, used, max(busy - used, 0.0)))
        return found


def _forming(status: Status) -> str:
    return "the cluster has not formed; " if status.forming is not None else ""


def _grown(field: str, before: Evidence, after: Evidence, seconds: float) -> float | None:
    """Return by how much a figure of a task's processes grew per second, None if it is not known."""
    earlier, later = _total(before, field), _total(after, field)
    return None if earlier is None or later is None else max(later - earlier, 0.0) / seconds


def _total(evidence: Evidence, field: str) -> float | None:
    known = [getattr(process.use, field) for process in evidence.processes if process.use is not None]
    values: Sequence[float] = [value for value in known if value is not None]
    return sum(values) if values else None
