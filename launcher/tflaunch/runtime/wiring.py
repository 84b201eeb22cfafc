"""Composition root: builds what a run is supervised with, and closes it."""

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
from tflaunch.runtime.loop import Collaborators
from tflaunch.store.journal import Journal
from tflaunch.store.log_sink import LogSink
from tflaunch.store.log_writer import Marks
from tflaunch.store.run_dir import RunDirectory
from tflaunch.transport.base import AgentConnector
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


class RunConfig(NamedTuple):
    """How one run is supervised.

    ``connectors``: how the agent of each host is reached; ``code``: the user's code, if it has to be brought to hosts;
    ``sink`` is made for the names of the tasks; ``strikes``: a drill, if the user wants one; ``metrics_port``:
    where metrics are served, if anywhere; ``begun`` is called when other terminals can see the run.
    """

    directory: RunDirectory
    connectors: Mapping[str, AgentConnector]
    code: Code | None
    sink: Callable[[Sequence[str]], OutputSink]
    strikes: Sequence[Strike] = ()
    metrics_port: int | None = None
    begun: Callable[[], None] = lambda: None


class Runtime(NamedTuple):
    """What a run is supervised with."""

    collaborators: Collaborators
    journal: Journal
    service: Service
    driller: Driller | None
    sink: OutputSink


@contextmanager
def open_runtime(
    job: Job,
    config: RunConfig,
    mailbox: Mailbox,
    patience: Callable[[], float | None],
    fencing: int = 0,
    records: int = 0,
) -> Iterator[Runtime]:
    """Open what a run is supervised with, and close it again.

    Args:
        job: the job as it begins.
        config: how the run is supervised.
        mailbox: the supervisor's.
        patience: tells in the end how many seconds to wait for a reader that takes nothing; None for no limit.
        fencing: how many supervisors the run had before.
        records: how many records its journal has.
    """
    plan, directory = job.original, config.directory
    lock = runs.take(directory.path)  # until this process ends: whoever waits for the run's end waits for ours
    metrics = _metrics(config.metrics_port)
    journal = Journal(directory, records)
    if fencing:
        journal.record_supervisor(fencing)
    else:
        kept = serialize.as_record(plan)
        directory.write_plan(kept)
        journal.record_plan(directory, kept, job.started_at)
    sink = config.sink([process.task for process in plan.processes()])
    log_sink = LogSink(directory.logs, Marks(directory.marks), directory.times, sink, mailbox)
    terms = Terms(directory.run, plan.lease, plan.timeouts.grace, plan.timeouts.heartbeat, fencing)
    run_in_thread = _Threads()
    sessions = {
        host: Session(host, connector, terms, mailbox, log_sink, run_in_thread.do)
        for host, connector in config.connectors.items()
    }
    logs = str(directory.logs)
    service = Service(job, directory.path, logs, mailbox, sessions)
    log_sink.tell_change(service.tell_change)
    driller = _driller(config.strikes, mailbox, sessions, sink)
    watchers = (service,) if driller is None else (service, driller)
    if metrics is not None:
        sink.say(f"metrics on {metrics.url}")
        metrics.serve(lambda take: mailbox.call(lambda: service.measured(take)))
    if sink.is_live:
        _keep_live(sink, service, mailbox)
    config.begun()
    try:
        collaborators = Collaborators(mailbox, journal, log_sink, sessions, sink.say, logs, config.code, watchers)
        yield Runtime(collaborators, journal, service, driller, sink)
    finally:
        if metrics is not None:
            metrics.close()
        for part in (log_sink, journal, service, mailbox):
            part.close()
        _wait_for_reader(sink, lock, patience(), directory)


def _wait_for_reader(sink: OutputSink, lock: int, patience: float | None, directory: RunDirectory) -> None:
    """Let the reader take what is left; the run itself is over."""
    if sink.close(limit=_FLUSH):
        return
    os.close(lock)  # whoever waits for the run's end does not wait for our reader
    if not sink.close(patience):
        sink.say(f"the end of the output is not shown: its reader has stopped; all of it is in {directory.logs}")
        sink.close(limit=_FLUSH)


def _metrics(port: int | None) -> Metrics | None:
    if port is None:
        return None
    from tflaunch.runtime.metrics import Metrics

    return Metrics(port)


def _driller(
    strikes: Sequence[Strike], mailbox: Mailbox, sessions: Mapping[str, Session], sink: OutputSink
) -> Driller | None:
    if not strikes:
        return None
    from tflaunch.runtime.faults import Driller

    return Driller(strikes, mailbox, sessions, sink.say)


def _keep_live(sink: OutputSink, service: Service, mailbox: Mailbox) -> None:
    """Show how the run stands, again and again."""
    service.measured(sink.update)
    mailbox.call_at(mailbox.now() + _BETWEEN_VIEWS, lambda: _keep_live(sink, service, mailbox))


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
