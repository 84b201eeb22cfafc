"""Measure what the tasks of one host use.

What an agent reports about tasks that it was not asked to start is left out. Times are of our monotonic clock, in
seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tflaunch.agents.calls import Waiter
from tflaunch.core import measures
from tflaunch.core.measures import Measure
from tflaunch_worker import fields

if TYPE_CHECKING:
    from tflaunch.agents.session import Session


def measure(session: Session, take: Callable[[dict[str, Measure], float], None], lost: Callable[[], None]) -> None:
    """Call ``take`` with the measures of live tasks and their time, or ``lost``."""

    def answered(message: dict[str, Any], body: bytes) -> None:
        taken = measures.from_wire(message.get("tasks"))
        moment = session.ours(fields.number(message, "time"))
        take({task: one for task, one in taken.items() if session.has_started(task, one.attempt)}, moment)

    session.calls.begin("measure", Waiter(answered, lambda _: lost()))
