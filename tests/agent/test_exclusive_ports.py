"""Ports that a task binds exclusively: kept free for it, or replaced where necessary."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agent_client import Agent, LocalAgent
from support.fixed_ports import free_ports

pytestmark = pytest.mark.agent

SERVER = "import socket,sys,time;s=socket.create_server(('127.0.0.1',int(sys.argv[1])));time.sleep(300)"


def hold(agent: Agent, port: int) -> int:
    """Have a port held for TensorBoard; return the port chosen."""
    agent.talk.say("hold_ports", ports={"tensorboard": port}, exclusive=True)
    return int(agent.talk.wait_for("ports_held")["ports"]["tensorboard"])


def start(agent: Agent, task: str, port: int, *argv: str, exclusive: bool = True) -> None:
    """Start a task."""
    about = {"argv": argv, "env": {}, "unset": [], "workdir": "/", "inherit": True, "port": port}
    agent.talk.say("start_task", task=task, attempt=0, **about, exclusive=exclusive)


@pytest.fixture
def other_agent(tmp_path: Path) -> Iterator[Agent]:
    """An agent of another run on this machine."""
    started = LocalAgent(tmp_path / "other")
    yield started
    assert not (log := started.end()), log


def test_it_is_held_for_its_task(agent: Agent, other_agent: Agent) -> None:
    """No other agent gets it, for such a task or for TensorFlow; the task does, without SO_REUSEPORT."""
    agent.talk.hello()
    other_agent.talk.hello()
    (port,) = free_ports(1)
    assert hold(agent, port) == port
    assert hold(other_agent, port) != port
    other_agent.talk.say("hold_ports", ports={"worker:0": port})
    assert "worker:0" in other_agent.talk.wait_for("ports_refused")["refused"]
    start(agent, "tensorboard", port, "python3", "-c", SERVER, str(port))
    assert agent.talk.wait_for("port_opened")["task"] == "tensorboard"
    socket.create_connection(("127.0.0.1", port)).close()


def test_a_busy_one_is_not_insisted_on(agent: Agent) -> None:
    """Another port is held, also for a task that held this one before."""
    agent.talk.hello()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert hold(agent, server.getsockname()[1]) != server.getsockname()[1]


def test_what_is_left_of_old_connections_is_no_owner(agent: Agent) -> None:
    """A server that has just ended leaves its side of a connection in TIME_WAIT: its port can be reused."""
    agent.talk.hello()
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
    agent.talk.hello()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        start(agent, "tensorboard", port, "sleep", "300")
        agent.talk.wait_for("task_started", "tensorboard")
        start(agent, "worker:0", port, "sleep", "300", exclusive=False)
        agent.talk.wait_for("port_opened", "worker:0")
    assert [m["task"] for m in agent.talk.heard if m["kind"] == "port_opened"] == ["worker:0"]
