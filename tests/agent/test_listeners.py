"""Who listens is known from the kernel, and from its tables where it does not answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from tflaunch_worker.network import listeners

pytestmark = pytest.mark.agent


@pytest.fixture(params=["127.0.0.1", "::1"])
def server(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A socket that listens."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as listening:
        yield listening


def test_both_sources_know_a_listener_by_its_inode(server: socket.socket) -> None:
    """With IPv4 and IPv6."""
    port = server.getsockname()[1]
    inode = os.fstat(server.fileno()).st_ino
    for found in (list(listeners._from_kernel(server.family)), list(listeners._from_tables()), listeners._all()):
        assert found.count((port, inode)) == 1
    assert port in listeners.ports()
    assert f"pid {os.getpid()} (" in (listeners.owner(port) or "")
    assert listeners.is_listening(port, os.getsid(0))


def test_who_is_bound_or_connected_does_not_listen(server: socket.socket) -> None:
    """A held port is one of which nobody says that it is open."""
    with socket.socket(server.family) as bound, socket.create_connection(server.getsockname()[:2]) as client:
        bound.bind((server.getsockname()[0], 0))
        assert not {bound.getsockname()[1], client.getsockname()[1]} & listeners.ports()
        assert listeners.owner(bound.getsockname()[1]) is None


def test_where_the_kernel_does_not_answer_its_tables_do(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old kernels, and sandboxes."""
    monkeypatch.setattr(listeners, "_NETLINK_SOCK_DIAG", 31)  # a protocol that nobody speaks
    with pytest.raises(OSError):  # noqa: PT011 - whatever the kernel makes of it
        list(listeners._from_kernel(server.family))
    assert server.getsockname()[1] in listeners.ports()
