"""The fence of a real agent: connections from outside the cluster are reset before its tasks see them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from support.agent_client import Agent
from support.fixed_ports import free_ports
from support.waiting import PATIENCE
from tflaunch_worker import event_loop, wire
from tflaunch_worker.agent.network import fence as fences
from tflaunch_worker.agent.network import interfaces, listening_sockets, peers
from tflaunch_worker.agent.network.ports import Ports

pytestmark = pytest.mark.agent

CLUSTER = ["127.0.0.1", "::1"]
OUTSIDER = "127.0.0.2"
_NOBODY = 65534  # a user ID
SERVER = """
import socket, sys
family = socket.AF_INET if sys.argv[2:] else socket.AF_INET6
s = socket.socket(family)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
if family == socket.AF_INET6:
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
s.bind((sys.argv[2] if sys.argv[2:] else "", int(sys.argv[1])))
s.listen()
while True:
    connection, address = s.accept()
    connection.sendall(b"hello")
    connection.close()
"""
needs_ipv6 = pytest.mark.needs("ipv6")


def answer(port: int, source: str) -> bytes:
    """Connect from an address of this machine; return what arrives, b"" if the connection is refused or reset."""
    family, target = (socket.AF_INET6, "::1") if ":" in source else (socket.AF_INET, "127.0.0.1")
    with socket.socket(family) as caller:
        caller.settimeout(PATIENCE)
        caller.bind((source, 0))
        try:
            caller.connect((target, port))
            return caller.recv(100)
        except (ConnectionRefusedError, ConnectionResetError):
            return b""


def hold(agent: Agent, addresses: list[str], port: int = 0) -> int:
    """Have a port held and fenced, by default any; return it."""
    agent.talk.say("hold_ports", ports={"worker:0": port})
    port = int(agent.talk.wait_for("ports_held")["ports"]["worker:0"])
    admit(agent, addresses)
    return port


def admit(agent: Agent, addresses: list[str]) -> None:
    """Send the addresses of the cluster."""
    body = json.dumps(addresses).encode()
    agent.talk.connection.sendall(wire.encode({"kind": "set_fence"}, body))


def ends(agent: Agent, attempt: int) -> None:
    """Stop an attempt, and wait until it is gone."""
    agent.talk.say("stop_task", task="worker:0", attempt=attempt, grace=0)
    agent.talk.wait_for("task_gone", attempt=attempt)


@needs_ipv6
def test_outsiders_never_reach_a_task(agent: Agent) -> None:
    """Before it listens, while it does, after it has ended, and across restarts at the same port."""
    port = hold(agent, CLUSTER)
    for attempt in range(3):
        agent.talk.start("worker:0", sys.executable, "-c", SERVER, str(port), attempt=attempt, port=port)
        assert answer(port, OUTSIDER) == b""
        agent.talk.wait_for("port_opened", attempt=attempt)
        for _ in range(20):
            assert answer(port, OUTSIDER) == b""
            assert answer(port, "127.0.0.1") == answer(port, "::1") == b"hello"
        ends(agent, attempt)
        assert answer(port, OUTSIDER) == b""
    refused = [message for message in agent.talk.heard if message["kind"] == "outsider_refused"]
    assert [(one["task"], one["source"]) for one in refused] == [("worker:0", OUTSIDER)]
    assert not [message for message in agent.talk.heard if message["kind"] == "port_unfenced"]


@needs_ipv6
def test_connections_of_a_killed_task_keep_no_port(agent: Agent) -> None:
    """Nobody has a port whose connections are in TIME_WAIT: the next agent holds it alone, and fences it."""
    with server_like_tensorflow() as server, socket.create_connection(("127.0.0.1", port := port_of(server))) as client:
        server.accept()[0].close()
        assert client.recv(1) == b""
    assert hold(agent, CLUSTER, port) == port
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port))  # with SO_REUSEADDR


def server_like_tensorflow() -> socket.socket:
    """Return a socket that listens on any port with both options."""
    server = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        server.setsockopt(socket.SOL_SOCKET, option, 1)
    server.bind(("", free_ports(1)[0]))
    server.listen()
    return server


def port_of(server: socket.socket) -> int:
    """Return the port of a socket."""
    return int(server.getsockname()[1])


@needs_ipv6
def test_a_fence_does_not_count_as_a_task_that_listens(agent: Agent) -> None:
    """Its socket listens on the port before the task does; the same look finds the port of another task open."""
    agent.talk.say("hold_ports", ports={"worker:0": 0, "worker:1": 0})
    ports = agent.talk.wait_for("ports_held")["ports"]
    admit(agent, CLUSTER)
    agent.talk.start("worker:0", "sleep", "9999", port=ports["worker:0"])
    agent.talk.start("worker:1", sys.executable, "-c", SERVER, str(ports["worker:1"]), port=ports["worker:1"])
    assert agent.talk.wait_for("port_opened")["task"] == "worker:1"


@needs_ipv6
def test_the_fence_follows_the_cluster(agent: Agent) -> None:
    """A host that joins is let in, one that is lost is kept out, while a task listens.

    The first connection of each of 16 addresses is reported at once, all are counted.
    """
    port = hold(agent, CLUSTER)
    agent.talk.start("worker:0", sys.executable, "-c", SERVER, str(port), port=port)
    agent.talk.wait_for("port_opened", attempt=0)
    admit(agent, [*CLUSTER, OUTSIDER])
    agent.talk.call("measure")
    assert answer(port, OUTSIDER) == b"hello"
    admit(agent, CLUSTER)
    agent.talk.call("measure")
    for number in range(2, 32):
        assert answer(port, f"127.0.0.{number}") == b""
    answer(port, OUTSIDER)
    tasks = [agent.talk.call("measure")["tasks"] for _ in range(2)]
    assert tasks[1]["worker:0"]["refused"] == 31
    assert sum(message["kind"] == "outsider_refused" for message in agent.talk.heard) == 16


@needs_ipv6
@pytest.mark.parametrize(("address", "is_exposed"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_task_outside_of_the_group_is_reported(agent: Agent, address: str, is_exposed: bool) -> None:
    """A program that listens with IPv4 only is not protected; one that only this machine reaches needs no fence."""
    port = hold(agent, CLUSTER)
    agent.talk.start("worker:0", sys.executable, "-c", SERVER, str(port), address, port=port)
    agent.talk.wait_for("port_opened", attempt=0)
    agent.talk.call("measure")
    told = [message["reason"] for message in agent.talk.heard if message["kind"] == "port_unfenced"]
    assert told == (["its program listens on 0.0.0.0, not on ::"] if is_exposed else [])


def test_without_addresses_everybody_is_let_in(agent: Agent) -> None:
    """One host does not know its own: the task is reported, and goes on."""
    port = hold(agent, [])
    agent.talk.start("worker:0", sys.executable, "-c", SERVER, str(port), port=port)
    assert agent.talk.wait_for("port_unfenced")["reason"] == "the addresses of a host are not known"
    agent.talk.wait_for("port_opened", attempt=0)
    assert answer(port, OUTSIDER) == b"hello"


def test_the_greeting_has_the_addresses_of_the_interfaces(new_agent: Agent) -> None:
    """As the kernel tells them to `ip`."""
    before = addresses_of_ip()
    told, own = new_agent.talk.hello()["addresses"], interfaces.addresses()
    after = addresses_of_ip()  # other tests may make networks at the same time
    assert before & after <= set(told) <= before | after
    assert told == own or before != after


def addresses_of_ip() -> set[str]:
    """Return the addresses that `ip` shows, without those of links only."""
    shown = json.loads(subprocess.check_output(["ip", "-j", "address"]))
    known = {(info["local"], info["scope"]) for link in shown for info in link.get("addr_info", []) if "local" in info}
    return {"127.0.0.1", "::1"} | {
        address for address, scope in known if scope != "link" and not address.startswith("127.")
    }


def test_the_owner_of_a_fenced_port_is_the_task(agent: Agent) -> None:
    """Not the agent, whose socket listens, too."""
    port = hold(agent, CLUSTER)
    config = {"cluster": {"worker": [f"h:{port}"]}, "task": {"type": "worker", "index": 0}}
    agent.talk.start("worker:0", "sleep", "9999", port=port, TF_CONFIG=json.dumps(config))
    pid = agent.talk.wait_for("task_started")["pid"]
    assert f", pid {pid} (sleep 9999)" in (listening_sockets.owner(port) or "")


@pytest.fixture
def loop() -> event_loop.Loop:
    """A loop that is not running."""
    return event_loop.Loop()


@pytest.fixture
def fence(loop: event_loop.Loop) -> Iterator[tuple[fences.Fence, Ports, int]]:
    """A fence around one port, outside of any agent."""
    made = fences.Fence(loop)
    ports = Ports(made.leave)
    yield made, ports, ports.hold("worker:0", 0)
    ports.release("worker:0")


class WatchedHolder(socket.socket):
    """A socket to which a peer connects at the first moment in which it listens."""

    has_connected = False

    def listen(self, backlog: int = 0, /) -> None:
        """Listen, and let the peer connect; on this machine, that succeeds at once or is under way."""
        super().listen(backlog)
        with socket.socket() as caller:
            caller.setblocking(False)
            caller.connect_ex(address := ("127.0.0.1", self.getsockname()[1]))
            self.has_connected = caller.connect_ex(address) == 0


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Have no capability, which root gives up with its effective user ID."""
    user = os.geteuid()
    os.seteuid(user or _NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("is_ordinary", [False, True], ids=["this user", "an ordinary user"])
def test_a_peer_that_connects_at_once_does_not_reach_the_holder(
    fence: tuple[fences.Fence, Ports, int], is_ordinary: bool
) -> None:
    """Not even in the moment in which the fence is set up, when tasks on other hosts may have started already."""
    guarded, ports, _ = fence
    assert guarded.admit(CLUSTER) == ""
    holder = ports.holder("worker:0")
    assert holder is not None
    with WatchedHolder(fileno=os.dup(holder.fileno())) as watched:
        with ordinary_user() if is_ordinary else nullcontext():
            assert guarded.guard("worker:0", watched) == ""
        assert not watched.has_connected
        guarded.leave("worker:0")


@needs_ipv6
def test_an_ordinary_user_fences_ports_on_new_kernels(
    fence: tuple[fences.Fence, Ports, int], loop: event_loop.Loop
) -> None:
    """Until the task listens, its peers wait; from then on they reach it, and others are reset and counted."""
    guarded, ports, port = fence
    with ordinary_user():
        assert fences.why_unavailable() == guarded.admit(CLUSTER) == ""
        assert guarded.guard("worker:0", ports.holder("worker:0")) == ""
        assert guarded.admit([*CLUSTER, "192.0.2.1"]) == ""
    for peer in CLUSTER:
        with pytest.raises(TimeoutError):
            socket.create_connection((peer, port), 0.2)
    with socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, reuse_port=True):
        for peer in CLUSTER:
            socket.create_connection((peer, port), PATIENCE).close()
        guarded.note_opened("worker:0")
        with socket.create_connection(("127.0.0.1", port), PATIENCE, (OUTSIDER, 0)) as caller:
            loop.serve_ready(None)
            with pytest.raises(ConnectionResetError):
                caller.recv(1)
    assert guarded.counts == {"worker:0": 1}


