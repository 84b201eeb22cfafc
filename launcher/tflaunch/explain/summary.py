"""Summarize why a job ended and where its results are, on one screen. Explains, never decides."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from tflaunch.core import policy
from tflaunch.core.job_state import Cause, Culprit, Job, TaskState
from tflaunch.explain import cluster_formation
from tflaunch.explain.wording import counted, lasted, listed
from tflaunch.plan.model import CODE_DIRECTORY, HostPlan, Plan, TaskPlan
from tflaunch.printable import printable

if TYPE_CHECKING:
    from tflaunch.explain.hints import Facts


_NOT_FOUND = 127
_INSTALL = "install it on {host}, write its full path, or set hosts.{host}.python if it is an interpreter"
_TAIL_LINES = 10
_SHOWN_LINES = 4
_SHOWN_METRICS = 3
_LOOKED_AT = 500  # TensorFlow may write hundreds of lines after a traceback


def summary(job: Job, logs: str, tail: Callable[[str, int], list[str]], is_shown: bool = False) -> str:
    """Return the final message about an ended job.

    Args:
        job: the ended job.
        logs: where the logs are.
        tail: returns the last lines of a task's log.
        is_shown: the tasks' output is on the same screen, so the end of a traceback is enough.
    """
    if job.exit_code == 0:
        again = f", after {counted(restarts(job), 'restart')}," if restarts(job) else ""
        ended_at = max(task.since for task in job.tasks.values())
        done = counted(len(job.plan.tasks or job.plan.sidecars), "task")
        sentence = f"done: {done}{again} in {lasted(ended_at - job.started_at)}{_progress(job)}"
        return "\n".join([sentence, *where_results_are(job)])
    assert job.culprit is not None
    lines = [describe(job.culprit)]
    if job.culprit.cause is Cause.TASK:
        lines += _words_of(job, job.culprit.name, tail(job.culprit.name, _LOOKED_AT), is_shown)
        victims = [name for name, task in job.tasks.items() if task.is_stopping and name != job.culprit.name]
        lines += [f"also stopped: {listed(victims)}"] if victims else []
    elif job.culprit.cause is Cause.TIME:
        lines += _hint_for_limit(job, tail)
    elif job.culprit.cause is Cause.NOT_STARTED and job.culprit.code == _NOT_FOUND:
        lines.append(f"hint: {_INSTALL.format(host=job.culprit.host)}")
    if job.culprit.cause is not Cause.TASK:
        lines += _not_formed(job, has_hint=len(lines) > 1)
    if job.restarts.no_retry_reason:
        lines.append(f"not restarted: {job.restarts.no_retry_reason}")
    if job.has_started and job.culprit.cause is not Cause.NOT_STARTED:
        lines.append(f"logs: {logs}")
        lines += where_results_are(job)
    return "\n".join(lines)


def _progress(job: Job) -> str:
    """Return ``; step 400, epoch 3, loss 0.0123`` for the first task that told its progress, else ""."""
    for task in job.plan.tasks:
        state = job.tasks[task.task]
        reached = str(state.reached._replace(checkpoint=0))
        measured = [f"{printable(name, 20)} {value:.4g}" for name, value in state.metrics[:_SHOWN_METRICS]]
        if reached or measured:
            return f"; {', '.join([reached] * bool(reached) + measured)}"
    return ""


def _words_of(job: Job, task: str, said: list[str], is_shown: bool) -> list[str]:
    """Return the traceback or else the last lines of a task's log, and a hint about their meaning."""
    from tflaunch.explain import hints  # compiles a hundred patterns that only a failure needs

    lines = []
    shown = hints.last_traceback(said)
    if shown:
        shown = hints.clipped(shown, _SHOWN_LINES if is_shown else _TAIL_LINES)
        lines.append(f"traceback of {task}:")
    elif said:
        shown = said[-_TAIL_LINES:]
        lines.append(f"last lines of {task}:")
    lines += [f"    {line}" for line in shown]
    hint = hints.find_hint(said, _facts(job, task))
    if hint is not None:
        lines.append(f"hint: {hint}")
    elif hints.saw_peer_vanish(said):
        lines.append("hint: it says that a peer had vanished, though no other task failed before it")
    return lines


def _hint_for_limit(job: Job, tail: Callable[[str, int], list[str]]) -> list[str]:
    """Return a hint for the first stopped task with a known problem, after a time limit was exceeded."""
    from tflaunch.explain import hints

    for process in job.plan.tasks:
        if job.tasks[process.task].is_stopping:
            hint = hints.find_hint(tail(process.task, _LOOKED_AT), _facts(job, process.task))
            if hint is not None:
                return [f"hint: {hint}"]
    return []


def _not_formed(job: Job, has_hint: bool) -> list[str]:
    """Return which tasks never listened, unless the message of ``timeouts.start`` names them already."""
    assert job.culprit is not None
    if job.culprit.cause is Cause.TIME and job.culprit.name == "start":
        return [] if has_hint else [f"hint: {cluster_formation.remedy(job)}"]
    found = cluster_formation.forming(job)
    if found is None:
        return []
    lines = [f"the cluster had not formed: {listed(found.missing)} never listened"]
    return lines if has_hint else [*lines, f"hint: {found.hint}"]


