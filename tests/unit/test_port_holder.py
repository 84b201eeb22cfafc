"""Which process holds a port of this machine."""

from __future__ import annotations

import errno
import os
import socket
from types import SimpleNamespace

import psutil
import pytest

from tflaunch import port_holder

pytestmark = pytest.mark.unit

IN_USE = OSError(errno.EADDRINUSE, "Address already in use")


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, "127.0.0.1"),
        pytest.param(socket.AF_INET6, "::", marks=pytest.mark.needs("ipv6")),
    ],
)
def test_the_holder_of_a_port_is_named(family: socket.AddressFamily, address: str) -> None:
    """Also one that listens on every address of the machine."""
    with socket.create_server((address, 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as server:
        why = port_holder.why_unusable(server.getsockname()[1], IN_USE)
    assert why == f"is held by {psutil.Process().name()} (pid {os.getpid()})"


def test_another_reason_is_the_systems_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        refused = PermissionError(errno.EACCES, "Permission denied")
        assert port_holder.why_unusable(server.getsockname()[1], refused) == "cannot be used: Permission denied"


def listening(port: int, address: str, pid: int | None) -> SimpleNamespace:
    laddr = SimpleNamespace(ip=address, port=port)
    return SimpleNamespace(status=psutil.CONN_LISTEN, laddr=laddr, pid=pid)


@pytest.mark.parametrize(
    "connection",
    [listening(80, "127.0.0.1", None), listening(80, "10.0.0.1", os.getpid()), listening(80, "127.0.0.1", 2**22 + 1)],
    ids=["another user's", "another address", "just exited"],
)
def test_a_holder_that_cannot_be_named_is_left_out(
    connection: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "net_connections", lambda _: [connection])
    assert port_holder.why_unusable(80, IN_USE) == "cannot be used: Address already in use"


def test_a_holder_cannot_write_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process chooses its own name."""
    monkeypatch.setattr(psutil, "net_connections", lambda _: [listening(80, "0.0.0.0", os.getpid())])
    monkeypatch.setattr(psutil.Process, "name", lambda _: "a\x1b[2Jb")
    assert port_holder.why_unusable(80, IN_USE) == rf"is held by a\x1b[2Jb (pid {os.getpid()})"