@needs_ipv6
def test_a_peer_waits_for_a_task_that_does_not_listen_yet(agent: Agent) -> None:
    """A connection that succeeded would make it believe that the task is ready; without a task, it is refused."""
    port = hold(agent, CLUSTER)
    for attempt in range(2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 10)
        agent.talk.start("worker:0", "sleep", "9999", attempt=attempt, port=port)
        agent.talk.wait_for("task_started", attempt=attempt)
        with pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.1", port), 0.2)
        ends(agent, attempt)


def test_a_kernel_that_does_not_allow_it_is_told(
    fence: tuple[fences.Fence, Ports, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port is then held as without a fence."""
    made, ports, port = fence
    monkeypatch.setattr(fences, "_SO_ATTACH_REUSEPORT_CBPF", 999)
    made.admit(CLUSTER)
    reason = "the kernel does not allow it: Protocol not available"
    assert made.guard("worker:0", ports.holder("worker:0")) == fences.why_unavailable() == reason
    assert port not in listening_sockets.ports()


def test_too_many_addresses_are_told(fence: tuple[fences.Fence, Ports, int]) -> None:
    """Every other address of a network, which no range can join."""
    made, ports, _ = fence
    many = [f"10.{number // 128 // 256}.{number // 128 % 256}.{number % 128 * 2}" for number in range(5000)]
    reason = "the 5000 addresses of the hosts are more than the kernel takes"
    assert made.admit(many) == made.guard("worker:0", ports.holder("worker:0")) == reason


def test_a_peer_from_an_unknown_address_proves_that_it_belongs_to_the_run(agent: Agent) -> None:
    """As behind a router that changes addresses; who does not know the run's secret proves nothing."""
    port = hold(agent, ["192.0.2.1"])
    about = {"ports": {"worker:0": port}, "peers": {}, "run": "run", "patience": 0}
    agent.talk.say("probe_peers", **about, secret="the run's own")
    agent.talk.wait_for("peers_probed")
    there: dict[str, list[object]] = {"worker:0": ["127.0.0.1", port]}
    assert peers.probe_all(there, "run", "guessed", PATIENCE) == {}
    agent.talk.keep_alive()
    agent.talk.wait_for("alive")
    assert not [message for message in agent.talk.heard if message["kind"] == "peer_seen"]
    assert peers.probe_all(there, "run", "the run's own", PATIENCE) == {}
    assert agent.talk.wait_for("peer_seen")["source"] == "127.0.0.1"
