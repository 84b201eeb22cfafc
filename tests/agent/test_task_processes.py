"""Which processes are those of a task: for signals, for its end, and for what cleans up after it."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from support.agent_client import Agent
from support.processes import all_processes, command_of
from support.waiting import PATIENCE, wait_gone
from tflaunch_worker import procfs

FAMILY = """
import os, signal, sys, time

def tell(number, _):
    os.write(1, f"{signal.Signals(number).name} {name}\\n".encode())
    if number == signal.SIGUSR1:
        os._exit(0)

def begin():
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, tell)
    os.write(1, f"up {name}\\n".encode())
    while True:
        time.sleep(0.1)

def child(its_name, *steps):
    global name
    if os.fork() == 0:
        name = its_name
        for step in steps:
            step()
        begin()

def leave_parent():
    if os.fork():
        os._exit(0)

def drop_environment():
    os.execve(sys.executable, [sys.executable, __file__, name], {})

name = sys.argv[1]
if name == "leader":
    child("in its group")
    child("in a group", os.setpgrp)
    child("in a session", os.setsid)
    child("adopted", os.setsid, leave_parent)
    child("above", os.setsid, leave_parent, lambda: child("below", os.setsid, drop_environment))
    child("bare", os.setsid, drop_environment)
begin()
"""
NAMES = {"leader", "in its group", "in a group", "in a session", "adopted", "above", "below", "bare"}


@pytest.fixture
def family(new_agent: Agent, tmp_path: Path) -> Callable[[], list[psutil.Process]]:
    """Start a task with processes in groups and sessions of all kinds; return what finds those that live."""
    program = tmp_path / "family.py"
    program.write_text(FAMILY)
    new_agent.talk.hello(grace=0.2)
    new_agent.talk.start("worker:0", sys.executable, str(program), "leader")
    wait_for_all(new_agent, b"up ")
    return lambda: [each for each in all_processes() if str(program) in command_of(each)]


def wait_for_all(agent: Agent, word: bytes) -> None:
    """Wait until each process has written a line that begins with a word."""
    agent.talk.wait_until(lambda: agent.talk.output.get(("worker:0", 0), b"").count(word) >= len(NAMES))


def test_each_process_gets_a_signal_once(agent: Agent, family: Callable[[], list[psutil.Process]]) -> None:
    """In whatever group or session it is, also one whose parent is dead, or that has no environment."""
    assert len(family()) == len(NAMES)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        agent.talk.say("signal_task", task="worker:0", attempt=0, signal=number)
        wait_for_all(agent, f"{number.name} ".encode())
    heard = Counter(agent.talk.text("worker:0").splitlines())
    assert heard == Counter(f"{word} {name}" for word in ("up", "SIGTERM", "SIGUSR1") for name in NAMES)


def test_all_are_looked_at(agent: Agent, family: Callable[[], list[psutil.Process]]) -> None:
    """For stacks, as for what a task uses."""
    about = agent.talk.told(agent.talk.begin("gather_evidence"))
    assert {process["pid"] for process in about["processes"]} >= {process.pid for process in family()}


def test_a_stop_tells_all_and_leaves_none(agent: Agent, family: Callable[[], list[psutil.Process]]) -> None:
    """The ladder has TERM and KILL for each."""
    agent.talk.say("stop_task", task="worker:0", attempt=0, grace=PATIENCE)
    wait_for_all(agent, b"SIGTERM ")
    agent.talk.say("stop_task", task="worker:0", attempt=0, grace=0)
    agent.talk.wait_for("task_gone")
    assert not family()


@pytest.mark.parametrize("victim", ["guard", "agent"])
def test_nothing_of_a_family_survives(agent: Agent, family: Callable[[], list[psutil.Process]], victim: str) -> None:
    """A killed guard has adopted some of them, and the agent adopts the others."""
    guard_pid, agent_pid = agent.pids()
    os.kill(guard_pid if victim == "guard" else agent_pid, signal.SIGKILL)
    if victim == "guard":
        agent.talk.wait_for("task_gone")
        assert not family()
    agent.link.close()
    for pid in (guard_pid, agent_pid):
        wait_gone(pid)
    assert not family()


SEGMENT = """
import os, sys, time
from multiprocessing import shared_memory
segment = shared_memory.SharedMemory(create=True, size=1000)
helper = open(f"/proc/self/task/{os.getpid()}/children").read().strip()
while "resource_tracker" not in open(f"/proc/{helper}/cmdline").read():
    time.sleep(0.01)  # it is only the fork that will execute it
