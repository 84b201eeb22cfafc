"""Accept from an agent only what it was asked for, and each of its events once."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

from tflaunch.core import events
from tflaunch.core.events import Event

_EVENTS_AT_ONCE = 1000  # that an agent may report, apart from those of its tasks
_EVENTS_PER_ATTEMPT = 20
_EVENTS_PER_SECOND = 10  # for output stalls and other events that recur over time


class ExpectedReplies:
    """Remembers the commands sent to an agent, as far as its events answer them."""

    def __init__(self, now: float) -> None:
        """Expect nothing yet of an agent that is started at ``now``, in seconds of our clock."""
        self._began_at = now
        self._event_count = 0
        self._started: set[tuple[str, int]] = set()
        self._watched: set[tuple[str, int]] = set()
        self._ports: set[str] = set()
        self._names: set[str] = set()
        self._peers: set[str] = set()
        self._has_offered_files = False

    def note(self, kind: str, fields: dict[str, Any]) -> None:
        """Remember a command by its kind and fields."""
        match kind:
            case "start_task":
                self._started.add((fields["task"], fields["attempt"]))
                if fields.get("stall"):
                    self._watched.add((fields["task"], fields["attempt"]))
            case "hold_ports":
                self._ports.update(fields["ports"])
            case "look_up_names":
                self._names.update(fields["names"])
            case "probe_peers":
                self._peers.update(fields["peers"])

    def note_files(self) -> None:
        """Remember that the user's code was offered."""
        self._has_offered_files = True

    def has_started(self, task: str, attempt: int) -> bool:
        """Return whether the agent was asked to start this attempt."""
        return (task, attempt) in self._started

    def check(self, event: events.Event) -> None:
        """Check that an event answers a command that the agent was sent.

        Raises:
            ValueError: the agent was not asked for it.
        """
        match event:
            case events.OutputStalled() | events.OutputResumed():
                self._check_attempt(event.task, event.attempt, self._watched)
            case (
                events.TaskStarted()
                | events.TaskNotStarted()
                | events.PortOpened()
                | events.TaskExited()
                | events.TaskGone()
            ):
                self._check_attempt(event.task, event.attempt, self._started)
            case events.PortsHeld():
                _check_names("ports of", event.ports, self._ports)
            case events.PortsRefused():
                _check_names("ports of", event.refused, self._ports)
            case events.NamesResolved():
                _check_names("the names", event.found, self._names)
            case events.PeersProbed():
                _check_names("the peers", event.failed, self._peers)
            case events.FilesSynced() | events.FilesRefused() if not self._has_offered_files:
                raise ValueError("it was not offered any files")

    def count_event(self, now: float) -> None:
        """Limit how many events an agent can make us record.

        Tasks cause few events, apart from output stalls, which take time.

        Raises:
            ValueError: the agent exceeds the limit.
        """
        self._event_count += 1
        over_time = _EVENTS_PER_SECOND * (now - self._began_at)
        if self._event_count > _EVENTS_AT_ONCE + _EVENTS_PER_ATTEMPT * len(self._started) + over_time:
            raise ValueError("it tells of more events than its tasks can cause")

    @staticmethod
    def _check_attempt(task: str, attempt: int, known: Collection[tuple[str, int]]) -> None:
        if (task, attempt) not in known:
            raise ValueError(f"it tells of attempt {attempt} of {task[:60]!r}, for which it was not asked")


def _check_names(what: str, told: Collection[str], asked: Collection[str]) -> None:
    unknown = sorted(name[:60] for name in told if name not in asked)
    if unknown:
        raise ValueError(f"it was not asked for {what} {', '.join(map(repr, unknown[:3]))}")


class EventCursor:
    """Event numbers of one agent: ``seen`` is the last received, ``recorded`` the last in the journal."""

    def __init__(self) -> None:
        self.seen = 0
        self.recorded = 0
        self._unrecorded: deque[tuple[Event, int]] = deque()

    def is_new(self, number: int) -> bool:
        """Return whether this event number is new; after a lost link, unacknowledged events are sent again."""
        return number > self.seen

    def note(self, event: Event, number: int) -> None:
        """Count a received event."""
        self.seen = number
        self._unrecorded.append((event, number))

    def recall(self) -> None:
        """Count an event that an earlier supervisor received and recorded."""
        self.seen += 1
        self.recorded = self.seen

    def record(self, event: Event) -> bool:
        """Note that an event is in the journal; return whether it is this agent's, which may discard it."""
        if not self._unrecorded or self._unrecorded[0][0] is not event:
            return False
        _, self.recorded = self._unrecorded.popleft()
        return True
