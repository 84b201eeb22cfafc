"""Summarize why a job ended and where its results are. Explains only."""

import re
import signal
from collections.abc import Callable
from typing import NamedTuple

from tflaunch.clusterspec.values import LOCALHOST
from tflaunch.core import preflight, restart_rules, spares
from tflaunch.core.annotations import NOTHING, Annotations
from tflaunch.core.job_state import Cause, Culprit, Job
from tflaunch.core.states import HostPhase, TaskState
from tflaunch.explain import causes, cluster_formation, hints, startup_messages
from tflaunch.explain.wording import counted, listed, process_of
from tflaunch.plan import attempts
from tflaunch.plan.model import CODE_DIRECTORY, Plan
from tflaunch_worker.readable import duration_words, printable

_FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
_IN_IMAGE = "install it in the image, or write a name that the image has, such as python3"
_LITTLE_MEMORY = "memory limit of the container"  # from an agent
_MORE_MEMORY = "raise container.resources.memory, or roles.ROLE.resources.memory"
_INTERPRET = "write its interpreter before it, for example: python train.py"
_CREATE = "create it, or correct `workdir`, which is relative to the spec's file"
_STAY = "let the command stay in the foreground: without `&`, nohup or setsid; a script may end with `exec COMMAND`"
_RELATIVE = "what was written to relative paths is"
_PYTHON = re.compile(r"'python[\d.]*'")
_TAIL_LINES = 10
_SHOWN_METRICS = 3
_ASKED = 8  # tasks whose words are compared with those of a culprit that blames its peers
_LOOKED_AT = 500  # TensorFlow may write hundreds of lines after a traceback


Tail = Callable[[str, int], list[str]]
"""Returns the last lines of a task's log, given their number."""


def summary(job: Job, logs: str, tail: Tail, is_shown: bool = False, known: Annotations = NOTHING) -> str:
    """Return the final message about an ended job.

    With ``is_shown``, the tasks' output is on the same screen, and with it a traceback.
    """
    return "\n".join([*unended(job), _ended(job, logs, tail, is_shown, known)])


def unended(job: Job) -> list[str]:
    """Return a line about processes that may still run; [] if there is none."""
    left = [
        f"{process_of(task.task, job.host_of(task.task), task.unended.pid)}: {task.unended.reason}"
        for task in job.unended()
        if task.unended is not None
    ]
    return [f"may still run: {listed(left)}; look there with ps, and end it before the next run"] if left else []


def _ended(job: Job, logs: str, tail: Tail, is_shown: bool, known: Annotations) -> str:
    if job.exit_code == 0:
        return "\n".join([end_sentence(job, tail, known), *moves(job), *where_results_are(job)])
    found = failure(job, tail, known)
    lines = [found.sentence, *filter(None, [found.hang]), *_evidence(found.culprit, is_shown), *found.not_formed]
    lines += [f"hint: {found.hint}"] if found.hint else []
    lines += [f"also stopped: {listed(found.also_stopped)}"] if found.also_stopped else []
    lines += [f"not restarted: {found.not_restarted}"] if found.not_restarted else []
    if found.has_logs:
        lines += moves(job)
        lines += [] if job.plan.is_supervised_elsewhere else [f"logs: {logs}"]
        lines += [f"next: tflaunch logs {job.run} {found.culprit.task}"] if found.culprit.task else []
        lines += where_results_are(job)
    return "\n".join(lines)


def end_sentence(job: Job, tail: Tail, known: Annotations) -> str:
    """Return how a job ended, "" without a culprit; arguments as in `summary`."""
    if job.exit_code != 0:
        job = known.explained(job)
        return "" if job.culprit is None else cause_of_restart(job, tail)
    again = f", after {counted(restarts(job), 'restart')}," if restarts(job) else ""
    ended_at = max(task.since for task in job.tasks.values())
    done = counted(len(job.plan.tasks or job.plan.sidecars), "task")
    return f"done: {done}{again} in {duration_words(ended_at - job.started_at)}{_progress(job)}"