print(segment.name, flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


@pytest.mark.parametrize("ending", ["failure", "KILL", "death of the agent"])
def test_a_helper_cleans_up_after_its_program(agent: Agent, tmp_path: Path, ending: str) -> None:
    """As it does by hand: Python's resource tracker unlinks what a program has left in shared memory."""
    program = tmp_path / "segment.py"
    program.write_text(SEGMENT)
    guard_pid, agent_pid = agent.pids()
    agent.talk.start("worker:0", sys.executable, str(program), "0" if ending == "failure" else "300")
    agent.talk.wait_until(lambda: b"\n" in agent.talk.output.get(("worker:0", 0), b""))
    name = agent.talk.output[("worker:0", 0)].split(b"\n")[0].decode()
    if ending == "KILL":
        agent.talk.say("stop_task", task="worker:0", attempt=0, grace=0)
    if ending == "death of the agent":
        os.kill(agent_pid, signal.SIGKILL)
        wait_gone(guard_pid)
    else:
        agent.talk.wait_for("task_gone")
    assert not (Path("/dev/shm") / name).exists()


MANY = """
import os, signal, sys, time
from tflaunch_worker import linux, process_ends, procfs

linux.adopt_orphans()
for _ in range(300):
    if os.fork() == 0:
        if os.fork() == 0:
            os.write(1, b"x")
            signal.pause()
        signal.pause()
sys.stdin.read(1)
looks, look = [], procfs.descendants
procfs.descendants = lambda *roots: looks.append(1) or look(*roots)
process_ends.kill_below()
print(len(looks), process_ends.reap(), flush=True)
"""


def test_the_looks_do_not_grow_with_what_is_to_be_killed() -> None:
    """A look after each death would make it quadratic."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", MANY], stdin=pipe, stdout=pipe) as process:
        assert process.stdout.read(300) == b"x" * 300
        looks, has_left = process.communicate(b"x", PATIENCE)[0].split()
    assert has_left == b"False"
    assert int(looks) < 10


# ---- how they are found, whatever happens to others meanwhile


def test_a_child_that_the_kernel_hides_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second of the looks that must agree; one in some thousands misses a child while others are reaped."""
    read, looks = procfs.read, list[str]()

    def hide_once(path: str) -> str | None:
        looks.append(path)
        return "" if path.endswith(f"/{os.getpid()}/children") and looks.count(path) == 2 else read(path)

    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        monkeypatch.setattr(procfs, "read", hide_once)
        assert child.pid in procfs.descendants(os.getpid())
        child.communicate()


def test_a_process_that_executes_another_program_may_belong_to_anybody(tmp_path: Path) -> None:
    """It shows no environment; one that was started without any shows none for good."""
    script = tmp_path / "again.sh"
    script.write_text('[ "$1" = 0 ] || exec sh "$0" $(($1 - 1))\n')
    with (
        subprocess.Popen(["sh", script, "20000"]) as busy,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={}) as bare,
    ):
        was_seen = False
        while not was_seen and busy.poll() is None:  # as long as it takes: a busy machine may leave it no CPU
            was_seen = not procfs.environment_of(busy.pid) and procfs.is_between_programs(busy.pid)
        busy.kill()
        assert was_seen
        while procfs.environment_of(bare.pid) or procfs.is_between_programs(bare.pid):
            assert bare.poll() is None
        bare.kill()
