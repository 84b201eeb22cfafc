"""The Python API: what `import tflaunch` gives to programs."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal as signals
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import ValidationError

from tflaunch.client import requests, runs, slurm_follow
from tflaunch.client.follow import Follower, lost
from tflaunch.client.observer import Observer, Outcome
from tflaunch.client.status import current_status
from tflaunch.clusterspec import model
from tflaunch.clusterspec.problems import problems_in
from tflaunch.clusterspec.spec_file import SpecFile, read_spec_file
from tflaunch.core.job_state import Job
from tflaunch.errors import EXIT_INTERNAL, SpecError, TflaunchError
from tflaunch.explain import status, summary
from tflaunch.explain.run_status import Status
from tflaunch.plan import selectors
from tflaunch.runtime import launch, plan_cache, supervisor_process
from tflaunch.slurm import batch
from tflaunch.store.journal_reader import JournalReader
from tflaunch.store.log_line import Line
from tflaunch.store.log_reader import LogReader
from tflaunch.store.log_writer import path_of, tail

if TYPE_CHECKING:
    from typing_extensions import Self

_DEFAULT_NAME = "job"

SpecLike = model.Spec | Mapping[str, Any] | str | Path
"""A spec, a mapping with the fields of one, or the path of a spec file."""


class Spec(model.Spec):
    """A cluster spec. Its fields are those of a spec file, and are checked as those of a file are."""

    if TYPE_CHECKING:  # the types that are accepted; those of the fields are what becomes of them

        def __init__(  # noqa: PLR0913
            self,
            *,
            cluster: Mapping[str, int | Sequence[str]] = ...,
            command: str | Sequence[str] = ...,
            name: str = ...,
            strategy: str = ...,
            discover: Mapping[str, str] = ...,
            roles: Mapping[str, model.Role | Mapping[str, Any]] = ...,
            sidecars: Mapping[str, model.Sidecar | Mapping[str, Any]] = ...,
            tensorboard: str = ...,
            hosts: Mapping[str, model.Host | Mapping[str, Any] | str] = ...,
            env: Mapping[str, str | int | float] = ...,
            workdir: str = ...,
            restart: model.Restart | Mapping[str, Any] = ...,
            timeouts: model.Timeouts | Mapping[str, Any] = ...,
            success: Literal["chief", "all"] = ...,
            legacy_keras: Literal["auto"] | bool = ...,
            sync: model.Sync | Mapping[str, Any] = ...,
            elastic: model.Elastic | Mapping[str, Any] = ...,
            preload: Sequence[str] = ...,
            container: model.Container | Mapping[str, Any] = ...,
            slurm: Mapping[str, str | int | bool] = ...,
        ) -> None: ...

    else:

        def __init__(self, **fields: Any) -> None:
            """Make a spec.

            Raises:
                SpecError: it is invalid; lists all problems.
            """
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise SpecError("Spec", problems_in(error, fields)) from None


class Event(NamedTuple):
    """A record of a run's journal: something that happened, or an action of the supervisor.

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
    """

    run: str
    state: str
    exit_code: int
    culprit: str | None
    summary: str
    tasks: Mapping[str, TaskResult]
    logs: Path

    def check(self) -> Result:
        """Return this result if the run succeeded.

        Raises:
            JobFailed: it did not.
        """
        if self.exit_code:
            raise JobFailed(self)
        return self


class JobFailed(TflaunchError):
    """A run did not succeed; the message is its summary."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.summary, result.exit_code)
        self.result = result


