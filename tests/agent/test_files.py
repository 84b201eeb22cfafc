"""Files that tasks leave for the supervisor, and files that it offers, with a real agent."""

import hashlib

import pytest

from support.agent_client import Agent, Talk
from support.waiting import PATIENCE, wait_gone

TASK = "worker:0"
WANTED = {"left_files": {"outcome": 1000}}
LEAVE = 'printf "%s" "$TFLAUNCH_ATTEMPT: value" >"$TFLAUNCH_TASK_DIR/outcome"'
PART = 64 * 1024


FILE = f"{TASK}/outcome"

# ---- left by tasks: a task is gone when the supervisor has them, or does not want them


def arrived(talk: Talk) -> tuple[int, str]:
    """Return offset and content of what comes of a file over a connection."""
    found = talk.wait_for("output", task=FILE, attempt=0)
    return found["offset"], talk.text(FILE)


def is_gone(talk: Talk) -> bool:
    return any(message["kind"] == "task_gone" for message in talk.heard)


def test_it_waits_for_another_link(new_agent: Agent) -> None:
    """Each supervisor gets the rest of the file until one has all of it."""
    new_agent.talk.hello(lease=PATIENCE)
    new_agent.talk.start(TASK, "sh", "-c", LEAVE, order=WANTED)
    assert arrived(new_agent.talk) == (0, "0: value")
    new_agent.talk.acknowledge((FILE, 0, 3, False))
    new_agent.talk.keep_alive()
    new_agent.talk.wait_for("alive")
    assert not is_gone(new_agent.talk)
    new_agent.link.close()
    again = new_agent.reconnect()
    again.output[(FILE, 0)] = b"0: "
    again.hello(lease=PATIENCE)
    assert arrived(again) == (3, "0: value")
    assert not is_gone(again)
    again.acknowledge((FILE, 0, 8, True))
    again.wait_for("task_gone")
    assert not (new_agent.directory / "tasks" / "worker-0" / "outcome").exists()
    again.say("leave", grace=0)
    again.acknowledge((TASK, 0, 0, True))
    wait_gone(new_agent.guard.pid)  # before the link is closed, and "leave" perhaps lost with it


def test_the_next_attempt_starts_without_it(agent: Agent) -> None:
    """What a killed agent or a task without a wish left there is not taken for the next attempt's."""
    agent.talk.start(TASK, "sh", "-c", LEAVE)
    agent.talk.wait_for("task_gone")
    agent.talk.heard.clear()
    agent.talk.start(TASK, "true", attempt=1, order=WANTED)
    agent.talk.wait_for("task_gone")
    assert not any(message.get("task") == FILE for message in agent.talk.heard)


def test_a_kill_does_not_wait(agent: Agent) -> None:
    """The second Ctrl-C ends a task whose file is on a slow link, and no other; the end of the run ends all."""
    for task in (TASK, "worker:1"):
        agent.talk.start(task, "sh", "-c", LEAVE, order=WANTED)
        agent.talk.wait_for("output", task=f"{task}/outcome")
    agent.talk.say("stop_task", task="worker:1", attempt=0, grace=0)
    agent.talk.wait_for("task_gone", task="worker:1")
    agent.talk.acknowledge(("worker:1/outcome", 0, 8, True))  # late, as it was on its way
    agent.talk.keep_alive()
    agent.talk.wait_for("alive")
    assert [message["task"] for message in agent.talk.heard if message["kind"] == "task_gone"] == ["worker:1"]
    agent.talk.say("leave", grace=0)
    agent.talk.wait_for("task_gone", task=TASK)


# ---- offered by the supervisor


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


@pytest.mark.parametrize("is_edited", [False, True])
def test_files_are_taken_and_placed(new_agent: Agent, is_edited: bool) -> None:
    """The lease of an absent supervisor is kept too, though no task has been started.

    The next one has read the files again: of what was edited meanwhile, the content that was offered before is gone.
    """
    content = bytes(range(256)) * 1024
    new_agent.talk.hello(lease=PATIENCE)
    digest, wanted = offer(new_agent.talk, content)
    assert wanted == [[digest, 0]]
    greeted = new_agent.pids()
    send(new_agent.talk, digest, content, 0, 2 * PART)
    new_agent.link.close()
    again = new_agent.reconnect()
    assert int(again.hello(lease=PATIENCE)["pid"]) == greeted[1]
    content, start = (b"new", 0) if is_edited else (content, 2 * PART)
    digest, wanted = offer(again, content)
    assert wanted == [[digest, start]]
    send(again, digest, content, start, len(content))
    again.wait_for("host_prepared")
    assert [(new_agent.directory / "code" / name).read_bytes() for name in "ab"] == [content, content]
    again.say("leave", grace=0)
    wait_gone(new_agent.guard.pid)  # before the link is given up and this message is lost with it


def test_the_heartbeat_goes_on_while_much_is_placed(agent: Agent) -> None:
    """200 MB are hashed and copied in another process; the agent still answers."""
    size = 200_000_000
    cache = agent.directory.parents[3] / "files"
    cache.mkdir(parents=True)
    digest = hashlib.sha256(bytes(size)).hexdigest()
    with (cache / digest).open("wb") as file:
        file.truncate(size)
    agent.talk.begin("offer_files", is_first=True, is_last=True, files=[["a", 0o644, digest]], links=[])
    answers = 0
    while not [message for message in agent.talk.heard if message["kind"] == "host_prepared"]:
        agent.talk.heard[:] = [message for message in agent.talk.heard if message["kind"] != "alive"]
        agent.talk.keep_alive()
        agent.talk.wait_for("alive")
        answers += 1
    assert answers > 5  # one or two, if the agent did it itself
    assert (agent.directory / "code/a").stat().st_size == size
