"""Hosts that are discovered when a job starts: from a file, a command or DNS; which of them are this machine."""

import errno
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from support.fixed_ports import free_ports
from support.waiting import PATIENCE
from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.problems import validate_data
from tflaunch.clusterspec.values import Address
from tflaunch.discovery import local_machine, resolve
from tflaunch.errors import SpecError
from tflaunch.features import port_holder
from tflaunch.features.discovery import engines


def found(directory: Path, where: str, **fields: object) -> tuple[Address, ...]:
    """Return the workers that a source provides."""
    read = validate_data({"discover": {"worker": where}, "command": ["x"], **fields})
    assert isinstance(read, Spec), read
    resolved = resolve.with_hosts("job.json", read, directory)
    assert not resolved.discover
    return resolved.cluster["worker"]


def problem(directory: Path, where: str, **fields: object) -> str:
    """Return the error for a source that provides none."""
    with pytest.raises(SpecError) as caught:
        found(directory, where, **fields)
    (only,) = caught.value.problems
    assert only.where == "discover.worker"
    assert only.hint
    return only.message


HOSTS = """
# the first rack
h1 slots=2
h2:2222   # a port of its own
[2001:db8::5] slots=1
[::1]:2222
"""
EXPECTED = (
    Address("h1", None), Address("h1", None), Address("h2", 2222), Address("2001:db8::5", None), Address("::1", 2222)
)  # fmt: skip


def test_a_file_names_one_host_per_line(tmp_path: Path) -> None:
    """With slots for more tasks, ports, comments and empty lines. A command, without a shell, prints the same.

    Both are those beside the spec.
    """
    (tmp_path / "hosts.txt").write_text(HOSTS, encoding="utf-8-sig")
    assert found(tmp_path, "file:hosts.txt") == EXPECTED
    assert found(tmp_path, "exec:cat hosts.txt") == EXPECTED


@pytest.mark.parametrize(
    ("line", "host", "count"),
    [
        ("h1:1023", Address("h1", None), 1023),
        ("h1:1024", Address("h1", 1024), 1),
        ("[::1]:2", Address("::1", None), 2),
        ("h1:22 slots=3", Address("h1", 22), 3),
        ("h1 slots=3 max_slots=8", Address("h1", None), 3),
    ],
)
def test_a_host_has_a_number_of_tasks_or_a_port(tmp_path: Path, line: str, host: Address, count: int) -> None:
    """As for mpirun and Horovod, and as -H has it; behind `slots=` the number is a port."""
    (tmp_path / "hosts.txt").write_text(f"{line}\n")
    assert found(tmp_path, "file:hosts.txt") == (host,) * count


