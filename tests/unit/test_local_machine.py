"""Which hosts of a spec are this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace

import psutil
import pytest

from tflaunch.discovery import local_machine

pytestmark = pytest.mark.unit

ELSEWHERE = "192.0.2.77"  # RFC 5737: no machine's


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with the address 10.7.0.5."""
    found = {"eth0": [SimpleNamespace(address="10.7.0.5"), SimpleNamespace(address="fe80::1%eth0")]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    local_machine.own_addresses.cache_clear()
    yield
    local_machine.own_addresses.cache_clear()


@pytest.mark.usefixtures("interfaces")
@pytest.mark.parametrize(
    ("host", "is_it"),
    [
        ("localhost", True),
        (socket.gethostname(), True),
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("10.7.0.5", True),
        ("10.7.0.50", False),
        ("224.0.0.1", False),
        (ELSEWHERE, False),
        ("elsewhere", False),
    ],
)
def test_this_machine_has_its_names_and_addresses(host: str, is_it: bool) -> None:
    """A multicast address, which can be bound, is not among them."""
    assert local_machine.is_this_machine(host) is is_it


def test_every_address_of_an_interface_is_found() -> None:
    """As the kernel chooses it for packets to another host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ELSEWHERE, 9))
        except OSError:
            pytest.skip("this machine has no route to others")
        assert local_machine.is_this_machine(probe.getsockname()[0])
