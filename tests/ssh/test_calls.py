"""`tflaunch exec`, `debug` and `profile` for tasks on hosts over SSH: through the links that exist."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from support.launch import PATIENCE, Launch
from support.specs import TFLAUNCH
from support.sshd import StartSshd, home_for_client
from support.terminals import Terminal
from support.waiting import wait_gone, wait_until

pytestmark = pytest.mark.ssh

STUBBORN = 'trap "" TERM HUP; echo $$; while :; do sleep 0.1; done'
PROGRAM = """
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
    command = ["/usr/bin/python3", "-c", PROGRAM]
    started = launch.run("up", "-d", launch.spec(**fields, command=command, timeouts=limits))
    assert started.returncode == 0, started.stderr
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
    assert piped.stdout is not None
    pids = [int(piped.stdout.readline()), int(terminal.read_until(b"\n"))]
    # Profiles come home into the run's directory.
    made = launch.run("profile", "--for", "500ms")
    assert made.returncode == 0, made.stderr
    assert sorted(line[:9] for line in made.stdout.splitlines()) == ["worker:0:", "worker:1:"]
    profiles = launch.run_directory() / "profiles/python"
    (session,) = profiles.iterdir()
    stacks = [path.read_text() for path in session.glob("*.folded")]
    assert ["main thread;<module> (<string>:" in text for text in stacks] == [True, True]
    lasting = launch.start("profile", "--for", "10m", "worker:0")
    wait_until(lambda: len(list(profiles.iterdir())) == 2, lasting)

    hosts["h1"].kill_connections()

    sentence = "tflaunch: the link to host h1 was lost, and the command was ended"
    _, err = piped.communicate(timeout=PATIENCE)
    assert (piped.returncode, err.decode()) == (125, f"{sentence}\n")
    shown, code = terminal.read_to_end()
    assert (code, sentence in shown) == (125, True), shown
    for pid in pids:
        wait_gone(pid)
    _, said = lasting.communicate(timeout=PATIENCE)
    assert (lasting.returncode, "worker:0 is not profiled: the link to its host is lost" in said) == (125, True), said
    wait_until(lambda: launch.status()["hosts"][0]["state"] == "connected")
    again = launch.run("exec", "worker:0", "--", "echo", "again")
    assert (again.returncode, again.stdout) == (0, "again\n")

    for host in hosts.values():
        (host.home / "enough").touch()
    launch.wait_for_log("worker:1", "limit 3")
    wait_until(lambda: launch.records("breakpoint_reached", task="worker:0"))
    terminal = Terminal(launch, "tflaunch debug worker:0")
    terminal.read_until(b"(Pdb) ")
    terminal.type(b"!limit = 4\n")
    terminal.read_until(b"(Pdb) ")
    hosts["h1"].kill_connections()
    shown, code = terminal.read_to_end()
    assert (code, "the link to the host of worker:0 was lost; the task keeps waiting" in shown) == (125, True), shown
    wait_until(lambda: launch.status()["hosts"][0]["state"] == "connected")
    terminal = Terminal(launch, "tflaunch debug worker:0")
    terminal.read_until(b"(Pdb) ")
    terminal.type(b"c\n")
    assert terminal.read_to_end()[1] == 0
    assert launch.run("wait").returncode == 0
    assert "limit 4" in launch.log("worker:0")
