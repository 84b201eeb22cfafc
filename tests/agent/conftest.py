"""A real agent for each test, over each kind of link; it must leave nothing behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agent_client import Agent, LocalAgent, SshAgent
from support.sshd import StartSshd, home_for_client


@pytest.fixture(params=["pipe", pytest.param("ssh", marks=[pytest.mark.ssh, pytest.mark.thorough])])
def new_agent(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """An agent that no supervisor has greeted yet."""
    started: Agent
    if request.param == "pipe":
        started = LocalAgent(tmp_path)
    else:
        start: StartSshd = request.getfixturevalue("sshd")
        host = start()
        monkeypatch.setenv("HOME", str(home_for_client(tmp_path / "user", {host.name: host})))
        started = SshAgent(host)
    yield started
    assert not (log := started.end()), log


@pytest.fixture
def agent(new_agent: Agent) -> Agent:
    """An agent that ends with its link."""
    new_agent.talk.hello()
    return new_agent


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalAgent]:
    agent = LocalAgent(tmp_path)
    agent.talk.hello()
    yield agent
    assert not (log := agent.end()), log
