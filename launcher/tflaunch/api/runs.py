"""`Run`: a run as programs watch and steer it."""

from __future__ import annotations

import asyncio
import itertools
import signal as signals
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch.api import notebook
from tflaunch.api.functions import Values
from tflaunch.api.values import Event, LogLine, Result, TaskResult
from tflaunch.client import control_client, runs
from tflaunch.client.follow import Follower, wait_for_end
from tflaunch.client.observer import Observer, current_status
from tflaunch.client.run_location import locate_run
from tflaunch.core.job_state import Job
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.explain import assessment, status, summary
from tflaunch.explain.run_status import Status
from tflaunch.plan import selectors
from tflaunch.store import left_files
from tflaunch.store.history import Moment, read_history
from tflaunch.store.journal import JournalReader
from tflaunch.store.log_reader import Line, LogReader
from tflaunch.store.log_writer import path_of, tail
from tflaunch.store.run_dir import LEFT_FILES_NAME
from tflaunch.tui.screen import Screen
from tflaunch_worker import function

if TYPE_CHECKING:
    from typing_extensions import Self


class Run:
    """A run: live, or ended.

    As a context manager it stops a run that this program has started when the block is left, and waits for its end.
    ``await run`` is `wait` without blocking the event loop.
    """

    def __init__(self, directory: Path, *, is_owned: bool = False, trust_hosts: bool = False) -> None:
        self.directory = directory
        """Its directory, which has its spec, plan, journal and logs."""
        self._is_owned = is_owned
        self._trusts_hosts = trust_hosts

    @property
    def name(self) -> str:
        """Its name, which is RUN on the command line."""
        return self.directory.name

    def __repr__(self) -> str:
        return f"<tflaunch.Run {self.name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._leave)

    def __await__(self) -> Generator[Any, None, Result]:
        return asyncio.to_thread(self.wait).__await__()

    def _leave(self) -> None:
        if not self._is_owned:
            return
        if locate_run(self.directory).describe_wait():
            control_client.request_stop(self.directory, None)
        else:
            self.stop()

    def status(self) -> Status:
        """Return its status: what `tflaunch ps` shows.

        Raises:
            TflaunchError: it cannot be determined.
        """
        return current_status(self.directory)

    @property
    def trains(self) -> str:
        """Whether it trains: ``yes``, ``no`` or ``unknown``; raises as `status`."""
        return self.status().trains

    @property
    def phase(self) -> str:
        """What it does now, such as ``forming`` or ``training``; raises as `status`."""
        return self.status().phase

    @property
    def since(self) -> float | None:
        """Since when, in seconds since the epoch, None if unknown; raises as `status`."""
        return self.status().since

    @property
    def because(self) -> str:
        """Why it trains, or does not, in a sentence; raises as `status`."""
        return self.status().because

    @property
    def next_commands(self) -> tuple[tuple[str, ...], ...]:
        """Commands that help and end nothing, as argument lists; raises as `status`."""
        return self.status().next_commands

    def history(self) -> list[Moment]:
        """Return the reports and the usage of the tasks every few seconds, oldest first.

        Example:
            >>> [(moment.time, moment.tasks["worker:0"].metrics.get("loss")) for moment in run.history()]
        """
        return read_history(self.directory)

    def events(self) -> Iterator[Event]:
        """Yield everything that has happened, and what happens until the run has ended.

        Raises:
            TflaunchError: the journal is damaged.
        """
        observer, journal = self._observe(), JournalReader(self.directory)
        for _ in itertools.chain([None], observer.changes()):
            for record in journal.new_records():
                yield Event(record.pop("time"), record.pop("seq"), record.pop("kind"), record)

    def logs(self, *tasks: str, follow: bool = False) -> Iterator[LogLine]:
        """Yield lines of output, merged by time.

        Args:
            *tasks: which tasks, as on the command line: ``worker``, ``worker:1``, ``worker:0-3``, ``host=NAME``;
                without any, all.
            follow: whether to go on with what is written until the run has ended.

        Raises:
            TflaunchError: a task does not exist.
        """
        observer = self._observe()
        reader = LogReader(self.directory, observer.logs, self._select(tasks))
        yield from map(_log_line, reader.read())
        for _ in observer.changes() if follow else ():
            yield from map(_log_line, reader.new_lines())
        yield from map(_log_line, reader.rest())

    def restart(self, *tasks: str) -> None:
        """Restart tasks, or with none all that train; the restart budget is not charged.

        Raises:
            TflaunchError: the run has ended, or a task does not exist.
        """
        control_client.request_restart(self.directory, self._select(tasks) if tasks else [])

    def signal(self, number: int, *tasks: str) -> None:
        """Send a signal to tasks, or with none to all.

        Raises:
            TflaunchError: the run has ended, a task does not exist, or none of them is running.
        """
        control_client.request_signal(self.directory, signals.Signals(number), self._select(tasks))

    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the run has ended, and return how it did.

        Args:
            timeout: most seconds to wait; the run goes on afterwards.

        Raises:
            TimeoutError: it has not ended by then.
            TflaunchError: its supervisor was killed, or it was taken out of a queue.
        """
        wait_for_end(locate_run(self.directory), _ignore, timeout)
        return self._result_of(Observer(self.directory))

    def stop(self, grace: float | None = None) -> Result:
        """Stop it, wait until none of its processes is left, and return how it ended.

        Args:
            grace: seconds between TERM and KILL; by default, those of the spec.

        Raises:
            TflaunchError: its supervisor was killed.
        """
        if runs.is_live(self.directory):
            control_client.request_stop(self.directory, grace)
        return self.wait()  # no limit: the end of a run is what is waited for

    def show(self) -> Result:
        """Print output and messages like `tflaunch up`, until it has ended; return how.

        Raises:
            TflaunchError: its supervisor was killed.
        """
        observer = self._observe()
        sink = notebook.CellOutput(observer.tasks) if notebook.is_running() else Screen(observer.tasks)
        try:
            Follower(observer, sink).run(None)
        finally:
            sink.close()
        if isinstance(sink, notebook.CellOutput):
            sink.update(current_status(self.directory))
        return self._result_of(observer)

    def _observe(self) -> Observer:
        """Return an observer of the run, once it has begun: a batch job may wait."""
        locate_run(self.directory).wait_until_begun(_ignore, time.sleep)
        return Observer(self.directory)

    def _select(self, tasks: tuple[str, ...]) -> list[str]:
        return selectors.select_tasks(runs.plan_of(self.directory), list(tasks))

    def _result_of(self, observer: Observer) -> Result:
        """Return how an observed run has ended."""
        observer.catch_up()
        exit_code = observer.exit_code
        if exit_code is None:
            raise TflaunchError(runs.describe_loss(observer.directory), EXIT_INTERNAL)
        job, logs, current = observer.job, observer.logs, self.status()
        text = summary.summary(job, str(logs), lambda task, count: tail(logs, task, count), known=observer.known)
        files = observer.directory / LEFT_FILES_NAME
        tasks = {name: _task_result(job, name, logs, files) for name in observer.tasks}
        is_here = locate_run(self.directory).has_supervisor_here
        trusted = [
            name for name in tasks if self._trusts_hosts or (is_here and job.plan.host(job.host_of(name)).is_local)
        ]
        return Result(
            run=job.run,
            state=status.state_of_run(job, exit_code),
            exit_code=exit_code,
            culprit=None if job.culprit is None else job.culprit.name,
            summary="\n".join([*observer.losses, text]),
            tasks=tasks,
            logs=logs,
            values=Values({name: task.outcome_path for name, task in tasks.items()}, trusted),
            **{name: getattr(current, name) for name in assessment.Assessment._fields},
        )


def _log_line(line: Line) -> LogLine:
    return LogLine(line.time, line.task, line.attempt, line.text.decode("utf-8", "replace"))


def _ignore(message: str) -> None:
    """Do not show a message: a program asks for what it wants to know."""


def _task_result(job: Job, name: str, logs: Path, files: Path) -> TaskResult:
    task = job.tasks[name]
    return TaskResult(
        task=name,
        host=job.host_of(name),
        attempt=task.attempt,
        exit_code=task.exit.code,
        signal=task.exit.signal,
        step=task.reached.step,
        epoch=task.reached.epoch,
        metrics=dict(task.metrics),
        log_path=path_of(logs, name),
        outcome_path=left_files.path_of(files, name, task.attempt, function.OUTCOME),
    )
