"""`tflaunch exec` on hosts that are reached over SSH: through the links that exist."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from support.launch import PATIENCE, Launch
from support.specs import TFLAUNCH
from support.sshd import StartSshd, home_for_client
from support.terminals import Terminal
from support.waiting import wait_gone

pytestmark = pytest.mark.ssh

STUBBORN = 'trap "" TERM HUP; echo $$; while :; do sleep 0.1; done'


def test_commands_run_on_other_hosts_until_their_link_is_lost(launch: Launch, sshd: StartSshd) -> None:
    """On one from a terminal, on all with their names before each line; nothing is left after a cut."""
    hosts = {name: sshd() for name in ("h1", "h2")}
    launch.env["HOME"] = str(home_for_client(launch.directory / "user", hosts))
    fields: dict[str, Any] = {
        "cluster": {"worker": ["h1", "h2"]},
        "strategy": "none",
        "timeouts": {"lease": 60, "grace": 1},
    }
    started = launch.run("up", "-d", launch.spec(**fields, workdir="~", command=["sleep", "1000"]))
    assert started.returncode == 0, started.stderr
    on_all = launch.run(
        "exec", "--all", "--", "sh", "-c", 'echo "$TFLAUNCH_TASK in $PWD"; [ $TFLAUNCH_TASK = worker:0 ]'
    )
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
    hosts["h1"].kill_connections()
    sentence = "tflaunch: the link to host h1 was lost, and the command was ended"
    _, err = piped.communicate(timeout=PATIENCE)
    assert (piped.returncode, err.decode()) == (125, f"{sentence}\n")
    shown, code = terminal.read_to_end()
    assert (code, sentence in shown) == (125, True), shown
    for pid in pids:
        wait_gone(pid)
    while launch.status()["hosts"][0]["state"] != "connected":
        pass
    again = launch.run("exec", "worker:0", "--", "echo", "again")
    assert (again.returncode, again.stdout) == (0, "again\n")
    assert launch.run("down").returncode == 0
