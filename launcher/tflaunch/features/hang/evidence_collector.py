"""Collect evidence of where tasks are, from agents or through a supervisor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch.agents.calls import Waiter
from tflaunch.agents.session import Session
from tflaunch.client.control_client import ControlClient
from tflaunch.explain.run_status import Status
from tflaunch.features.hang.evidence import Evidence
from tflaunch.features.hang.hang import Stacks, verdict
from tflaunch.mailbox import Mailbox
from tflaunch.records import read_record
from tflaunch_worker import fields

PATIENCE = 5.0
"""Seconds for an agent's answer, which needs three if no other program wants its CPUs."""

Take = Callable[[Mapping[str, Evidence], tuple[str, ...]], None]
"""Takes the evidence by task, and the hosts that did not answer."""


class Collector:
    """Asks all agents at once; requests that come before the answer share it."""

    def __init__(
        self, sessions: Mapping[str, Session], mailbox: Mailbox, call: str, patience: float = PATIENCE
    ) -> None:
        self._sessions = sessions
        self._mailbox = mailbox
        self._call = call
        self._patience = patience
        self._round: _Round | None = None

    def collect(self, done: Take) -> None:
        """Call ``done`` once all hosts have answered or timed out."""
        if self._round is not None:
            self._round.waiting.append(done)
            return
        current = self._round = _Round({}, {}, [done])
        self._mailbox.call_at(self._mailbox.now() + self._patience, lambda: self._finish(current))
        for host, session in self._sessions.items():
            answered, lost = partial(self._end, current, host, True), partial(self._end, current, host, False)
            session.calls.begin(self._call, Waiter(answered, lost, partial(self._take, current, session)))

    def _take(self, current: _Round, session: Session, message: dict[str, Any], body: bytes) -> None:
        found = read_record(Evidence, message)
        if session.has_started(found.task, found.attempt):
            current.evidence[found.task] = found

    def _end(self, current: _Round, host: str, has_answered: bool, *_: object) -> None:
        current.ended[host] = has_answered
        if len(current.ended) == len(self._sessions):
            self._finish(current)

    def _finish(self, finished: _Round) -> None:
        if self._round is not finished:
            return
        self._round = None
        silent = tuple(host for host in self._sessions if not finished.ended.get(host))
        for done in finished.waiting:
            done(finished.evidence, silent)


class _Round(NamedTuple):
    """One question to all agents: evidence, hosts that have answered or not, callers."""

    evidence: dict[str, Evidence]
    ended: dict[str, bool]
    waiting: list[Take]


def request_stacks(directory: Path) -> Stacks:
    """Return where the tasks of a run are now, as its supervisor tells it.

    Raises:
        TflaunchError: the supervisor does not answer within 10 s, what it sends cannot be read, or there is none.
    """
    found = []
    client = ControlClient(directory)
    try:
        answer = client.ask("stacks")
        while answer["kind"] == "evidence":
            found.append(read_record(Evidence, answer))
            answer = client.next_answer()
        status, silent = read_record(Status, answer.get("status")), fields.texts(answer, "silent_hosts")
    except ValueError as error:
        raise client.malformed("answer", error) from None
    return Stacks(status.run, *verdict(status, {each.task: each for each in found}), silent, found)
