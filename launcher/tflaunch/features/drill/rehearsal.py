"""Run one training of a drill, strike it when it is due, and record what is seen."""

import glob
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tflaunch.api.runs import Run
from tflaunch.cli.arguments.spec import say
from tflaunch.client import control_client
from tflaunch.client.observer import status_of_supervisor
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.errors import TflaunchError
from tflaunch.explain.run_status import Status
from tflaunch.explain.wording import listed
from tflaunch.features.drill.file_watch import FileWatch
from tflaunch.features.drill.records import BESTS, SOURCES, Fault, Point, Rehearsal, Saved, is_evaluator
from tflaunch.features.drill.saved_files import OPTIMIZER, names_variables, place_of_iterations
from tflaunch.features.drill.trail import Trail
from tflaunch.features.prune import drills
from tflaunch.features.prune.prune import find_named, remove_run
from tflaunch.plan.model import Plan
from tflaunch.runtime import launch
from tflaunch.store.run_dir import RunDirectory

_INTERVAL = 0.1  # seconds; a supervisor measures every half second, and the output is read each time
_SETTLED = 0.5
_MOST_READ = 64 << 20  # bytes; names come first, or in a small file of their own


class Training(NamedTuple):
    """A training to be watched.

    Args:
        file: the spec, which the run keeps.
        plan: what is run.
        directory: where its tasks write, if that is on this machine.
        scratch: the drill's own directory, which keeps the name of the run until that is removed.
        is_kept: whether the run stays.
        fault: what is done to it.
        steps: after how many steps of each task TERM ends it.
        calm: the undisturbed training, which has shown what tells the steps; None for that itself.
        limit: seconds after which it is ended.
    """

    file: SpecFile
    plan: Plan
    directory: Path
    scratch: Path
    is_kept: bool
    fault: Fault | None = None
    steps: float | None = None
    calm: Rehearsal | None = None
    limit: float = math.inf


def find_fault(kind: str, plan: Plan, task: str | None, step: float) -> Fault:
    """Return a fault for a plan; ``task``: which is struck, or else the last worker."""
    training = [each.task for each in plan.tasks if each.role not in ("ps", "evaluator")]
    chief = next((each for each in training if each == "chief:0"), training[0])
    struck = chief if kind == "chief" else task or training[-1]
    if kind == "host":
        host = plan.find(struck).host
        return Fault(kind, tuple(each.task for each in plan.tasks if each.host == host), step)
    return Fault(kind, (struck,), step)


def rehearse(training: Training) -> Rehearsal:
    """Run a training until it has done its steps, and strike it at its fault's step.

    Raises:
        TflaunchError: the run cannot begin, or its supervisor was killed.
    """
    file, plan, fault = training.file, training.plan, training.fault
    with launch.new_directory(plan, None, file.suffix, file.text.encode()) as run_directory:
        what = "undisturbed" if fault is None else f"{fault.kind} {listed(fault.tasks)} at step {fault.step:g}"
        say(f"run {run_directory.run}: {what}")
        if not training.is_kept:
            drills.note_run(training.scratch, run_directory.run)
        launch.start_supervisor(plan, run_directory, is_owned=True)
    directory = training.directory if all(host.is_like_here for host in plan.hosts) else None
    watched = _Watched(training, run_directory, directory)
    files = FileWatch(directory, lambda: watched.pids) if directory is not None else None
    try:
        with Run(run_directory.path, is_owned=True) as run:  # which ends the run, after Ctrl-C, too
            watched.watch(run)
        result = run.wait()  # no limit: it has ended
        watched.look(is_over=True)
        ends = [event for event in run.events() if event.kind == "task_exited"]
    finally:
        if files is not None:
            files.close()
        if not training.is_kept:
            _remove(run_directory)
    return Rehearsal(
        result.exit_code,
        result.summary,
        watched.is_stopped,
        watched.is_late,
        watched.struck_at,
        {task: {name: trail.lives(name) for name in (*SOURCES, BESTS)} for task, trail in watched.trails.items()},
        {task: trail.per_epoch for task, trail in watched.trails.items()},
        [(str(end.data.get("task")), end.data.get("code"), end.time) for end in ends],
        files.events if files is not None else None,
        watched.saved,
    )


def _remove(run: RunDirectory) -> None:
    """Remove a run, also what it has on other hosts."""
    try:
        for old in find_named([run.run], time.time()).runs:
            remove_run(old, with_hosts=True)
    except TflaunchError as error:
        say(f"{error}; `tflaunch prune --hosts {run.run}` removes it")


