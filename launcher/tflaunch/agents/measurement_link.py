"""Measure the tasks of one host: usage, memory, and where their processes are.

What an agent reports about tasks that it was not asked to start is left out. Times are of our monotonic clock, in
seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tflaunch.agents.calls import Waiter
from tflaunch.core import measures
from tflaunch.core.evidence import Evidence, Sampling
from tflaunch.core.measures import HostVitals, Measure
from tflaunch.records import read_record
from tflaunch_worker import fields

if TYPE_CHECKING:
    from tflaunch.agents.session import Session


def measure(session: Session, take: Callable[[dict[str, Measure], float], None], lost: Callable[[], None]) -> None:
    """Call ``take`` with the usage and progress of the live tasks, and when they were measured; or ``lost``."""

    def answered(message: dict[str, Any], body: bytes) -> None:
        taken = measures.from_wire(message.get("tasks"))
        moment = session.ours(fields.number(message, "time"))
        take({task: one for task, one in taken.items() if session.has_started(task, one.attempt)}, moment)

    session.calls.begin("measure", Waiter(answered, lost))


def gather_evidence(
    session: Session, sampling: Sampling, take: Callable[[Evidence], None], ended: Callable[[bool], None]
) -> None:
    """Call ``take`` with the evidence of each task, then ``ended`` with whether that was all: the link may be lost."""

    def told(message: dict[str, Any], body: bytes) -> None:
        evidence = read_record(Evidence, message)
        if session.has_started(evidence.task, evidence.attempt):
            take(evidence)

    waiter = Waiter(lambda *_: ended(True), lambda: ended(False), told)
    session.calls.begin("gather_evidence", waiter, **sampling.as_json())


def watch_memory(session: Session, take: Callable[[HostVitals, float], None]) -> None:
    """Call ``take`` with the memory that the agent measures at intervals, and when."""

    def told(message: dict[str, Any], body: bytes) -> None:
        known = read_record(HostVitals, message)
        moment = session.ours(fields.number(message, "time"))
        tasks = {task: one for task, one in known.tasks.items() if session.has_started(task, one.attempt)}
        take(known._replace(tasks=tasks), moment)

    session.calls.keep("watch_memory", Waiter(told=told))