def where_results_are(job: Job) -> list[str]:
    """Return a line about results beside copied code, unless `collect` fetches them."""
    if job.plan.collect:
        return []
    if job.plan.made_hosts is not None:
        is_lost = any(host.code for host in job.hosts.values())
        return [f"{_RELATIVE} deleted with the pods; `collect` brings files here"] * is_lost
    moved = attempts.moved(job.original, job.places)
    hosts = [host for host in job.original.hosts if job.hosts[host.host].code]
    # A lost container is gone with its files; a lost machine may come back.
    with_code = [each.host for each in hosts if not (each.docker and job.hosts[each.host].phase is HostPhase.DOWN)]
    in_copy = [each for host in with_code for each in moved.on_host(host) if each.workdir.startswith(CODE_DIRECTORY)]
    return [f"{_RELATIVE} on the hosts, beside the copied code; next: tflaunch fetch {job.run} PATH…"] * bool(in_copy)


def moves(job: Job) -> list[str]:
    """Return a line about hosts that were replaced, and spare hosts that are left."""
    moved = []
    for home, host in job.places.items():
        if tasks := [process.task for process in job.plan.on_host(host)]:
            moved.append(f"{listed(tasks)} moved from {home} to {host}")
    return ["; ".join([*moved, spares_left(job)])] if moved else []


def spares_left(job: Job) -> str:
    """Return how many spare hosts can take the place of a lost one."""
    left = spares.ready(job)
    return f"{counted(len(left), 'spare host')} left" + (f" ({listed(left)})" if left else "")


class FailedTask(NamedTuple):
    """The task that failed first; fields are null or empty if a host or limit did.

    ``python``: its interpreter and host, null on this machine. ``traceback`` and ``last_lines``: what it wrote last;
    one of them is empty.
    """

    task: str | None
    host: str | None
    attempt: int | None
    python: str | None
    traceback: tuple[str, ...]
    last_lines: tuple[str, ...]


class JobFailure(NamedTuple):
    """Why a job failed.

    ``sentence``: the first cause; ``hang``: why tasks hung, None if they did not or it is not known; ``culprit``: the
    task that ``sentence`` names. ``not_formed``: a sentence about a cluster that had not formed. ``also_stopped``: its
    victims. ``not_restarted``: why there was no other attempt, None if the budget was spent or no retry was due.
    ``has_logs``: a task had started.
    """

    sentence: str
    hang: str | None
    culprit: FailedTask
    not_formed: tuple[str, ...]
    hint: str | None
    also_stopped: tuple[str, ...]
    not_restarted: str | None
    has_logs: bool


def failure(job: Job, tail: Tail, known: Annotations) -> JobFailure:
    """Explain a job that has a culprit; ``tail`` and ``known`` are as in `summary`."""
    job = known.explained(job)
    assert job.culprit is not None
    culprit, cause = job.culprit, job.culprit.cause
    is_task = cause is Cause.TASK
    said = tail(culprit.name, _LOOKED_AT) if is_task else []
    traceback, last_lines = _end_of(said)
    hint = _hint_about_task(job, culprit.name, said, tail) if is_task else None
    if cause is Cause.TIME:
        stopped = (task.task for task in job.plan.tasks if job.tasks[task.task].is_stopping)
        hint = next(filter(None, (hint_for(job, name, tail) for name in stopped)), None)
    elif cause is Cause.SUSPENDED:
        hint = f"find out what stopped it; `tflaunch kill -s CONT {culprit.name}` continues it while its peers wait"
    elif cause is Cause.NOT_STARTED:
        hint = _hint_about_start(culprit, job.original)
    elif cause is Cause.BACKGROUND:
        hint = _STAY
    elif cause is Cause.NAMES:
        hint = preflight.name_remedy(culprit.message)
    sentence = cause_of_restart(job, tail)
    if job.original.made_hosts is not None and _LITTLE_MEMORY in sentence:
        hint = _MORE_MEMORY
    not_formed, remedy = ((), None) if is_task else _not_formed(job, known)
    is_named = culprit.name in job.tasks
    host, attempt = (job.host_of(culprit.name), culprit.attempt) if is_named else (None, None)
    python = _python_elsewhere(job, culprit) if is_task else None
    victims = [name for name, task in job.tasks.items() if task.is_stopping and name != culprit.name]
    return JobFailure(
        sentence=sentence,
        hang=culprit.explanation or known.hang_of(job) or None,
        culprit=FailedTask(culprit.name if is_named else None, host, attempt, python, traceback, last_lines),
        not_formed=(*not_formed, *cluster_formation.servers_ended(job)),
        hint=hint or remedy,
        also_stopped=tuple(victims) if is_task else (),
        not_restarted=job.restarts.no_retry_reason or None,
        has_logs=job.has_started and cause is not Cause.NOT_STARTED,
    )


