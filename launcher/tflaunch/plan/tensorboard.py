"""TensorBoard as a part of a run: its process, and how users reach it. Pure.

It is a sidecar on the host of the leading task. Its program takes `USUAL_PORT`, or the next free one; its agent looks
which one that is.
"""

import re
import shlex
from typing import NamedTuple

from tflaunch.clusterspec.values import Address, bracketed, split_address
from tflaunch.plan.model import HostPlan, Plan, TaskPlan

NAME = "tensorboard"
USUAL_PORT = 6006
"""The port that it takes if it is free."""

ADDRESS = Address("localhost", None)
"""Only users of its host can connect, because TensorBoard serves its data without authentication."""

# Its working directory is the task's, in which a module of any name may lie: `python -m` would import from there.
APART = "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "
"""The beginning of a program (`python -c`) that imports nothing from its working directory."""

PROGRAM = APART + "import runpy; runpy.run_module('tensorboard.main', run_name='__main__', alter_sys=True)"
"""TensorBoard, for `python -c`."""

HOST_OPTION = "--host"
_PYTHON = r"python[\d.]*"


def command(program: str, otherwise: str, logdir: str) -> tuple[str, ...]:
    """Return the command of TensorBoard, which chooses its port.

    Args:
        program: the program of the leading task; if it is a Python interpreter, its TensorBoard is used.
        otherwise: the interpreter to use if it is not.
        logdir: the directory of event files, as in the spec.
    """
    python = program if re.fullmatch(_PYTHON, program.rpartition("/")[2]) else otherwise
    place = "${host:HOME}" + logdir[1:] if logdir == "~" or logdir.startswith("~/") else logdir
    return (python, "-c", PROGRAM, "--logdir", place, HOST_OPTION, "127.0.0.1")


def is_board(process: TaskPlan) -> bool:
    """Whether a process is the TensorBoard of a run, not a sidecar of that name."""
    return process.task == NAME and process.address is not None


def tensorboard_of(plan: Plan) -> TaskPlan | None:
    """Return the plan's TensorBoard, None if it has none."""
    return next((process for process in plan.sidecars if is_board(process)), None)


class Reach(NamedTuple):
    """How to reach TensorBoard: ``url`` in a browser on ``host``, None if it is here.

    ``tunnel`` is the command that forwards its port to this machine, ``container`` the container that it runs in.
    """

    url: str
    host: str | None = None
    tunnel: str | None = None
    container: str | None = None

    def lines(self) -> list[str]:
        """Return the lines to show to users."""
        if self.container is not None:
            where = f"inside the container {self.container}, whose loopback address cannot be reached from outside"
            return [f"TensorBoard: {self.url} {where}"]
        if self.tunnel is not None:
            return [f"TensorBoard: {self.url} on {self.host}; to open it here:", f"    {self.tunnel}"]
        return [f"TensorBoard: {self.url}"]


def reach(plan: Plan, port: int) -> Reach:
    """Return how to reach the plan's TensorBoard, which listens on ``port``."""
    process = tensorboard_of(plan)
    assert process is not None
    host = plan.host(process.host)
    url = f"http://localhost:{port}/"
    if host.is_local:
        return Reach(url)
    if host.docker is not None:
        return Reach(url, host.host, container=host.docker)
    if plan.made_hosts is not None:
        return Reach(url, host.host, tunnel=shlex.join([*plan.made_hosts.port_forward, host.host, str(port)]))
    return Reach(url, host.host, tunnel=_tunnel(host, port))


def _tunnel(host: HostPlan, port: int) -> str:
    """Return the ssh command that forwards a host's port to this machine."""
    words = ["ssh", "-N", "-L", f"{port}:localhost:{port}"]
    user, at, place = (host.ssh or bracketed(host.host)).rpartition("@")
    address, ssh_port = split_address(place)
    words += ["-p", ssh_port] if ssh_port is not None else []
    words += ["-i", host.identity_file] if host.identity_file is not None else []
    return shlex.join([*words, f"{user}{at}{address}"])
