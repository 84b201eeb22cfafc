"""Files that are offered to a real agent."""

from __future__ import annotations

import hashlib

import pytest

from support.agent_client import Agent, Talk
from support.waiting import wait_gone

pytestmark = pytest.mark.agent

PART = 64 * 1024


def offer(talk: Talk, content: bytes) -> tuple[str, list[list[object]]]:
    """Offer one content for two files, in two pieces; return its hash, and what is wanted."""
    digest = hashlib.sha256(content).hexdigest()
    talk.call("offer_files", is_first=True, is_last=False, files=[["a", 0o644, digest]], links=[])
    answer = talk.call("offer_files", is_first=False, is_last=True, files=[["b", 0o644, digest]], links=[])
    return digest, answer["wanted"]


def send(talk: Talk, digest: str, content: bytes, start: int, end: int) -> None:
    """Send a file's bytes from `start` to `end`, part by part."""
    for offset in range(start, end, PART):
        data = content[offset : min(offset + PART, end)]
        is_last = offset + len(data) == len(content)
        talk.call("write_file", data, sha256=digest, offset=offset, is_last=is_last)


def test_files_are_taken_and_placed(agent: Agent) -> None:
    """The lease of an absent supervisor is kept too, though no task has been started."""
    content = bytes(range(256)) * 1024
    agent.talk.hello(lease=60)
    digest, wanted = offer(agent.talk, content)
    assert wanted == [[digest, 0]]
    greeted = agent.pids()
    send(agent.talk, digest, content, 0, 2 * PART)
    agent.link.close()
    again = agent.reconnect()
    assert int(again.hello(lease=60)["pid"]) == greeted[1]
    assert offer(again, content) == (digest, [[digest, 2 * PART]])
    send(again, digest, content, 2 * PART, len(content))
    again.wait_for("files_synced")
    assert [(agent.directory / "code" / name).read_bytes() for name in "ab"] == [content, content]
    again.say("leave", grace=0)
    wait_gone(agent.guard.pid)  # before the link is given up and this message is lost with it


def test_another_supervisor_may_offer_what_was_edited_meanwhile(agent: Agent) -> None:
    """It has read the files again; the content that the killed one has offered is gone."""
    old, new = b"old" * PART, b"new"
    agent.talk.hello(lease=60)
    digest, wanted = offer(agent.talk, old)
    assert wanted == [[digest, 0]]
    send(agent.talk, digest, old, 0, PART)
    agent.link.close()
    again = agent.reconnect()
    again.hello(lease=60)
    digest, wanted = offer(again, new)
    assert wanted == [[digest, 0]]
    send(again, digest, new, 0, len(new))
    again.wait_for("files_synced")
    assert [(agent.directory / "code" / name).read_bytes() for name in "ab"] == [new, new]
    again.say("leave", grace=0)
    wait_gone(agent.guard.pid)


def test_the_heartbeat_goes_on_while_much_is_placed(agent: Agent) -> None:
    """500 MB are hashed and copied in another process; the agent still answers."""
    size = 500_000_000
    cache = agent.directory.parents[3] / "files"
    cache.mkdir(parents=True)
    digest = hashlib.sha256(bytes(size)).hexdigest()
    with (cache / digest).open("wb") as file:
        file.truncate(size)
    agent.talk.hello()
    agent.talk.begin("offer_files", is_first=True, is_last=True, files=[["a", 0o644, digest]], links=[])
    answers = 0
    while not [message for message in agent.talk.heard if message["kind"] == "files_synced"]:
        agent.talk.heard[:] = [message for message in agent.talk.heard if message["kind"] != "alive"]
        agent.talk.keep_alive()
        agent.talk.wait_for("alive")
        answers += 1
    assert answers > 5  # one or two, if the agent did it itself
    assert (agent.directory / "code/a").stat().st_size == size


def test_parts_of_what_was_never_offered_are_refused(agent: Agent) -> None:
    """It is the mistake of one supervisor; the agent survives."""
    agent.talk.hello()
    agent.talk.begin("write_file", b"x", sha256="0" * 64, offset=0, is_last=True)
    assert "no files were offered" in agent.talk.wait_for("refused")["reason"]


@pytest.mark.parametrize("at_end", [False, True])
def test_what_was_refused_can_be_offered_again(agent: Agent, at_end: bool) -> None:
    """By the next attempt, when the disk has room, or no program writes to the file: the agent has not ended."""
    content = b"content"
    obstacle = agent.directory / "code"
    agent.talk.hello()
    digest, _ = offer(agent.talk, content)
    if at_end:
        obstacle.touch()
        send(agent.talk, digest, content, 0, 7)
    else:
        agent.talk.begin("write_file", b"another", sha256=digest, offset=0, is_last=True)
    agent.talk.wait_for("files_refused")
    obstacle.unlink(missing_ok=True)
    agent.talk.heard.clear()
    digest, wanted = offer(agent.talk, content)
    if not at_end:
        assert wanted == [[digest, 0]]
        send(agent.talk, digest, content, 0, 7)
    agent.talk.wait_for("files_synced")
    assert (agent.directory / "code/b").read_bytes() == content
