"""Ports that another program takes on a host, and gives back."""

import resource
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from support.slow_link import in_network

_POLL = 0.01  # seconds between attempts to take a port that is still in use
_SPARE = 500  # descriptors that are left for everything else


@contextmanager
def taken_ports(network: str, ports: Sequence[int], tries: int = 1) -> Iterator[list[int]]:
    """Listen on ports in the network of a namespace file, until the end of the block.

    Yield those that are free in one of so many tries, a hundredth of a second apart: no event tells that a port has
    become free.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    taken: dict[int, socket.socket] = {}

    def take() -> None:
        for number in range(tries):
            if number:
                time.sleep(_POLL)  # clock: another program is to have the ports until then
            for port in ports:
                if port not in taken:
                    with suppress(OSError):
                        taken[port] = _listen(port)
            if len(taken) == len(ports):
                return

    in_network(network, take)
    try:
        yield sorted(taken)
    finally:
        for listening in taken.values():
            listening.close()


def most_ports() -> int:
    """Return how many ports a program of ours can take at once."""
    return max(resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _SPARE, 0)


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
