"""Name the cause of an end; read and shorten the exception that ended a program."""

import re
import signal
from collections.abc import Sequence

from tflaunch.core.job_state import Cause, Culprit
from tflaunch.core.states import TaskState
from tflaunch.plan.model import Plan
from tflaunch_worker import USAGE_ERROR, failures
from tflaunch_worker.readable import exit_words, signal_name

_WITHOUT_HEAD = ("SyntaxError", "IndentationError", "TabError")
_NO_NAME = re.compile(r"(?<=\d), in None  \*$")  # of a lambda, as AutoGraph shows its frame


def describe(culprit: Culprit, plan: Plan) -> str:
    """Return a sentence about the first cause, with the host of a task."""
    match culprit.cause:
        case Cause.TASK:
            evidence = f": {culprit.message}" if culprit.message else ""
            task = named(culprit.name, culprit.host, plan)
            return f"{task} {_exit_words(culprit.code, culprit.signal)}{evidence}{_about_fork(culprit)}"
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


def _about_fork(culprit: Culprit) -> str:
    if not culprit.forked_from:
        return ""
    return f"; it was forked from a process that had imported {culprit.forked_from}, and starts in the ordinary way now"


def named(task: str, host: str, plan: Plan) -> str:
    """Return ``worker:0 on h2``; without the host if that is this machine."""
    return task if not host or plan.host(host).is_local else f"{task} on {host}"


def left_behind(task: str, evidence: str) -> str:
    """Return a sentence about a task that ended before its own processes."""
    return f"{task} ended with 0 while {evidence} in the background; a task ends with its first process"


def describe_exit(task: TaskState) -> str:
    """Return how a task's process ended, for example ``exited with code 7``."""
    return _exit_words(task.exit.code, task.exit.signal)


def _exit_words(code: int | None, number: int | None) -> str:
    return exit_words((code or 0) if number is None else -number)


def last_traceback(lines: Sequence[str]) -> list[str]:
    """Return the last complete Python traceback of any chain; [] if there is none."""
    lines = failures.bounded(lines)
    found = failures.find_failure(lines)
    if found is None or found.kind in ("", USAGE_ERROR):
        return []
    start, exception = found.start, found.exception
    is_complete = lines[start].endswith(failures.HEAD) or lines[exception].startswith(_WITHOUT_HEAD)
    lines = [_NO_NAME.sub(", in <lambda>", line) for line in lines]
    frames = [line for line in lines[start:exception] if not failures.LOG_LINE.match(line)]
    if frames[0].endswith(failures.HEAD) and not frames[0].startswith(" "):
        frames[0] = failures.HEAD  # a progress bar may stand before it in the same line
    return frames + lines[exception : found.end] if is_complete else []


def clipped(traceback: list[str], most: int) -> list[str]:
    """Shorten a traceback to ``most`` lines, 6 at least: user's frame and message.

    A message that is longer, or has another traceback in it, is replaced by its innermost sentence.
    """
    found = failures.find_failure(traceback)
    if len(traceback) <= most or found is None or found.frame is None:
        return traceback
    place = f'File "{found.frame.file}", line {found.frame.line}'
    own = max(number for number, line in enumerate(traceback) if line.lstrip(" |").startswith(place))
    message = traceback[found.exception : found.end]
    if failures.frames_in(message) or len(message) > most - 5:
        message = [found.sentence]
    return [traceback[0], "  …", *traceback[own : own + 2], "  …", *message]


def failure_words(lines: Sequence[str]) -> str | None:
    """Return the last exception as ``ValueError: bad shape, train.py, line 41``.

    Its cause follows. Return None if the lines tell no failure.
    """
    found = failures.find_failure(failures.bounded(lines))
    if found is None:
        return None
    words = ", ".join(filter(None, [found.sentence, found.place]))
    cause, link = found.cause, found.link
    while cause is not None and cause.cause is not None and cause.link != failures.WHILE_HANDLED:
        link = link if cause.link == failures.CAUSED_BY else cause.link
        cause = cause.cause
    place = cause.place if cause is not None and cause.frame is not None and cause.frame.is_own else ""
    if cause is None or (cause.text == found.text and not place):
        return words
    return f"{words}; {link} {', '.join(filter(None, [cause.sentence, place]))}"
