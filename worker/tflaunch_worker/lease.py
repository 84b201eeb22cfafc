"""The lease: how long this host's tasks may live without a word from the supervisor.

It runs from the moment at which a word was *sent*. A word that lay in a buffer while the cable was cut
must not give tasks more time than the supervisor reckons with when it starts them anew elsewhere. The
two clocks are compared through the word that came through fastest.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tflaunch_worker.loop import Loop

_FIRST_WORD = 30.0  # seconds within which a supervisor must say hello after the agent's start


class Lease:
    """When the tasks' time is over. Times are in seconds; ``ends_at`` is of this host's monotonic clock."""

    def __init__(self, loop: Loop) -> None:
        self.seconds = _FIRST_WORD
        self._loop = loop
        self._heard = loop.now()
        self._clock = ""
        self.has_begun = False
        self._ahead = 0.0

    def begin(self, seconds: float, clock: str, sent: float) -> None:
        """A supervisor introduced itself: ``clock`` names its clock, ``sent`` is what that showed."""
        self.seconds = seconds
        self.has_begun = True
        if clock != self._clock:
            self._clock = clock
            self._ahead = self._loop.now() - sent
        self.renew(sent)

    def renew(self, sent: float) -> None:
        """A word came that was sent when the supervisor's clock showed ``sent``."""
        self._ahead = min(self._ahead, self._loop.now() - sent)
        self._heard = max(self._heard, sent + self._ahead)

    @property
    def ends_at(self) -> float:
        """When it is over if nothing more is heard."""
        return self._heard + self.seconds

    @property
    def is_over(self) -> bool:
        """Whether it is over."""
        return self._loop.now() >= self.ends_at
