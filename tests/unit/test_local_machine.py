"""Which hosts of a spec are this machine."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tflaunch.discovery import local_machine

pytestmark = pytest.mark.unit

ELSEWHERE = "192.0.2.77"  # RFC 5737: no machine's


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    found = {"eth0": [SimpleNamespace(address="10.7.0.5"), SimpleNamespace(address="fd00::5")]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    local_machine.own_addresses.cache_clear()
    yield
    local_machine.own_addresses.cache_clear()


@pytest.mark.usefixtures("interfaces")
def test_this_machine_has_its_names_and_addresses() -> None:
    """A multicast address, which can be bound, is not among them."""
    name = socket.gethostname()
    own = ("localhost", name, name.upper(), "127.0.0.1", "127.3.2.1", "10.7.0.5", "::1", "fd00::5")
    others = ("10.7.0.50", "fd00::50", "224.0.0.1", ELSEWHERE, "elsewhere")
    assert [host for host in (*own, *others) if local_machine.is_this_machine(host)] == [*own]


@pytest.mark.usefixtures("interfaces")
def test_an_alias_in_the_hosts_file_is_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If its address is: of an interface, or loopback."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.1.1 me # gone\n10.7.0.5\tgpu-a.example.com  Gpu-A\n10.7.0.6 gpu-b\n\n")
    monkeypatch.setattr(local_machine, "_HOSTS_FILE", hosts)
    assert all(map(local_machine.is_this_machine, ("gpu-a", "GPU-A.example.com", "me")))
    assert not any(map(local_machine.is_this_machine, ("gpu-b", "gone", "10.7.0.6")))


def test_every_address_of_an_interface_is_found() -> None:
    """As the kernel chooses it for packets to another host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ELSEWHERE, 9))
        except OSError:
            pytest.skip("this machine has no route to others")
        assert local_machine.is_this_machine(probe.getsockname()[0])


@pytest.mark.parametrize(("has_tensorflow", "is_first"), [(False, False), (True, True)])
def test_the_python_of_a_tool_environment_is_not_that_of_tasks(
    has_tensorflow: bool, is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both pipx and `uv tool` link to a command in an environment of its own, which has TensorFlow only on request."""
    command = tmp_path / "bin" / "tflaunch"
    command.parent.mkdir()
    command.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "argv", [str(command)])
    monkeypatch.setattr(sys, "prefix", "/home/ann/.local/share/tools/tflaunch")
    monkeypatch.setattr(local_machine, "find_spec", lambda _: object() if has_tensorflow else None)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    found = local_machine.describe_machine([]).python_directory
    assert (found == str(Path(sys.executable).parent)) is is_first
    monkeypatch.setattr(sys, "argv", [str(Path(__file__))])
    assert local_machine.describe_machine([]).python_directory == str(Path(sys.executable).parent)
