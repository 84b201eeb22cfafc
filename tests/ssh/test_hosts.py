"""`tflaunch up` over real sshd processes on this machine."""

import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.launch import PATIENCE, Launch, read_errors_until, read_until, wait_for_end
from support.specs import TFLAUNCH
from support.sshd import USER, Sshd, StartSshd, home_for_client

PATIENT = {"lease": PATIENCE}
"""For what must not be lost, however busy the machine is."""


def shell_on(launch: Launch, hosts: Mapping[str, Sshd], script: str, settings: Any = None, **fields: Any) -> Path:
    """Write a spec with one shell task per host, and add the hosts to the user's known hosts."""
    if "HOME" not in launch.env or not launch.env["HOME"].startswith(str(launch.directory)):
        launch.env["HOME"] = str(home_for_client(launch.directory / "user", hosts))
    cluster = {"worker": [*hosts]}
    return launch.spec(
        **{"cluster": cluster, "strategy": "none", "command": ["sh", "-c", script], "workdir": "~", **fields},
        hosts=settings or {},
    )


def test_tasks_run_on_their_hosts(launch: Launch, sshd: StartSshd) -> None:
    """In the host's home, with the spec's environment and nothing of a login; the agent is uploaded once.

    Directories have mode 0700 during the run, and none of them remains afterwards.
    """
    hosts = {"h1": sshd(environ={"LOGIN": "yes"}), "h2": sshd()}
    script = 'echo "$TFLAUNCH_TASK $PWD $HOME $GREETING ${LOGIN-none} $PATH"; test ! -t 0; '
    script += "echo modes $(stat -c %a $TFLAUNCH_TASK_DIR $(dirname $(dirname $TFLAUNCH_TASK_DIR))) $(umask)"
    spec = shell_on(launch, hosts, script, env={"GREETING": "hello from ${host:USER}"})
    for _ in range(2):
        ended = launch.succeed("up", spec)
    assert ended.stdout.count("modes 700 700 0022\n") == 2
    for index, host in enumerate(hosts.values()):
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        who = f"worker:{index} {host.home} {host.home} hello from {host.user} none"
        assert re.search(rf"{who} (/\S+:)?{path}\n", ended.stdout)
        assert not host.wait_empty()
        state = host.home / ".local/state/tflaunch"
        cache = state / "agents"
        (unpacked,) = (path for path in cache.iterdir() if path.is_dir())
        files = {path for path in host.home.rglob("*") if path.is_file()}
        assert {path for path in files if unpacked not in path.parents} == {cache / "lock"}
        assert list(unpacked.glob("tflaunch_worker/agent/__pycache__/agent.cpython-*.pyc"))
        assert not list(state.glob("runs/*"))


def test_hosts_may_have_ipv6_addresses(launch: Launch, sshd: StartSshd) -> None:
    """In the spec or in SSH's configuration, where a host is reached and by which address the others reach it."""
    hosts = {"h1": sshd(address="::1"), "[2001:db8::5]": sshd(address="::1")}
    settings = {"h1": {"ssh": f"[::1]:{hosts['h1'].port}", "address": "[::1]"}}
    spec = shell_on(launch, hosts, 'echo "$HOME $TF_CONFIG"', settings)
    shown = launch.run("plan", spec, "--json").stdout
    assert f'"ssh": "[::1]:{hosts["h1"].port}"' in shown, "without connecting to it"
    config = Path(launch.env["HOME"], ".ssh/config")
    config.write_text(
        config.read_text().replace("Host [2001:db8::5]", "Host 2001:db8::5").replace("Host h1", "Host ::1")
    )
    ended = launch.succeed("up", spec)
    for index, (host, address) in enumerate(zip(hosts.values(), (r"\[::1\]", r"\[2001:db8::5\]"), strict=True)):
        said = re.search(rf"worker:{index} \| {host.home} (.*)", ended.stdout)
        assert said, ended.stdout
        assert re.search(rf'"{address}:\d+"', said[1])


