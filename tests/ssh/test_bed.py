"""The beds of other tests: hosts that can be reached, lost, and removed without a trace."""

from __future__ import annotations

import os
import signal
import subprocess

import psutil
import pytest

from support.netns_hosts import Bed
from support.processes import Living
from support.sshd import wait_dead
from support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.ssh

ECHO = "echo ready; exec cat"


class Session:
    """An open connection of OpenSSH's client, with a command that answers."""

    def __init__(self, argv: list[str]) -> None:
        pipe = subprocess.PIPE
        self.client = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        assert self.hear() == "ready\n"

    def say(self, words: str) -> None:
        assert self.client.stdin is not None
        self.client.stdin.write(words)
        self.client.stdin.flush()

    def hear(self) -> str:
        assert self.client.stdout is not None
        return self.client.stdout.readline()

    def end(self) -> int:
        """Return the exit code."""
        self.client.communicate(timeout=PATIENCE)
        return self.client.returncode


def has_carrier(bed: Bed, i: int) -> bool:
    return "NO-CARRIER" not in bed.execute(i, "ip", "link", "show", "eth0").stdout


def assert_unreachable(bed: Bed, i: int) -> None:
    """Connections are neither accepted nor refused."""
    with pytest.raises(TimeoutError):
        bed.connect(i, patience=0.3)


def output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_what_is_sent_over_a_cable_without_a_connection_arrives_later(bed: Bed) -> None:
    """A cut shows at the host, a black hole at neither end."""
    session = Session(bed.ssh("h2", ECHO))
    bed.cut(2)
    wait_until(lambda: not has_carrier(bed, 2))
    assert_unreachable(bed, 2)
    session.say("after a cut\n")
    assert has_carrier(bed, 1)
    bed.heal(2)
    assert session.hear() == "after a cut\n"
    bed.blackhole(2)
    assert_unreachable(bed, 2)
    assert has_carrier(bed, 2)
    session.say("after a black hole\n")
    bed.unblackhole(2)
    assert session.hear() == "after a black hole\n"
    assert session.end() == 0


def test_power_off_ends_all_processes_of_a_host_in_silence(bed: Bed) -> None:
    sessions = [Session(bed.ssh(name, ECHO)) for name in ("h1", "h2")]
    bed.execute(2, "sh", "-c", "setsid env MARK=mine sleep 1000 >/dev/null 2>&1 &")
    wait_until(lambda: {process.cmdline[:1] for process in bed.survivors(2)} == {("sleep",), ("cat",)})
    (sleeper,) = (process for process in bed.survivors() if process.cmdline[:1] == ("sleep",))
    assert (sleeper.host, sleeper.environ["MARK"], sleeper.pid in bed.pids(2)) == (2, "mine", True)
    processes = [psutil.Process(pid) for pid in bed.pids(2)]
    assert "sshd" in {process.name() for process in processes}
    (bed.home_of(2) / "file").touch()

    bed.power_off(2)

    assert wait_dead(processes, 0)
    assert bed.pids(2) == []
    assert_unreachable(bed, 2)
    assert sessions[1].client.poll() is None, "the client cannot know"
    bed.power_on(2)
    assert output(bed.ssh("h2", "ls -A $HOME")) == ""
    sessions[1].client.kill()
    sessions[1].end()
    assert sessions[0].end() == 0


def test_watch_sees_two_attempts_of_one_task_wherever_they_are(bed: Bed) -> None:
    def begin(host: int, task: str, attempt: int, run: str = "mine") -> Living:
        env = [f"TFLAUNCH_RUN={run}", f"TFLAUNCH_TASK={task}", f"TFLAUNCH_ATTEMPT={attempt}"]
        bed.execute(host, "env", *env, "setsid", "sh", "-c", "sleep 1000 >/dev/null 2>&1 &")
        return Living(task, attempt, host)

    def end(host: int) -> None:
        for process in bed.survivors(host):
            os.kill(process.pid, signal.SIGKILL)
        assert bed.wait_empty(host) == []

    with bed.watch("mine") as watch:
        begin(3, "worker:0", 9, run="another")
        first, other = begin(1, "worker:0", 0), begin(2, "worker:1", 0)
        watch.wait_until(lambda living: living == {first, other})
        end(1)
        watch.wait_until(lambda living: living == {other})
        assert not watch.clashes()
        second = begin(2, "worker:0", 1)
        watch.wait_until(lambda living: living == {second, other})
        assert not watch.clashes()
        first = begin(1, "worker:0", 0)
        watch.wait_until(lambda living: living == {first, second, other})
        assert [clash for _, clash in watch.clashes()] == [[first, second]] * len(watch.clashes()) != []
        for i in bed.hosts:
            end(i)
    assert watch.samples[-1].living == frozenset()
