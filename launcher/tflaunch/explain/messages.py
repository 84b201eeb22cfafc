"""Messages about a running job. Explains, never decides."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tflaunch import feature_faults
from tflaunch.core import annotations, events, policy, port_fence
from tflaunch.core.job_state import Cause, Job, Phase
from tflaunch.core.states import CHECKPOINT, HAS_RUN, HostPhase, HostState
from tflaunch.explain import cluster_formation, end_messages, summary
from tflaunch.explain.wording import counted, growth_words, listed, process_of
from tflaunch.plan import tensorboard
from tflaunch.plan.gpu_shares import gpus_assigned, sharing_tasks
from tflaunch.plan.model import AUTO, FENCED_OR_FAIL
from tflaunch.plan.task_starter import REFUSED
from tflaunch_worker.readable import duration_words

_MOST_OUTSIDERS = 16


class Logs(NamedTuple):
    """Location of logs, and a function that returns the last lines of a task's log."""

    place: str
    tail: Callable[[str, int], list[str]]


def messages_about(
    before: Job,
    event: events.Event | annotations.Annotation,
    after: Job,
    now: float,
    logs: Logs,
    known: annotations.Annotations = annotations.NOTHING,
) -> list[str]:
    """Return messages about one step of the supervisor, or an annotation.

    ``known`` is what was known of the run before an annotation.
    """
    if isinstance(event, annotations.Annotation):
        return _annotation_news(event, after, known)
    if after.is_told_to_end:  # whoever ends the job has told the agents, too: what follows from that is not its cause
        return []
    is_running = after.phase is Phase.RUNNING
    lines = _start_news(before, event, after, logs) if isinstance(event, events.TaskStarted) else []
    lines += _board_news(before, event, after)
    lines += end_messages.hint_news(before, event, after, logs.tail)
    if (news := _NEWS.get(type(event))) is not None:
        lines += news(before, event, after)
    lines += _given_up(before, after)
    lines += _spare_news(before, after)
    if isinstance(event, events.TaskExited | events.TaskNotStarted) and after.culprit is before.culprit:
        lines += end_messages.task_news(before, event, after, logs.tail)
    if after.culprit is not None and after.culprit is not before.culprit:
        lines += end_messages.failure_news(before, after)
    lines += _attempt_news(before, after, now, logs)
    lines += end_messages.killed_news(before, event, after)
    if is_running and before.phase is not Phase.RUNNING and after.attempt:
        lines.append(f"{summary.restart_name(after)} starts" + _without(after))
    return lines


def _joined_news(before: Job, event: events.HostJoined, after: Job) -> list[str]:
    """Return messages about a host that is back, or lacks a way out."""
    was = before.hosts[event.host].away_since
    is_back = before.phase is Phase.WAITING_FOR_HOSTS and was is not None
    took = duration_words(after.hosts[event.host].joined_at - (was or 0.0))
    back = [f"{event.host} is back after {took}"] if is_back else []
    way = event.no_way_out
    warnings = [f"warning: {port_fence.no_way_out_of(event.host, way)}"] if way else []
    return [*back, *warnings, *_sharing_news(event, after)]


def _checkpoint_news(before: Job, event: events.HostPrepared, after: Job) -> list[str]:
    """Return a message about the checkpoint of an attempt, once the last host has it."""
    is_last = before.hosts.count(CHECKPOINT) and not after.hosts.count(CHECKPOINT)
    if event.what != CHECKPOINT or not event.name or not is_last:
        return []
    step = f" (step {event.step})" if event.step else ""
    return [f"attempt {after.attempt} starts with checkpoint {event.name}{step}"]


def _breakpoint_news(before: Job, event: events.BreakpointReached, after: Job) -> list[str]:
    task = after.tasks.get(event.task)
    if task is None or task.attempt != event.attempt or task.breakpoint is None:
        return []
    return [f"{task.task} waits at a breakpoint in {task.breakpoint}: tflaunch debug {after.run} {task.task}"]


