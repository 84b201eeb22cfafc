"""Derive a run's status from its job, its agents and its tasks' reports.

Pure: times of the supervisor's clock are converted to times since the epoch by an offset.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from tflaunch.clusterspec.values import Address
from tflaunch.core import lost_hosts, policy, restart_rules
from tflaunch.core.annotations import NOTHING, Annotations
from tflaunch.core.job_state import Cause, Culprit, Job, Phase
from tflaunch.core.states import HostPhase, Measure, TaskPhase, TaskState
from tflaunch.explain import assessment, causes, cluster_formation, summary
from tflaunch.explain.run_status import CheckpointStatus, HangStatus, HostStatus, Status, TaskStatus
from tflaunch.plan import tensorboard
from tflaunch.plan.model import TaskPlan

_SHORTEST_LIFE = 0.5  # seconds after which CPU time is a percentage; before, the start of Python counts as hundreds

_USED = ("cpu_seconds", "rss_bytes", "shared_bytes", "gpu_percent", "gpu_bytes")
_REPORTED = ("step", "epoch", "epochs", "steps_per_epoch")
"""Fields of a `Measure` and its `Progress`, and of a `TaskStatus`."""


class StatusInputs(NamedTuple):
    """Inputs of a run's status other than its job.

    ``now`` is the time, in seconds of the supervisor's clock; adding ``epoch`` converts such times to seconds since
    the epoch; ``silences`` is the time since the last message of each host, in seconds; ``cpu`` is each task's recent
    CPU usage, in percent of one CPU; ``known`` is what annotations tell; ``verbs`` are the commands of features, and
    ``end`` the sentence about the run's end, as in `assessment.assessed`.
    """

    epoch: float
    logs: str
    is_alive: bool
    now: float
    measures: Mapping[str, Measure] = {}
    cpu: Mapping[str, float] = {}
    silences: Mapping[str, float] = {}
    known: Annotations = NOTHING
    verbs: Collection[str] = ()
    end: str = ""


def status(job: Job, inputs: StatusInputs, exit_code: int | None = None) -> Status:
    """Return the status of a run.

    ``exit_code`` is tflaunch's once it is known, which may differ from the job's.
    """
    job = inputs.known.explained(job)
    culprit, hangs = job.culprit, inputs.known.noticed_of(job)
    forming = cluster_formation.forming(job, inputs.known)
    found = Status(
        run=job.run,
        name=job.original.name,
        phase=assessment.STARTING,
        state=state_of_run(job, exit_code),
        attempt=job.attempt,
        restarts=summary.restarts(job),
        restart=summary.restart_name(job) or None,
        max_restarts=job.plan.restart.max,
        last_failure=None if job.restarts.last_failure is None else _reason(job.restarts.last_failure, job),
        exit_code=job.exit_code if exit_code is None else exit_code,
        culprit=None if culprit is None else culprit.name,
        reason=None if culprit is None else _reason(culprit, job),
        forming=None if forming is None else forming._replace(since=_since_epoch(forming.since, inputs)),
        supervisor="alive" if inputs.is_alive else "dead",
        started=_since_epoch(job.started_at, inputs),
        logs=inputs.logs,
        tensorboard=_board(job),
        hosts=tuple(_host(job, host.host, inputs) for host in job.original.hosts),
        tasks=tuple(_task(job, job.process(process.task), inputs) for process in job.original.processes()),
        outsiders=job.port_fence.refused,
        checkpoint=_checkpoint(job, inputs),
        hang=HangStatus(hangs, _since_epoch(inputs.known.noticed[2], inputs)) if hangs else None,
    )
    return assessment.assessed(found, inputs.now + inputs.epoch, inputs.verbs, inputs.end)


def _checkpoint(job: Job, inputs: StatusInputs) -> CheckpointStatus | None:
    found = job.checkpoint
    if found is None:
        return None
    return CheckpointStatus(found.name, found.step or None, _since_epoch(found.at, inputs), found.hosts)


def _board(job: Job) -> tensorboard.Reach | None:
    process = tensorboard.tensorboard_of(job.plan)
    if process is None:
        return None
    task = job.tasks[process.task]
    return tensorboard.reach(job.plan, task.port) if task.is_alive and task.is_port_open else None


def _reason(culprit: Culprit, job: Job) -> str:
    """Return a sentence about a culprit, with the exception that it raised."""
    exception = f" ({culprit.failure})" if restart_rules.is_raised(culprit.failure) else ""
    return causes.describe(culprit, job.plan) + exception


def _since_epoch(time: float, inputs: StatusInputs) -> float:
    return round(time + inputs.epoch, 3)


def _host(job: Job, host: str, inputs: StatusInputs) -> HostStatus:
    state = job.hosts[host]
    silence = inputs.silences.get(host)
    if state.phase is not HostPhase.DISCONNECTED:
        since, until = state.away_since, lost_hosts.waited_for_until(job, state)
    else:
        since, until = state.since, state.fence_at
    return HostStatus(
        host,
        state.phase.value,
        state.flaw or state.reason or None,
        None if silence is None else round(silence, 3),
        None if since is None else _since_epoch(since, inputs),
        None if until is None else _since_epoch(until, inputs),
        is_spare=state.is_spare if job.original.spares else None,
        replaces=_moved_from(job, host),
    )


def _task(job: Job, process: TaskPlan, inputs: StatusInputs) -> TaskStatus:
    task = job.tasks[process.task]
    state = state_of(job, task, process.host)
    is_overdue = state == "running" and task.breakpoint is None and policy.is_overdue(job, task, inputs.now)
    growth = inputs.known.growth_of(task) if state == "running" else None
    shown = TaskStatus(
        task=task.task,
        role=process.role,
        host=process.host,
        address=_address(job, process),
        state="waiting" if is_overdue else state,
        pid=task.pid if task.is_alive or task.unended is not None else None,
        attempt=task.attempt,
        exit_code=task.exit.code,
        signal=task.exit.signal,
        preload=task.preload or None,
        since=_since_epoch(task.since, inputs) if task.since else None,
        listening=task.is_port_open if task.is_alive and policy.listens(job.plan, task.task) else None,
        waiting_since=_since_epoch(task.since, inputs) if is_overdue else None,
        moved_from=_moved_from(job, process.host),
        breakpoint=str(task.breakpoint) if task.breakpoint is not None and state == "running" else None,
        unended=None if task.unended is None else task.unended.reason,
        memory_growth=None if growth is None else round(growth.rate),
        memory_full_at=None if growth is None else _since_epoch(growth.full_at, inputs),
    )
    if not task.is_alive:
        return shown._replace(
            step=task.reached.step or None, epoch=task.reached.epoch or None, metrics=dict(task.metrics) or None
        )
    measure = inputs.measures.get(task.task)
    return shown if measure is None or measure.attempt != task.attempt else _measured(shown, measure, task, inputs)


def _moved_from(job: Job, host: str) -> str | None:
    home = job.hosts[host].stands_for
    return home if home not in ("", host) else None


def _address(job: Job, process: TaskPlan) -> str | None:
    """Return the address at which the others reach the task, with its chosen port."""
    if process.address is None:
        return None
    port = job.ports.get(process.task) or job.tasks[process.task].port or process.address.port
    return str(Address(process.address.host, port))


def state_of(job: Job, task: TaskState, host: str) -> str:
    """Return the state of a task, as shown to users."""
    if task.is_alive and task.phase is not TaskPhase.EXITED:
        if job.hosts[host].phase is HostPhase.DISCONNECTED:
            return "disconnected"
        return "stopping" if task.is_stopping else str(task.phase.value)
    if task.resume_at is not None or (job.phase is Phase.BACKING_OFF and task.phase is TaskPhase.GONE):
        return "restarting"
    if task.phase is TaskPhase.IDLE:
        return "waiting"
    return outcome_of(task)


def outcome_of(task: TaskState) -> str:
    """Return how an attempt of a task that has ended counts, as shown to users."""
    if task.exit.code == 0 and not task.exit.was_cut_short:
        return "succeeded"
    if task.exit.code is None and task.exit.signal is None:
        return "stopped" if task.is_stopping and task.unended is None else "lost"
    return "stopped" if task.exit.was_stopped else "failed"


def state_of_run(job: Job, exit_code: int | None) -> str:
    """Return the state of a run, as shown to users.

    This is ``succeeded``, ``failed``, ``stopped`` (by `tflaunch down`, or by the engine of its job, if that
    says why), ``interrupted`` (by a signal to tflaunch), or the phase of a job that has no exit code.
    """
    code = job.exit_code if exit_code is None else exit_code
    if code is None:
        return job.phase.value
    if code == 0:
        return "succeeded"
    if job.culprit is None or job.culprit.cause is not Cause.SIGNAL:
        return "failed" if job.exit_code else "interrupted"  # a signal while the last output of a finished job was read
    return "stopped" if job.culprit.message else "interrupted"


def _measured(shown: TaskStatus, measure: Measure, task: TaskState, inputs: StatusInputs) -> TaskStatus:
    is_current = shown.state != "disconnected"
    if is_current:
        used = {name: getattr(measure, name) for name in _USED}
        cpu = _cpu(measure, task, inputs)
        shown = shown._replace(cpu_percent=cpu, refused_connections=measure.refused, **used)
    if (progress := measure.progress) is None:
        return shown
    reported = {name: getattr(progress, name) for name in _REPORTED}
    shown = shown._replace(metrics=dict(progress.metrics), progress_age=progress.age, **reported)
    steps_per_second = progress.steps_per_second if is_current else None
    return shown._replace(steps_per_second=steps_per_second, is_progress_from_output=progress.is_from_output)


def _cpu(measure: Measure, task: TaskState, inputs: StatusInputs) -> float | None:
    """Return recent CPU usage in percent of one CPU."""
    if task.task in inputs.cpu:
        return round(inputs.cpu[task.task], 1)
    lived = inputs.now - task.since
    return (
        None if measure.cpu_seconds is None or lived < _SHORTEST_LIFE else round(measure.cpu_seconds / lived * 100, 1)
    )
