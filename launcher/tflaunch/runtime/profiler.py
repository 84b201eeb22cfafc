"""Profile tasks for callers at the control socket, all at once, into the run's directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tflaunch import private_files
from tflaunch.agents.session import Session
from tflaunch.core.job_state import Job, TaskPhase
from tflaunch.runtime.control_server import Caller
from tflaunch.store.run_dir import profile_file, profile_session


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
        session = profile_session(self._directory, time.strftime("%Y_%m_%d_%H_%M_%S"))
        private_files.make_directories(session)
        awaited, ends = set(tasks), dict[str, Callable[[], None]]()

        def finish(task: str, problem: str, text: str) -> None:
            path = profile_file(session, task)
            if not problem:
                try:
                    private_files.write_text(path, text)
                except OSError as error:
                    problem = f"its profile cannot be stored in {session}: {error.strerror}"
            awaited.discard(task)
            caller.say("task_profiled", task=task, problem=problem, path="" if problem else str(path))
            if not awaited:
                _remove_if_empty(session)
                caller.say("done")

        def close() -> None:
            for task in awaited & ends.keys():
                ends[task]()
            _remove_if_empty(session)

        caller.closed = close
        for task in tasks:
            found = job.tasks[task]
            if found.phase is not TaskPhase.RUNNING:
                finish(task, "it does not run", "")
            else:
                link = self._sessions[job.host_of(task)].profiles
                ends[task] = link.begin(task, found.attempt, seconds, partial(finish, task))


def _remove_if_empty(session: Path) -> None:
    try:
        session.rmdir()
    except OSError:
        pass  # it has files