def hint_for(job: Job, name: str, tail: Callable[[str, int], list[str]]) -> str | None:
    """Return a hint about the last lines of a task's log, None if they match no known problem."""
    from tflaunch.explain import hints

    return hints.find_hint(tail(name, _LOOKED_AT), _facts(job, name))


def _facts(job: Job, name: str) -> Facts:
    from tflaunch.explain.hints import Facts

    process, task = job.plan.find(name), job.tasks[name]
    return Facts(
        strategy=job.plan.strategy,
        task=name,
        role=process.role,
        attempt=task.attempt,
        code=task.code,
        signal=task.signal,
        legacy_keras=process.env.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"),
        python=process.argv[0],
        hosts=len(job.plan.hosts),
        proxies=_proxies(process),
        cluster_formed=job.formation.cluster_formed,
        finished=_finished(job.plan, job),
    )


def _proxies(process: TaskPlan) -> tuple[str, ...]:
    return ("grpc_proxy",) if process.env.get("grpc_proxy") else ()


def _finished(plan: Plan, job: Job) -> tuple[str, ...]:
    return tuple(task.task for task in plan.tasks if job.tasks[task.task].has_succeeded)


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


def cause_of_restart(job: Job, tail: Callable[[str, int], list[str]]) -> str:
    """Return a sentence about the first cause, including the exception that ended the program."""
    assert job.culprit is not None
    is_raised = job.culprit.cause is Cause.TASK and job.culprit.signal is None
    return describe(job.culprit) + (exception_of(job.tasks[job.culprit.name], tail) if is_raised else "")


def exception_of(task: TaskState, tail: Callable[[str, int], list[str]]) -> str:
    """Return `` (ValueError: bad shape, train.py:41)`` if a program ended with a traceback, else "".

    Falls back to the agent's failure signature, as the last output may not have arrived yet.
    """
    from tflaunch.explain import hints

    signature = task.failure if policy.is_raised(task.failure) else ""
    exception = hints.exception_with_place(tail(task.task, _LOOKED_AT)) or signature
    return f" ({exception})" if exception else ""


def describe(culprit: Culprit) -> str:
    """Return a sentence about the first cause."""
    match culprit.cause:
        case Cause.TASK:
            evidence = f": {culprit.message}" if culprit.message else ""
            return f"{culprit.name} {_exit_words(culprit.code, culprit.signal)}{evidence}"
        case Cause.NOT_STARTED:
            where = f" on {culprit.host}" if culprit.host else ""
            return f"{culprit.name} did not start{where}: {culprit.message}"
        case Cause.PORTS | Cause.NAMES | Cause.FILES | Cause.UNREACHABLE | Cause.REQUEST | Cause.PEERS | Cause.TIME:
            return culprit.message
        case Cause.HOST:
            return f"host {culprit.name} was lost: {culprit.message}"
        case Cause.DRAIN:
            return f"host {culprit.name} is being emptied: {culprit.message}"
        case Cause.GROWTH:
            return f"{culprit.message}; the gang restarts with it"
        case Cause.SIGNAL:
            return culprit.message or f"interrupted by {signal_name(culprit.signal or 0)}"


def describe_exit(task: TaskState) -> str:
    """Return how a task's process ended, for example ``exited with code 7``."""
    return _exit_words(task.code, task.signal)


def _exit_words(code: int | None, number: int | None) -> str:
    return f"exited with code {code}" if number is None else f"was killed by {signal_name(number)}"


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9; ``signal 99`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_SHOWN = 8


def where_results_are(job: Job) -> list[str]:
    """Return, per host whose tasks ran in a copy of the user's code, a command that fetches the copy.

    Files that a task writes to a relative path are in that copy. Hosts that report a directory with unprintable
    characters are left out.
    """
    lines = []
    for host in job.original.hosts:
        code = job.hosts[host.host].code
        in_copy = any(process.workdir.startswith(CODE_DIRECTORY) for process in job.original.on_host(host.host))
        if in_copy and code.startswith("/") and code.isprintable():
            lines.append(f"  {_command(host, code, f'{job.run}-{host.host}')}")
    if not lines:
        return []
    more = [f"  and {counted(len(lines) - _SHOWN, 'host')} more"] if len(lines) > _SHOWN else []
    return ["what was written to relative paths is on the hosts, beside the copied code; to copy it here:"] + (
        lines[:_SHOWN] + more
    )


def _command(host: HostPlan, code: str, target: str) -> str:
    """Return the command that fetches a host's directory, or its location if no command is known."""
    if host.docker is not None:
        return shlex.join(["docker", "cp", f"{host.docker}:{code}", target])
    if host.engine is not None:
        return f"{host.host}: {code}"
    user, at, address = (host.ssh or host.host).rpartition("@")
    name, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()) or name.endswith(":"):  # no port, or an IPv6 address
        name, port = address, ""
    name = f"[{name.strip('[]')}]" if ":" in name else name
    options = [*(["-P", port] if port else []), *(["-i", host.identity_file] if host.identity_file else [])]
    return shlex.join(["scp", "-r", *options, f"{user}{at}{name}:{code}", target])
