"""Private networks: tasks of a host reach each other and, through a proxy, the world; nothing else reaches them."""

from __future__ import annotations

import http.server
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.agent_client import PATIENCE, LocalAgent, Talk
from support.forks import in_fork
from support.install import lacking, need
from support.processes import command_of
from support.sshd import wait_dead
from tflaunch_worker import linux, spawn
from tflaunch_worker.agent import pasta, private_network

pytestmark = pytest.mark.agent

NOBODY = 65534
HOST = "127.0.0.2"
"""An address of this machine for which tasks use their proxy."""
LISTEN = """
import os, socket, time
for host in ("127.0.0.1", "::1"):
    server = socket.create_server((host, {port}), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    servers = [*globals().get("servers", []), server]
print("listening", os.getuid(), flush=True)
connection, _ = servers[0].accept()
print(connection.recv(100).decode(), flush=True)
time.sleep(300)
"""
CONNECT = "import socket; socket.create_connection(('localhost', {port})).sendall(b'hello'); print('sent')"
FETCH = "import urllib.request as r; print(r.urlopen({url!r}, timeout=120).read().decode())"


@pytest.fixture
def server() -> Iterator[str]:
    """The URL of a web server of this machine that answers with the path of the request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"you asked for {self.path}".encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer((HOST, 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{serving.server_address[1]}"
        serving.shutdown()


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
    need(["pasta"], ["passt"])
    if in_fork(lambda: interfaces_in(private_network.open_network())) == ["lo"]:
        lacking("pasta does not work here: no default route, or no /dev/net/tun")


def interfaces_in(network: private_network.PrivateNetwork) -> list[str]:
    """Enter a network, and return the names of its interfaces."""
    for namespace in network.namespaces:
        linux.enter_namespace(namespace)
    return [name for _, name in socket.if_nameindex()]


@pytest.fixture(params=["without_pasta", "with_pasta"])
def both_ways(request: pytest.FixtureRequest) -> None:
    """With pasta and without it."""
    request.getfixturevalue(request.param)


def start(talk: Talk, task: str, text: str, port: int = 0, **env: str) -> None:
    """Start a task in the private network."""
    marks = {"TFLAUNCH_RUN": f"test-{os.getpid()}", "TFLAUNCH_TASK": task, "TFLAUNCH_ATTEMPT": "0"}
    order: dict[str, Any] = {"unset": [], "workdir": "/", "inherit": True, "port": port, "private": True}
    talk.say("start_task", task=task, attempt=0, argv=[sys.executable, "-c", text], env={**marks, **env}, **order)


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
            socket.create_connection((host, port), 60).close()
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


@pytest.mark.usefixtures("both_ways")
def test_tasks_reach_the_world_through_a_proxy(local: LocalAgent, server: str) -> None:
    """Directly they reach nothing, not even this machine."""
    start(local.talk, "worker:0", FETCH.format(url=f"{server}/data?set=1"))
    assert local.talk.text("worker:0") == "you asked for /data?set=1\n"
    address = (HOST, int(server.rpartition(":")[2]))
    start(local.talk, "worker:1", f"import socket; socket.create_connection({address})")
    assert "ConnectionRefusedError" in local.talk.text("worker:1") or "unreachable" in local.talk.text("worker:1")
    tunnel = f"""
import os, socket
host, _, port = os.environ["https_proxy"].rpartition("/")[2].partition(":")
with socket.create_connection((host, int(port))) as proxy:
    proxy.sendall(b"CONNECT {HOST}:{address[1]} HTTP/1.1\\r\\n\\r\\n")
    assert proxy.recv(1000).startswith(b"HTTP/1.1 200 ")
    proxy.sendall(b"GET /tunnel HTTP/1.0\\r\\n\\r\\n")
    print(b"".join(iter(lambda: proxy.recv(1000), b"")).decode().rpartition("\\n")[2])