def _lingering_news(before: Job, event: events.TaskLingers, after: Job) -> list[str]:
    task = after.tasks.get(event.task)
    if task is None or task.attempt != event.attempt:
        return []
    about, left = process_of(task.task, event.host, event.pid), policy.fence(after.plan)
    return [f"{about} does not end after KILL: {event.reason}; it is given up {duration_words(left)} after that"]


def _annotation_news(annotation: annotations.Annotation, job: Job, known: annotations.Annotations) -> list[str]:
    after = known.noted(annotation, 0.0)
    match annotation:
        case annotations.CheckpointNotCopied(host, reason):
            return [f"warning: the newest checkpoint on {host} was not copied: {reason}"]
        case annotations.HostEndExplained(host, reason):
            return [f"host {host}: {reason}"]
        case annotations.FeatureFailed(feature, reason, host) if host:  # the supervisor's own are said when they happen
            return [f"warning: {feature_faults.sentence(feature, reason, job.run, host)}"]
        case annotations.HangExplained(sentence):
            return [sentence] if job.culprit is not None and policy.has_hung(job.culprit) else []
        case annotations.HangNoticed(sentence=sentence):
            gone = "the tasks go on" if known.noticed_of(job) else ""
            return [f"warning: {sentence}" if sentence else gone] if sentence or gone else []
        case annotations.StartExplained(sentence=sentence):
            return [f"hint: {sentence}"] if after.start_of(job) and policy.waited_for(job) else []
        case annotations.MemoryGrew(task=name):
            task = job.tasks.get(name)
            is_news = task is not None and after.growth_of(task) is not None and known.growth_of(task) is None
            return [f"warning: {growth_words(name, annotation.rate, annotation.left)}"] if is_news else []
        case _:
            return []


def _unfenced_news(before: Job, event: events.PortUnfenced, after: Job) -> list[str]:
    """Return a warning about the first task without a fence."""
    is_news = not before.port_fence.flaw and after.plan.network != FENCED_OR_FAIL
    return [f"warning: {port_fence.flaw_of(event)}"] if is_news else []


def _outsider_news(before: Job, event: events.OutsiderRefused, after: Job) -> list[str]:
    """Return a message about an address at its first refused connection."""
    if event.source in before.port_fence.refused or len(before.port_fence.refused) >= _MOST_OUTSIDERS:
        return []
    task = f"{event.task} on {event.host}"
    about = f"refused a connection from {event.source} to {task}, as that address is not one of the cluster's hosts"
    learnt = "" if after.plan.preflight else "leave out --no-preflight, which would have found it, or "
    return [f'{about}; if it belongs to the cluster, {learnt}set "network": "open"']


def _attempt_news(before: Job, after: Job, now: float, logs: Logs) -> list[str]:
    lines = []
    if after.phase is Phase.WAITING_FOR_HOSTS is not before.phase:
        most = duration_words(after.plan.timeouts.lost_host)
        rest = "no restart is charged for that"
        lines.append(f"waiting for {away_words(after)} for at most {most} (timeouts.lost_host); {rest}")
    if after.phase is Phase.BACKING_OFF and before.phase is not Phase.BACKING_OFF:
        lines.append(end_messages.verdict_news(before, after, now, logs.tail))
    is_repeat = before.phase is Phase.STOPPING and after.phase is Phase.PREPARING
    if is_repeat and after.culprit is not None and after.culprit.cause is Cause.TASK:  # others were told at once
        lines.append(f"{summary.cause_of_restart(after, logs.tail)}; {summary.restart_name(after)} follows")
    if after.formation.was_warned and not before.formation.was_warned and (late := cluster_formation.forming(after)):
        waited = duration_words(now - late.since)
        lines.append(f"cluster not formed: waiting {waited} for {listed(late.missing)} to listen")
    if after.formation.is_complete and before.formation.was_warned and not before.formation.is_complete:
        lines.append(f"cluster formed after {duration_words(now - after.attempt_started_at)}")
    if after.deadlines.was_late and not before.deadlines.was_late:
        lines += end_messages.late_news(after)
    if after.phase is not before.phase is Phase.RUNNING and after.exit_code == 0:
        lines += end_messages.quiet_disaster(policy.trained_alone(after, now), after.plan.trains_alone)
    return lines


