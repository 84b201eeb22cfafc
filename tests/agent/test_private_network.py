"""Private networks: tasks of a host reach each other and, with pasta, the world; nothing else reaches them."""

import ctypes
import encodings.ascii  # another user may not be able to read this installation
import encodings.idna
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.agent_client import LocalAgent, Talk
from support.needs import lack, need
from support.processes import command_of
from support.sshd import wait_dead
from support.waiting import PATIENCE
from tflaunch_worker import linux, process_state, spawn
from tflaunch_worker.features.private_network import namespaces, pasta

assert encodings.ascii
assert encodings.idna


def in_fork(function: Callable[[], object], user: int | None = None) -> Any:
    """Return the result of a function in a fork, which another user may own."""
    with tempfile.TemporaryFile("w+") as file:
        pid = os.fork()
        if pid == 0:
            try:
                if user is not None:
                    os.setgroups([])
                    os.setresgid(user, user, user)
                    os.setresuid(user, user, user)
                    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as after an exec
                json.dump(function(), file)
                file.flush()
            finally:
                os._exit(0)  # without a result, which fails the test
        os.waitpid(pid, 0)
        file.seek(0)
        return json.load(file)


NOBODY = 65534
HOST = "127.0.0.2"
"""An address of this machine."""
LISTEN = """
import os, socket, time
for host in ("127.0.0.1", "::1"):
    server = socket.create_server((host, {port}), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    servers = [*globals().get("servers", []), server]
print("listening", os.getuid(), flush=True)
connection, _ = servers[0].accept()
print(connection.recv(100).decode(), flush=True)
time.sleep(9999)
"""
CONNECT = "import socket; socket.create_connection(('localhost', {port})).sendall(b'hello'); print('sent')"


@pytest.fixture
def without_pasta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pasta in PATH does not work."""
    put_pasta_into_path(tmp_path, monkeypatch, "exit 1")


def put_pasta_into_path(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have a shell script be found as pasta."""
    program = directory / "bin/pasta"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.fixture
def with_pasta() -> None:
    """Pasta is installed, and works here."""
    need("pasta")
    if in_fork(lambda: interfaces_in(namespaces.open_network()[0])) == ["lo"]:
        lack("pasta")


def interfaces_in(network: tuple[int, ...]) -> list[str]:
    for namespace in network:
        linux.call_c("setns", namespace, 0)
    return [name for _, name in socket.if_nameindex()]


