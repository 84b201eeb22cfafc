"""Ask agents what tasks use, CPU in percent and memory, on demand."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tflaunch import feature_faults
from tflaunch.agents.calls import Waiter
from tflaunch.agents.session import Session
from tflaunch.core import states
from tflaunch.core.states import Measure
from tflaunch.mailbox import Mailbox
from tflaunch_worker import fields
from tflaunch_worker.event_loop import Timer

_FRESH = 0.5  # seconds for which a result is reused
_PATIENCE = 0.5  # seconds to wait for slow agents
_SHORTEST = 0.2  # minimum seconds between two measurements for a CPU percentage


class ResourceSampler:
    """Sampler of all hosts' usage in rounds; ``cpu``: recent percent of a CPU by task."""

    def __init__(self, sessions: Mapping[str, Session], mailbox: Mailbox) -> None:
        self.measures: dict[str, Measure] = {}
        self.cpu: dict[str, float] = {}
        self._sessions = sessions
        self._mailbox = mailbox
        self._taken: dict[str, tuple[Measure, float]] = {}
        self._awaited: set[str] = set()
        self._waiting: list[Callable[[], None]] = []
        self._limit = Timer(lambda: None)
        self._measured_at = float("-inf")

    def measure(self, done: Callable[[], None]) -> None:
        """Measure, and call ``done`` once all hosts have answered or timed out."""
        now = self._mailbox.now()
        if now - self._measured_at < _FRESH and not self._waiting:
            done()
            return
        self._waiting.append(done)
        if len(self._waiting) > 1:
            return  # a round is already in progress
        self._awaited = set(self._sessions)
        self._limit = self._mailbox.call_at(now + _PATIENCE, self._finish)
        for host, session in self._sessions.items():
            measure(session, partial(self._take, host), partial(self._settle, host))

    def _take(self, host: str, taken: Mapping[str, Measure], at: float) -> None:
        """Store a host's answer; ``at`` is in the supervisor's clock."""
        for task, measure in taken.items():
            self.measures[task] = measure
            self._compare(task, measure, at)
        self._settle(host)

    def _settle(self, host: str) -> None:
        """Wait no longer for a host's answer."""
        self._awaited.discard(host)
        if not self._awaited and self._waiting:
            self._finish()

    def _compare(self, task: str, measure: Measure, at: float) -> None:
        earlier, then = self._taken.get(task, (measure, at))
        if earlier.attempt != measure.attempt or measure.cpu_seconds is None or earlier.cpu_seconds is None:
            self.cpu.pop(task, None)
        elif at - then >= _SHORTEST:
            self.cpu[task] = max(measure.cpu_seconds - earlier.cpu_seconds, 0.0) / (at - then) * 100
        elif task in self._taken:
            return  # too soon for a percentage
        self._taken[task] = (measure, at)

    def _finish(self) -> None:
        self._limit.cancel()
        self._measured_at = self._mailbox.now()
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            with feature_faults.isolated():
                done()


def measure(session: Session, take: Callable[[dict[str, Measure], float], None], lost: Callable[[], None]) -> None:
    """Call ``take`` with the measures of live tasks and their time, or ``lost``."""

    def answered(message: dict[str, Any], body: bytes) -> None:
        taken = states.read_measures(message.get("tasks"))
        moment = session.ours(fields.number(message, "time"))
        take({task: one for task, one in taken.items() if session.has_started(task, one.attempt)}, moment)

    session.calls.begin("measure", Waiter(answered, lambda _: lost()))
