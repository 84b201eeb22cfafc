"""TensorBoard on another host: the printed command that reaches it, and that nothing is left there."""

from __future__ import annotations

import shlex
import subprocess
import urllib.request

import pytest

from support.fake_tensorboard import Said, stand_in
from support.fixed_ports import free_ports
from support.launch import PATIENCE, Launch
from support.sshd import StartSshd, home_for_client

pytestmark = pytest.mark.ssh

UNTIL_GO = "until test -e go; do sleep 0.05; done"


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
    refused = launch.run("tensorboard")
    assert refused.returncode == 2
    assert "are not on this machine: they are on h1" in refused.stderr
