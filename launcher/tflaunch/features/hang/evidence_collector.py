"""Collect from the agents when tasks last spoke, or where their processes are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from tflaunch.agents.calls import Waiter
from tflaunch.agents.session import Session
from tflaunch.features.hang.evidence import Evidence, Signs
from tflaunch.mailbox import Mailbox
from tflaunch.records import read_record

PATIENCE = 5.0
"""Seconds for an agent's answer, which needs three if no other program wants its CPUs."""

Report = TypeVar("Report", Evidence, Signs)
Take = Callable[[Mapping[str, Report], tuple[str, ...]], None]
"""Takes the reports by task, and the hosts that did not answer."""


def gather(
    session: Session, call: str, kind: type[Report], take: Callable[[Report], None], ended: Callable[[bool], None]
) -> None:
    """Pass each task's report to ``take``, then to ``ended`` whether that was all."""

    def told(message: dict[str, Any], body: bytes) -> None:
        report = read_record(kind, message)
        if session.has_started(report.task, report.attempt):
            take(report)

    waiter = Waiter(lambda *_: ended(True), lambda _: ended(False), told)
    session.calls.begin(call, waiter)


class Collector(Generic[Report]):
    """Makes one call to all agents at once. Requests that arrive before the answer share it."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        mailbox: Mailbox,
        call: str,
        kind: type[Report],
        patience: float = PATIENCE,
    ) -> None:
        self._sessions = sessions
        self._mailbox = mailbox
        self._call = call
        self._kind: type[Report] = kind
        self._patience = patience
        self._round: _Round | None = None

    def collect(self, done: Take[Report]) -> None:
        """Call ``done`` once all hosts have answered or timed out."""
        if self._round is not None:
            self._round.waiting.append(done)
            return
        current = self._round = _Round({}, set(self._sessions), set(), [done])

        def end(host: str, has_answered: bool) -> None:
            current.awaited.discard(host)
            if not has_answered:
                current.silent.add(host)
            if not current.awaited:
                self._finish(current)

        self._mailbox.call_at(self._mailbox.now() + self._patience, lambda: self._finish(current))
        for host, session in self._sessions.items():
            take = lambda report: current.reports.update({report.task: report})  # noqa: E731
            gather(session, self._call, self._kind, take, partial(end, host))

    def _finish(self, finished: _Round) -> None:
        if self._round is not finished:
            return
        self._round = None
        silent = finished.silent | finished.awaited
        for done in finished.waiting:
            done(finished.reports, tuple(host for host in self._sessions if host in silent))


class _Round(NamedTuple):
    """One question to all agents: reports, hosts awaited and silent, and callers."""

    reports: dict[str, Any]
    awaited: set[str]
    silent: set[str]
    waiting: list[Callable[[Mapping[str, Any], tuple[str, ...]], None]]
