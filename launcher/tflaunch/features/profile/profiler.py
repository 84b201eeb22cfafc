"""Profile tasks for callers at the control socket, all at once, into the run's directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tflaunch import private_files
from tflaunch.agents import calls
from tflaunch.agents.session import Session
from tflaunch.core.job_state import Job, TaskPhase
from tflaunch.printable import printable
from tflaunch.runtime.control_server import Caller
from tflaunch.store.run_dir import profile_file, profile_session
from tflaunch_worker import fields
from tflaunch_worker.inspect import stack_samples

_LONGEST_PROBLEM = 500


class Profiler:
    """The profiles that are being made of one run."""

    def __init__(self, directory: Path, sessions: Mapping[str, Session]) -> None:
        """Store profiles in this directory of the run."""
        self._directory = directory
        self._sessions = sessions

    def begin(self, caller: Caller, tasks: Sequence[str], seconds: float, job: Job) -> None:
        """Profile tasks; the caller is notified as each profile ends. If the caller leaves, the others are ended.

        Args:
            caller: gets ``task_profiled`` (task, problem, path) for each task, and ``done``.
            tasks: their names.
            seconds: how long they are profiled.
            job: the job.

        Raises:
            OSError: the run's directory cannot be written.
        """
        place = profile_session(self._directory, time.strftime("%Y_%m_%d_%H_%M_%S"))
        private_files.make_directories(place)
        awaited, begun = set(tasks), dict[str, calls.Call]()

        def finish(task: str, problem: str, text: str) -> None:
            path = profile_file(place, task)
            if not problem:
                try:
                    private_files.write_text(path, text)
                except OSError as error:
                    problem = f"its profile cannot be stored in {place}: {error.strerror}"
            awaited.discard(task)
            caller.say("task_profiled", task=task, problem=problem, path="" if problem else str(path))
            if not awaited:
                _remove_if_empty(place)
                caller.say("done")

        def close() -> None:
            for task in awaited & begun.keys():
                begun[task].end()
            _remove_if_empty(place)

        caller.closed = close
        for task in tasks:
            found = job.tasks[task]
            if found.phase is not TaskPhase.RUNNING:
                finish(task, "it does not run", "")
            else:
                session = self._sessions[job.host_of(task)]
                begun[task] = profile(session.calls, task, found.attempt, seconds, partial(finish, task))


def profile(
    to_agent: calls.Calls, task: str, attempt: int, seconds: float, take: Callable[[str, str], None]
) -> calls.Call:
    """Have a task profiled; ``take`` gets why there is no profile, or "", and its text."""

    def answered(message: dict[str, Any], body: bytes) -> None:
        problem = printable(fields.text(message, "problem"), _LONGEST_PROBLEM)
        take(problem, "" if problem else stack_samples.unpack(body))

    waiter = calls.Waiter(answered, lambda: take("the link to its host is lost", ""))
    return to_agent.begin("profile_task", waiter, task=task, attempt=attempt, seconds=seconds)


def _remove_if_empty(place: Path) -> None:
    try:
        place.rmdir()
    except OSError:
        pass  # it has files
