"""The state of the link to an agent, and when link or host are given up."""

import os
from collections import deque
from enum import Enum
from typing import NamedTuple

from tflaunch.agents.reconnect import STEADY
from tflaunch.core.events import LONGEST_TIME
from tflaunch_worker.readable import duration_words

_MOST_VIOLATIONS = 3  # protocol violations by one agent before its host is given up
_MOST_USELESS_LINKS = 8  # consecutive links that are greeted and lost at once without a new event
_MOST_UNANSWERED_LINKS = 3  # consecutive links that are greeted, but over which no keep_alive is answered


class LinkState(Enum):
    """The state of the connection to an agent.

    A link exists when it is open, before the agent greets over it.
    """

    CLOSED = "closed"
    """No agent can be reached: it is not started yet, has ended, or is given up."""
    STARTING = "starting"
    """The agent is being started; it has not greeted yet."""
    CONNECTED = "connected"
    """The agent has greeted over the current link."""
    RECONNECTING = "reconnecting"
    """The agent has greeted earlier; the link is lost, or the next one is open and not yet greeted."""

    @property
    def has_joined(self) -> bool:
        """Whether the agent has greeted at all."""
        return self in (LinkState.CONNECTED, LinkState.RECONNECTING)


class LinkHealth:
    """Judges the links to one agent. Times are of our clock, in seconds."""

    def __init__(self, heartbeat: float, lease: float) -> None:
        self._heartbeat = heartbeat
        self._lease = lease
        self._violations = self._useless_links = self._unanswered_links = 0
        self._opened_at = self._answered_at = 0.0
        self.asked_at = 0.0
        """When the last keep-alive was sent."""
        self._seen_before = 0

    def note_link(self, now: float, seen: int) -> None:
        """Note a new link; ``seen`` is the number of the last event received before."""
        self._opened_at = self.asked_at = self._answered_at = now
        self._seen_before = seen

    def note_answer(self, asked_at: float) -> None:
        """Note the answer to what was sent at ``asked_at``."""
        self._answered_at = max(self._answered_at, asked_at)

    def note_pulse(self) -> None:
        """Note that a keep-alive was answered: messages arrive in both directions."""
        self._unanswered_links = 0

    def why_lost(self, now: float, heard_at: float, has_joined: bool) -> str:
        """Return why the link is lost, or ""; ``heard_at``: when data last arrived."""
        silence, unanswered = now - heard_at, self.asked_at - self._answered_at
        # An agent that has not greeted cannot be found again: its link is lost only when the agent ends without it.
        if silence >= (self._heartbeat if has_joined else max(self._heartbeat, self._lease)):
            return f"no message arrived for {duration_words(silence)}"
        if unanswered >= self._lease / 2:  # its messages may arrive while ours do not
            self._unanswered_links += 1
            return f"no message of the last {duration_words(unanswered)} was answered"
        return ""

    def note_loss(self, now: float, seen: int, was_greeted: bool) -> None:
        """Note a lost link: useless if it neither lasted nor delivered a new event."""
        is_useless = was_greeted and now - self._opened_at < STEADY and seen == self._seen_before
        self._useless_links = self._useless_links + 1 if is_useless else 0

    def why_given_up(self, reason: str) -> str:
        """Return why the host is given up after a link was lost for ``reason``, or ""."""
        if self._useless_links >= _MOST_USELESS_LINKS:
            return f"{reason}; {self._useless_links} links in a row were lost like that at once"
        if self._unanswered_links >= _MOST_UNANSWERED_LINKS:
            return f"{reason}, over {self._unanswered_links} links in a row"
        return ""

    def note_violation(self) -> int:
        """Note a violation of the protocol; return their number if it is too high, else 0."""
        self._violations += 1
        return self._violations if self._violations >= _MOST_VIOLATIONS else 0


_CLOCK = os.urandom(8).hex()


class Terms(NamedTuple):
    """The terms sent to an agent when a session begins. Times are in seconds.

    ``fencing`` is the supervisor's number in the run: an agent that has seen a higher one refuses its commands.
    ``clock`` identifies the clock of this process, with which agents compare theirs. ``private``: tasks are in a
    private network.
    """

    run: str
    lease: float
    grace: float
    heartbeat: float
    fencing: int = 0
    clock: str = _CLOCK
    private: bool = False


_RECENT = 16  # clocks drift by a few milliseconds per minute, so old samples must expire


class HostClock:
    """Converts times of a host's monotonic clock to ours, both in seconds."""

    def __init__(self) -> None:
        self._comparisons: deque[tuple[float, float]] = deque(maxlen=_RECENT)

    def compare(self, sent: float, theirs: float, heard: float) -> None:
        """Add a sample: ``sent`` and ``heard`` by our clock, ``theirs`` by their clock.

        We sent a request at ``sent``, they replied at ``theirs``, and we received the reply at ``heard``. The network
        delay of the request makes their clock look further ahead than it is, that of the reply less far: the two
        differences are an upper and a lower bound of the offset.
        """
        self._comparisons.append((theirs - sent, theirs - heard))

    def ours(self, theirs: float) -> float:
        """Convert ``theirs`` to our clock, by the fastest recent trips."""
        if not self._comparisons:
            return theirs
        most = min(most for most, _ in self._comparisons)
        least = max(least for _, least in self._comparisons)
        moment = theirs - (most + least) / 2
        return max(-LONGEST_TIME, min(moment, LONGEST_TIME))  # the journal must be readable, whatever a host tells
