"""Ports that another program takes on a host, and gives back."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterable
from contextlib import suppress

from support.slow_link import in_network

_POLL = 0.01  # seconds between attempts to take a port that is still in use
_SPARE = 500  # descriptors that are left for everything else


class PortTaker:
    """A program that listens on ports in the network of a namespace file, until it is closed."""

    def __init__(self, network: str) -> None:
        self._network = network
        self._taken: dict[int, socket.socket] = {}

    def take(self, ports: Iterable[int], tries: int = 1) -> list[int]:
        """Take those of these ports that are free in one of so many tries, a hundredth of a second apart; return them.

        No event tells that a port has become free.
        """
        _allow_descriptors()
        wanted = list(ports)
        in_network(self._network, lambda: self._take(wanted, tries))
        return sorted(self._taken)

    def close(self) -> None:
        """Give all of them back."""
        while self._taken:
            self._taken.popitem()[1].close()

    def _take(self, ports: list[int], tries: int) -> None:
        for _ in range(tries):
            for port in ports:
                with suppress(OSError):
                    self._taken[port] = _listen(port)
            ports = [port for port in ports if port not in self._taken]
            if not ports or tries == 1:
                return
            time.sleep(_POLL)  # clock: another program is to have the ports until then


def most_ports() -> int:
    """Return how many ports a program of ours can take at once."""
    return max(resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _SPARE, 0)


def _allow_descriptors() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
