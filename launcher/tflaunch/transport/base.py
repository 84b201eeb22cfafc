"""Ways and links: how the agent of a host is reached, and the byte stream to it.

Only these differ between kinds of hosts.
"""

from __future__ import annotations

import socket
from typing import Protocol


class LinkError(Exception):
    """A host could not be reached: one sentence."""


class AgentGone(Exception):
    """The agent has ended, and no process of the run is left on its host: its last words, if any."""


class Link(Protocol):
    """What a session needs of a link."""

    @property
    def socket(self) -> socket.socket:
        """The stream, as a socket that a selector can wait for."""

    def close(self) -> None:
        """Give the stream up. Never waits."""


class AgentConnector(Protocol):
    """How to reach the agent of one host. Both methods may wait, and are called by a thread of their own."""

    def open(self) -> Link:
        """Start an agent.

        Raises:
            LinkError: why that is impossible.
        """

    def resume(self) -> Link:
        """Find the agent again that was started before.

        Raises:
            AgentGone: it has ended.
            LinkError: why it cannot be reached, for now.
        """

    def end(self) -> None:
        """Wait until nothing of the run is left: the agent was told to leave, and has hung up."""