"""
    start(local.talk, "worker:2", tunnel)
    assert local.talk.text("worker:2") == "you asked for /tunnel\n"


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


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 300"])
def test_pasta_that_does_not_connect_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """The proxy remains."""
    put_pasta_into_path(tmp_path, monkeypatch, script)
    before = set(psutil.Process().children(recursive=True))
    monkeypatch.setattr(pasta, "PATIENCE", 0.2)
    network = private_network.open_network()
    assert in_fork(lambda: interfaces_in(network)) == ["lo"]
    assert {process for process in psutil.Process().children(recursive=True) if process.name() == "sleep"} <= before


def test_a_proxy_of_the_user_lies_between(local: LocalAgent, server: str) -> None:
    """With its password, and except for hosts to which it does not apply."""
    heads = []
    with socket.create_server(("127.0.0.1", 0)) as upstream:

        def serve() -> None:
            connection, _ = upstream.accept()
            with connection:
                heads.append(connection.recv(10_000))
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nfrom upstream")

        threading.Thread(target=serve, daemon=True).start()
        proxies = {"http_proxy": f"http://ann:s%40cret@127.0.0.1:{upstream.getsockname()[1]}", "no_proxy": HOST}
        start(local.talk, "worker:0", FETCH.format(url="http://far.invalid/x"), **proxies)
        assert local.talk.text("worker:0") == "from upstream\n"
        start(local.talk, "worker:1", FETCH.format(url=f"{server}/near"), **proxies)
        assert local.talk.text("worker:1") == "you asked for /near\n"
    (head,) = heads
    assert head.startswith(b"GET http://far.invalid/x HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic YW5uOnNAY3JldA==\r\n" in head


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET / HTTP/1.1", b"400 "),
        (b"nonsense", b"400 "),
        (b"CONNECT 127.0.0.2:nowhere HTTP/1.1", b"400 "),
        (b"CONNECT far.invalid:443 HTTP/1.1", b"502 "),
        (b"GET file:///etc/passwd HTTP/1.1", b"400 "),
        (b"GET http://[ HTTP/1.1", b"400 "),
        (b"GET /" + b"x" * 300_000 + b" HTTP/1.1", b"431 "),
    ],
)
def test_what_is_no_request_for_a_proxy_is_answered(
    local: LocalAgent, tmp_path: Path, request_line: bytes, status: bytes
) -> None:
    """By a status that says so, in the time that a connection may take."""
    (tmp_path / "request").write_bytes(request_line + b"\r\n\r\n")
    text = f"""
import os, socket
host, _, port = os.environ["https_proxy"].rpartition("/")[2].partition(":")
with socket.create_connection((host, int(port))) as proxy:
    try:
        proxy.sendall(open({str(tmp_path / "request")!r}, "rb").read())
    except OSError:
        pass
    print(proxy.recv(1000).decode())
"""
    start(local.talk, "worker:0", text)
    assert local.talk.text("worker:0").startswith(f"HTTP/1.1 {status.decode()}")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that all users reach. Each pytest that starts makes the directory above `tmp_path` private again."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_keeps_its_id(open_directory: Path) -> None:
    """Files belong to it, and its programs have no privileges, not even in the namespace."""
    script = "id -u; id -g; grep CapEff /proc/self/status; ls /sys/class/net /proc/net/dev >/dev/null; touch made"

    def run() -> str:
        network = private_network.open_network()
        command = spawn.Command(["sh", "-c", script], {"PATH": os.environ["PATH"]}, str(open_directory))
        command.namespaces = network.namespaces
        child = spawn.start_process(
            command, spawn.ProcessSettings(0o022, (1024, 1024), os.getpriority(os.PRIO_PROCESS, 0))
        )
        os.waitpid(child.pid, 0)
        return os.read(child.output, 10_000).decode() + os.read(child.start_report, 100).decode()

    lines = in_fork(run, NOBODY).splitlines()
    assert lines[:3] == [str(NOBODY), str(NOBODY), f"CapEff:\t{0:016x}"]
    status = (open_directory / "made").stat()
    assert (status.st_uid, status.st_gid) == (NOBODY, NOBODY)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can forbid namespaces to others")
def test_where_it_is_not_possible_the_reason_is_known() -> None:
    """The setting that forbids it is named."""

    def forbid() -> str:
        linux.enter_new_namespaces(linux.NEW_USER)
        for name, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
            Path(f"/proc/self/{name}").write_text(text)
        for kind in ("user", "net"):
            Path(f"/proc/sys/user/max_{kind}_namespaces").write_text("0")
        return private_network.why_unavailable()

    assert in_fork(forbid) == "this host does not let users make namespaces: user.max_user_namespaces is 0"
    assert private_network.why_unavailable() == ""
