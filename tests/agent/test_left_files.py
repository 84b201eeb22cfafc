"""Files that tasks leave, with a real agent: a task is gone when the supervisor has them, or does not want them."""

from __future__ import annotations

from typing import Any

import pytest

from support.agent_client import Agent, Talk
from support.waiting import wait_gone

pytestmark = pytest.mark.agent

TASK = "worker:0"
WANTED = {"outcome": 1000}
LEAVE = 'printf "%s" "$TFLAUNCH_ATTEMPT: value" >"$TFLAUNCH_TASK_DIR/outcome"'


def announced(talk: Talk) -> dict[str, Any]:
    """Return the first file that is announced over a new connection."""
    return talk.told(talk.begin("watch_left_files"))


def release(talk: Talk, attempt: int = 0) -> None:
    talk.say("release_file", task=TASK, attempt=attempt, name="outcome")


def is_gone(talk: Talk) -> bool:
    return any(message["kind"] == "task_gone" for message in talk.heard)


def test_it_waits_for_another_link(agent: Agent) -> None:
    """Each supervisor hears of the file until one has it."""
    agent.talk.hello(lease=60)
    agent.talk.start(TASK, "sh", "-c", LEAVE, left_files=WANTED)
    found = announced(agent.talk)
    assert (found["task"], found["attempt"], found["name"], found["size"]) == (TASK, 0, "outcome", 8)
    assert not is_gone(agent.talk)
    agent.link.close()
    again = agent.reconnect()
    again.hello(lease=60)
    assert announced(again) == found
    assert again.call("read_file", task=TASK, attempt=0, name="outcome", offset=3)["body"] == b"value"
    assert not is_gone(again)
    release(again)
    again.wait_for("task_gone")
    assert not (agent.directory / "tasks" / "worker-0" / "outcome").exists()
    again.say("leave", grace=0)
    again.acknowledge((TASK, 0, 0, True))
    wait_gone(agent.guard.pid)  # before the link is closed, and "leave" perhaps lost with it


def test_the_next_attempt_starts_without_it(agent: Agent) -> None:
    """What a killed agent or a task without a wish left there is not taken for the next attempt's."""
    agent.talk.hello()
    agent.talk.begin("watch_left_files")
    agent.talk.start(TASK, "sh", "-c", LEAVE)
    agent.talk.wait_for("task_gone")
    agent.talk.heard.clear()
    agent.talk.start(TASK, "true", attempt=1, left_files=WANTED)
    agent.talk.wait_for("task_gone")
    assert not any(message["kind"] == "told" for message in agent.talk.heard)


def test_a_kill_does_not_wait(agent: Agent) -> None:
    """The second Ctrl-C ends a task whose file is on a slow link."""
    agent.talk.hello()
    agent.talk.start(TASK, "sh", "-c", LEAVE, left_files=WANTED)
    announced(agent.talk)
    agent.talk.say("stop_task", task=TASK, attempt=0, grace=0)
    agent.talk.wait_for("task_gone")
    about: dict[str, Any] = {"task": TASK, "attempt": 0, "name": "outcome", "offset": 0}
    assert agent.talk.call("read_file", **about)["body"] == b""  # so that its reader goes on


def test_the_lease_does_not_wait(agent: Agent) -> None:
    """Without a supervisor, the file will never be taken."""
    agent.talk.hello(lease=60)
    guard, _ = agent.pids()
    agent.talk.start(TASK, "sh", "-c", LEAVE, left_files=WANTED)
    announced(agent.talk)
    again = agent.reconnect()
    again.hello(lease=1, grace=0.2)
    agent.link.close()
    again.connection.close()
    wait_gone(guard)
