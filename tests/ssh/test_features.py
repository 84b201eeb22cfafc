"""Features on hosts that are reached over SSH."""

import hashlib
import json
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.fake_tensorboard import Said, stand_in
from support.fixed_ports import free_ports
from support.launch import Launch, read_until, wait_for_end
from support.netns_hosts import Bed
from support.processes import all_processes, command_of
from support.specs import TFLAUNCH
from support.sshd import Sshd, StartSshd, home_for_client
from support.terminals import Terminal
from support.waiting import PATIENCE, wait_gone, wait_until
from tflaunch.errors import EXIT_INTERNAL
from tflaunch_worker.features.preload import warm_client

from .test_hosts import shell_on

UNTIL_GO = "until test -e go; do sleep 0.05; done"

# ---- `exec`, `debug` and `profile`: through the links that exist

STUBBORN = 'trap "" TERM HUP; echo $$; while :; do sleep 0.1; done'
TRAINS = """
import os
print("trains", flush=True)
while not os.path.exists("enough"):
    sum(range(1000))
limit = 3
if os.environ["TFLAUNCH_TASK"] == "worker:0":
    breakpoint()
print("limit", limit, flush=True)
"""


def test_calls_end_with_their_link_and_tasks_go_on(launch: Launch, sshd: StartSshd) -> None:
    """Whoever called hears it in a sentence, and can call again; of a command nothing is left."""
    hosts = {name: sshd() for name in ("h1", "h2")}
    launch.env["HOME"] = str(home_for_client(launch.directory / "user", hosts))
    fields: dict[str, Any] = {"cluster": {"worker": ["h1", "h2"]}, "strategy": "none", "workdir": "~"}
    limits = {"lease": PATIENCE, "grace": 1}
    command = ["/usr/bin/python3", "-c", TRAINS]
    launch.detach(launch.spec(**fields, command=command, timeouts=limits))
    for task in ("worker:0", "worker:1"):
        launch.wait_for_log(task, "trains")
    # On one from a terminal, on all with their names before each line.
    script = 'echo "$TFLAUNCH_TASK in $PWD"; [ $TFLAUNCH_TASK = worker:0 ]'
    on_all = launch.run("exec", "--all", "--", "sh", "-c", script)
    assert sorted(on_all.stdout.splitlines()) == [
        f"{name} | worker:{number} in {host.home}" for number, (name, host) in enumerate(hosts.items())
    ]
    assert (on_all.returncode, on_all.stderr) == (1, "tflaunch: h2: exit code 1\n")
    words = [str(TFLAUNCH), "exec", "worker:0", "--", "sh", "-c", STUBBORN]
    pipe = subprocess.PIPE
    piped = subprocess.Popen(words, cwd=launch.directory, env=launch.env, stdin=pipe, stdout=pipe, stderr=pipe)
    terminal = Terminal(launch, f"tflaunch exec worker:0 -- sh -c '{STUBBORN}'")
    pids = [int(piped.stdout.readline()), int(terminal.read_until(b"\n"))]
    # Profiles come home into the run's directory.
    made = launch.succeed("profile", "--for", "500ms")
    assert sorted(line[:9] for line in made.stdout.splitlines()) == ["worker:0:", "worker:1:"]
    profiles = launch.run_directory() / "profiles/python"
    (session,) = profiles.iterdir()
    stacks = [path.read_text() for path in session.glob("*.folded")]
    assert ["main thread;<module> (<string>:" in text for text in stacks] == [True, True]
    lasting = launch.start("profile", "--for", "10m", "worker:0")
    wait_until(lambda: len(list(profiles.iterdir())) == 2, lasting)

    hosts["h1"].kill_connections()

    sentence = "tflaunch: host h1: the link was lost, and the command was ended"
    _, err = piped.communicate(timeout=PATIENCE)
    assert (piped.returncode, err.decode()) == (125, f"{sentence}\n")
    shown, code = terminal.read_to_end()
    assert (code, sentence in shown) == (125, True), shown
    for pid in pids:
        wait_gone(pid)
    _, said = lasting.communicate(timeout=PATIENCE)
    assert (lasting.returncode, "worker:0 is not profiled: the link was lost" in said) == (125, True), said
    wait_until(lambda: launch.status()["hosts"][0]["state"] == "connected")
    again = launch.run("exec", "worker:0", "--", "echo", "again")
    assert (again.returncode, again.stdout) == (0, "again\n")

    for host in hosts.values():
        (host.home / "enough").touch()
    launch.wait_for_log("worker:1", "limit 3")
    wait_until(lambda: launch.records("breakpoint_reached", task="worker:0"))
    terminal = Terminal(launch, "tflaunch debug worker:0", b"(Pdb) ")
    terminal.type(b"!limit = 4\n", b"(Pdb) ")
    hosts["h1"].kill_connections()
    shown, code = terminal.read_to_end()
    assert (code, "the link to the host of worker:0 was lost; the task keeps waiting" in shown) == (125, True), shown
    wait_until(lambda: launch.status()["hosts"][0]["state"] == "connected")
    terminal = Terminal(launch, "tflaunch debug worker:0", b"(Pdb) ")
    terminal.type(b"c\n")
    assert terminal.read_to_end()[1] == 0
    launch.succeed("wait")
    assert "limit 4" in launch.log("worker:0")


