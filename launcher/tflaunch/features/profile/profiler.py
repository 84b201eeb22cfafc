"""Profiles of tasks for callers at the control socket, in the run's directory."""

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tflaunch import private_files
from tflaunch.agents import calls
from tflaunch.core.states import TaskPhase
from tflaunch.runtime.control_server import Caller, RefusedError, require_tasks
from tflaunch.runtime.watchers import Watcher
from tflaunch.store.run_dir import PROFILES_NAME
from tflaunch_worker import fields
from tflaunch_worker.features.profile import profiles
from tflaunch_worker.features.profile.profiles import LEAST_SECONDS, MOST_SECONDS
from tflaunch_worker.readable import printable

_LONGEST_PROBLEM = 500


class Profiler(Watcher):
    """The profiles that are being made of one run."""

    def answer(self, caller: Caller, message: dict[str, Any]) -> None:
        """Profile tasks, by default all of roles; notify ``caller`` as each profile ends.

        It gets ``task_profiled`` (task, problem, path) for each task, and ``done``. If it leaves, the others are ended.
        """
        tasks = fields.texts(message, "tasks") or [process.task for process in self.job.plan.tasks]
        require_tasks(tasks, self.job)
        seconds = fields.number(message, "seconds", LEAST_SECONDS, MOST_SECONDS)
        place = session_in(self.supervision.config.directory.path / PROFILES_NAME, time.strftime("%Y_%m_%d_%H_%M_%S"))
        try:
            private_files.make_directories(place)
        except OSError as error:
            raise RefusedError(f"profiles cannot be stored: {error.filename}: {error.strerror}") from None
        self._begin(caller, tasks, seconds, place)

    def _begin(self, caller: Caller, tasks: list[str], seconds: float, place: Path) -> None:
        awaited, begun = set(tasks), dict[str, calls.Call]()

        def remove_if_empty() -> None:
            with suppress(OSError):  # it has files
                place.rmdir()

        def finish(task: str, problem: str, text: str) -> None:
            path = place / f"{task.replace(':', '-')}.folded"
            if not problem:
                try:
                    private_files.write_text(path, text)
                except OSError as error:
                    problem = f"its profile cannot be stored in {place}: {error.strerror}"
            awaited.discard(task)
            caller.say("task_profiled", task=task, problem=problem, path="" if problem else str(path))
            if not awaited:
                remove_if_empty()
                caller.say("done")

        def close() -> None:
            for task in awaited & begun.keys():
                begun[task].end()
            remove_if_empty()

        caller.closed = close
        for task in tasks:
            found = self.job.tasks[task]
            if found.phase is not TaskPhase.RUNNING:
                finish(task, "it does not run", "")
            else:
                session = self.supervision.sessions[self.job.host_of(task)]
                begun[task] = profile(session.calls, task, found.attempt, seconds, partial(finish, task))


def profile(
    to_agent: calls.Calls, task: str, attempt: int, seconds: float, take: Callable[[str, str], None]
) -> calls.Call:
    """Profile a task; ``take`` gets the problem that prevents it, or "", and the text."""

    def answered(message: dict[str, Any], body: bytes) -> None:
        problem = printable(fields.text(message, "problem"), _LONGEST_PROBLEM)
        take(problem, "" if problem else profiles.unpack(body))

    waiter = calls.Waiter(answered, lambda why: take(why, ""))
    return to_agent.begin("profile_task", waiter, task=task, attempt=attempt, seconds=seconds)


def session_in(profiles: Path, stamp: str) -> Path:
    """Return an unused directory for profiles made at the same time."""
    names = (stamp if not number else f"{stamp}_{number}" for number in itertools.count())
    return next(profiles / name for name in names if not (profiles / name).exists())
