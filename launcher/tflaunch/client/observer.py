"""Observe a run from another process: replay its journal, and get its status."""

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tflaunch.agents.snapshot import AgentSnapshot
from tflaunch.client import runs
from tflaunch.client.control_client import ControlClient
from tflaunch.client.run_location import locate_run
from tflaunch.client.runs import NoSupervisorError, Outcome
from tflaunch.core import replay
from tflaunch.core.annotations import NOTHING
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.explain import assessment
from tflaunch.explain.run_status import HostStatus, Status, TaskStatus
from tflaunch.explain.status import StatusInputs, status
from tflaunch.feature import ask, feature_verbs, features
from tflaunch.store import run_dir
from tflaunch.store.journal import JournalReader, not_begun, readable
from tflaunch.store.log_writer import tail


def open_journal(directory: Path) -> JournalReader:
    """Open the journal of the run in ``directory`` at its first record.

    Raises:
        TflaunchError: there is none; if the run waits, the message says for what.
    """
    try:
        return JournalReader(directory)
    except TflaunchError as error:
        waits = locate_run(directory).describe_wait()
        raise (TflaunchError(waits, EXIT_INTERNAL) if waits else error) from None


class Observer:
    """Follows one run.

    ``epoch``, added to a time of its supervisor's clock, gives seconds since the epoch; ``known`` is what annotations
    have told; ``losses`` are sentences about what an ended run could not store, and ``because`` says how it has ended.
    """

    def __init__(self, directory: Path) -> None:
        """Open a run; without a supervisor, kill what a killed agent has left here.

        Raises:
            TflaunchError: the run has no journal, or the journal is damaged.
        """
        self.directory = directory
        self.client = self._connect()  # before reading the journal, so that no change is missed in between
        if self.client is None:
            runs.kill_orphans(directory)
        self._journal = open_journal(directory)
        first = self._journal.new_records()
        if not first:
            raise not_begun(directory)
        with readable(directory):
            self.job = replay.first_job(first[0])
        self.known = NOTHING
        self.logs = Path(first[0]["logs"])
        self.exit_code: int | None = None
        self.losses: list[str] = []
        self.because = ""
        self.epoch = 0.0
        self._unread = first
        self._has_exited = False

    def catch_up(self) -> list[replay.Transition]:
        """Return the steps since the last call."""
        records, self._unread = self._unread + self._journal.new_records(), []
        seen = []
        with readable(self.directory):
            for step in replay.transitions(self.job, self._noted(records), self.known):
                seen.append(step)
                self.job, self.known = step.job, step.known.noted(step.event, step.now)
        if self.exit_code is not None:
            self._hang_up()
        return seen

    @property
    def outcome(self) -> Outcome:
        """Whether the run is live, as of the last call of `catch_up` or `wait`."""
        if self.exit_code is not None:
            return Outcome.ENDED
        return Outcome.LIVE if self.client is not None else Outcome.LOST

    @property
    def tasks(self) -> list[str]:
        """The names of all tasks, sidecars included."""
        return [process.task for process in self.job.original.processes()]

    def changes(self, patience: float | None = None) -> Iterator[None]:
        """Yield after each change, or ``patience`` seconds, as long as the run lives.

        Who uses it calls `catch_up` for what has changed.
        """
        while self.outcome is Outcome.LIVE:
            self.wait(patience)  # no limit without one: the end of a run is what is waited for
            yield

    def wait(self, patience: float | None = None) -> None:
        """Wait at most ``patience`` seconds for a change, or the supervisor's exit."""
        if self.client is None:
            return
        try:
            message = self.client.hear(patience)
        except NoSupervisorError:
            message = {"kind": "ended"}
        if message is not None and message["kind"] == "ended":
            self.exit_code = message.get("exit_code", self.exit_code)  # the journal may have had no room for it
            self._hang_up()

    def _hang_up(self) -> None:
        """Leave a supervisor that has told the run's end, or none; await its exit."""
        if self.client is not None:
            self.client.close()
            self.client = None
        if self.exit_code is not None and not self._has_exited:
            self._has_exited = True
            run_dir.wait_for_end(self.directory)

    def _connect(self) -> ControlClient | None:
        with suppress(NoSupervisorError):
            client = ControlClient(self.directory)
            client.say("follow")
            return client
        return None

    def _noted(self, records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for record in records:
            if "now" in record:
                self.epoch = record["time"] - record["now"]
            if (end := runs.read_end(record)) is not None:
                self.exit_code, self.losses, self.because = end.exit_code, end.losses, end.because
            yield record


def current_status(directory: Path) -> Status:
    """Return the status of the run in ``directory``, with the last line of each task.

    Raises:
        TflaunchError: the journal is missing or damaged, or the supervisor does not answer.
    """
    current = status_of_supervisor(directory) or _status_of_waiting(directory) or _status_of_journal(directory)
    if not current.because:  # the answer of an earlier version
        current = assessment.assessed(current, time.time(), feature_verbs())
    logs = Path(current.logs)
    columns = [
        ask(name, feature.columns, directory, current) or {} for name, feature in features().items() if feature.columns
    ]

    def complete(task: TaskStatus) -> TaskStatus:
        told = {title: value for values in columns for title, value in values.get(task.task, {}).items()}
        return task._replace(last_line=next(iter(tail(logs, task.task, 1)), None), columns=told or None)

    return current._replace(tasks=tuple(map(complete, current.tasks)))


def status_of_supervisor(directory: Path) -> Status | None:
    """Return the status from the supervisor, None without a supervisor."""
    with suppress(NoSupervisorError), closing(ControlClient(directory)) as client:
        return client.ask_status()
    return None


def _status_of_waiting(directory: Path) -> Status | None:
    """Return the status of a run that has not begun, or could not; None once it has."""
    location = locate_run(directory)
    if not (waits := location.describe_wait()):  # a journal, if any, is of an earlier execution
        return None
    described, name = location.describe_run(), run_dir.job_name(directory.name)
    state, code, verbs = str(described["state"]), described.get("exit_code"), feature_verbs()
    found = assessment.assess_waiting(directory.name, state, code, waits, verbs)
    return Status(
        run=directory.name, name=name, state=state, attempt=0, restarts=0, restart=None, max_restarts=0,
        last_failure=None, exit_code=code, culprit=None, reason=waits, forming=None,
        supervisor="alive" if location.is_live() else "dead", started=directory.stat().st_mtime,
        logs=str(directory / "logs"), tensorboard=None, hosts=(), tasks=(), **found._asdict(),
    )  # fmt: skip


def _status_of_journal(directory: Path) -> Status:
    """Return the status from the journal, corrected by the agents of a lost run."""
    observer = Observer(directory)
    observer.catch_up()
    now = time.time() - observer.epoch
    is_alive = observer.outcome is Outcome.LIVE
    verbs, because = feature_verbs(), observer.because
    inputs = StatusInputs(observer.epoch, str(observer.logs), is_alive, now, known=observer.known, verbs=verbs)
    current = status(observer.job, inputs._replace(end=because), observer.exit_code)
    if observer.outcome is Outcome.LOST and observer.job.exit_code is None:
        seen = runs.look_at_hosts(directory)
        hosts = tuple(_corrected_host(host, seen[host.host]) for host in current.hosts)
        tasks = tuple(_corrected_task(task, seen[task.host]) for task in current.tasks)
        found = assessment.assessed(current._replace(hosts=hosts, tasks=tasks), time.time(), verbs)
        loss = locate_run(directory).describe_loss()
        if loss is not None or observer.job.plan.lease == 0:  # nothing can take it over
            return found._replace(because=loss or f"{found.because}; start its spec again", next_commands=())
        return found
    return current


def _corrected_host(host: HostStatus, seen: AgentSnapshot) -> HostStatus:
    if seen.tasks is None:
        return host._replace(state="disconnected", reason=seen.reason)
    return host._replace(state="connected" if seen.tasks else "down", reason=None, lease_left=seen.lease_left)


def _corrected_task(task: TaskStatus, seen: AgentSnapshot) -> TaskStatus:
    if seen.tasks is None:
        return task._replace(state="disconnected") if task.pid else task
    if task.task in seen.tasks:
        attempt, pid = seen.tasks[task.task]
        return task._replace(state="running", attempt=attempt, pid=pid)
    return task._replace(state="stopped", pid=None) if task.pid else task
