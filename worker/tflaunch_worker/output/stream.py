"""Send the output of one attempt to the supervisor: spooled, with a send window, acknowledged.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

from tflaunch_worker import wire
from tflaunch_worker.output.spool import Gap, Spool
from tflaunch_worker.output.times import Times

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

CHUNK = 256 * 1024
WINDOW = 1024 * 1024
"""Maximum unacknowledged bytes in flight per attempt, which bounds what a slow reader must buffer."""


class Stream:
    """The output of one attempt: its spool, how much of it was sent, and whether it has ended.

    ``now`` returns seconds of the monotonic clock; output is sent with the time at which it was read.
    """

    def __init__(self, task: str, attempt: int, spool: Spool, now: Callable[[], float]) -> None:
        self.task = task
        self.attempt = attempt
        self._spool = spool
        self._times = Times()
        self._now = now
        self._sent = 0
        self._has_ended = False
        self._end_sent = False

    def append(self, data: bytes) -> None:
        """Add output of the task."""
        self._times.note(self._spool.end, self._now())
        self._spool.append(data)

    def finish(self) -> None:
        """Mark the output as complete."""
        self._has_ended = True

    def rewind(self) -> None:
        """Send everything unacknowledged again, because a new link has replaced the old one."""
        self._sent = self._spool.released
        self._end_sent = False

    def acknowledge(self, offset: int) -> None:
        """Note that the supervisor has everything before ``offset``."""
        self._spool.release(offset)
        self._times.release(self._spool.released)

    def close(self) -> None:
        """Discard everything kept."""
        self._spool.close()

    def next_frame(self) -> bytes | None:
        """Return the next frame to send, or None when nothing is left or the window is full."""
        if self._sent < self._spool.end:
            if self._sent - self._spool.released >= WINDOW:
                return None
            return self._next_part()
        if self._has_ended and not self._end_sent:
            self._end_sent = True
            return wire.encode(self._message("output_ended"))
        return None

    def _next_part(self) -> bytes:
        part = self._spool.read(self._sent, CHUNK)
        if isinstance(part, Gap):
            frame = wire.encode({**self._message("output_lost"), "size": part.size})
            self._sent += part.size
        else:
            times = self._times.between(self._sent, self._sent + len(part))
            frame = wire.encode({**self._message("output"), "times": times}, part)
            self._sent += len(part)
        return frame

    def _message(self, kind: str) -> dict[str, object]:
        return {"kind": kind, "task": self.task, "attempt": self.attempt, "offset": self._sent}