class Run:
    """A run: live, or ended.

    As a context manager it stops a run that this program has started when the block is left, and waits for its end.
    ``await run`` is `wait` without blocking the event loop.
    """

    def __init__(self, directory: Path, *, is_owned: bool = False) -> None:
        self.directory = directory
        """Its directory, which has its spec, plan, journal and logs."""
        self._is_owned = is_owned

    @property
    def name(self) -> str:
        """Its name, which is RUN on the command line."""
        return self.directory.name

    def __repr__(self) -> str:
        return f"<tflaunch.Run {self.name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._leave)

    def __await__(self) -> Generator[Any, None, Result]:
        return asyncio.to_thread(self.wait).__await__()

    def _leave(self) -> None:
        if not self._is_owned:
            return
        if batch.not_begun(self.directory):
            batch.cancel_run(self.directory)
        else:
            self.stop()

    def status(self) -> Status:
        """Return its status: what `tflaunch ps` shows.

        Raises:
            TflaunchError: it cannot be found out.
        """
        return current_status(self.directory)

    def events(self) -> Iterator[Event]:
        """Yield everything that has happened, and what happens until the run has ended.

        Raises:
            TflaunchError: the journal is damaged.
        """
        observer, journal = self._observe(), JournalReader(self.directory)
        while True:
            is_live = observer.outcome is Outcome.LIVE
            for record in journal.new_records():
                yield Event(record.pop("time"), record.pop("seq"), record.pop("kind"), record)
            if not is_live:
                return
            observer.wait()

    def logs(self, *tasks: str, follow: bool = False) -> Iterator[LogLine]:
        """Yield lines of output, merged by time.

        Args:
            *tasks: which tasks, as on the command line: ``worker``, ``worker:1``, ``worker:0-3``, ``host=NAME``;
                without any, all.
            follow: whether to go on with what is written until the run has ended.

        Raises:
            TflaunchError: there is no such task.
        """
        observer = self._observe()
        reader = LogReader(self.directory, observer.logs, self._select(tasks))
        yield from map(_log_line, reader.read())
        while follow and observer.outcome is Outcome.LIVE:
            observer.wait()
            yield from map(_log_line, reader.new_lines())
        yield from map(_log_line, reader.rest())

    def restart(self, *tasks: str) -> None:
        """Restart tasks, or with none all that train; the restart budget is not charged.

        Raises:
            TflaunchError: the run has ended, or there is no such task.
        """
        requests.request_restart(self.directory, self._select(tasks) if tasks else [])

    def signal(self, number: int, *tasks: str) -> None:
        """Send a signal to tasks, or with none to all.

        Raises:
            TflaunchError: the run has ended, there is no such task, or none of them is running.
        """
        requests.request_signal(self.directory, signals.Signals(number), self._select(tasks))

    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the run has ended, and return how it did.

        Args:
            timeout: most seconds to wait; the run goes on afterwards.

        Raises:
            TimeoutError: it has not ended by then.
            TflaunchError: its supervisor was killed, or it was taken out of a queue.
        """
        until = None if timeout is None else time.monotonic() + timeout

        def time_left() -> float | None:
            if until is None:
                return None
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self.name} has not ended within {timeout:g} s")
            return left

        def watch(observer: Observer) -> int:
            observer.catch_up()
            while observer.outcome is Outcome.LIVE:
                observer.wait(time_left())
                observer.catch_up()
            return _exit_code_of(observer)

        def pause(seconds: float) -> None:
            time.sleep(min(time_left() or seconds, seconds))

        slurm_follow.follow(self.directory, _ignore, watch, pause)
        return _result_of(Observer(self.directory))

    def stop(self, grace: float | None = None) -> Result:
        """Stop it, wait until none of its processes is left, and return how it ended.

        Args:
            grace: seconds between TERM and KILL; by default, those of the spec.

        Raises:
            TflaunchError: its supervisor was killed.
        """
        if runs.is_live(self.directory):
            requests.request_stop(self.directory, grace)
        return self.wait()

    def show(self) -> Result:
        """Print its output and messages like `tflaunch up`, until it has ended; return how it did.

        Raises:
            TflaunchError: its supervisor was killed.
        """
        from tflaunch.tui.screen import Screen

        observer = self._observe()
        tasks = [process.task for process in observer.job.original.processes()]
        screen = Screen(tasks)
        try:
            Follower(observer, screen, tasks).run(None)
        finally:
            screen.close()
        return _result_of(observer)

    def _observe(self) -> Observer:
        """Return an observer of the run, once it has begun: a batch job may wait in a queue."""
        slurm_follow.until_begun(self.directory, _ignore)
        return Observer(self.directory)

    def _select(self, tasks: tuple[str, ...]) -> list[str]:
        return selectors.select_tasks(runs.plan_of(self.directory), list(tasks))


def start(
    spec: SpecLike,
    *,
    timeout: float | None = None,
    directory: str | Path | None = None,
    detach: bool = False,
    on: Literal["slurm"] | None = None,
) -> Run:
    """Start a run, and return it once it has begun. Nothing is printed.

    Args:
        spec: the spec, a mapping with its fields, or the path of its file.
        timeout: limit in seconds for the whole job, restarts included: ``timeouts.deadline`` of the spec.
        directory: base of relative paths in the spec; by default the directory of its file, or else the current one.
        detach: whether the run goes on when this program ends.
        on: the scheduler to submit it to, as with `tflaunch up --on`; the run may wait in its queue. Such a run is
            stopped when a ``with`` block is left, but goes on if this program is killed.

    Raises:
        SpecError: the spec is invalid; lists all problems.
        TflaunchError: the run cannot begin.
    """
    file = _file_of(spec, None if directory is None else Path(directory))
    settings = [] if timeout is None else [f"timeouts.deadline={json.dumps(timeout)}"]
    if on is not None:
        return Run(_submit(file, settings), is_owned=not detach)
    plan = plan_cache.plan_spec(file, settings, is_detached=detach).plan
    run = launch.make_directory(plan, None, file.suffix, file.text.encode())
    try:
        supervisor_process.start(plan, run, is_owned=not detach)
    except TflaunchError:
        shutil.rmtree(run.path, ignore_errors=True)  # nothing has run, and the message says why
        raise
    return Run(run.path, is_owned=not detach)


def _submit(file: SpecFile, settings: Sequence[str]) -> Path:
    """Submit a run to Slurm, and return its directory."""
    from tflaunch.runtime import slurm_submission
    from tflaunch.runtime.slurm_submission import Order

    order = Order(str(file.directory.absolute()), file.suffix, settings)
    return slurm_submission.submit_spec(file, order).directory.path


def run(
    spec: SpecLike,
    *,
    timeout: float | None = None,
    directory: str | Path | None = None,
    on: Literal["slurm"] | None = None,
    show: bool = False,
    check: bool = False,
) -> Result:
    """Run a spec to its end, and return how it ended. Ctrl-C stops the run before it is raised.

    Args:
        spec: as in `start`.
        timeout: as in `start`.
        directory: as in `start`.
        on: as in `start`.
        show: whether to print output and messages like `tflaunch up`.
        check: whether to raise if the run does not succeed.

    Raises:
        SpecError: the spec is invalid; lists all problems.
        JobFailed: with ``check``, the run did not succeed.
        TflaunchError: the run cannot begin, or its supervisor was killed.
    """
    with start(spec, timeout=timeout, directory=directory, on=on) as started:
        result = started.show() if show else started.wait()
    return result.check() if check else result


async def run_async(spec: SpecLike, *, timeout: float | None = None, directory: str | Path | None = None) -> Result:
    """Run a spec to its end without blocking the event loop; if the task is cancelled, the run is stopped.

    Args and errors are those of `start`.
    """
    async with await asyncio.to_thread(start, spec, timeout=timeout, directory=directory) as started:
        return await started


def attach(name: str | None = None) -> Run:
    """Return a run that exists already; leaving a ``with`` block does not stop it.

    Args:
        name: the run's name, its job's name, or a prefix of the run's name: the live one, else the newest; None for
            any run.

    Raises:
        TflaunchError: no run matches, or several live runs do.
    """
    return Run(runs.find_run(name))


def _file_of(spec: SpecLike, directory: Path | None) -> SpecFile:
    if isinstance(spec, str | Path):
        file = read_spec_file(Path(spec))
        return file if directory is None else file._replace(directory=directory)
    data = spec.as_data() if isinstance(spec, model.Spec) else dict(spec)
    try:
        text = json.dumps({"name": _DEFAULT_NAME, **data}, indent=2) + "\n"
    except (TypeError, ValueError) as error:
        raise TflaunchError(f"the spec cannot be written as JSON: {error}", EXIT_INTERNAL) from None
    return SpecFile("Spec", directory or Path(), ".json", text)


def _log_line(line: Line) -> LogLine:
    return LogLine(line.time, line.task, line.attempt, line.text.decode("utf-8", "replace"))


def _result_of(observer: Observer) -> Result:
    """Return how an observed run has ended.

    Raises:
        TflaunchError: its supervisor was killed.
    """
    observer.catch_up()
    exit_code = _exit_code_of(observer)
    job, logs = observer.job, observer.logs
    text = summary.summary(job, str(logs), lambda task, count: tail(logs, task, count))
    return Result(
        run=job.run,
        state=status.state_of_run(job, exit_code),
        exit_code=exit_code,
        culprit=None if job.culprit is None else job.culprit.name,
        summary="\n".join([*observer.losses, text]),
        tasks={process.task: _task_result(job, process.task, logs) for process in job.original.processes()},
        logs=logs,
    )


def _exit_code_of(observer: Observer) -> int:
    if observer.exit_code is None:
        raise TflaunchError(lost(observer), EXIT_INTERNAL)
    return observer.exit_code


def _ignore(message: str) -> None:
    """Do not show a message: a program asks for what it wants to know."""


def _task_result(job: Job, name: str, logs: Path) -> TaskResult:
    task = job.tasks[name]
    return TaskResult(
        task=name,
        host=job.original.find(name).host,
        attempt=task.attempt,
        exit_code=task.code,
        signal=task.signal,
        step=task.reached.step,
        epoch=task.reached.epoch,
        metrics=dict(task.metrics),
        log_path=path_of(logs, name),
    )
