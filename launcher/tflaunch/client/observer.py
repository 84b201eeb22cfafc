"""Observe a run from another process: replay its journal as it grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch.client import runs
from tflaunch.client.control_client import ControlClient
from tflaunch.client.run_location import locate_run
from tflaunch.client.runs import NoSupervisorError, Outcome
from tflaunch.core import replay
from tflaunch.core.annotations import Annotation, Annotations
from tflaunch.core.events import Event
from tflaunch.core.job_state import Job
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.store import run_lock
from tflaunch.store.journal import JournalReader, not_begun, readable


class ObservedStep(NamedTuple):
    """A step or annotation: the job before, the event, its time, the job after.

    ``known``: what annotations had told before.
    """

    before: Job
    event: Event | Annotation
    now: float
    job: Job
    known: Annotations


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
    have told; ``losses`` are sentences about what an ended run could not store, and the outcome of a drill.
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
        self.known = Annotations()
        self.logs = Path(first[0]["logs"])
        self.exit_code: int | None = None
        self.losses: list[str] = []
        self.epoch = 0.0
        self._unread = first
        self._has_exited = False

    def catch_up(self) -> list[ObservedStep]:
        """Return the steps since the last call."""
        records, self._unread = self._unread + self._journal.new_records(), []
        seen = []
        with readable(self.directory):
            for event, now, _, job in replay.transitions(self.job, self._noted(records)):
                seen.append(ObservedStep(self.job, event, now, job, self.known))
                self.job = job
                self.known = self.known.noted(event, now) if isinstance(event, Annotation) else self.known
        self._wait_for_exit()
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
            self.client.close()
            self.client = None
            self.exit_code = message.get("exit_code", self.exit_code)  # the journal may have had no room for it
            self._wait_for_exit()

    def _wait_for_exit(self) -> None:
        """Wait for the exit of a supervisor that has recorded the run's end."""
        if self.exit_code is None or self._has_exited:
            return
        self._has_exited = True
        if self.client is not None:
            self.client.close()
            self.client = None
        run_lock.wait_for_end(self.directory)

    def _connect(self) -> ControlClient | None:
        try:
            client = ControlClient(self.directory)
            client.say("follow")
        except NoSupervisorError:
            return None
        return client

    def _noted(self, records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for record in records:
            if "now" in record:
                self.epoch = record["time"] - record["now"]
            if (end := runs.read_end(record)) is not None:
                self.exit_code, self.losses = end.exit_code, end.losses
            yield record
