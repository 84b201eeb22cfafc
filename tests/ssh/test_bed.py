"""The beds of other tests: hosts that can be reached, lost, and removed without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from support.netns_hosts import Bed, MakeBed, need_bed
from support.processes import Living, all_processes, command_of
from support.sshd import Keyring, Sshd, StartSshd, home_for_client, wait_dead
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

    def kill(self) -> None:
        self.client.kill()
        self.client.communicate()


def has_carrier(bed: Bed, i: int) -> bool:
    return "NO-CARRIER" not in bed.execute(i, "ip", "link", "show", "eth0").stdout


def assert_unreachable(bed: Bed, i: int) -> None:
    """Connections are neither accepted nor refused."""
    with pytest.raises(TimeoutError):
        bed.connect(i, patience=0.3)


def test_controller_reaches_every_host_by_its_name(bed: Bed) -> None:
    for i in bed.hosts:
        done = subprocess.run(bed.ssh(bed.name(i), "hostname; echo $HOME; ls -A $HOME; touch $HOME/here"),
                              capture_output=True, text=True, check=True)  # fmt: skip
        assert done.stdout.split() == [bed.name(i), str(bed.home)]
        assert [file.name for file in bed.home_of(i).iterdir()] == ["here"]
    assert not [*bed.home.iterdir()], "homes are no directory of this machine"


def test_hosts_reach_each_other(bed: Bed) -> None:
    connect = "import socket; print(socket.create_connection(('h2', 22), 20).recv(4).decode())"
    assert bed.execute(1, sys.executable, "-c", connect).stdout == "SSH-\n"


def test_command_on_the_controller_keeps_directory_and_pid(bed: Bed, tmp_path: Path) -> None:
    shell = subprocess.Popen(
        [*bed.run_prefix, "sh", "-c", "echo $$; pwd; hostname"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert shell.communicate(timeout=PATIENCE)[0].split() == [str(shell.pid), str(tmp_path), "controller"]


def test_each_host_has_its_own_idea_of_names(bed: Bed) -> None:
    bed.etc_hosts[2].write_text("127.0.0.1 localhost\n127.0.1.1 h2\n10.77.0.1 h1\n")
    assert bed.execute(1, "getent", "hosts", "h2").stdout.split() == ["10.77.0.2", "h2"]
    assert bed.execute(2, "getent", "hosts", "h2").stdout.split() == ["127.0.1.1", "h2"]
    assert bed.execute(2, "getent", "hosts", "h3", check=False).returncode != 0


def test_what_is_sent_over_a_cut_cable_arrives_when_it_is_whole(bed: Bed) -> None:
    session = Session(bed.ssh("h2", ECHO))
    bed.cut(2)
    wait_until(lambda: not has_carrier(bed, 2))
    assert_unreachable(bed, 2)
    session.say("are you there?\n")
    assert has_carrier(bed, 1)
    bed.heal(2)
    assert session.hear() == "are you there?\n"
    assert session.end() == 0


def test_blackhole_shows_at_neither_end(bed: Bed) -> None:
    session = Session(bed.ssh("h2", ECHO))
    bed.blackhole(2)
    assert_unreachable(bed, 2)
    assert has_carrier(bed, 2)
    session.say("are you there?\n")
    bed.unblackhole(2)
    assert session.hear() == "are you there?\n"
    assert session.end() == 0


def test_slow_cable(bed: Bed) -> None:
    bed.delay(2, 40)
    begin = time.monotonic()
    bed.connect(2).close()
    assert time.monotonic() - begin >= 0.08
    session = Session(bed.ssh("h2", ECHO))
    bed.blackhole(2)
    assert_unreachable(bed, 2)
    bed.unblackhole(2)
    session.say("words\n")
    assert session.hear() == "words\n"
    assert session.end() == 0


def test_power_off_ends_all_processes_of_a_host_in_silence(bed: Bed) -> None:
    sessions = [Session(bed.ssh(name, ECHO)) for name in ("h1", "h2")]
    bed.execute(2, "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &")
    wait_until(lambda: {process.cmdline[:1] for process in bed.survivors(2)} == {("sleep",), ("cat",)})
    processes = [psutil.Process(pid) for pid in bed.pids(2)]
    assert "sshd" in {process.name() for process in processes}
    (bed.home_of(2) / "file").touch()

    bed.power_off(2)

    assert wait_dead(processes, 0)
    assert bed.pids(2) == []
    assert_unreachable(bed, 2)
    assert sessions[1].client.poll() is None, "the client cannot know"
    bed.power_on(2)
    assert subprocess.run(bed.ssh("h2", "ls -A $HOME"), capture_output=True, check=True).stdout == b""
    sessions[1].kill()
    assert sessions[0].end() == 0


def test_host_that_was_delayed_comes_back_with_a_fast_cable(bed: Bed) -> None:
    bed.delay(1, 2)
    bed.delay(1, 1)
    bed.power_off(1)
    assert "cable" not in {thread.name for thread in threading.enumerate()}
    bed.power_on(1)
    assert subprocess.run(bed.ssh("h1", "hostname"), capture_output=True, text=True, check=True).stdout == "h1\n"


def test_processes_are_told_by_host(bed: Bed) -> None:
    mark = f"test-{os.getpid()}"
    sleeper = subprocess.Popen([*bed.host_prefix(3), "env", f"MARK={mark}", "sleep", "1000"])
    wait_until(lambda: [process for process in bed.survivors(3) if process.cmdline[:1] == ("sleep",)])
    (process,) = bed.survivors()
    assert (process.host, process.cmdline, process.environ["MARK"]) == (3, ("sleep", "1000"), mark)
    assert process.pid in bed.pids(3)
    os.kill(process.pid, signal.SIGKILL)
    assert sleeper.wait() != 0
    assert bed.wait_empty() == []


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


def test_nothing_is_left_of_a_bed(make_bed: MakeBed) -> None:
    bed = make_bed(2)
    session = Session(bed.ssh("h1", ECHO))
    processes = [psutil.Process(pid) for pid in (*bed.pids(1), *bed.pids(2), session.client.pid)]
    bed.down()
    assert wait_dead(processes, 0)
    session.kill()


def test_nothing_is_left_of_a_bed_that_could_not_be_made(tmp_path: Path, keys: Keyring) -> None:
    need_bed()
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
    assert wait_dead(processes, PATIENCE)


# Sshd without namespaces.


def client(home: Path, name: str, *command: str) -> list[str]:
    return ["ssh", "-F", str(home / ".ssh" / "config"), name, *command]


def ssh(home: Path, name: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(client(home, name, *command), capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.fixture
def host(sshd: StartSshd) -> Sshd:
    return sshd(banner="For staff only.\n", host_keys=["host-h1", "host-h1-ecdsa"], environ={"COLOUR": "deep blue"})


def test_session_has_a_home_and_variables_of_its_own(host: Sshd, sshd: StartSshd, tmp_path: Path) -> None:
    home = home_for_client(tmp_path / "client", {"h1": host, "h2": sshd()})
    (host.home / ".bashrc").write_text("true\n")
    done = ssh(home, "h1", "echo $HOME, $COLOUR; ls -A $HOME")
    assert (done.stdout, done.returncode) == (f"{host.home}, deep blue\n.bashrc\n", 0)
    assert "For staff only." in done.stderr
    assert ssh(home, "h2", "ls -A $HOME").stdout == ""


def test_both_host_keys_are_offered(host: Sshd, tmp_path: Path) -> None:
    home = home_for_client(tmp_path / "client", {"h1": host})
    for algorithm in ("ssh-ed25519", "ecdsa-sha2-nistp256"):
        assert ssh(home, "-oHostKeyAlgorithms=" + algorithm, "h1", "true").returncode == 0


def test_broken_connections_leave_commands_alive(host: Sshd, tmp_path: Path) -> None:
    home = home_for_client(tmp_path / "client", {"h1": host})
    session = Session(client(home, "h1", "echo ready; exec sleep 1000"))
    wait_until(lambda: [each.name() for each in host.survivors()] == ["sleep"])
    host.kill_connections()
    assert session.end() == 255
    (sleeper,) = host.survivors()
    assert ssh(home, "h1", "true").returncode == 0
    sleeper.kill()
    assert host.wait_empty() == []


def test_restart_with_another_host_key_and_other_lines(host: Sshd, tmp_path: Path) -> None:
    home = home_for_client(tmp_path / "client", {"h1": host})
    session = Session(client(home, "h1", ECHO))
    host.restart("another", lines=["ForceCommand echo forced"])
    assert session.end() == 255
    assert "HOST IDENTIFICATION HAS CHANGED" in ssh(home, "h1", "true").stderr
    (home / ".ssh" / "known_hosts").write_text(host.known_hosts)
    assert ssh(home, "h1", "true").stdout == "forced\n"
