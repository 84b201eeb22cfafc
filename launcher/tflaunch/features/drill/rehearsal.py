"""One training of a drill: run it, strike it when it is due, and keep what was seen."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tflaunch.api.runs import Run
from tflaunch.api.values import Result
from tflaunch.client import control_client
from tflaunch.client.observer import status_of_supervisor
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.errors import TflaunchError
from tflaunch.explain.run_status import Status
from tflaunch.explain.wording import listed
from tflaunch.features.drill.file_watch import FileEvent, FileWatch
from tflaunch.features.drill.trail import SOURCES, Life, Trail
from tflaunch.features.prune.prune import find_named, remove_run
from tflaunch.plan.model import Plan
from tflaunch.runtime import launch
from tflaunch.store.run_dir import RunDirectory

KINDS = ("kill", "term", "host", "chief")
"""What a drill does: KILL or TERM to a task, KILL to all tasks of its host, KILL to the chief."""

_INTERVAL = 0.1  # seconds; a supervisor measures anew every half second, and the output is read each time
_SETTLED = 0.5
_CHECKPOINTS = (".index", ".h5", ".hdf5", ".keras", ".npz", ".pkl", ".pickle", ".pt", ".pth", ".msgpack")
_OPTIMIZER = re.compile(rb"optimi[sz]er|opt_state|momentum|velocit|adam|iterations", re.IGNORECASE)
_MOST_READ = 64 << 20  # bytes; names come first, or in a small file of their own


class Fault(NamedTuple):
    """What is done to a training: ``kind`` of `KINDS`, to ``tasks``, at a step of the training."""

    kind: str
    tasks: tuple[str, ...]
    step: float

    @property
    def signal(self) -> signal.Signals:
        """The signal that the tasks get."""
        return signal.SIGTERM if self.kind == "term" else signal.SIGKILL

    def __str__(self) -> str:
        verb = "got TERM" if self.kind == "term" else "was killed" if len(self.tasks) == 1 else "were killed"
        return f"{listed(self.tasks)} {verb}"


class Rehearsal(NamedTuple):
    """What was seen of one training.

    Args:
        run: its name.
        result: how it ended.
        is_stopped: whether it was ended before its end.
        is_late: whether that was because it took too long.
        struck_at: when it was struck, in seconds since the epoch; None if it was not.
        trails: the attempts of each task that trains, by source (see `Trail`).
        per_epoch: see `rehearse`.
        exits: each task, and the code with which an attempt of it ended, None for a signal.
        files: what happened to the files of its directory; None if tasks had others, on other hosts.
        saves_optimizer: whether a checkpoint that was there when it was struck names the state of an optimizer; None
            if there was none.
    """

    run: str
    result: Result
    is_stopped: bool
    is_late: bool
    struck_at: float | None
    trails: Mapping[str, Mapping[str, tuple[Life, ...]]]
    per_epoch: Mapping[str, float]
    exits: Sequence[tuple[str, int | None, float]]
    files: Sequence[FileEvent] | None
    saves_optimizer: bool | None


def is_evaluator(task: str) -> bool:
    """Whether a task only evaluates what others train."""
    return task.startswith("evaluator:")


def find_fault(kind: str, plan: Plan, task: str | None, step: float) -> Fault:
    """Return the fault of a kind for a plan; ``task``: which is struck, by default the last worker."""
    training = [each.task for each in plan.tasks if each.role not in ("ps", "evaluator")]
    chief = next((each for each in training if each == "chief:0"), training[0])
    struck = chief if kind == "chief" else task or training[-1]
    if kind == "host":
        host = plan.find(struck).host
        return Fault(kind, tuple(each.task for each in plan.tasks if each.host == host), step)
    return Fault(kind, (struck,), step)


def rehearse(
    file: SpecFile,
    plan: Plan,
    directory: Path | None,
    fault: Fault | None,
    steps: float | None,
    per_epoch: Mapping[str, float],
    limit: float,
    say: Callable[[str], None],
    *,
    is_kept: bool,
) -> Rehearsal:
    """Run a plan to its end, or until it has done ``steps``, and strike it at the step of ``fault``.

    Args:
        file: the spec, which the run keeps.
        plan: what is run.
        directory: where its tasks write, if that is on this machine and of this run alone.
        fault: what is done to it.
        steps: after how many steps of each task TERM ends it.
        per_epoch: steps of an epoch by tasks, where those of each begin again, as the training before has shown.
        limit: seconds after which it is ended.
        say: takes messages.
        is_kept: whether its directory with the logs stays.

    Raises:
        TflaunchError: the run cannot begin, or its supervisor was killed.
    """
    with launch.new_directory(plan, None, file.suffix, file.text.encode()) as run_directory:
        what = "undisturbed" if fault is None else f"{fault.kind} {listed(fault.tasks)} at step {fault.step:g}"
        say(f"run {run_directory.run}: {what}")
        launch.start_supervisor(plan, run_directory, is_owned=True)
    if not all(host.is_like_here for host in plan.hosts):
        directory = None
    watched = _Watched(plan, run_directory, directory, fault, steps, per_epoch)
    files = FileWatch(directory, lambda: watched.pids) if directory is not None else None
    try:
        with Run(run_directory.path, is_owned=True) as run:  # which ends the run, after Ctrl-C, too
            watched.watch(run, time.monotonic() + limit, say)
        result = run.wait()  # no limit: it has ended
        watched.look(is_over=True)
        ends = [event for event in run.events() if event.kind == "task_exited"]
        exits = [(str(end.data.get("task")), end.data.get("code"), end.time) for end in ends]
    finally:
        if files is not None:
            files.close()
        if not is_kept:
            _remove(run_directory, say)
    trails = {task: {source: trail.lives(source) for source in SOURCES} for task, trail in watched.trails.items()}
    seen = files.events if files is not None else None
    lengths = {task: trail.per_epoch for task, trail in watched.trails.items()}
    how = (result, watched.is_stopped, watched.is_late, watched.struck_at)
    return Rehearsal(run_directory.run, *how, trails, lengths, exits, seen, watched.saves_optimizer)


def _remove(run: RunDirectory, say: Callable[[str], None]) -> None:
    """Remove a run, also what it has on other hosts."""
    try:
        for old in find_named([run.run], time.time()).runs:
            remove_run(old, with_hosts=True)
    except TflaunchError as error:
        say(f"{error}; `tflaunch prune --hosts {run.run}` removes it")


class _Watched:
    """The steps of a run while it goes on."""

    def __init__(
        self,
        plan: Plan,
        run: RunDirectory,
        directory: Path | None,
        fault: Fault | None,
        steps: float | None,
        per_epoch: Mapping[str, float],
    ) -> None:
        tasks = [each.task for each in plan.tasks if each.role != "ps"]
        self.trails = {task: Trail(task, run, per_epoch.get(task, 0.0)) for task in tasks}
        self.pids: dict[str, int] = {}
        self.struck_at: float | None = None
        self.is_stopped = self.is_late = False
        self.saves_optimizer: bool | None = None
        self._directory = directory
        self._fault = fault
        self._steps = steps

    def watch(self, run: Run, until: float, say: Callable[[str], None]) -> None:
        """Watch until the run ends, or end it: after its steps, or ``until`` a time of the monotonic clock."""
        while True:
            status = status_of_supervisor(run.directory)
            if status is None or status.exit_code is not None:
                return
            self._note(status)
            self.look()
            if self._fault is not None and self.struck_at is None and self._step() >= self._fault.step:
                self._strike(run, self._fault, say)
            has_done = self._steps is not None and self._step() >= self._steps and not self._waits()
            self.is_late = time.monotonic() >= until
            if has_done or self.is_late or self._has_given_up(status):
                self.is_stopped = True
                control_client.request_stop(run.directory, None)
                return
            time.sleep(_INTERVAL)

    def _has_given_up(self, status: Status) -> bool:
        """Whether a task has taken TERM for its end; others may wait for it for ever."""
        struck = self._fault.tasks if self._fault is not None and self.struck_at is not None else ()
        return any(task.task in struck and task.exit_code == 0 and task.attempt == 0 for task in status.tasks)

    def look(self, *, is_over: bool = False) -> None:
        """Read what the tasks have written since."""
        for trail in self.trails.values():
            trail.read(is_over=is_over)

    def _note(self, status: Status) -> None:
        now = time.time()
        for task in status.tasks:
            if task.task in self.trails:
                self.trails[task.task].note(task, now)
        self.pids = {task.task: task.pid for task in status.tasks if task.pid is not None}

    def _step(self) -> float:
        """Return the step that the training has reached in the attempts that run now."""
        return max((reached(trail) for task, trail in self.trails.items() if not is_evaluator(task)), default=0.0)

    def _waits(self) -> bool:
        """Whether the fault is still to come, or what was struck has not come as far again."""
        return self._fault is not None and (
            self.struck_at is None or time.time() - self.struck_at < _SETTLED or not self._has_begun_again()
        )

    def _has_begun_again(self) -> bool:
        assert self.struck_at is not None
        since = self.struck_at
        return any(
            life.points and life.points[-1].time > since and life.points[-1].step >= (self._steps or 0)
            for trail in self.trails.values()
            if (source := trail.source())
            for life in trail.lives(source)[-1:]
        )

    def _strike(self, run: Run, fault: Fault, say: Callable[[str], None]) -> None:
        if self._directory is not None:
            self.saves_optimizer = _names_optimizer(self._directory)
            time.sleep(_INTERVAL)  # so that our own reading is seen to be before the fault
        now = time.time()
        with suppress(TflaunchError):  # they have just ended by themselves, which the run tells
            if control_client.request_signal(run.directory, fault.signal, fault.tasks):
                self.struck_at = now
                say(f"{fault}, at step {self._step():g}")


def reached(trail: Trail) -> float:
    """Return the last step of a task's last attempt, 0 before its first."""
    source = trail.source()
    lives = trail.lives(source) if source else ()
    return lives[-1].points[-1].step if lives and lives[-1].points else 0.0


def _names_optimizer(directory: Path) -> bool | None:
    """Return whether the newest checkpoint below a directory names an optimizer's state; None if there is none."""
    files = (Path(place, name) for place, _, names in os.walk(directory) for name in names)
    kept = [file for file in files if file.suffix in _CHECKPOINTS]
    with suppress(OSError):  # it was replaced meanwhile
        newest = max(kept, key=lambda file: file.stat().st_mtime, default=None)
        if newest is not None:
            with newest.open("rb") as opened:
                return bool(_OPTIMIZER.search(opened.read(_MOST_READ)))
    return None