def last_progress(job: Job) -> tuple[int | None, dict[str, float]]:
    """Return the last step and metrics of the first task that reported."""
    for task in job.plan.tasks:
        state = job.tasks[task.task]
        if state.reached.step or state.metrics:
            return state.reached.step or None, dict(state.metrics)
    return None, {}


def _progress(job: Job) -> str:
    """Return ``; step 400, epoch 3, loss 0.0123`` of the first task that reported."""
    for task in job.plan.tasks:
        state = job.tasks[task.task]
        reached = str(state.reached._replace(checkpoint=0))
        measured = [f"{printable(name, 20)} {value:.4g}" for name, value in state.metrics[:_SHOWN_METRICS]]
        if reached or measured:
            return f"; {', '.join([reached] * bool(reached) + measured)}"
    return ""


def _end_of(said: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the traceback that a log ends with, or else its last lines."""
    if not said:
        return (), ()
    if traceback := causes.last_traceback(said):
        return tuple(traceback), ()
    lines = [line for line in said if line.strip()]
    own = startup_messages.own_lines(lines)
    return (), tuple((own or lines)[-_TAIL_LINES:])


def _python_elsewhere(job: Job, culprit: Culprit) -> str | None:
    """Return ``/opt/py/bin/python on h2`` of a task elsewhere; else None."""
    facts = _facts(job, culprit.name)
    return f"{facts.python} on {culprit.host or facts.host}" if facts.host and facts.python else None


def _evidence(found: FailedTask, is_shown: bool) -> list[str]:
    wrote = f"{found.task} ({found.python})" if found.python else found.task
    if found.traceback and is_shown:
        return []  # the task's output has it, and the sentence says where and why
    if found.traceback:
        clipped = causes.clipped(list(found.traceback), _TAIL_LINES)
        return [f"traceback of {wrote}:", *map(_quoted, clipped)]
    if found.last_lines:
        return [f"last lines of {wrote}:", *map(_quoted, found.last_lines)]
    return []


def _quoted(line: str) -> str:
    return f"    {printable(line.expandtabs())}"


def _hint_about_task(job: Job, task: str, said: list[str], tail: Tail) -> str | None:
    """Return a hint about the culprit, or about the peer that it blames."""
    others = [each.task for each in job.plan.tasks if each.task != task and job.tasks[each.task].exit.code]
    said_by = ((_facts(job, other), tail(other, _LOOKED_AT)) for other in others[:_ASKED])
    return hints.find_hint(said, _facts(job, task)._replace(others=said_by))


def _hint_about_start(culprit: Culprit, plan: Plan) -> str | None:
    if culprit.code == _NOT_FOUND and culprit.message.endswith(".py'"):
        return _INTERPRET
    if culprit.code == _NOT_FOUND:
        return _remedy_for_missing(culprit) if plan.made_hosts is None else _IN_IMAGE
    if culprit.code != _NOT_EXECUTABLE:
        return None
    if culprit.message.startswith("working directory "):
        return _CREATE
    return f"allow it with chmod +x, or {_INTERPRET}" if culprit.message.endswith("Permission denied") else None


def _remedy_for_missing(culprit: Culprit) -> str:
    there = "" if culprit.host == LOCALHOST else f" on {culprit.host}"
    if _PYTHON.search(culprit.message):
        return f"install it{there}, write for example python3, or name its path in hosts.{culprit.host}.python"
    return f"install it{there}, or write its full path"


def _not_formed(job: Job, known: Annotations) -> tuple[tuple[str, ...], str | None]:
    assert job.culprit is not None
    if job.culprit.cause is Cause.TIME and job.culprit.name == "start":
        return (), cluster_formation.remedy(job, known)
    found = cluster_formation.forming(job, known)
    if found is None:
        return (), None
    return (f"the cluster had not formed: {listed(found.missing)} never listened",), found.hint


def hint_for(job: Job, name: str, tail: Tail) -> str | None:
    """Return a hint about the last lines of a task's log, None if unknown."""
    return hints.find_hint(tail(name, _LOOKED_AT), _facts(job, name))


def _facts(job: Job, name: str) -> hints.Facts:
    process, task = job.plan.find(name), job.tasks[name]
    return hints.Facts(
        strategy=job.plan.strategy,
        task=name,
        role=process.role,
        attempt=task.attempt,
        recurs=_recurs(job, task),
        code=task.exit.code,
        signal=task.exit.signal,
        legacy_keras=process.env.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"),
        python=process.argv[0] if "python" in process.argv[0].rpartition("/")[2] else "",
        host="" if job.plan.host(process.host).is_local else process.host,
        hosts=len(job.plan.hosts) - len(job.plan.spares),
        proxies=("grpc_proxy",) if process.env.get("grpc_proxy") else (),
        cluster_formed=job.formation.cluster_formed,
        finished=tuple(each.task for each in job.plan.tasks if job.tasks[each.task].has_succeeded),
    )


def _recurs(job: Job, task: TaskState) -> bool:
    """Whether a task failed with the exception of the attempt before."""
    before = job.restarts.last_failure
    kinds = [failure.partition(" at ")[0] for failure in (before.failure if before else "", task.exit.failure)]
    return restart_rules.is_raised(task.exit.failure) and kinds[0] == kinds[1]


def restarts(job: Job) -> int:
    """Return how often the gang was restarted, charged or not."""
    return job.restarts.budget.restarts + job.restarts.requested


def restart_name(job: Job) -> str:
    """Return ``restart 1 of 3`` for the latest restart, "" before the first.

    The limit is left out if any restart was not charged to it.
    """
    number, most = restarts(job), job.plan.restart.max
    limit = f" of {most}" if number == len(job.restarts.budget.charged) <= most else ""
    return f"restart {number}{limit}" if number else ""


def cause_of_restart(job: Job, tail: Tail) -> str:
    """Return a sentence about the first cause, with its exception."""
    assert job.culprit is not None
    is_own = job.culprit.cause is Cause.TASK and job.culprit.signal not in _FROM_OUTSIDE
    return causes.describe(job.culprit, job.plan) + (exception_of(job.tasks[job.culprit.name], tail) if is_own else "")


def exception_of(task: TaskState, tail: Tail) -> str:
    """Return an exception or crash as `` (ValueError: bad, train.py, line 4)``, or "".

    Falls back to the agent's failure signature, as the last output may not have arrived yet.
    """
    signature = task.exit.failure if restart_rules.is_raised(task.exit.failure) else ""
    exception = printable(causes.failure_words(tail(task.task, _LOOKED_AT)) or signature)
    return f" ({exception})" if exception else ""
