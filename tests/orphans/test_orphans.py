"""Guard and agent killed together: exactly the orphans of their tasks die before anything else starts."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from support.agent_client import Agent, LocalAgent, SshAgent
from support.processes import all_processes, command_of
from support.sshd import StartSshd, home_for_client
from support.waiting import wait_gone
from tflaunch.transport.base import AgentGoneError
from tflaunch_worker import LOCK_NAME, orphans, procfs

pytestmark = pytest.mark.agent

# A wrapper that waits for its program, which left the session (both ignore TERM), and a daemon.
PROGRAM = (
    "import os,time;os.fork() and os._exit(0);os.setsid();os.fork() and os._exit(0);os.write(1,b'up');time.sleep(3000)"
)
SCRIPT = f"""trap '' TERM; {sys.executable} -c "{PROGRAM}" & setsid sleep 3000 & sh -c 'sleep 3000; true'; true"""
LEFT = 4  # processes other than the task's own: the daemon, two sleeps, and the inner shell

Start = Callable[[], Agent]


@pytest.fixture(params=["pipe", pytest.param("ssh", marks=pytest.mark.ssh)])
def start(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start agents in the same directory one after another; the last must leave nothing behind."""
    started: list[Agent] = []
    if request.param == "ssh":
        start_sshd: StartSshd = request.getfixturevalue("sshd")
        host = start_sshd()
        monkeypatch.setenv("HOME", str(home_for_client(tmp_path / "user", {host.name: host})))

    def begin() -> Agent:
        started.append(LocalAgent(tmp_path) if request.param == "pipe" else SshAgent(host))
        return started[-1]

    yield begin
    started[-1].end()
    assert not tasks_in(started[-1].directory)


def tasks_in(directory: Path) -> list[psutil.Process]:
    """Return the task processes of the agent with a directory."""
    found = []
    for process in all_processes():
        try:
            place = process.environ().get("TFLAUNCH_TASK_DIR", "")
            if place.startswith(f"{directory}/") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return those that have not exited, whether or not init has reaped them."""
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def is_complete(processes: list[psutil.Process]) -> bool:
    """Return whether a task has all its processes, and none of those that start them."""
    sleeps = [process for process in processes if command_of(process)[:1] == ["sleep"]]
    return (len(processes), len(sleeps)) == (LEFT + 1, 2)


def start_task(agent: Agent) -> int:
    """Start a task, and return its process once all its children exist."""
    agent.talk.start("worker:0", "sh", "-c", SCRIPT)
    agent.talk.wait_until(lambda: b"up" in agent.talk.output.get(("worker:0", 0), b""))
    while not is_complete(tasks_in(agent.directory)):
        pass
    pid: int = agent.talk.wait_for("task_started")["pid"]
    return pid


def leave_orphans(agent: Agent) -> list[psutil.Process]:
    """Kill guard and agent together under a task; return the processes that survive."""
    agent.talk.hello(lease=60)
    task = psutil.Process(start_task(agent))
    left = [process for process in tasks_in(agent.directory) if process.pid != task.pid]
    pids = agent.pids()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in (*pids, task.pid):
        wait_gone(pid)
    return left


def test_the_next_agent_kills_what_an_earlier_one_left_before_it_greets(start: Start) -> None:
    """So no attempt can start while an orphan of an earlier one lives."""
    left = leave_orphans(start())
    agent = start()
    agent.talk.hello()
    assert not alive(left)
    agent.talk.start("worker:0", "echo", "works", attempt=1)
    assert agent.talk.text("worker:0", 1) == "works\n"


def test_who_looks_for_a_killed_agent_kills_what_it_left(start: Start) -> None:
    """`AgentGoneError` promises that no process of the run is left on the host."""
    agent = start()
    left = leave_orphans(agent)
    assert isinstance(agent, LocalAgent | SshAgent)
    with pytest.raises(AgentGoneError):
        agent.connector.resume()
    assert not alive(left)


def test_the_end_of_a_link_is_the_end_of_what_its_agent_left(start: Start) -> None:
    """Waiting for the end of a killed agent includes waiting for the end of its orphans."""
    agent = start()
    left = leave_orphans(agent)
    assert isinstance(agent, LocalAgent | SshAgent)
    agent.connector.end()
    while agent.talk.connection.recv(1 << 16):
        pass
    assert not alive(left)


def test_an_agent_of_another_run_kills_orphans_too(tmp_path: Path) -> None:
    """Whatever starts next on a host cleans up."""
    left = leave_orphans(LocalAgent(tmp_path / "killed"))
    other = LocalAgent(tmp_path / "other")
    other.talk.hello()
    for process in left:
        wait_gone(process.pid)
    other.end()


def test_tasks_of_a_living_agent_are_left_alone(start: Start) -> None:
    """Whichever process sweeps, and for whatever reason."""
    agent = start()
    agent.talk.hello()
    start_task(agent)
    orphans.sweep(str(agent.directory))
    orphans.sweep()
    assert len(tasks_in(agent.directory)) == LEFT + 1


# ---- which processes count


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of an agent that was killed."""
    (tmp_path / "agent/tasks").mkdir(parents=True)
    (tmp_path / "agent" / LOCK_NAME).touch()
    return tmp_path / "agent"


