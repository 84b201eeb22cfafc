"""The beds of other tests: hosts that can be reached, lost, and removed without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from support.netns_hosts import Bed, MakeBed, need_bed
from support.processes import Living, all_processes, command_of
from support.sshd import Keyring, StartSshd, home_for_client, wait_dead
from support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.ssh

ECHO = "echo ready; exec cat"
# Makes a bed, prints its processes, and waits for its end.
OWNER = """
import os, sys
from pathlib import Path
from support.netns_hosts import Bed
from support.sshd import Keyring
bed = Bed(Path(sys.argv[1]), Keyring(Path(sys.argv[2])), 2)
bed.up()
print(*bed.pids(1), *bed.pids(2), bed._switch, flush=True)
sys.stdin.read()
"""


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


def test_hosts_have_homes_names_and_a_network(bed: Bed, tmp_path: Path) -> None:
    """The controller reaches each by its name, they reach each other, and each has its own idea of names."""
    for i in bed.hosts:
        said = output(bed.ssh(bed.name(i), "hostname; echo $HOME; ls -A $HOME; touch $HOME/here"))
        assert said.split() == [bed.name(i), str(bed.home)]
        assert [file.name for file in bed.home_of(i).iterdir()] == ["here"]
    assert not [*bed.home.iterdir()], "homes are no directory of this machine"
    connect = "import socket; print(socket.create_connection(('h2', 22), 20).recv(4).decode())"
    assert bed.execute(1, sys.executable, "-c", connect).stdout == "SSH-\n"
    words = [*bed.run_prefix, "sh", "-c", "echo $$; pwd; hostname"]
    shell = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert shell.communicate(timeout=PATIENCE)[0].split() == [str(shell.pid), str(tmp_path), "controller"]
    bed.etc_hosts[2].write_text("127.0.0.1 localhost\n127.0.1.1 h2\n10.77.0.1 h1\n")
    assert bed.execute(1, "getent", "hosts", "h2").stdout.split() == ["10.77.0.2", "h2"]
    assert bed.execute(2, "getent", "hosts", "h2").stdout.split() == ["127.0.1.1", "h2"]
    assert bed.execute(2, "getent", "hosts", "h3", check=False).returncode != 0


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


def test_slow_cable(bed: Bed) -> None:
    """Its frames are late, it can be blocked like any other, and ends with the power."""
    bed.delay(2, 400)
    with pytest.raises(TimeoutError):
        bed.connect(2, patience=0.5)
    bed.delay(2, 1)
    session = Session(bed.ssh("h2", ECHO))
    bed.blackhole(2)
    assert_unreachable(bed, 2)
    bed.unblackhole(2)
    session.say("words\n")
    assert session.hear() == "words\n"
    assert session.end() == 0
    bed.power_off(2)
    assert "cable" not in {thread.name for thread in threading.enumerate()}
    bed.power_on(2)
    assert output(bed.ssh("h2", "hostname")) == "h2\n"


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


def test_nothing_is_left_of_a_bed(make_bed: MakeBed, tmp_path: Path, keys: Keyring) -> None:
    """Also of one that could not be made."""
    bed = make_bed(2)
    session = Session(bed.ssh("h1", ECHO))
    processes = [psutil.Process(pid) for pid in (*bed.pids(1), *bed.pids(2), session.client.pid)]
    bed.down()
    assert wait_dead(processes, 0)
    session.end()
    bed = Bed(tmp_path / "bed", keys, lines=["NoSuchKeyword yes"])
    with pytest.raises(AssertionError, match="NoSuchKeyword"), bed:
        pass
    assert not [process for process in all_processes() if str(bed.directory) in " ".join(command_of(process))]


def test_nothing_is_left_of_a_bed_whose_owner_was_killed(tmp_path: Path, keys: Keyring) -> None:
    need_bed()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, tmp_path / "bed", keys.directory],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert owner.stdout is not None
    processes = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
    assert len(processes) >= 3  # and perhaps what served the connection that found an sshd ready
    owner.kill()
    owner.communicate()
    assert wait_dead(processes)


# ---- sshd without namespaces


def test_sessions_of_an_sshd(sshd: StartSshd, tmp_path: Path) -> None:
    """They have a home, variables and keys of their own, outlive their connections, and end with a restart."""
    host = sshd(banner="For staff only.\n", host_keys=["host-h1", "host-h1-ecdsa"], environ={"COLOUR": "deep blue"})
    home = home_for_client(tmp_path / "client", {"h1": host, "h2": sshd()})

    def command(name: str, *words: str) -> list[str]:
        return ["ssh", "-F", str(home / ".ssh" / "config"), name, *words]

    def run(name: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = command(name, *words)
        return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)

    (host.home / ".bashrc").write_text("true\n")
    done = run("h1", "echo $HOME, $COLOUR; ls -A $HOME")
    assert (done.stdout, done.returncode) == (f"{host.home}, deep blue\n.bashrc\n", 0)
    assert "For staff only." in done.stderr
    assert run("h2", "ls -A $HOME").stdout == ""
    for algorithm in ("ssh-ed25519", "ecdsa-sha2-nistp256"):
        assert run("-oHostKeyAlgorithms=" + algorithm, "h1", "true").returncode == 0
    session = Session(command("h1", "echo ready; exec sleep 1000"))
    wait_until(lambda: [each.name() for each in host.survivors()] == ["sleep"])
    host.kill_connections()
    assert session.end() == 255
    (sleeper,) = host.survivors()
    assert run("h1", "true").returncode == 0
    sleeper.kill()
    assert host.wait_empty() == []
    session = Session(command("h1", ECHO))
    host.restart("another", lines=["ForceCommand echo forced"])
    assert session.end() == 255
    assert "HOST IDENTIFICATION HAS CHANGED" in run("h1", "true").stderr
    (home / ".ssh" / "known_hosts").write_text(host.known_hosts)
    assert run("h1", "true").stdout == "forced\n"