def test_a_name_gives_a_task_per_address() -> None:
    """Sorted numerically, so that every lookup gives the same cluster; with a port if one is given."""
    assert found(Path(), "dns:localhost") == (Address("127.0.0.1", None),)
    assert found(Path(), "dns:localhost:80") == (Address("127.0.0.1", 80),)
    assert found(Path(), "dns:[::1]:2222") == (Address("::1", 2222),)
    read = validate_data({"cluster": {"ps": 1}, "discover": {"worker": "dns:nosuch.invalid"}, "command": ["x"]})
    assert isinstance(read, Spec)
    assumed = resolve.with_hosts("job.json", read, Path(), is_offline=True)
    assert set(assumed.cluster) == {"ps", "worker"}, "`check` reads it without the network"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("file:empty", "'file:empty' names no host"),
        ("file:odd", "line 2: 'two words' names no host"),
        ("file:none", "line 1: h1:0 is a host without a task"),
        ("file:bad", "line 1: 'h1:99999' has no valid port"),
        ("exec:nosuch-program", "'nosuch-program' cannot be run"),
        ("exec:cat 'x", "cannot be run: No closing quotation"),
        ("exec:sh -c 'echo why >&2; exit 3'", "exited with code 3: why"),
        ("exec:sh -c 'sleep 9999 & exit 3'", "exited with code 3"),
        ("exec:sh -c 'trap \"\" TERM; sleep 9999'", "did not end within 0.5 s"),
        ("exec:sh -c 'exec >&- 2>&-; sleep 9999'", "did not end within 0.5 s"),
        ("exec:yes h1", "printed more than 1 MiB"),
        ("exec:sh -c 'yes | head -c 300000 >&2; printf \"\\033[31mno\" >&2; exit 3'", r"with code 3: \x1b[31mno"),
        ("file:/dev/zero", "/dev/zero is larger than 1 MiB"),
        ("file:utf16", "utf16 is text in UTF-16"),
        ("file:many", "names more than 10000 tasks"),
        ("file:a\0b", "cannot be read: embedded null"),
        ("dns:nosuch.invalid", "DNS knows no 'nosuch.invalid'"),
    ],
)
def test_what_cannot_be_found_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, words: str) -> None:
    monkeypatch.setattr(engines, "_PATIENCE", 0.5 if "0.5 s" in words else PATIENCE)
    (tmp_path / "many").write_text("h1 slots=99999\n" * 50_000)
    (tmp_path / "empty").write_text("# no host\n")
    (tmp_path / "odd").write_text("h1\ntwo words\n")
    (tmp_path / "utf16").write_text("h1\n", encoding="utf-16")
    (tmp_path / "none").write_text("h1:0\n")
    (tmp_path / "bad").write_text("h1:99999\n")
    assert words in problem(tmp_path, where)


def test_nothing_of_a_command_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_PATIENCE", 0.5)
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    try:
        problem(tmp_path, "exec:sh -c 'exec 9>alive; sleep 9999 & sleep 9999'")
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b""  # the last possible writer has closed it
    finally:
        os.close(reader)


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


@pytest.mark.needs("route")
def test_every_address_of_an_interface_is_found() -> None:
    """As the kernel chooses it for packets to another host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((ELSEWHERE, 9))
        assert local_machine.is_this_machine(probe.getsockname()[0])


def test_the_python_of_a_tool_environment_is_not_that_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both pipx and `uv tool` link to a command in an environment of its own, which has TensorFlow only on request."""
    ours, command = str(Path(sys.executable).parent), tmp_path / "tflaunch"
    command.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "prefix", "/home/ann/.local/share/tools/tflaunch")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    for spec in (None, object()):
        monkeypatch.setattr(local_machine, "find_spec", lambda _, spec=spec: spec)
        monkeypatch.setattr(sys, "argv", [str(command)])
        assert (local_machine.describe_machine([]).python_directory == ours) is (spec is not None)
        monkeypatch.setattr(sys, "argv", [__file__])
        assert local_machine.describe_machine([]).python_directory == ours


# ---- which process holds a port


IN_USE = OSError(errno.EADDRINUSE, "Address already in use")


@pytest.mark.parametrize(
    ("family", "address"),
    [(socket.AF_INET, "127.0.0.1"), pytest.param(socket.AF_INET6, "::", marks=pytest.mark.needs("ipv6"))],
)
def test_the_holder_of_a_port_is_named(family: socket.AddressFamily, address: str) -> None:
    """Also one that listens on every address of the machine."""
    with socket.create_server((address, 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as server:
        why = port_holder.why_unusable(server.getsockname()[1], IN_USE)
    assert re.fullmatch(rf"is held by pid {os.getpid()} \(.+\)", why), why


def test_another_reason_is_the_systems_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        refused = PermissionError(errno.EACCES, "Permission denied")
        assert port_holder.why_unusable(server.getsockname()[1], refused) == "cannot be used: Permission denied"


def test_a_holder_that_cannot_be_named_is_left_out() -> None:
    """As the listener has just exited."""
    (port,) = free_ports(1)
    assert port_holder.why_unusable(port, IN_USE) == "cannot be used: Address already in use"
