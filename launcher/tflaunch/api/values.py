"""What runs tell programs: events, lines of output, and how a run ended."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch.api.functions import Values
from tflaunch.errors import TflaunchError


class Event(NamedTuple):
    """A record of a run's journal: an event, or an action of the supervisor.

    Attributes:
        time: when, in seconds since the epoch.
        seq: its number in the journal.
        kind: what happened, such as ``task_started``.
        data: the other fields, which depend on the kind.
    """

    time: float
    seq: int
    kind: str
    data: Mapping[str, Any]


class LogLine(NamedTuple):
    """A line of a task's output.

    Attributes:
        time: when it was written, in seconds since the epoch; 0.0 if unknown.
        task: the task.
        attempt: the task's attempt, from 0 on.
        text: the line, without its newline; bytes that are not UTF-8 are replaced.
    """

    time: float
    task: str
    attempt: int
    text: str


class TaskResult(NamedTuple):
    """How a task ended.

    Attributes:
        task: its name, such as ``worker:1``.
        host: where it ran.
        attempt: its last attempt, from 0 on.
        exit_code: the exit code of that attempt; None if a signal ended it, or if it never ran.
        signal: the number of the signal that ended it, None if none did.
        step: the step that its training had reached; 0 if it did not tell.
        epoch: the same for the epoch.
        metrics: the metrics that it reported last, by name.
        log_path: the file with its output.
        outcome_path: the file with what its function returned or raised; missing if it did neither.
    """

    task: str
    host: str
    attempt: int
    exit_code: int | None
    signal: int | None
    step: int
    epoch: int
    metrics: Mapping[str, float]
    log_path: Path
    outcome_path: Path

    @property
    def log(self) -> str:
        """All of its output, "" if it never ran; bytes that are not UTF-8 are replaced."""
        try:
            return self.log_path.read_text("utf-8", "replace")
        except FileNotFoundError:
            return ""


class Result(NamedTuple):
    """How a run ended.

    Attributes:
        run: its name.
        state: ``succeeded``, ``failed``, ``stopped`` or ``interrupted``.
        exit_code: the exit code that `tflaunch up` would have.
        culprit: the task, host or limit that ended it first; None if it succeeded.
        summary: what happened, in a few lines: the same as on a terminal.
        tasks: how each task ended, sidecars included.
        logs: the directory of the logs.
        values: what each task's function returned in its last attempt; tasks that did not return have none. What
            comes from other machines is plain data, unless the run was started with ``trust_hosts``.
        because: how it ended, in a sentence.
        next_commands: what helps further, as argument lists; empty after a success.
        trains, phase, since: as of `Run`: ``no``, ``ended``, and when it ended, in seconds since the epoch.
    """

    run: str
    state: str
    exit_code: int
    culprit: str | None
    summary: str
    tasks: Mapping[str, TaskResult]
    logs: Path
    values: Values
    because: str = ""
    next_commands: tuple[tuple[str, ...], ...] = ()
    trains: str = "no"
    phase: str = "ended"
    since: float | None = None

    def check(self) -> Result:
        """Return this result if the run succeeded.

        Raises:
            JobFailed: it did not.
            Exception: the function of the culprit raised this one; its cause is the `JobFailed`. From another
                machine without ``trust_hosts``, only exceptions of Python itself come; others are a `JobFailed`.
        """
        if not self.exit_code:
            return self
        error, trace = self.values.raised_by(self.culprit or "")
        failure = JobFailed(self, trace)
        if error is None:
            raise failure
        raise error from failure


class JobFailed(TflaunchError):  # noqa: N818 - programs that use tflaunch know this name
    """A run did not succeed; the message is its summary, and the first traceback."""

    def __init__(self, result: Result, trace: str = "") -> None:
        is_shown = textwrap.indent(trace.rstrip(), "    ") in result.summary
        message = result.summary if is_shown else f"{result.summary}\n\ntraceback of {result.culprit}:\n{trace}"
        super().__init__(message, result.exit_code)
        self.result = result
