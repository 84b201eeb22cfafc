"""Ports: who listens on one, and those that are kept free for a task that binds them exclusively."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.agent_client import Agent, LocalAgent
from support.fixed_ports import free_ports
from tflaunch_worker.agent.network import listening_sockets

pytestmark = pytest.mark.agent


# ---- who listens, by the kernel's socket diagnostics, or its tables as a fallback


@pytest.fixture(params=["127.0.0.1", "::1"])
def server(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A listening socket."""
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
    assert listening_sockets.is_listening(port, os.getsid(0))


def test_who_is_bound_or_connected_does_not_listen(server: socket.socket) -> None:
    """A port that is merely held is not reported as open."""
    with socket.socket(server.family) as bound, socket.create_connection(server.getsockname()[:2]) as client:
        bound.bind((server.getsockname()[0], 0))
        assert not {bound.getsockname()[1], client.getsockname()[1]} & listening_sockets.ports()
        assert listening_sockets.owner(bound.getsockname()[1]) is None


def test_the_owner_s_command_is_one_line() -> None:
    """Whatever its arguments: it is written to a terminal."""
    script = (
        "# a\x1b[31mb\nimport socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    )
    with _python(f"{script}; input()", env=os.environ) as (process, port):
        owner = listening_sockets.owner(port) or ""
        assert owner.startswith(f"pid {process.pid} (")
        assert " -c # a [31mb import socket; " in owner
        assert owner.isprintable()


@pytest.mark.parametrize("listens", [True, False])
def test_a_task_of_another_run_is_named_with_what_ends_it(listens: bool) -> None:
    """Even before it listens: its agent holds the port."""
    call = "create_server(('127.0.0.1', 0))" if listens else "socket()"
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        free = chosen.getsockname()[1]
    config = {"cluster": {"worker": ["h:1", f"h:{free}"]}, "task": {"type": "worker", "index": 1}}
    env = {**os.environ, "TFLAUNCH_RUN": "other-1f2e", "TF_CONFIG": json.dumps(config)}
    script = (
        f"import socket; s = socket.{call}; print({'s.getsockname()[1]' if listens else free}, flush=True); input()"
    )
    with _python(script, env=env) as (process, port):
        owner = listening_sockets.owner(port) or ""
        assert owner.startswith(f"run other-1f2e, pid {process.pid} (")
        assert owner.endswith("), which `tflaunch down other-1f2e` ends")


@contextmanager
def _python(script: str, env: Mapping[str, str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run Python until the end of the block; yield it with the port that it prints."""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.communicate("\n")


def test_where_the_kernel_does_not_answer_its_tables_do(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old kernels, and sandboxes."""
    monkeypatch.setattr(listening_sockets, "_PROTOCOL", 31)  # a protocol that does not exist
    with pytest.raises(OSError):  # noqa: PT011 - whatever the kernel makes of it
        list(listening_sockets.from_kernel(server.family))
    assert server.getsockname()[1] in listening_sockets.ports()


# ---- ports that a task binds exclusively

SERVER = "import socket,sys,time;s=socket.create_server(('127.0.0.1',int(sys.argv[1])));time.sleep(9999)"


def hold(agent: Agent, port: int) -> int:
    """Have a port held for TensorBoard; return the port chosen."""
    agent.talk.say("hold_ports", ports={"tensorboard": port}, exclusive=True)
    return int(agent.talk.wait_for("ports_held")["ports"]["tensorboard"])


@pytest.fixture
def other_agent(tmp_path: Path) -> Iterator[Agent]:
    """An agent of another run on this machine."""
    started = LocalAgent(tmp_path / "other")
    yield started
    assert not (log := started.end()), log


def test_it_is_held_for_its_task(agent: Agent, other_agent: Agent) -> None:
    """No other agent gets it, for such a task or for TensorFlow; the task does, without SO_REUSEPORT."""
    other_agent.talk.hello()
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert hold(agent, server.getsockname()[1]) != server.getsockname()[1], "another one if it is busy"
    agent.talk.heard.clear()
    assert hold(agent, port) == port
    assert hold(other_agent, port) != port
    other_agent.talk.say("hold_ports", ports={"worker:0": port})
    assert "worker:0" in other_agent.talk.wait_for("ports_refused")["refused"]
    agent.talk.start("tensorboard", "python3", "-c", SERVER, str(port), port=port, order={"exclusive": True})
    assert agent.talk.wait_for("port_opened")["task"] == "tensorboard"
    socket.create_connection(("127.0.0.1", port)).close()


def test_what_is_left_of_old_connections_is_no_owner(agent: Agent) -> None:
    """A server that has just ended leaves its side of a connection in TIME_WAIT: its port can be reused."""
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)) as server:
        browser = socket.create_connection(("127.0.0.1", port))
        served, _ = server.accept()
        served.close()  # first, so that TIME_WAIT is on the server's side
        assert browser.recv(1) == b""
        browser.close()
    with socket.socket() as strict, pytest.raises(OSError, match="in use"):
        strict.bind(("127.0.0.1", port))
    assert hold(agent, port) == port


def test_somebody_elses_listening_is_not_the_tasks(agent: Agent) -> None:
    """A task that merely has the same port number as a server has not opened it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        agent.talk.start("tensorboard", "sleep", "9999", port=port, order={"exclusive": True})
        agent.talk.wait_for("task_started", "tensorboard")
        agent.talk.start("worker:0", "sleep", "9999", port=port)
        agent.talk.wait_for("port_opened", "worker:0")
    assert [m["task"] for m in agent.talk.heard if m["kind"] == "port_opened"] == ["worker:0"]
