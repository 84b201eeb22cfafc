"""The clock and the link of a session with an agent that the test plays."""

from __future__ import annotations

import socket

from tflaunch.mailbox import Mailbox
from tflaunch.transport.base import LinkError


class StillMailbox(Mailbox):
    """A mailbox whose clock the test advances."""

    time = 1000.0

    def now(self) -> float:
        """Return the time."""
        return self.time


class Line:
    """The supervisor's end of a link, and its connector: there is no other agent, and at most one more link."""

    def __init__(self, end: socket.socket, following: Line | None = None) -> None:
        self.socket = end
        self._following = following

    def close(self) -> None:
        """Close it."""
        self.socket.close()

    def open(self) -> Line:
        """Raise: no other agent exists."""
        raise LinkError("no")

    def resume(self) -> Line:
        """Return the next link; raise if this agent cannot be found again."""
        if self._following is None:
            raise LinkError("no")
        return self._following

    def end(self) -> None:
        """Do nothing."""
