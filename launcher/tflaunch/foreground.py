"""One run in the foreground: its parts are put together, signals become events, the last word is said."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from tflaunch import diagnosis, plan_forms, replay, runs, supervisor
from tflaunch.errors import EXIT_INTERNAL
from tflaunch.events import Interrupted
from tflaunch.hosts.link import Link, Way
from tflaunch.hosts.session import Session, Terms
from tflaunch.journal import Journal, RunDirectory
from tflaunch.mailbox import Mailbox
from tflaunch.plan import Plan
from tflaunch.run import Parts, Run
from tflaunch.screen import Screen
from tflaunch.task_log import Marks
from tflaunch.words import TaskWords

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from tflaunch.drill import Strike
    from tflaunch.drilling import Driller
    from tflaunch.hosts.code import Code

_AT_ONCE = 128  # hosts that are reached at the same time


def execute(
    plan: Plan,
    directory: RunDirectory,
    ways: Mapping[str, Way],
    links: Mapping[str, Link],
    code: Code | None,
    strikes: Sequence[Strike] = (),
) -> int:
    """Run a plan to its end and return tflaunch's exit code.

    Args:
        plan: what to run.
        directory: where its plan, journal and logs are kept.
        ways: how the agent of each host is reached.
        links: agents that were started already.
        code: the user's code, if it has to be brought to hosts.
        strikes: a drill, if the user wants one.
    """
    with _foreground(plan, directory, ways, code) as (whole, journal):
        parts = whole._replace(driller=_driller(strikes, whole))
        job = supervisor.begin(directory.run, plan, parts.mailbox.now())
        directory.write_plan(plan_forms.as_json(plan))
        journal.record_plan(directory, plan_forms.as_json(plan), job.started_at)
        run = Run(job, parts)
        with _signals_to(parts.mailbox):
            run.execute(links)
        return _last_words(run, parts, journal)


def resume(
    records: Sequence[dict[str, Any]], directory: RunDirectory, ways: Mapping[str, Way], code: Code | None
) -> int:
    """Take over a run whose supervisor was killed, and return tflaunch's exit code.

    Args:
        records: its journal.
        directory: its directory.
        ways: how the agent of each host is reached.
        code: the user's code, if it has to be brought to hosts.
    """
    job = replay.first_job(records[0])
    with _foreground(job.original, directory, ways, code, len(records)) as (parts, journal):
        run = Run(job, parts)
        run.recall(records[1:])
        with _signals_to(parts.mailbox):
            run.resume()
        return _last_words(run, parts, journal)


def _driller(strikes: Sequence[Strike], parts: Parts) -> Driller | None:
    if not strikes:
        return None
    from tflaunch.drilling import Driller

    return Driller(strikes, parts.mailbox, parts.sessions, parts.say)


@contextmanager
def _foreground(
    plan: Plan, directory: RunDirectory, ways: Mapping[str, Way], code: Code | None, records: int = 0
) -> Iterator[tuple[Parts, Journal]]:
    """Put the parts of a run together, and take them apart again."""
    lock = runs.take(directory.path)
    mailbox = Mailbox()
    screen = Screen([process.task for process in plan.processes()])
    words = TaskWords(directory.logs, Marks(directory.marks), screen, mailbox)
    journal = Journal(directory, records)
    terms = Terms(directory.run, plan.lease, plan.timeouts.grace, plan.timeouts.heartbeat)
    aside = _Threads()
    sessions = {host: Session(host, way, terms, mailbox, words, aside.do) for host, way in ways.items()}
    try:
        yield Parts(mailbox, journal, words, sessions, screen.say, str(directory.logs), code), journal
    finally:
        for part in (screen, words, journal, mailbox):
            part.close()
        os.close(lock)


def _last_words(run: Run, parts: Parts, journal: Journal) -> int:
    """Say how it ended."""
    lines = _losses(parts.words, journal)
    exit_code = run.exit_code
    if parts.driller is not None:
        lines += parts.driller.report(exit_code)
        if exit_code == 0 and not parts.driller.is_done:
            exit_code = EXIT_INTERNAL  # a test that tested nothing must not look like one that passed
    parts.say("\n".join([*lines, diagnosis.summary(run.job, parts.logs, parts.words.tail)]))
    return exit_code


def _losses(words: TaskWords, journal: Journal) -> list[str]:
    """What could not be kept: the disk was full."""
    lines = words.trouble()
    if journal.lost:
        lines.append(f"{journal.lost} records of the journal could not be written")
    return lines


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


@contextmanager
def _signals_to(mailbox: Mailbox) -> Iterator[None]:
    """Turn Ctrl-C, TERM and HUP into events; HUP stays ignored under nohup."""

    def enqueue(number: int, frame: FrameType | None) -> None:
        mailbox.put(Interrupted(number))

    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    earlier = {number: signal.signal(number, enqueue) for number in wanted}
    earlier_wake = signal.set_wakeup_fd(mailbox.wake_descriptor, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier_wake)
        for number, handler in earlier.items():
            signal.signal(number, handler)