def test_ctrl_z_does_not_end_a_training(launch: Launch, sshd: StartSshd) -> None:
    """A stopped supervisor would send no keep-alive; SIGSTOP, which cannot be ignored, is told of afterwards."""
    script = "echo up; until test -e go; do sleep 0.05; done"
    host = sshd()
    running = launch.start("up", shell_on(launch, {"h1": host}, script, timeouts=PATIENT), until="up")
    running.send_signal(signal.SIGTSTP)
    read_errors_until(running, "Ctrl-Z is ignored")
    assert psutil.Process(running.pid).status() != psutil.STATUS_STOPPED
    running.send_signal(signal.SIGSTOP)
    running.send_signal(signal.SIGCONT)
    read_errors_until(running, "tflaunch was stopped and goes on")
    (host.home / "go").touch()
    assert running.wait(PATIENCE) == 0


def test_a_broken_connection_costs_nothing(launch: Launch, sshd: StartSshd) -> None:
    """SIGKILL to sshd's side, repeatedly: the same processes keep training, no line is lost or duplicated."""
    host = sshd()
    count, times = 3000, 4
    wait = "[ $((i % 500)) != 0 ] || until [ -e go$i ]; do sleep 0.01; done"
    script = f"echo $$; i=0; while [ $i -lt {count} ]; do i=$((i+1)); echo line $i; {wait}; done"
    running = launch.start("up", shell_on(launch, {"h1": host}, script, timeouts=PATIENT))
    for number in range(1, count // 500 + 1):
        read_until(running, f"line {number * 500}\n")
        if number <= times:
            host.kill_connections()
        (host.home / f"go{number * 500}").touch()
    _, err = wait_for_end(running)
    assert err.count("lost the link to h1") == times
    first, *lines = launch.log("worker:0").splitlines()
    assert first.isdigit()
    assert lines == [f"line {number}" for number in range(1, count + 1)]


def test_a_forwarded_agent_ends_with_its_login(launch: Launch, sshd: StartSshd) -> None:
    """The start warns of it, and the status says why a lost link is not restored."""
    here, host = sshd("here"), sshd("h1")
    spec = shell_on(launch, {"h1": host}, "sleep 9999", timeouts={**PATIENT, "grace": 0.2})
    config, late = (Path(launch.env["HOME"], ".ssh", name) for name in ("config", "late"))
    config.write_text(
        re.sub("IdentityFile .*", f"IdentityFile {late}", config.read_text()).replace("Only yes", "Only no")
    )
    known = launch.directory / "known"
    known.write_text(here.known_hosts)
    environment = [f"{name}={launch.env[name]}" for name in ("HOME", "TFLAUNCH_HOME", "PATH")]
    command = shlex.join(["env", *environment, str(TFLAUNCH), "up", "-d", str(spec)])
    options = ["-F", "none", "-p", str(here.port), "-o", f"UserKnownHostsFile={known}", "-i", str(here.client_key)]
    login = shlex.join(["ssh", "-A", *options, f"{here.user}@{here.address}", command])
    begun = launch.paste(f"eval $(ssh-agent); ssh-add -q {here.client_key}; {login}; code=$?; ssh-agent -k; exit $code")
    assert begun.returncode == 0, begun.stderr
    assert "warning: the keys for h1 are in an ssh-agent that is forwarded to this machine" in begun.stderr
    host.kill_connections()
    read_until(launch.start("events", "--follow"), "there is no key to log in with")
    (shown,) = launch.status()["hosts"]
    assert shown["state"] == "disconnected"
    assert "the connection was closed; there is no key to log in with" in shown["reason"]
    shutil.copy(host.client_key, late)
    launch.succeed("down")


# ---- hosts that no task can start on

Make = Callable[[Sshd], object]
Faults = dict[str, tuple[Make, dict[str, Any], tuple[str, ...]]]


def fake_python(path: Path, version: str) -> None:
    """Write an interpreter that reports another version."""
    numbers = tuple(int(part) for part in version.split("."))
    trick = f"import sys; sys.version_info = {numbers}; sys.version = '{version} (main)'; exec(sys.argv[-2])"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{trick}" "$@"\n')
    path.chmod(0o755)


def login(lines: str) -> Make:
    """Return what gives a host a start-up file of the shell."""
    return lambda host: (host.home / ".bashrc").write_text(f"{lines}\n")


def open_directory(host: Sshd) -> None:
    (host.home / "open").mkdir()
    (host.home / "open").chmod(0o777)


USELESS: Faults = {
    "exit": (login("exit 3"), {}, ("ended with code 3",)),
    "endless": (login("while :; do echo noise; done"), {}, ("prints without end",)),
    "sessions": (
        lambda host: host.restart(lines=["MaxSessions 0"]),
        {},
        (f"its sshd lets user {USER} in, but opens no session (open failed); raise MaxSessions in its sshd_config",),
    ),
    "missing": (lambda _: None, {"python": "/no/such/python"}, ("there is no /no/such/python", "set hosts.missing.")),
    "old": (
        lambda host: fake_python(host.home / "old", "3.6.9"),
        {"python": "~/old"},
        ("is Python 3.6.9, too old", "set hosts.old.python"),
    ),
    "broken": (lambda _: None, {"python": "/bin/false"}, ("/bin/false there ended with code 1", "hosts.broken.python")),
    "nowhere": (lambda _: None, {"env": {"TFLAUNCH_HOME": "/proc/nowhere"}}, ("No such file", "hosts.nowhere.env")),
    "open": (open_directory, {"env": {"TFLAUNCH_HOME": "~/open"}}, ("can be written to by others", "hosts.open.env")),
    "off": (lambda host: host.stop_listening(), {}, ("refuses connections",)),
}
"""What is wrong with a host, the fields of it, and what the sentence about it says."""
SILENT: Faults = {
    "silence": (login("exec cat >/dev/null"), {}, ("did not start our program in time; its start-up files",)),
    "question": (login("echo '1) first'; echo 'Which?'; read answer"), {}, ("but printed '1) first / Which?';",)),
    "errors": (login("echo 'Which?' >&2; read answer"), {}, ("in time, but printed 'Which?';",)),
}


@pytest.mark.parametrize(("faults", "connect"), [(USELESS, PATIENCE), (SILENT, 10)], ids=["useless", "silent"])
def test_all_hosts_or_none(launch: Launch, sshd: StartSshd, faults: Faults, connect: int) -> None:
    """All hosts that no task can start on are named, one sentence each, and nothing was started on the others."""
    hosts = {name: sshd(name) for name in ("good", *faults)}
    settings = {}
    for name, (make, fields, _) in faults.items():
        make(hosts[name])
        settings[name] = fields
    ended = launch.up(shell_on(launch, hosts, "touch started", settings, timeouts={"connect": connect}), code=3)
    sentences = dict(line.removeprefix("tflaunch: ").split(": ", 1) for line in ended.stderr.splitlines())
    assert [*sentences] == [*faults]
    for name, (_, _, words) in faults.items():
        assert all(each in sentences[name] for each in words), sentences[name]
    assert not (hosts["good"].home / "started").exists()
    assert not hosts["good"].wait_empty()


def test_noise_of_a_login_cannot_be_taken_for_us(launch: Launch, sshd: StartSshd) -> None:
    """100 KB of banner, start-up files that write to both outputs, and a shell that echoes every command."""
    host = sshd(banner="welcome\n" * 12_500)
    noise = "printf 'motd %s\\n' $(seq 20000)"
    (host.home / ".bashrc").write_text(f'{noise}; {noise} >&2; printf \'{{"kind": "ready"}}\\n\'; set -x; exec 2>&1\n')
    ended = launch.succeed("up", shell_on(launch, {"h1": host}, "echo fine"))
    assert "fine" in ended.stdout


PRINT_PLACE = "import os, tflaunch_worker.training as t; print(t.workers(), t.__file__, os.environ['PYTHONPATH'])"


def test_what_programs_need_travels_too(launch: Launch, sshd: StartSshd) -> None:
    """A host needs no installation of tflaunch: its library, and the program of the standard server, come along.

    The user's PYTHONPATH takes precedence.
    """
    host = sshd()
    script = 'grep -o "tf.distribute.Server" $0; exec /usr/bin/python3 -c "$1"'
    command = ["sh", "-c", script, "${host:TFLAUNCH_SERVER}", PRINT_PLACE]
    fields: dict[str, Any] = {"command": command, "env": {"PYTHONPATH": "/mine"}, "strategy": "multi_worker_mirrored"}
    ended = launch.succeed("up", shell_on(launch, {"h1": host}, "", **fields))
    assert "tf.distribute.Server" in ended.stdout
    count, place, path = ended.stdout.splitlines()[-1].partition(" | ")[2].split()
    archive, modules = path.removeprefix("/mine:").split(":")
    assert (count, place) == ("1", f"{archive}/tflaunch_worker/training/__init__.py")
    assert modules == f"{archive}/tflaunch_worker/features/debug/in_tasks"
    assert archive.startswith(str(host.directory))
