"""A link: the byte stream to the agent of one host. Only links differ between kinds of hosts."""

from __future__ import annotations

import socket
from typing import Protocol


class LinkError(Exception):
    """A host could not be reached: one sentence."""


class Link(Protocol):
    """What a session needs of a link."""

    @property
    def socket(self) -> socket.socket:
        """The stream, as a socket that a selector can wait for."""

    def close(self) -> str:
        """Close the stream; return once the host's tasks are certainly dead, with what is known of the end."""