def away_words(job: Job) -> str:
    """Return the lost hosts with the reasons: ``h1 (timed out); h2 (no route)``."""
    return "; ".join(f"{host.host} ({host.reason})" for host in job.away())


def _start_news(before: Job, event: events.TaskStarted, after: Job, logs: Logs) -> list[str]:
    """Return messages about a started task, with the run's name for the first."""
    is_first = after.phase is Phase.RUNNING and not after.attempt and not before.tasks.count(HAS_RUN)
    plan = after.plan
    where = f"; logs: tflaunch logs {after.run}" if plan.is_supervised_elsewhere else f", logs in {logs.place}"
    about = f"run {after.run}: {counted(len(plan.tasks or plan.sidecars), 'task')}{where}"
    notes = [*_preload_news(before, event), *_version_news(before, event, after)]
    return [about, *notes] if is_first else notes


def _preload_news(before: Job, event: events.TaskStarted) -> list[str]:
    """Return why tasks start without the requested preload, once for each reason."""
    if before.plan.preload == (AUTO,) or not event.preload.startswith(REFUSED):
        return []
    program = before.plan.find(event.task).argv
    alike = [process.task for process in before.plan.processes() if process.argv == program]
    if any(before.tasks[name].preload == event.preload for name in alike):
        return []
    verb = "starts" if len(alike) == 1 else "start"
    return [f"{listed(alike)} {verb} without preload: {event.preload.removeprefix(REFUSED)}"]


def _sharing_news(event: events.HostJoined, job: Job) -> list[str]:
    assigned = gpus_assigned(job.plan.on_host(event.host))
    if event.gpus == 0 and assigned:
        return [f"warning: {event.host} has no GPU, and its tasks are assigned {assigned}: they train on the CPU"]
    names = sharing_tasks(job.plan.on_host(event.host)) if event.gpus else []
    if len(names) < 2:
        return []
    about = f"warning: {listed(names)} share {counted(event.gpus or 0, 'GPU')} of {event.host}, and its memory"
    nccl = "NCCL takes one task for a GPU: communicate by RING, which is many times slower, or "
    remedy = "assign GPUs with `gpus` in roles, or run fewer tasks there"
    return [f"{about}; {nccl if job.plan.strategy == 'multi_worker_mirrored' else ''}{remedy}"]


def _version_news(before: Job, event: events.TaskStarted, after: Job) -> list[str]:
    """Return a warning at the first difference between TensorFlow versions."""
    if not event.tensorflow:
        return []
    known = next((task.tensorflow for task in before.tasks.values() if task.tensorflow), event.tensorflow)
    if event.tensorflow == known or len(_versions(before)) > 1:
        return []
    told = "; ".join(f"{version} on {listed(hosts)}" for version, hosts in _versions(after).items())
    return [f"warning: TensorFlow differs: {told}; install the same version everywhere"]


def _versions(job: Job) -> dict[str, list[str]]:
    """Return each TensorFlow version of the training tasks, with its hosts."""
    found: dict[str, list[str]] = {}
    for task in filter(policy.in_gang, job.plan.tasks):
        version = job.tasks[task.task].tensorflow
        if version and task.host not in found.setdefault(version, []):
            found[version].append(task.host)
    return found


def _board_news(before: Job, event: events.Event, after: Job) -> list[str]:
    if tensorboard.tensorboard_of(after.plan) is None:
        return []
    task = after.tasks[tensorboard.NAME]
    if task is before.tasks[tensorboard.NAME]:
        return []
    return tensorboard.reach(after.plan, event.port).lines() if isinstance(event, events.PortOpened) else []


def _without(job: Job) -> str:
    """Return which hosts a reduced gang runs without, as the end of a sentence."""
    tasks = {task.task for task in job.plan.tasks}
    lacking = dict.fromkeys(task.host for task in job.original.tasks if task.task not in tasks)
    down = [host for host in job.hosts_in(HostPhase.DOWN) if lacking]
    return f" without {listed(down)}: {counted(len(tasks), 'task')} of {len(job.original.tasks)}" if down else ""