@pytest.fixture(params=["without_pasta", "with_pasta"])
def both_ways(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(request.param)


def start(talk: Talk, task: str, text: str, port: int = 0, **env: Any) -> None:
    talk.start(task, sys.executable, "-c", text, port=port, order={"private": True, "unset": []}, **env)


def own_address() -> str:
    """Return the address of this machine from which it reaches the world, or one of the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return HOST
        return str(probe.getsockname()[0])


def refusals(port: int) -> list[str]:
    """Return why connections to a port of this machine fail; "" for one that does not."""
    found = []
    for host in ("127.0.0.1", "::1", HOST, own_address()):
        try:
            socket.create_connection((host, port), PATIENCE).close()
            found.append("")
        except OSError as error:
            found.append(type(error).__name__)
    return found


@pytest.mark.usefixtures("both_ways")
def test_only_tasks_reach_tasks(local: LocalAgent) -> None:
    """Neither this user nor another one does from outside; the port counts as open when the task listens inside."""
    talk = local.talk
    talk.say("hold_ports", ports={"worker:0": 0})
    port = talk.wait_for("ports_held")["ports"]["worker:0"]
    start(talk, "worker:0", LISTEN.format(port=port), port)
    talk.wait_for("port_opened", "worker:0")
    expected = ["ConnectionRefusedError"] * 4
    assert refusals(port) == expected
    if os.getuid() == 0:
        assert in_fork(lambda: refusals(port), NOBODY) == expected
    talk.wait_until(lambda: talk.output.get(("worker:0", 0)) == f"listening {os.getuid()}\n".encode())
    start(talk, "worker:1", CONNECT.format(port=port))
    assert talk.text("worker:1") == "sent\n"
    talk.wait_until(lambda: b"hello" in talk.output["worker:0", 0])


@pytest.mark.usefixtures("with_pasta")
def test_with_pasta_any_protocol_gets_out(local: LocalAgent) -> None:
    """This machine's services are reached at its address, but not those on its loopback interface."""
    address = own_address()
    with (
        socket.create_server((address, 0)) as stream,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.create_server(("127.0.0.1", 0)) as inner,
    ):
        datagrams.bind((address, 0))

        def serve() -> None:
            connection, _ = stream.accept()
            with connection:
                connection.sendall(b"stream")
            _, sender = datagrams.recvfrom(100)
            datagrams.sendto(b"datagram", sender)

        threading.Thread(target=serve, daemon=True).start()
        text = f"""
import socket
with socket.create_connection({stream.getsockname()}) as stream:
    print(stream.recv(100).decode())
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
    datagrams.settimeout(120)
    datagrams.sendto(b"question", {datagrams.getsockname()})
    print(datagrams.recv(100).decode())
for host in ("127.0.0.1", "{HOST}", "169.254.90.1", "169.254.90.2"):
    try:
        socket.create_connection((host, {inner.getsockname()[1]}), 1)
        print("reached", host)
    except OSError:
        pass
"""
        start(local.talk, "worker:0", text)
        assert local.talk.text("worker:0") == "stream\ndatagram\n"


@pytest.mark.usefixtures("with_pasta")
def test_pasta_ends_with_the_agent(local: LocalAgent) -> None:
    """However the agent ends."""
    start(local.talk, "worker:0", "print('ready')")
    assert local.talk.text("worker:0") == "ready\n"
    guard, agent = (psutil.Process(pid) for pid in local.pids())
    pastas = [process for process in agent.children(recursive=True) if "--config-net" in command_of(process)]
    assert len(pastas) == 1
    agent.kill()
    assert wait_dead([*pastas, guard], PATIENCE)


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 9999"])
def test_pasta_that_does_not_connect_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """There is no way out then, and the reason is known."""
    put_pasta_into_path(tmp_path, monkeypatch, script)
    before = set(psutil.Process().children(recursive=True))
    monkeypatch.setattr(pasta, "PATIENCE", 0.2)
    network, no_way_out = namespaces.open_network()
    assert no_way_out.startswith("pasta makes no route there")
    assert in_fork(lambda: interfaces_in(network)) == ["lo"]
    assert {process for process in psutil.Process().children(recursive=True) if process.name() == "sleep"} <= before


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that all users reach. Each pytest that starts makes the directory above `tmp_path` private again."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.mark.needs("root")
def test_an_ordinary_user_keeps_its_id(open_directory: Path) -> None:
    """Files belong to it, and its programs have no privileges, not even in the namespace."""
    script = "id -u; id -g; grep CapEff /proc/self/status; ls /sys/class/net /proc/net/dev >/dev/null; touch made"

    def run() -> str:
        network, _ = namespaces.open_network()
        command = spawn.Command(["sh", "-c", script], {"PATH": os.environ["PATH"]}, str(open_directory))
        command.namespaces = network
        child = spawn.start_process(command, process_state.TaskSettings(0o022, (1024, 1024), os.nice(0)))
        os.waitpid(child.pid, 0)
        return os.read(child.output, 10_000).decode() + os.read(child.start_report, 100).decode()

    lines = in_fork(run, NOBODY).splitlines()
    assert lines[:3] == [str(NOBODY), str(NOBODY), f"CapEff:\t{0:016x}"]
    status = (open_directory / "made").stat()
    assert (status.st_uid, status.st_gid) == (NOBODY, NOBODY)
