"""The lease: how long tasks may live without contact to the supervisor.

It counts from when the last message was *sent*. A message delayed in a buffer while the network was down must not give
tasks more time than the supervisor assumes when it restarts them elsewhere. The offset between the two clocks is taken
from the message that arrived with the least delay.
"""

from tflaunch_worker.event_loop import Loop

# Seconds for a supervisor's hello after the agent's start. It is for those that vanish without a sign: the end of the
# link ends an agent at once. A launcher on a busy machine may need minutes, and how long it may, timeouts.connect says.
FIRST_WORD = 600.0


class Lease:
    """The lease's expiry ``ends_at``, in seconds of this host's monotonic clock."""

    def __init__(self, loop: Loop) -> None:
        self.seconds = FIRST_WORD
        self._loop = loop
        self._heard = loop.now()
        self._clock = ""
        self.has_begun = False
        self._ahead = 0.0

    def begin(self, seconds: float, clock: str, sent: float) -> None:
        """Begin a supervisor's lease; ``clock`` identifies the clock of ``sent``."""
        self.seconds = seconds
        self.has_begun = True
        if clock != self._clock:
            self._clock = clock
            self._ahead = self._loop.now() - sent
        self.renew(sent)

    def renew(self, sent: float) -> None:
        """Renew the lease for a message sent when the supervisor's clock showed ``sent``."""
        self._ahead = min(self._ahead, self._loop.now() - sent)
        self._heard = max(self._heard, sent + self._ahead)

    @property
    def ends_at(self) -> float:
        """Time at which the lease expires if no further message arrives."""
        return self._heard + self.seconds

    @property
    def is_over(self) -> bool:
        """Whether the lease has expired."""
        return self._loop.now() >= self.ends_at