# ---- files come home

WRITE = (
    "mkdir -p outputs && head -c 700000 /dev/urandom >outputs/model-{task.index} && echo written && "
    "until test -e {go}; do sleep 0.1; done"
)


def test_a_host_that_cannot_be_reached_at_the_end(launch: Launch, sshd: StartSshd) -> None:
    """The others' files are here, and its files come with `tflaunch fetch`."""
    hosts = {"h1": sshd(), "h2": sshd()}
    launch.env["HOME"] = str(home_for_client(launch.directory / "user", hosts))
    go = launch.directory / "go"
    about: Any = {"name": "mine.json", "cluster": {"worker": [*hosts]}, "sync": {}, "collect": ["outputs"]}
    spec = launch.shell(WRITE.replace("{go}", str(go)), strategy="none", **about)
    running = launch.start("up", spec, until="written", count=2)
    hosts["h2"].stop_listening()
    go.touch()
    _, err = wait_for_end(running)
    place = launch.run_directory() / "collected"
    assert f"1 file (684K) of worker:0 on h1: {place / 'worker-0'}\n" in err
    assert "nothing of worker:1 on h2 was fetched: " in err
    assert f"to fetch the rest: tflaunch fetch {launch.run_directory().name}" in err
    assert not (place / "worker-1").exists()

    assert launch.run("fetch", "mine").returncode == EXIT_INTERNAL
    hosts["h2"].restart()
    fetched = launch.succeed("fetch", "mine")
    assert f"1 file (684K) of worker:1 on h2: {place / 'worker-1'}\n" in fetched.stderr
    for index, host in enumerate(hosts.values()):
        (there,) = host.home.glob(".local/state/tflaunch/runs/*/agents/*/code/outputs/*")
        assert (place / f"worker-{index}" / "outputs" / there.name).read_bytes() == there.read_bytes()
        assert not host.wait_empty()


# ---- TensorBoard