def _delay_news(before: Job, event: events.HostDelayed, after: Job) -> list[str]:
    """Return a message about hosts that do not exist yet, once a reason."""
    if before.hosts[event.host].phase is not HostPhase.JOINING:
        return []  # the loss of its link has a message of its own
    is_known = any(host.reason == event.reason for host in before.hosts.values() if host.phase is HostPhase.JOINING)
    return [] if is_known else [f"waiting for {event.host}: {event.reason}"]


def _lost_link_news(before: Job, event: events.LinkLost, after: Job) -> list[str]:
    was, phase, lease = before.hosts[event.host].phase, after.hosts[event.host].phase, after.plan.lease
    reconnects = f"reconnecting for up to {duration_words(lease)}"
    return [f"lost the link to {event.host}: {event.reason}; {reconnects}"] if lease and was is not phase else []


def _restored_link_news(before: Job, event: events.LinkRestored, after: Job) -> list[str]:
    is_back = after.hosts[event.host].phase is HostPhase.CONNECTED
    return [f"the link to {event.host} is restored"] if is_back else []


def _given_up(before: Job, after: Job) -> list[str]:
    """Return messages about lost hosts that the job continues without."""
    if after.phase is not Phase.RUNNING or before.phase is not Phase.RUNNING or after.hosts is before.hosts:
        return []
    absent = (HostPhase.DOWN, HostPhase.JOINING)
    ours = [host for name, host in after.hosts.items() if not (host.is_spare or before.hosts[name].is_spare)]
    lost = [host for host in ours if before.hosts[host.host].phase not in absent and host.phase in absent]
    return [f"host {host.host} was lost: {host.reason}; the job goes on without it" for host in lost]


def _spare_news(before: Job, after: Job) -> list[str]:
    if before.hosts is after.hosts or not after.original.spares:
        return []
    changed = [(before.hosts[name], host) for name, host in after.hosts.items() if host is not before.hosts[name]]
    lines = [line for was, host in changed if (line := _news_of_spare(was, host))]
    taken = [host for was, host in changed if was.is_spare and not host.is_spare]
    lines += [_move_of(before, after, host) for host in taken]
    return lines


def _move_of(before: Job, after: Job, host: HostState) -> str:
    lost = next(name for name, was in before.hosts.items() if was.stands_for == host.stands_for)
    tasks = [process.task for process in after.process_plans() if process.host == host.host]
    verb = "moves" if len(tasks) == 1 else "move"
    why = "" if before.hosts[lost].phase is HostPhase.DOWN else f"host {lost} was lost: {after.hosts[lost].reason}; "
    return f"{why}{listed(tasks)} {verb} from {lost} to {host.host}; {summary.spares_left(after)}"


def _news_of_spare(was: HostState, host: HostState) -> str:
    if not host.is_spare:
        return ""
    name = host.host
    if host.flaw and not was.flaw:
        return f"warning: {name} is not used as a spare host: {host.flaw}"
    if not was.is_spare or was.phase is host.phase:
        return ""
    if host.phase is HostPhase.CONNECTED and was.phase is HostPhase.JOINING and (was.reason or was.failures):
        return f"{name} is a spare host now"
    if host.phase is HostPhase.DOWN and was.phase is not HostPhase.JOINING:
        return f"the spare host {name} was lost: {host.reason}; the job goes on"
    if host.phase is HostPhase.DOWN and was.reason != host.reason:
        return f"warning: the spare host {name} is not there: {host.reason}; it is tried again"
    return ""


_NEWS: Mapping[type[events.Event], Callable[[Job, Any, Job], list[str]]] = {
    events.HostDelayed: _delay_news,
    events.HostJoined: _joined_news,
    events.LinkLost: _lost_link_news,
    events.LinkRestored: _restored_link_news,
    events.OutsiderRefused: _outsider_news,
    events.PortUnfenced: _unfenced_news,
    events.HostPrepared: _checkpoint_news,
    events.BreakpointReached: _breakpoint_news,
    events.TaskLingers: _lingering_news,
    events.PortOpened: end_messages.return_news,
}
"""Messages about events that concern a host, or a task that continues."""
