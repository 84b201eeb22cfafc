"""The parts of a run and how they are put together: where its words go, what is recorded, who may ask."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tflaunch.agents.session import Session, Terms
from tflaunch.client import runs
from tflaunch.core.job_state import Job
from tflaunch.mailbox import Mailbox
from tflaunch.plan import serialize
from tflaunch.runtime.control_requests import Service
from tflaunch.runtime.loop import Parts
from tflaunch.store.journal import Journal
from tflaunch.store.log_sink import TaskWords
from tflaunch.store.log_writer import Marks
from tflaunch.store.run_dir import RunDirectory
from tflaunch.transport.base import Way
from tflaunch.tui.output_sink import OutputSink

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from tflaunch.agents.user_code import Code
    from tflaunch.core.drill import Strike
    from tflaunch.runtime.faults import Driller
    from tflaunch.runtime.metrics import Metrics

_AT_ONCE = 128  # hosts that are reached at the same time
_BETWEEN_VIEWS = 1.0  # seconds
_FLUSH = 1.0  # seconds in which a reader that reads has everything


class Outfit(NamedTuple):
    """What one run is supervised with.

    ``ways``: how the agent of each host is reached; ``code``: the user's code, if it has to be brought to hosts;
    ``place`` is made for the names of the tasks; ``strikes``: a drill, if the user wants one; ``metrics_port``:
    where metrics are served, if anywhere; ``begun`` is called when other terminals can see the run.
    """

    directory: RunDirectory
    ways: Mapping[str, Way]
    code: Code | None
    place: Callable[[Sequence[str]], OutputSink]
    strikes: Sequence[Strike] = ()
    metrics_port: int | None = None
    begun: Callable[[], None] = lambda: None


class Desk(NamedTuple):
    """The parts of a run, and what stands beside it."""

    parts: Parts
    journal: Journal
    service: Service
    driller: Driller | None
    place: OutputSink


@contextmanager
def prepared(
    job: Job,
    outfit: Outfit,
    mailbox: Mailbox,
    patience: Callable[[], float | None],
    fencing: int = 0,
    records: int = 0,
) -> Iterator[Desk]:
    """Put the parts of a run together, and take them apart again.

    Args:
        job: the job as it begins.
        outfit: what it is supervised with.
        mailbox: the supervisor's.
        patience: tells in the end how many seconds to wait for a reader that takes nothing; None for no limit.
        fencing: how many supervisors the run had before.
        records: how many records its journal has.
    """
    plan, directory = job.original, outfit.directory
    lock = runs.take(directory.path)  # until this process ends: whoever waits for the run's end waits for ours
    metrics = _metrics(outfit.metrics_port)
    journal = Journal(directory, records)
    if fencing:
        journal.record_supervisor(fencing)
    else:
        kept = serialize.as_record(plan)
        directory.write_plan(kept)
        journal.record_plan(directory, kept, job.started_at)
    place = outfit.place([process.task for process in plan.processes()])
    words = TaskWords(directory.logs, Marks(directory.marks), directory.times, place, mailbox)
    terms = Terms(directory.run, plan.lease, plan.timeouts.grace, plan.timeouts.heartbeat, fencing)
    aside = _Threads()
    sessions = {host: Session(host, way, terms, mailbox, words, aside.do) for host, way in outfit.ways.items()}
    logs = str(directory.logs)
    service = Service(job, directory.path, logs, mailbox, sessions)
    words.tell_change(service.tell_change)
    driller = _driller(outfit.strikes, mailbox, sessions, place)
    watchers = (service,) if driller is None else (service, driller)
    if metrics is not None:
        place.say(f"metrics on {metrics.url}")
        metrics.serve(lambda take: mailbox.call(lambda: service.measured(take)))
    if place.is_live:
        _keep_live(place, service, mailbox)
    outfit.begun()
    try:
        parts = Parts(mailbox, journal, words, sessions, place.say, logs, outfit.code, watchers)
        yield Desk(parts, journal, service, driller, place)
    finally:
        if metrics is not None:
            metrics.close()
        for part in (words, journal, service, mailbox):
            part.close()
        _wait_for_reader(place, lock, patience(), directory)


def _wait_for_reader(place: OutputSink, lock: int, patience: float | None, directory: RunDirectory) -> None:
    """Let the reader take what is left; the run itself is over."""
    if place.close(limit=_FLUSH):
        return
    os.close(lock)  # whoever waits for the run's end does not wait for our reader
    if not place.close(patience):
        place.say(f"the end of the output is not shown: its reader has stopped; all of it is in {directory.logs}")
        place.close(limit=_FLUSH)


def _metrics(port: int | None) -> Metrics | None:
    if port is None:
        return None
    from tflaunch.runtime.metrics import Metrics

    return Metrics(port)


def _driller(
    strikes: Sequence[Strike], mailbox: Mailbox, sessions: Mapping[str, Session], place: OutputSink
) -> Driller | None:
    if not strikes:
        return None
    from tflaunch.runtime.faults import Driller

    return Driller(strikes, mailbox, sessions, place.say)


def _keep_live(place: OutputSink, service: Service, mailbox: Mailbox) -> None:
    """Show how the run stands, again and again."""
    service.measured(place.update)
    mailbox.call_at(mailbox.now() + _BETWEEN_VIEWS, lambda: _keep_live(place, service, mailbox))


class _Threads:
    """Runs what may wait in threads of its own; a run on this machine alone never needs one."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def do(self, function: Callable[[], None]) -> None:
        """Run a function aside."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(_AT_ONCE, "reach")
        self._pool.submit(function)
