"""Compare what was seen of tasks at several times: whether anything moves. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from tflaunch.explain.run_status import Status, TaskStatus
from tflaunch.features.hang.evidence import Evidence
from tflaunch.features.hang.position import IDLE, Kind, Position, position_of
from tflaunch.plan.model import SIDECAR

_IDLE_CPU = 0.02  # CPUs, of the time without a wait for one; threads of an idle TensorFlow that poll use a tenth
_IDLE_WAIT = 0.5  # CPUs used or waited for; what polls waits for less, on any machine
_IDLE_BYTES = 1024.0, 128.0  # per second: of a task, and for each task with which it exchanges signs of life
_IDLE_GPU = 5.0  # percent


class Look(NamedTuple):
    """What was seen at a time of tasks that may be awaited, on hosts that answered."""

    at: float
    evidence: Mapping[str, Evidence]
    positions: Mapping[str, Position]
    gpus: Mapping[str, float]


def look(at: float, status: Status, evidence: Mapping[str, Evidence]) -> Look:
    """Return a look at the tasks at a time."""
    seen = [task for task in status.tasks if task.task in evidence and _may_be_awaited(task, evidence[task.task])]
    positions = {task.task: position_of(task, evidence[task.task]) for task in seen}
    gpus = {task.task: task.gpu_percent or 0.0 for task in seen}
    return Look(at, {name: evidence[name] for name in positions}, positions, gpus)


def _may_be_awaited(task: TaskStatus, evidence: Evidence) -> bool:
    """Whether others may wait for a task: not for a sidecar that does not listen."""
    sockets = (socket for process in evidence.processes for socket in process.sockets)
    return task.role != SIDECAR or any(socket.state == "listening" for socket in sockets)


def is_held(seen: Look) -> bool:
    """Whether a person holds a task: it is stopped, or waits for a debugger."""
    return any(at.kind in (Kind.STOPPED, Kind.DEBUGGED) for at in seen.positions.values())


def is_still(seen: Look) -> bool:
    """Whether no task computes, or makes input for one that waits."""
    return bool(seen.positions) and all(at.is_stuck or at.does in IDLE for at in seen.positions.values())


def wait_for_peers(seen: Look) -> bool:
    """Whether a task waits in a library for others."""
    return any(at.is_stuck and at.kind in (Kind.LIBRARY, Kind.FORMS) for at in seen.positions.values())


def moves(before: Look, after: Look, may_compute: bool = False) -> bool:
    """Whether a task moved between two looks, with ``may_compute`` not by computing."""
    names = before.evidence.keys() & after.evidence.keys()
    return any(_moves(before, after, name, len(names), may_compute) for name in names)


def _moves(before: Look, after: Look, task: str, tasks: int, may_compute: bool) -> bool:
    earlier = {process.pid: process for process in before.evidence[task].processes}
    later = {process.pid: process for process in after.evidence[task].processes}
    passed = after.at - before.at
    was, at = before.positions[task], after.positions[task]
    if earlier.keys() != later.keys() or (was.own, was.inner) != (at.own, at.inner):
        return True
    moved = sum(abs(later[pid].traffic - earlier[pid].traffic) for pid in later)
    if moved > (_IDLE_BYTES[0] + _IDLE_BYTES[1] * tasks) * passed:
        return True
    caller = at.caller if may_compute else None
    computing = [pid for pid in later if pid != caller]
    used = sum(later[pid].cpu_seconds - earlier[pid].cpu_seconds for pid in computing) / passed
    waited = sum(max(later[pid].wait_seconds - earlier[pid].wait_seconds, 0.0) for pid in computing) / passed
    is_busy = used > _IDLE_CPU * (1 - waited) or used + waited > _IDLE_WAIT
    return is_busy or (caller is None and after.gpus[task] > _IDLE_GPU)
