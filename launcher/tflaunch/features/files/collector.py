"""Transfer of files over a run's links, at its end and while its tasks run."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from tflaunch.agents.calls import Waiter
from tflaunch.agents.session import Session
from tflaunch.cli.arguments.launch import Launching
from tflaunch.cli.arguments.spec import POSITIVE, Duration
from tflaunch.core.job_state import Job, Phase
from tflaunch.feature import engines
from tflaunch.features.files.collect import Collection, FileAgent
from tflaunch.mailbox import Mailbox
from tflaunch.runtime.loop import Run
from tflaunch.runtime.watchers import Findings, Supervision, Watcher
from tflaunch.transport.base import LinkError

_FLAG = "--collect-every"
_STOPS_WITHIN = 20.0  # seconds
read_interval = Duration("10m", POSITIVE)


def check_start(value: float, launching: Launching) -> None:
    """Raise `click.UsageError` unless there is something to collect, and who does it."""
    if launching.engine is not None and engines()[launching.engine].submit:
        raise click.UsageError(f"{_FLAG} is not for --on {launching.engine}, where a batch job supervises the tasks")
    if launching.plan is not None and not launching.plan.collect:
        raise click.UsageError(f'{_FLAG} needs files to collect: write for example "collect": ["outputs/**"]')


class Collector(Watcher):
    """The collector of a run's results: at its end, and at intervals if asked for.

    What cannot be fetched, or changes while it is read, is left to the next round, or to the end of the run.
    """

    def __init__(self, supervision: Supervision) -> None:
        super().__init__(supervision)
        self._path = supervision.config.directory.path
        self._every = supervision.config.extras.get("collect_every")
        self._mailbox = supervision.mailbox
        self._collection: Collection | None = None
        self._agents: set[_LiveAgent] = set()
        self._is_scheduled = self._is_closed = False

    def watch(self, job: Job, now: float) -> None:
        """Take the job's state; collect first an interval after the tasks have started."""
        self.job = job
        if self._every is not None and job.phase is Phase.RUNNING and not self._is_scheduled:
            self._is_scheduled = True
            self._mailbox.call_at(now + self._every, self._collect)

    def finish(self, run: Run) -> Findings:
        """Fetch what the spec wants; tell what was fetched, and what was not."""
        job = run.job
        if not self._stop(run):
            return Findings([f"nothing was collected, because a disk does not answer; try `tflaunch fetch {job.run}`"])
        if not (job.plan.collect and job.has_started):
            return Findings()
        collection = Collection(self._path, job, job.plan.collect, self._wake)
        if run.is_cut_short or not run.serve_until(lambda: collection.is_over):
            collection.cancel()
        fetched, missing = collection.summary()
        return Findings(missing, fetched)

    def _stop(self, run: Run) -> bool:
        """Stop, so that files can be collected at the end; return whether it is possible."""
        self._is_closed = True
        collection = self._collection
        if collection is None:
            return True
        collection.cancel()
        for agent in tuple(self._agents):
            agent.give_up()
        # Not a wait for its threads: they may wait for the mailbox, which this thread serves.
        return run.serve_until(lambda: collection.is_over, _STOPS_WITHIN) or run.is_cut_short

    def _collect(self) -> None:
        if self._is_closed:
            return
        if self.job.phase is not Phase.RUNNING:
            self._is_scheduled = False  # until the next attempt
        elif self._collection is None or self._collection.is_over:
            patterns, wake = self.job.plan.collect, self._wake
            self._collection = Collection(self._path, self.job, patterns, wake, reach=self._reach)
        if self._is_scheduled and self._every is not None:
            self._mailbox.call_at(self._mailbox.now() + self._every, self._collect)

    def _wake(self) -> None:
        self._mailbox.call(lambda: None)

    @contextmanager
    def _reach(self, host: str) -> Iterator[FileAgent]:
        agent = _LiveAgent(self.supervision.sessions[host], self._mailbox)
        self._agents.add(agent)
        if self._is_closed:  # it was not among those that were given up
            agent.give_up()
        try:
            yield agent
        finally:
            self._agents.discard(agent)


class _LiveAgent:
    """The agent of a host, asked from a thread other than that of its session."""

    def __init__(self, session: Session, mailbox: Mailbox) -> None:
        self._session = session
        self._mailbox = mailbox
        self._answers: queue.SimpleQueue[tuple[dict[str, Any], bytes] | None] = queue.SimpleQueue()
        self._is_given_up = False

    def call(self, kind: str, wait: float, **about: Any) -> tuple[dict[str, Any], bytes]:
        """Return the answer to a call; raise `LinkError` if there is none."""
        answers = self._answers = queue.SimpleQueue()  # of this call: the answer to an earlier one may come late
        if self._is_given_up:
            raise LinkError("interrupted")
        waiter = Waiter(lambda *answer: answers.put(answer), lambda _: answers.put(None))

        def begin() -> None:
            self._session.calls.begin(kind, waiter, **about)

        self._mailbox.call(begin)
        try:
            answer = answers.get(timeout=wait)
        except queue.Empty:
            answer = None
        if self._is_given_up or answer is None:
            raise LinkError("interrupted")
        return answer

    def give_up(self) -> None:
        self._is_given_up = True
        self._answers.put(None)
