"""Ports: their fence, which resets connections from outside the cluster, who listens on them, and chosen ones."""

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
from tflaunch_worker.agent.network import listening_sockets, netlink, peers
from tflaunch_worker.agent.network.ports import FIRST_LOOK, Ports

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
    agent.talk.say("hold_ports", ports={"worker:0": port})
    port = int(agent.talk.wait_for("ports_held")["ports"]["worker:0"])
    admit(agent, addresses)
    return port


def admit(agent: Agent, addresses: list[str]) -> None:
    body = json.dumps(addresses).encode()
    agent.talk.connection.sendall(wire.encode({"kind": "set_fence"}, body))


def ends(agent: Agent, attempt: int) -> None:
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
    assert [message["attempt"] for message in agent.talk.heard if message["kind"] == "port_opened"] == [0, 1, 2]


@needs_ipv6
def test_connections_of_a_killed_task_keep_no_port(agent: Agent) -> None:
    """Nobody has a port whose connections are in TIME_WAIT: the next agent holds it alone, and fences it."""
    (port,) = free_ports(1)
    with socket.create_server(("", port), reuse_port=True) as server:  # with both options, as TensorFlow's
        client = socket.create_connection(("127.0.0.1", port))
        server.accept()[0].close()
        assert client.recv(1) == b""
        client.close()
    assert hold(agent, CLUSTER, port) == port
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port))  # with SO_REUSEADDR


@needs_ipv6
def test_a_fence_does_not_count_as_a_task_that_listens(agent: Agent) -> None:
    """Its socket listens on the port before the task does; later looks find the port of another task open."""
    agent.talk.say("hold_ports", ports={"worker:0": 0, "worker:1": 0})
    ports = agent.talk.wait_for("ports_held")["ports"]
    admit(agent, CLUSTER)
    agent.talk.start("worker:0", "sleep", "9999", port=ports["worker:0"])
    late = f"import time\ntime.sleep({3 * FIRST_LOOK})\n{SERVER}"
    agent.talk.start("worker:1", sys.executable, "-c", late, str(ports["worker:1"]), port=ports["worker:1"])
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
    told, own = new_agent.talk.hello()["addresses"], netlink.interface_addresses()
    after = addresses_of_ip()  # other tests may make networks at the same time
    assert before & after <= set(told) <= before | after
    assert told == own or before != after


def addresses_of_ip() -> set[str]:
    """Return the addresses that `ip` shows, without those of links only."""
    shown = json.loads(subprocess.check_output(["ip", "-j", "address"]))
    known = {(info["local"], info["scope"]) for link in shown for info in link.get("addr_info", []) if "local" in info}
    return {"127.0.0.1", "::1"} | {each for each, scope in known if scope != "link" and not each.startswith("127.")}


def test_the_owner_of_a_fenced_port_is_the_task(agent: Agent) -> None:
    """Not the agent, whose socket listens, too."""
    port = hold(agent, CLUSTER)
    config = {"cluster": {"worker": [f"h:{port}"]}, "task": {"type": "worker", "index": 0}}
    agent.talk.start("worker:0", "sleep", "9999", port=port, TF_CONFIG=json.dumps(config))
    pid = agent.talk.wait_for("task_started")["pid"]
    assert f", pid {pid} (sleep 9999)" in (listening_sockets.owner(port) or "")


@pytest.fixture
def loop() -> event_loop.Loop:
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


# ---- who listens, by the kernel's socket diagnostics, or its tables as a fallback


@pytest.fixture(params=["127.0.0.1", "::1"])
def server(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as listening:
        yield listening


def test_both_sources_know_a_listener_by_its_inode(server: socket.socket) -> None:
    """With IPv4 and IPv6."""
    port = server.getsockname()[1]
    inode = os.fstat(server.fileno()).st_ino
    for found in (list(listening_sockets.from_kernel(server.family)), list(listening_sockets.from_tables())):
        assert found.count(listening_sockets.Listener(port, inode, server.getsockname()[0])) == 1
    assert port in listening_sockets.ports()
    assert f"pid {os.getpid()} (" in (listening_sockets.owner(port) or "")
    assert port not in listening_sockets.ports_of(os.getpid())  # as a fork of ours has it, too


def test_who_is_bound_or_connected_does_not_listen(server: socket.socket) -> None:
    """A port that is merely held is not reported as open."""
    with socket.socket(server.family) as bound, socket.create_connection(server.getsockname()[:2]) as client:
        bound.bind((server.getsockname()[0], 0))
        assert not {bound.getsockname()[1], client.getsockname()[1]} & listening_sockets.ports()
        assert listening_sockets.owner(bound.getsockname()[1]) is None


@pytest.mark.parametrize("listens", [True, False])
def test_a_task_of_another_run_is_named_with_what_ends_it(listens: bool) -> None:
    """Even before it listens, as its agent holds the port; its command is one line, whatever its arguments."""
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        free = chosen.getsockname()[1]
    config = {"cluster": {"worker": ["h:1", f"h:{free}"]}, "task": {"type": "worker", "index": 1}}
    env = {**os.environ, "TFLAUNCH_RUN": "other-1f2e", "TF_CONFIG": json.dumps(config)}
    opens = f"create_server(('127.0.0.1', {free}))" if listens else "socket()"
    script = f"# a\x1b[31mb\nimport socket; s = socket.{opens}; print(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True, env=env) as process:
        process.stdout.readline()
        owner = listening_sockets.owner(free) or ""
        process.communicate("\n")
    assert owner.startswith(f"run other-1f2e, pid {process.pid} (")
    assert r" -c # a\x1b[31mb\nimport socket; " in owner
    assert owner.isprintable()
    assert owner.endswith("), which `tflaunch down other-1f2e` ends")


def test_where_the_kernel_does_not_answer_its_tables_do(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old kernels, and sandboxes."""
    monkeypatch.setattr(listening_sockets, "_PROTOCOL", 31)  # a protocol that does not exist
    with pytest.raises(OSError):  # noqa: PT011 - whatever the kernel makes of it
        list(listening_sockets.from_kernel(server.family))
    assert server.getsockname()[1] in listening_sockets.ports()


# ---- a port that a task chooses

CHOOSES = "import socket,sys,time;s=socket.create_server(('127.0.0.1',0));print(s.getsockname()[1]);time.sleep(9999)"


def test_the_port_that_a_task_chooses_is_looked_for(agent: Agent) -> None:
    """Not that of another program, nor of one that the task has started."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        agent.talk.start("board", "sh", "-c", f'{sys.executable} -c "{CHOOSES}"; exit', order={"chooses_port": True})
        agent.talk.start("tensorboard", sys.executable, "-c", CHOOSES, order={"chooses_port": True})
        opened = agent.talk.wait_for("port_opened")
        assert opened["task"] == "tensorboard"
        assert opened["port"] not in (0, server.getsockname()[1])
        socket.create_connection(("127.0.0.1", opened["port"])).close()
