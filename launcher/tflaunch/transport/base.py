"""How kinds of hosts differ: the way to an agent, and the stream to it (`Link`)."""

import socket
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from tflaunch.plan.model import HostPlan


class LinkError(Exception):
    """A host could not be reached; the message is one sentence."""


class AgentGoneError(Exception):
    """The agent and all its processes have exited; the message is its last log line."""


class Link(Protocol):
    """The byte stream to an agent."""

    @property
    def socket(self) -> socket.socket:
        """The stream as a socket that a selector can wait for."""

    def close(self) -> None:
        """Close the stream without blocking."""


class AgentConnector(Protocol):
    """Reaches the agent of one host. The methods may block."""

    def open(self) -> Link:
        """Start an agent, or raise a `LinkError` that says why that is not possible."""

    def resume(self) -> Link:
        """Reconnect to the agent that was started before.

        Raises:
            AgentGoneError: it has exited.
            LinkError: it cannot be reached at present, and why.
        """

    def end(self) -> None:
        """Wait until no process of the run is left, after the agent was asked to leave."""


class Connectors(Protocol):
    """Creates the connectors to all hosts of one kind in a run."""

    def connector_to(self, host: HostPlan, warm: str | None) -> AgentConnector:
        """Return the connector to a host, without connecting.

        ``warm``: the recipe of a process of an earlier run that may start the agent (see `plan.task_starter`).

        Raises:
            TflaunchError: the host needs something that is not installed here.
        """


@runtime_checkable
class LoginBound(Protocol):
    """A connector that may need what ends with the user's login on this machine."""

    def login_warning(self) -> str:
        """Return a sentence about that, "" if the host can be reached without it."""


@runtime_checkable
class DelayTeller(Protocol):
    """A connector to a host that may have to be made first."""

    def tell_delay(self, tell: Callable[[str, bool], None]) -> None:
        """Call ``tell`` in the connecting thread: why the host is late, and if held back."""
