"""Name the cause of an end in a sentence, and how a task has ended."""

from __future__ import annotations

import signal

from tflaunch.core.job_state import Cause, Culprit
from tflaunch.core.task_state import TaskState
from tflaunch.plan.model import Plan
from tflaunch_worker.readable import exit_words, signal_name


def describe(culprit: Culprit, plan: Plan) -> str:
    """Return a sentence about the first cause, with the host of a task."""
    match culprit.cause:
        case Cause.TASK:
            evidence = f": {culprit.message}" if culprit.message else ""
            task = named(culprit.name, culprit.host, plan)
            return f"{task} {_exit_words(culprit.code, culprit.signal)}{evidence}"
        case Cause.BACKGROUND:
            return left_behind(named(culprit.name, culprit.host, plan), culprit.message)
        case Cause.SUSPENDED:
            return f"{named(culprit.name, culprit.host, plan)} was stopped by SIGSTOP or a debugger ({culprit.message})"
        case Cause.NOT_STARTED:
            where = f" on {culprit.host}" if culprit.host else ""
            return f"{culprit.name} did not start{where}: {culprit.message}"
        case Cause.PORTS | Cause.NAMES | Cause.FILES | Cause.UNREACHABLE | Cause.REQUEST | Cause.PEERS | Cause.TIME:
            return culprit.message
        case Cause.HOST | Cause.DRAIN:
            how = "was lost" if culprit.cause is Cause.HOST else "is being emptied"
            return f"host {culprit.name} {how}: {culprit.message}"
        case Cause.GROWTH:
            return f"{culprit.message}; the gang restarts with it"
        case Cause.SIGNAL:
            sent = "Ctrl-C" if culprit.signal == signal.SIGINT else signal_name(culprit.signal or 0)
            return culprit.message or f"interrupted by {sent}"


def named(task: str, host: str, plan: Plan) -> str:
    """Return ``worker:0 on h2``; without the host if that is this machine."""
    return task if not host or plan.is_local(host) else f"{task} on {host}"


def left_behind(task: str, evidence: str) -> str:
    """Return a sentence about a task that ended before its own processes."""
    return f"{task} ended with 0 while {evidence} in the background; a task ends with its first process"


def describe_exit(task: TaskState) -> str:
    """Return how a task's process ended, for example ``exited with code 7``."""
    return _exit_words(task.exit.code, task.exit.signal)


def _exit_words(code: int | None, number: int | None) -> str:
    return exit_words((code or 0) if number is None else -number)
