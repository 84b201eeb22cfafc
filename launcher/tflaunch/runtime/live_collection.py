"""Fetch files from working directories while the tasks run: at intervals, over the links of the run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tflaunch.agents.file_requests import FileRequest
from tflaunch.agents.left_files import LeftFile
from tflaunch.agents.session import Session
from tflaunch.client.collect import Collection, FileAgent
from tflaunch.core.job_state import Job, Phase
from tflaunch.mailbox import Mailbox
from tflaunch.transport.base import LinkError
from tflaunch_worker.agent.left_files import PART


class LiveCollector:
    """Collects the results of one run at intervals. Implements `Watcher`.

    What cannot be fetched, or changes while it is read, is left to the next round, or to the end of the run.
    """

    def __init__(self, path: Path, job: Job, every: float, sessions: Mapping[str, Session], mailbox: Mailbox) -> None:
        """Collect what the plan says into the run's directory every ``every`` seconds."""
        self._path = path
        self._job = job
        self._every = every
        self._sessions = sessions
        self._mailbox = mailbox
        self._collection: Collection | None = None
        self._agents: set[_LiveAgent] = set()
        self._is_scheduled = self._is_closed = False

    def watch(self, job: Job, now: float) -> None:
        """Take the job's state; the first time is an interval after the tasks have started."""
        self._job = job
        if job.phase is Phase.RUNNING and not self._is_scheduled:
            self._is_scheduled = True
            self._mailbox.call_at(now + self._every, self._collect)

    def close(self) -> None:
        """Stop, so that the files can be collected at the end."""
        self._is_closed = True
        if self._collection is not None:
            self._collection.cancel()
            for agent in tuple(self._agents):
                agent.give_up()
            self._collection.wait()

    def _collect(self) -> None:
        if self._is_closed:
            return
        if self._job.phase is not Phase.RUNNING:
            self._is_scheduled = False  # until the next attempt
        elif self._collection is None or self._collection.is_over:
            self._collection = Collection(self._path, self._job, self._job.plan.collect, reach=self._reach)
        if self._is_scheduled:
            self._mailbox.call_at(self._mailbox.now() + self._every, self._collect)

    @contextmanager
    def _reach(self, host: str) -> Iterator[FileAgent]:
        agent = _LiveAgent(self._sessions[host], self._mailbox)
        self._agents.add(agent)
        try:
            yield agent
        finally:
            self._agents.discard(agent)


class _LiveAgent:
    """The agent of a host, asked from a thread other than that of its session."""

    def __init__(self, session: Session, mailbox: Mailbox) -> None:
        self._session = session
        self._mailbox = mailbox
        self._answered = threading.Event()
        self._answer: tuple[dict[str, Any] | None, bytes] = None, b""
        self._is_given_up = False

    def ask(self, kind: str, *answers: str, wait: float, **fields: Any) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            LinkError: there is none.
        """
        return self._ask(kind, answers[0], wait, fields)[0]

    def read_file(self, file: LeftFile, offset: int, wait: float) -> bytes:
        """Return a part of a file, empty if it can no longer be read.

        Raises:
            LinkError: there is no answer.
        """
        _, data = self._ask("read_file", "file_read", wait, {**file._asdict(), "offset": offset})
        if len(data) > PART:
            raise LinkError("its agent broke the protocol: it sends more of a file than was requested")
        return data

    def give_up(self) -> None:
        """Wait for no answer any more."""
        self._is_given_up = True
        self._answered.set()

    def _ask(self, kind: str, answer: str, wait: float, fields: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        self._answered.clear()
        request = FileRequest(kind, fields, answer, self._take)
        self._mailbox.call(lambda: self._session.file_requests.send(request))
        has_answered = self._is_given_up or self._answered.wait(wait)
        message, body = self._answer
        if self._is_given_up or not has_answered or message is None:
            raise LinkError("interrupted")
        return message, body

    def _take(self, message: dict[str, Any] | None, body: bytes) -> None:
        self._answer = message, body
        self._answered.set()