@pytest.fixture
def sleeper(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of one of its tasks."""
    env = {"TFLAUNCH_RUN": "killed", "TFLAUNCH_TASK_DIR": f"{directory}/tasks/worker-0"}
    with subprocess.Popen(["sleep", "3000"], env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def test_an_orphan_is_killed(directory: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """It has a task's environment, and its agent's lock is free."""
    assert orphans.sweep(str(directory), patience=60) == []
    assert sleeper.wait() == -signal.SIGKILL


def test_one_whose_lock_is_held_is_none(directory: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """Its guard lives; only the guard itself may declare these processes orphans."""
    with (directory / LOCK_NAME).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert orphans.sweep(str(directory)) == []
        assert sleeper.poll() is None
        assert orphans.sweep(str(directory), is_held=True, patience=60) == []
        assert sleeper.wait() == -signal.SIGKILL


def test_one_without_a_lock_is_none(directory: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """As for a task that was started by hand, or whose run directory was deleted."""
    (directory / LOCK_NAME).unlink()
    assert orphans.sweep(str(directory)) == []
    assert sleeper.poll() is None


def test_other_agents_are_left_alone(directory: Path, tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """Two hosts of a run may be one machine."""
    (tmp_path / "other").mkdir()
    assert orphans.sweep(str(tmp_path / "other")) == []
    assert sleeper.poll() is None


def test_a_command_in_an_orphaned_task_does_not_kill_its_own_run(
    directory: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    """`tflaunch ps` in a task whose agent is dead spares itself, its siblings and its ancestors."""
    sweep = f"from tflaunch_worker import orphans; print(orphans.sweep({str(directory)!r}))"
    env = {"TFLAUNCH_RUN": "killed", "TFLAUNCH_TASK_DIR": f"{directory}/tasks/worker-0"}
    nested = {**env, "TFLAUNCH_TASK_DIR": "/nowhere/tasks/worker-0", "PYTHONPATH": os.pathsep.join(sys.path)}
    for inner in (env, nested):
        words = [f"{name}={value}" for name, value in {**nested, **inner}.items()]
        script = 'env "$@"; echo done'
        shell = ["sh", "-c", script, "sh", *words, sys.executable, "-c", sweep]
        ended = subprocess.run(shell, env=env, capture_output=True, text=True, check=True)
        assert ended.stdout == "[]\ndone\n", ended.stderr
    assert sleeper.poll() is None


def test_a_guard_does_not_wait_for_its_own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has just exited may have forked, but an orphan of another agent is none of its descendants."""
    seen = []
    with subprocess.Popen(["true"]) as exited:
        os.waitid(os.P_PID, exited.pid, os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr(procfs, "pids", lambda: seen.append(exited.pid) or [os.getppid(), exited.pid])  # type: ignore[func-returns-value]
        assert orphans.sweep(is_guard=True) == []
        assert len(seen) == 1
        assert orphans.sweep() == []
        assert len(seen) == 3


def test_a_program_that_starts_others_faster_than_it_is_looked_at_is_killed(directory: Path) -> None:
    """Each process forks the next and exits: the search repeats until none is found."""
    relay = "import os,time\nwhile True:\n  if os.fork(): time.sleep(0.002); os._exit(0)\n"
    env = {"TFLAUNCH_RUN": "killed", "TFLAUNCH_TASK_DIR": f"{directory}/tasks/worker-0"}
    with subprocess.Popen([sys.executable, "-S", "-c", relay], env=env, start_new_session=True) as first:
        first.wait()
        try:
            assert orphans.sweep(str(directory), patience=60) == []
            assert not tasks_in(directory)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGKILL)  # a relay that was missed would run endlessly
