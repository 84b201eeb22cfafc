"""Collect from the agents where the processes of all tasks are, on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from tflaunch.agents.session import Session
from tflaunch.core.evidence import USUAL, Evidence, Sampling
from tflaunch.mailbox import Mailbox

_PATIENCE = 5.0  # seconds for an agent's answer, which needs two


class Findings(NamedTuple):
    """The evidence by task, and the hosts that did not answer."""

    evidence: Mapping[str, Evidence]
    silent_hosts: tuple[str, ...]


class EvidenceCollector:
    """Asks all agents at once. Requests that arrive before the answer share it."""

    def __init__(self, sessions: Mapping[str, Session], mailbox: Mailbox) -> None:
        self._links = {host: session.measurements for host, session in sessions.items()}
        self._mailbox = mailbox
        self._evidence: dict[str, Evidence] = {}
        self._awaited: set[str] = set()
        self._silent: set[str] = set()
        self._waiting: list[Callable[[Findings], None]] = []
        self._round = 0
        for host, link in self._links.items():
            link.tell_evidence(partial(self._take, host))

    def collect(self, done: Callable[[Findings], None], sampling: Sampling = USUAL) -> None:
        """Call ``done`` once all hosts have answered or timed out."""
        self._waiting.append(done)
        if len(self._waiting) > 1:
            return
        self._evidence = {}
        self._awaited = {host for host, link in self._links.items() if link.gather_evidence(sampling)}
        self._silent = self._links.keys() - self._awaited
        self._round += 1
        number = self._round
        if self._awaited:
            until = self._mailbox.now() + _PATIENCE
            self._mailbox.call_at(until, lambda: self._finish() if number == self._round else None)
        else:
            self._finish()

    def _take(self, host: str, evidence: Evidence | None) -> None:
        """Store what a host tells about a task; None at the end of its answer."""
        if evidence is not None:
            self._evidence[evidence.task] = evidence
            return
        self._awaited.discard(host)
        if not self._awaited and self._waiting:
            self._finish()

    def _finish(self) -> None:
        self._round += 1
        silent = tuple(host for host in self._links if host in self._silent | self._awaited)
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(Findings(self._evidence, silent))