class _Watched:
    """The steps of a run while it goes on."""

    def __init__(self, training: Training, run: RunDirectory, directory: Path | None) -> None:
        tasks = [each.task for each in training.plan.tasks if each.role != "ps"]
        calm = training.calm
        self.trails = {task: Trail(task, run, calm.per_epoch[task] if calm else 0.0) for task in tasks}
        self.pids: dict[str, int] = {}
        self.struck_at: float | None = None
        self.is_stopped = self.is_late = False
        self.saved: Saved | None = None
        self._directory = directory
        self._fault = training.fault
        self._source = calm.source() if calm else ""
        self._steps = training.steps
        self._until = time.monotonic() + training.limit

    def watch(self, run: Run) -> None:
        """Watch until the run ends, or end it: after its steps, or when it takes too long."""
        while True:
            status = status_of_supervisor(run.directory)
            if status is None or status.exit_code is not None:
                return
            self.pids = {task.task: task.pid for task in status.tasks if task.pid is not None}
            self.look()
            if self._fault is not None and self.struck_at is None and self._step() >= self._fault.step:
                self._strike(run, self._fault)
            has_done = self._steps is not None and self._step() >= self._steps and not self._waits()
            self.is_late = time.monotonic() >= self._until
            if has_done or self.is_late or self._has_given_up(status):
                self.is_stopped = True
                control_client.request_stop(run.directory, None)
                return
            time.sleep(_INTERVAL)

    def _has_given_up(self, status: Status) -> bool:
        """Whether a task has taken TERM for its end; others may wait for it without end."""
        struck = self._fault.tasks if self._fault is not None and self.struck_at is not None else ()
        return any(task.task in struck and task.exit_code == 0 and task.attempt == 0 for task in status.tasks)

    def look(self, *, is_over: bool = False) -> None:
        """Read what the tasks have written since."""
        for trail in self.trails.values():
            trail.read(is_over=is_over)

    def _step(self) -> float:
        """Return the step that the training has reached in the attempts that run now."""
        return max((point.step for point in self._last_points()), default=0.0)

    def _last_points(self) -> Iterator[Point]:
        """Yield the last point of each task that trains, of its last attempt."""
        for trail in (trail for task, trail in self.trails.items() if not is_evaluator(task)):
            if lives := trail.lives(self._source or trail.source() or SOURCES[0]):
                yield lives[-1].points[-1]

    def _waits(self) -> bool:
        """Whether the fault is still due, or what it struck has not come as far again."""
        since, step = self.struck_at, self._steps or 0
        if since is None or time.time() - since < _SETTLED:
            return self._fault is not None
        return not any(point.time > since and point.step >= step for point in self._last_points())

    def _strike(self, run: Run, fault: Fault) -> None:
        if self._directory is not None:
            self.saved = _newest_saved(self._directory)
            time.sleep(_INTERVAL)  # so that our own reading is seen to be before the fault
        now = time.time()
        with suppress(TflaunchError):  # they have just ended by themselves, which the run tells
            if control_client.request_signal(run.directory, fault.signal, fault.tasks):
                self.struck_at = now
                say(f"{fault}, at step {self._step():g}")


def _newest_saved(directory: Path) -> Saved | None:
    """Return the state of the optimizer in the newest checkpoint below a directory."""
    files = (Path(place, name) for place, _, names in os.walk(directory) for name in names)
    with suppress(OSError):  # it has just been replaced
        kept = [file for file in files if names_variables(str(file.relative_to(directory)))]
        if kept:
            newest = max(kept, key=lambda file: file.stat().st_mtime)
            with newest.open("rb") as opened:
                names = opened.read(_MOST_READ)
            return Saved(str(newest.relative_to(directory)), bool(OPTIMIZER.search(names)), _iterations(newest, names))
    return None


def _iterations(index: Path, names: bytes) -> int | None:
    """Return the steps of the optimizer in a TensorFlow checkpoint; None if unknown."""
    place = place_of_iterations(names)
    data = sorted(index.parent.glob(f"{glob.escape(index.stem)}.data-*"))
    if place is None or place[0] >= len(data):
        return None
    with data[place[0]].open("rb") as opened:
        opened.seek(place[1])
        return int.from_bytes(opened.read(8), sys.byteorder)
