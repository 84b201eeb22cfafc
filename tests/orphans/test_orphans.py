"""Guard and agent killed together: exactly the orphans of their tasks die before anything else starts."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import psutil
import pytest

from support.agent_client import Agent, LocalAgent, SshAgent
from support.processes import all_processes, command_of, environment_of
from support.sshd import StartSshd, home_for_client
from support.waiting import PATIENCE, wait_gone, wait_until
from tflaunch.transport.base import AgentGoneError
from tflaunch_worker import LOCK_NAME, orphans, procfs

pytestmark = pytest.mark.agent

# A wrapper that waits for its program, which left the session (both ignore TERM), and a daemon.
PROGRAM = (
    "import os,time;os.fork() and os._exit(0);os.setsid();os.fork() and os._exit(0);os.write(1,b'up');time.sleep(9999)"
)
SCRIPT = f"""trap '' TERM; {sys.executable} -c "{PROGRAM}" & setsid sleep 9999 & sh -c 'sleep 9999; true'; true"""
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
    below = f"{directory}/"
    found = (each for each in all_processes() if environment_of(each).get("TFLAUNCH_TASK_DIR", "").startswith(below))
    return alive(list(found))


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return those that have not exited, whether or not init has reaped them."""
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def is_complete(processes: list[psutil.Process]) -> bool:
    """Return whether a task has all its processes, and none of those that start them."""
    sleeps = [process for process in processes if command_of(process)[:1] == ["sleep"]]
    return (len(processes), len(sleeps)) == (LEFT + 1, 2)


def start_task(agent: Agent) -> int:
    """Start a task, and return its process once all its children exist."""
    agent.talk.start("worker:0", "sh", "-c", SCRIPT)
    agent.talk.wait_until(lambda: b"up" in agent.talk.output.get(("worker:0", 0), b""))
    wait_until(lambda: is_complete(tasks_in(agent.directory)))
    pid: int = agent.talk.wait_for("task_started")["pid"]
    return pid


def leave_orphans(agent: Agent) -> list[psutil.Process]:
    """Kill guard and agent together under a task; return the processes that survive."""
    agent.talk.hello(lease=PATIENCE)
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


@pytest.mark.parametrize("is_awaited", [False, True])
def test_who_looks_for_a_killed_agent_or_awaits_its_end_kills_what_it_left(start: Start, is_awaited: bool) -> None:
    """`AgentGoneError`, and the end of a link, promise that no process of the run is left on the host."""
    agent = start()
    left = leave_orphans(agent)
    assert isinstance(agent, LocalAgent | SshAgent)
    if is_awaited:
        agent.connector.end()
        while agent.talk.connection.recv(1 << 16):
            pass
    else:
        with pytest.raises(AgentGoneError):
            agent.connector.resume()
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
def lock(tmp_path: Path) -> Iterator[TextIO]:
    """The lock of an agent that was killed, held by this process: agents of other tests would kill its orphans, too."""
    (tmp_path / "agent/tasks").mkdir(parents=True)
    with (tmp_path / "agent" / LOCK_NAME).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


@pytest.fixture
def directory(lock: TextIO) -> Path:
    return Path(lock.name).parent


@pytest.fixture
def sleeper(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    env = {"TFLAUNCH_RUN": "killed", "TFLAUNCH_TASK_DIR": f"{directory}/tasks/worker-0"}
    with subprocess.Popen(["sleep", "9999"], env=env) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("is_held", [False, True])
def test_an_orphan_is_killed_and_nothing_else(
    directory: Path, lock: TextIO, tmp_path: Path, sleeper: subprocess.Popen[bytes], is_held: bool
) -> None:
    """It has a task's environment, and its agent's lock is free, or held by the guard that looks."""
    assert orphans.sweep(str(directory)) == []
    moved = (directory / LOCK_NAME).rename(tmp_path / "moved")
    assert orphans.sweep(str(directory)) == []  # as if it was started by hand, or the run's directory deleted
    moved.rename(directory / LOCK_NAME)
    (tmp_path / "other").mkdir()  # two hosts of a run may be one machine
    assert orphans.sweep(str(tmp_path / "other"), is_held=True) == []
    assert sleeper.poll() is None
    if not is_held:
        fcntl.flock(lock, fcntl.LOCK_UN)
    assert orphans.sweep(str(directory), is_held=is_held, patience=PATIENCE) == []
    assert sleeper.wait() == -signal.SIGKILL


def test_a_command_in_an_orphaned_task_spares_its_own_run(directory: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """`tflaunch ps` in a task whose agent is dead spares itself, its siblings and its ancestors."""
    sweep = f"from tflaunch_worker import orphans; print(orphans.sweep({str(directory)!r}, True))"
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
            assert orphans.sweep(str(directory), is_held=True, patience=PATIENCE) == []
            assert not tasks_in(directory)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGKILL)  # a relay that was missed would run endlessly
