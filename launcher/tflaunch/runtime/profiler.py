"""Profile tasks for callers at the control socket, all at once, into the run's directory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tflaunch import private_files
from tflaunch.agents.profile_link import Receiver
from tflaunch.agents.session import Session
from tflaunch.core.job_state import Job, TaskPhase
from tflaunch.runtime.control_server import Caller
from tflaunch.store.run_dir import profile_file, profile_session

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
_PART = ".part"


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
        session = profile_session(self._directory, _stamp())
        private_files.make_directories(session)
        profiles = _Profiles(caller, session, set(tasks))
        caller.closed = profiles.close
        for task in tasks:
            receiver = _File(profile_file(session, task), task, profiles)
            found = job.tasks[task]
            link = self._sessions[job.host_of(task)]
            if found.phase is not TaskPhase.RUNNING:
                receiver.end("it does not run")
            else:
                profiles.note_begun(task, link.profiles.begin(task, found.attempt, seconds, receiver))


class _Profiles:
    """The profiles of one request: those that last, and where the others are."""

    def __init__(self, caller: Caller, session: Path, tasks: set[str]) -> None:
        self._caller = caller
        self._session = session
        self._awaited = tasks
        self._ends: dict[str, Callable[[], None]] = {}
        self._files: list[_File] = []

    def note_begun(self, task: str, end: Callable[[], None]) -> None:
        if task in self._awaited:
            self._ends[task] = end

    def note_file(self, file: _File) -> None:
        self._files.append(file)

    def finish(self, task: str, path: Path | None, problem: str) -> None:
        """Notify the caller of a task's profile, and finally that all have ended."""
        self._awaited.discard(task)
        self._ends.pop(task, None)
        self._caller.say("task_profiled", task=task, problem=problem, path="" if path is None else str(path))
        if not self._awaited:
            self._remove_if_empty()
            self._caller.say("done")

    def close(self) -> None:
        """End what lasts: the caller has left."""
        for end in list(self._ends.values()):
            end()
        for file in self._files:
            file.discard()
        if self._awaited:
            self._remove_if_empty()

    def _remove_if_empty(self) -> None:
        try:
            self._session.rmdir()
        except OSError:
            pass  # it has files


class _File(Receiver):
    """A profile on disk, which gets its name when it is complete."""

    def __init__(self, path: Path, task: str, profiles: _Profiles) -> None:
        self._path = path
        self._part = path.with_name(path.name + _PART)
        self._task = task
        self._profiles = profiles
        self._descriptor: int | None = None
        profiles.note_file(self)

    def take(self, data: bytes) -> str:
        """Write the next bytes; return why that fails, or ""."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._part, _FLAGS, 0o600)
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            return f"its profile cannot be stored in {self._path.parent}: {error.strerror}"
        return ""

    def end(self, problem: str) -> None:
        """Give the file its name, or remove it."""
        if problem or self._descriptor is None:
            self.discard()
        else:
            os.close(self._descriptor)
            self._descriptor = None
            self._part.replace(self._path)
        self._profiles.finish(self._task, None if problem else self._path, problem)

    def discard(self) -> None:
        """Remove a file that is not complete."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._part.unlink(missing_ok=True)


def _stamp() -> str:
    """Return the name of a session: the local time."""
    return time.strftime("%Y_%m_%d_%H_%M_%S")
