"""Composition root: build and close the collaborators that supervise a run."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from tflaunch import __version__, feature_faults
from tflaunch.agents.calls import Waiter
from tflaunch.agents.link_state import Terms
from tflaunch.agents.session import Session
from tflaunch.core import policy
from tflaunch.core.annotations import FeatureFailed
from tflaunch.core.events import StopRequested
from tflaunch.core.job_state import Job
from tflaunch.mailbox import Mailbox
from tflaunch.plan import serialize
from tflaunch.plan.model import PRIVATE
from tflaunch.runtime.control_requests import Service
from tflaunch.runtime.loop import Collaborators
from tflaunch.runtime.run_config import RunConfig
from tflaunch.runtime.watchers import Supervision, Watchers
from tflaunch.store import run_dir
from tflaunch.store.journal import Journal
from tflaunch.store.left_files import LeftFileStore
from tflaunch.store.log_sink import LogSink, OutputSink
from tflaunch.store.log_writer import Marks
from tflaunch.transport.base import AgentConnector
from tflaunch_worker import fields
from tflaunch_worker.readable import printable

_AT_ONCE = 128  # hosts connected to concurrently
_BETWEEN_VIEWS = 1.0  # seconds
_BETWEEN_LOOKS_FOR_OWNER = 1.0  # seconds
_LONGEST_NAME = 60  # characters of a feature's name
_LONGEST_REASON = 500  # characters
_MOST_FAULTS = 50  # features of an agent that can fail
_FLUSH = 1.0  # seconds within which a reader that keeps reading has received everything


class Runtime(NamedTuple):
    """The collaborators that supervise a run."""

    collaborators: Collaborators
    journal: Journal
    service: Service
    watchers: Watchers
    sink: OutputSink
    left_files: LeftFileStore


@contextmanager
def open_runtime(
    job: Job,
    config: RunConfig,
    connectors: Mapping[str, AgentConnector],
    mailbox: Mailbox,
    patience: Callable[[], float | None],
    fencing: int = 0,
    records: int = 0,
) -> Iterator[Runtime]:
    """Open everything needed to supervise a run, and close it on exit.

    ``patience`` returns how many seconds to wait at the end for a stalled output reader, None for no limit;
    ``fencing`` is the number of earlier supervisors of this run, ``records`` that of records in its journal.
    """
    plan, directory = job.original, config.directory
    # It is held until this process exits: waiting for the run's end means waiting for it.
    lock = run_dir.take_lock(directory.path) if config.lock is None else config.lock
    journal = Journal(directory, records)
    sink = config.sink([process.task for process in plan.processes()])
    log_sink = LogSink(directory.logs, Marks(directory.marks), directory.times, sink, mailbox)
    left_files = LeftFileStore(directory.path / run_dir.LEFT_FILES_NAME)
    limits = plan.lease, plan.timeouts.grace, plan.timeouts.heartbeat
    terms = Terms(directory.run, *limits, fencing, private=plan.network == PRIVATE)
    threads = ThreadPoolExecutor(_AT_ONCE, "reach")  # no limit: its threads have theirs
    sessions = {
        host: Session(host, connector, terms, mailbox, log_sink, left_files, threads.submit)
        for host, connector in connectors.items()
    }
    for session in sessions.values():
        _watch_faults(session, mailbox)
    logs = str(directory.logs)
    service = Service(job, logs, mailbox, sessions)
    supervision = (job, config, journal, mailbox, sessions, sink.say, service.status, service.measured)
    watchers = Watchers(Supervision(*supervision))
    if fencing:  # what cannot be watched has been refused by now
        journal.note("supervisor", number=fencing, pid=os.getpid())
    else:
        kept = serialize.as_json(plan)
        directory.write_plan(kept)
        journal.record_plan(directory, kept, job.started_at, __version__)
    service.listen(directory.path, watchers.answer)
    log_sink.tell_change = service.tell_change
    if config.owner is not None:
        _end_with(config.owner, mailbox, plan.timeouts.grace)
    if sink.is_live:
        _repeat(_BETWEEN_VIEWS, mailbox, lambda: service.measured(sink.update))
    config.begun()
    earlier_hook = threading.excepthook
    threading.excepthook = _excusing(earlier_hook)
    try:
        watching = service.watch, watchers.watch
        readers = (
            service.take_annotations,
            lambda known: watchers.each(lambda watcher: watcher.take_annotations(known)),
        )
        lag = policy.SETTLES_WITHIN if config.explain_term is not None else 0.0
        collaborators = Collaborators(
            mailbox, journal, log_sink, sessions, sink.say, logs, config.code, watching, readers, config.secrets, lag
        )
        yield Runtime(collaborators, journal, service, watchers, sink, left_files)
    finally:
        threading.excepthook = earlier_hook
        for part in (watchers, log_sink, journal, service, mailbox):
            part.close()
        _wait_for_reader(sink, lock, patience(), directory)


def _wait_for_reader(sink: OutputSink, lock: int, patience: float | None, directory: run_dir.RunDirectory) -> None:
    """Let the output reader drain what is left; the run itself is over."""
    if sink.close(limit=_FLUSH):
        return
    os.close(lock)  # release the run now: its end does not depend on our reader
    if not sink.close(patience):
        sink.say(f"the end of the output is not shown: its reader has stopped; all of it is in {directory.logs}")
        sink.close(limit=_FLUSH)


def _watch_faults(session: Session, mailbox: Mailbox) -> None:
    seen: set[str] = set()

    def told(message: dict[str, Any], body: bytes) -> None:
        feature = printable(fields.text(message, "feature", _LONGEST_NAME))
        reason = printable(fields.text(message, "reason", _LONGEST_REASON))
        if feature not in seen and len(seen) < _MOST_FAULTS:
            seen.add(feature)
            mailbox.put(FeatureFailed(feature, reason, session.host))

    session.calls.keep("watch_faults", Waiter(told=told))


def _excusing(otherwise: Callable[[threading.ExceptHookArgs], object]) -> Callable[[threading.ExceptHookArgs], None]:
    """Return a hook that leaves out a feature in whose thread an error was raised."""

    def take(about: threading.ExceptHookArgs) -> None:
        if about.exc_value is None or not feature_faults.excuse(about.exc_value):
            otherwise(about)

    return take


def _repeat(seconds: float, mailbox: Mailbox, do: Callable[[], None]) -> None:
    do()
    mailbox.call_at(mailbox.now() + seconds, lambda: _repeat(seconds, mailbox, do))


def _end_with(owner: int, mailbox: Mailbox, grace: float) -> None:
    """Stop the job once this process has lost the parent that started it."""
    if os.getppid() != owner:
        mailbox.put(StopRequested(grace))
        return
    mailbox.call_at(mailbox.now() + _BETWEEN_LOOKS_FOR_OWNER, lambda: _end_with(owner, mailbox, grace))