def test_the_command_that_is_told_leads_to_it(launch: Launch, sshd: StartSshd) -> None:
    """By the spec's own route to the host; here its port differs, because both are one machine.

    The command that shows the event files on this machine says that they are not here.
    """
    host = sshd()
    launch.env["HOME"] = str(home_for_client(launch.directory / "user", {"h1": host}))
    stand_in(host.home)
    spec = launch.spec(
        cluster={"worker": ["h1"]}, strategy="none", command=["sh", "-c", UNTIL_GO], workdir="~", tensorboard="logs",
        env={"PYTHONPATH": str(host.home)}, timeouts={"lease": PATIENCE, "grace": 0.2},
        hosts={"h1": {"ssh": f"{host.user}@{host.address}:{host.port}", "identity_file": str(host.client_key)}},
    )  # fmt: skip
    (launch.directory / "user/.ssh/known_hosts").write_text(host.known_hosts)
    running = launch.start("up", spec)
    said = Said(running)
    port = int(said.until(r"TensorBoard: http://localhost:(\d+)/ on h1; to open it here:")[1])
    told = said.until(r"tflaunch:     (ssh -N .*)")[1]
    assert told == f"ssh -N -L {port}:localhost:{port} -p {host.port} -i {host.client_key} {host.user}@{host.address}"
    (here,) = free_ports(1)
    command = shlex.split(told.replace(f"{port}:localhost", f"{here}:localhost"))
    command[1:1] = ["-v", "-F", str(launch.directory / "user/.ssh/config")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tunnel:
        Said(tunnel).until("Entering interactive session")
        with urllib.request.urlopen(f"http://127.0.0.1:{here}/", timeout=PATIENCE) as page:
            assert page.status == 200
        tunnel.terminate()
    assert f"TensorBoard: http://localhost:{port}/ on h1, after {told}" in launch.run("ps").stdout
    (host.home / "go").touch()
    assert running.wait(PATIENCE) == 0
    assert not host.wait_empty()
    refused = launch.run("tensorboard", code=2)
    assert "are not on this machine: they are on h1" in refused.stderr


# ---- warm servers

PRINT_PID = "import os, mine; print(mine.pid, mine.value, os.getcwd() == os.environ['HOME'])"


def server_on(host: Sshd) -> int:
    """Return the only warm server on a host."""
    (status,) = warm_client.living_servers(str(host.home / ".local/state/tflaunch/warm")).values()
    return int(status["pid"])


@pytest.mark.thorough
def test_servers_are_started_listed_and_stopped_there(launch: Launch, sshd: StartSshd) -> None:
    """Runs are forked from one unless its modules have changed; a host that is not reached is named."""
    hosts = {"h1": sshd(), "h2": sshd()}
    module = launch.directory / "mine.py"
    module.write_text("import os\npid, value = os.getpid(), 'one'\n")
    fields: dict[str, Any] = {"env": {"PYTHONPATH": str(launch.directory)}, "preload": ["mine"], "warm": "10m"}
    spec = shell_on(launch, hosts, "", command=[sys.executable, "-c", PRINT_PID], **fields)
    ended = launch.succeed("warm", spec, "--json")
    started = {server["host"]: server["pid"] for server in json.loads(ended.stdout)}
    assert started == {name: server_on(host) for name, host in hosts.items()}
    out = launch.up(spec).stdout
    assert all(f"{pid} one True" in out for pid in started.values())
    listed = launch.run("warm", "--list", spec).stdout.splitlines()[1:]
    assert [line.split()[:3] for line in listed] == [[name, sys.executable, "mine"] for name in hosts]
    module.write_text("import os\npid, value = os.getpid(), 'second'\n")
    assert launch.up(spec).stdout.count("second True") == 2
    for pid in started.values():
        wait_gone(pid)
    left = {name: server_on(host) for name, host in hosts.items()}
    for name, host in hosts.items():
        assert not host.wait_empty(besides=[left[name]])
    hosts["h2"].stop_listening()
    ended = launch.run("warm", "--stop", spec)
    assert ended.stderr.startswith("tflaunch: ended 1 warm server\ntflaunch: h2: ")
    assert (ended.returncode, hosts["h1"].wait_empty()) == (125, [])
    psutil.Process(left["h2"]).kill()
    wait_gone(left["h2"])
    assert json.loads(launch.run("warm", "--json").stdout) == []


# ---- secrets: in no file and on no command line

VALUE, TOKEN = "s3cret-of-a-variable", "t0ken-of-a-variable"
DIGEST = hashlib.sha256(VALUE.encode()).hexdigest()
"""How a key in a file would end its first line; certificates may be told."""


def content_of(path: Path) -> bytes:
    """Return what is in a file; nothing if it has been removed."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


@pytest.mark.thorough
def test_nothing_on_a_host_shows_them(bed: Bed, launch: Launch, tmp_path: Path) -> None:
    """While tasks that have them run; nor do the files of the launcher. No variable stands on a command line."""
    bed.control(launch).env["LAUNCHER_KEY"] = VALUE
    enough = tmp_path / "enough"
    script = f'printf %s "$API_KEY" | sha256sum; until test -e {enough}; do sleep 0.05; done'
    fields: dict[str, Any] = {"secrets": {"API_KEY": {"env": "LAUNCHER_KEY"}}, "env": {"TOKEN": TOKEN}}
    cluster, command = {"worker": ["h1", "h2"]}, ["sh", "-c", script]
    running = launch.start("up", launch.spec(cluster=cluster, strategy="none", command=command, **fields))
    read_until(running, DIGEST, 2)
    places = [launch.home, *(bed.home_of(i) for i in (1, 2))]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert any(path.name == "plan.json" for path in files)
    assert any("tflaunch_worker" in path.parts for path in files)
    shown = {str(path): content_of(path) for path in files}
    lines = {str(process): "\0".join(process.cmdline).encode() for process in bed.processes()}
    lines |= {str(process): "\0".join(command_of(process)).encode() for process in all_processes()}
    assert not [process for process, line in lines.items() if TOKEN.encode() in line], "a value of `env`"
    shown |= lines
    assert not [place for place, data in shown.items() if VALUE.encode() in data]
    enough.touch()
    wait_for_end(running)
