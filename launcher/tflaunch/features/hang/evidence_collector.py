"""Collect from the agents where the processes of all tasks are, on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from tflaunch.agents.calls import Waiter
from tflaunch.agents.session import Session
from tflaunch.features.hang.evidence import Evidence
from tflaunch.mailbox import Mailbox
from tflaunch.records import read_record

_PATIENCE = 5.0  # seconds for an agent's answer, which needs two


def gather_evidence(session: Session, take: Callable[[Evidence], None], ended: Callable[[bool], None]) -> None:
    """Pass each task's evidence to ``take``, then to ``ended`` whether that was all."""

    def told(message: dict[str, Any], body: bytes) -> None:
        evidence = read_record(Evidence, message)
        if session.has_started(evidence.task, evidence.attempt):
            take(evidence)

    waiter = Waiter(lambda *_: ended(True), lambda _: ended(False), told)
    session.calls.begin("gather_evidence", waiter)


class Findings(NamedTuple):
    """The evidence by task, and the hosts that did not answer."""

    evidence: Mapping[str, Evidence]
    silent_hosts: tuple[str, ...]


class EvidenceCollector:
    """Asks all agents at once. Requests that arrive before the answer share it."""

    def __init__(self, sessions: Mapping[str, Session], mailbox: Mailbox) -> None:
        self._sessions = sessions
        self._mailbox = mailbox
        self._round: _Round | None = None

    def collect(self, done: Callable[[Findings], None]) -> None:
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

        self._mailbox.call_at(self._mailbox.now() + _PATIENCE, lambda: self._finish(current))
        for host, session in self._sessions.items():
            take = lambda evidence: current.evidence.update({evidence.task: evidence})  # noqa: E731
            gather_evidence(session, take, partial(end, host))

    def _finish(self, finished: _Round) -> None:
        if self._round is not finished:
            return
        self._round = None
        silent = finished.silent | finished.awaited
        findings = Findings(finished.evidence, tuple(host for host in self._sessions if host in silent))
        for done in finished.waiting:
            done(findings)


class _Round(NamedTuple):
    """One question to all agents: evidence, hosts awaited and silent, and callers."""

    evidence: dict[str, Evidence]
    awaited: set[str]
    silent: set[str]
    waiting: list[Callable[[Findings], None]]
