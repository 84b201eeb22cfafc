"""Status of a run, as in `tflaunch ps --json`: from the job, its agents and its tasks' reports.

Pure: times of the supervisor's clock are converted to times since the epoch by an offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tflaunch.core import policy
from tflaunch.core.job_state import Cause, HostPhase, Job, Phase, TaskPhase, TaskState
from tflaunch.core.measures import Measure
from tflaunch.explain import cluster_formation, summary
from tflaunch.plan import tensorboard
from tflaunch.plan.model import TaskPlan


class Sight(NamedTuple):
    """Inputs of a run's status other than its job.

    ``now`` is the time, in seconds of the supervisor's clock; adding ``epoch`` converts such times to seconds since
    the epoch; ``silences`` is the time since the last message of each host, in seconds; ``cpu`` is each task's recent
    CPU usage, in percent of one CPU.
    """

    epoch: float
    logs: str
    is_alive: bool
    now: float
    measures: Mapping[str, Measure] = {}
    cpu: Mapping[str, float] = {}
    silences: Mapping[str, float] = {}


def status(job: Job, sight: Sight, exit_code: int | None = None) -> dict[str, Any]:
    """Return the status of a run as plain JSON.

    Args:
        job: the job.
        sight: the other inputs.
        exit_code: tflaunch's exit code once it is known; it may differ from the job's.
    """
    culprit = job.culprit
    return {
        "run": job.run,
        "name": job.original.name,
        "phase": job.phase.value,
        "state": state_of_run(job, exit_code),
        "attempt": job.attempt,
        "restarts": summary.restarts(job),
        "restart": summary.restart_name(job) or None,
        "max_restarts": job.plan.restart.max,
        "last_failure": _last_failure(job),
        "exit_code": job.exit_code if exit_code is None else exit_code,
        "culprit": None if culprit is None else culprit.name,
        "reason": None if culprit is None else summary.describe(culprit),
        "forming": _forming(job, sight),
        "supervisor": "alive" if sight.is_alive else "dead",
        "started": _moment(job.started_at, sight),
        "logs": sight.logs,
        "tensorboard": _board(job),
        "hosts": [_host(job, host.host, sight) for host in job.original.hosts],
        "tasks": [_task(job, process, sight) for process in job.original.processes()],
    }


def _board(job: Job) -> dict[str, Any] | None:
    """Return how to reach TensorBoard; None if it does not listen."""
    process = tensorboard.tensorboard_of(job.plan)
    if process is None:
        return None
    task = job.tasks[process.task]
    port = job.ports.get(process.task)
    return tensorboard.reach(job.plan, port)._asdict() if port and task.is_alive and task.is_port_open else None


def _last_failure(job: Job) -> str | None:
    """Return the reason for the latest restart; None without one."""
    culprit = job.last_failure
    if culprit is None:
        return None
    exception = f" ({culprit.failure})" if policy.is_raised(culprit.failure) else ""
    return summary.describe(culprit) + exception


def _forming(job: Job, sight: Sight) -> dict[str, Any] | None:
    """Return which tasks keep the cluster from forming; None if no task is overdue."""
    found = cluster_formation.forming(job)
    if found is None:
        return None
    return {**found._asdict(), "since": _moment(found.since, sight)}


def _moment(time: float, sight: Sight) -> float:
    return round(time + sight.epoch, 3)


def _host(job: Job, host: str, sight: Sight) -> dict[str, Any]:
    state = job.hosts[host]
    return {
        "host": host,
        "state": state.phase.value,
        "reason": state.reason or None,
        "silence": None if (silence := sight.silences.get(host)) is None else round(silence, 3),
    }


def _task(job: Job, process: TaskPlan, sight: Sight) -> dict[str, Any]:
    task = job.tasks[process.task]
    measure = sight.measures.get(task.task) if task.is_alive else None
    if measure is not None and measure.attempt != task.attempt:
        measure = None
    state = state_of(job, task, process.host)
    is_overdue = state == "running" and policy.is_overdue(job, task, sight.now)
    return {
        "task": task.task,
        "role": process.role,
        "host": process.host,
        "address": _address(job, process),
        "state": "waiting" if is_overdue else state,
        "pid": task.pid if task.is_alive else None,
        "attempt": task.attempt,
        "exit_code": task.code,
        "signal": task.signal,
        "preload": task.preload or None,
        "since": _moment(task.since, sight) if task.since else None,
        "listening": task.is_port_open if task.is_alive and policy.listens(job.plan, task.task) else None,
        "waiting_since": _moment(task.since, sight) if is_overdue else None,
        **(_measured(measure) if task.is_alive else _last_known(task)),
        "cpu_percent": None if measure is None else _cpu(measure, task, sight),
    }


def _address(job: Job, process: TaskPlan) -> str | None:
    """Return the address at which the others reach the task, with its chosen port."""
    if process.address is None:
        return None
    port = job.ports.get(process.task) or process.address.port
    return f"{process.address.host}:{port or 'auto'}"


def state_of(job: Job, task: TaskState, host: str) -> str:
    """Return the state of a task, as shown to users."""
    if task.is_alive and task.phase is not TaskPhase.EXITED:
        return _state_of_living(job, task, host)
    if task.resume_at is not None or (job.phase is Phase.BACKING_OFF and task.phase is TaskPhase.GONE):
        return "restarting"
    if task.phase is TaskPhase.IDLE:
        return "waiting"
    if task.code == 0:
        return "succeeded"
    if task.code is None and task.signal is None:
        return "stopped" if task.is_stopping else "lost"
    return "stopped" if task.was_stopped else "failed"


def state_of_run(job: Job, exit_code: int | None) -> str:
    """Return the state of a run, as shown to users.

    This is ``succeeded``, ``failed``, ``stopped`` (by `tflaunch down`), ``interrupted`` (by a signal to tflaunch), or
    the phase of a job that has no exit code.

    Args:
        job: the job.
        exit_code: tflaunch's exit code, None while it is not known.
    """
    code = job.exit_code if exit_code is None else exit_code
    if code is None:
        return job.phase.value
    if code == 0:
        return "succeeded"
    if job.culprit is None or job.culprit.cause is not Cause.SIGNAL:
        return "failed" if job.exit_code else "interrupted"  # a signal while the last output of a finished job was read
    return "stopped" if job.culprit.message else "interrupted"


def _state_of_living(job: Job, task: TaskState, host: str) -> str:
    if job.hosts[host].phase is HostPhase.DISCONNECTED:
        return "disconnected"
    if task.is_stopping:
        return "stopping"
    return str(task.phase.value)


def _cpu(measure: Measure, task: TaskState, sight: Sight) -> float | None:
    """Return recent CPU usage in percent of one CPU; at the first measurement, the average so far."""
    if task.task in sight.cpu:
        return round(sight.cpu[task.task], 1)
    lived = sight.now - task.since
    return None if measure.cpu_seconds is None or lived <= 0 else round(measure.cpu_seconds / lived * 100, 1)


def _measured(measure: Measure | None) -> dict[str, Any]:
    """Return the resource usage and reported progress of a living task."""
    progress = None if measure is None else measure.progress
    used = {name: getattr(measure, name, None) for name in _USED}
    said = {name: getattr(progress, name, None) for name in _PROGRESS}
    return {**used, **said, "metrics": dict(progress.metrics) if progress is not None else None}


def _last_known(task: TaskState) -> dict[str, Any]:
    """Return the last progress of an ended task, without resource usage."""
    reached = {"step": task.reached.step or None, "epoch": task.reached.epoch or None}
    return {**_measured(None), **reached, "metrics": dict(task.metrics) or None}


_USED = ("cpu_seconds", "rss_bytes", "shared_bytes", "gpu_percent", "gpu_bytes")
_PROGRESS = ("step", "steps_per_second", "epoch", "epochs", "steps_per_epoch")
