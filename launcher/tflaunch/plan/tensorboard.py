"""TensorBoard as a part of a run: what its process is, and how people reach it. Pure.

It is a sidecar with an address, on the host of the task that leads. It binds its port exclusively: somebody else may
take it before, and every start of it has a port of its own.
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from tflaunch.clusterspec.values import Address
from tflaunch.plan.model import AUTO, SIDECAR, HostPlan, Plan, TaskPlan

NAME = "tensorboard"
USUAL_PORT = 6006
"""Its port, where that is free."""

ADDRESS = Address("localhost", None)
"""Nobody but the users of its host can connect: whoever can may read all that it serves."""

_MODULE = "tensorboard.main"
_HOST, _PORT = "--host", "--port"
_LOOPBACK = "127.0.0.1"
_PYTHON = re.compile(r"python[\d.]*")


def command(program: str, otherwise: str, logdir: str) -> tuple[str, ...]:
    """Return what to execute; the port, its last word, is not known yet.

    Args:
        program: what the task that leads executes; if that is a Python, its TensorBoard is used.
        otherwise: the Python to use if it is none.
        logdir: the directory of event files, as in the spec.
    """
    python = program if _PYTHON.fullmatch(program.rpartition("/")[2]) else otherwise
    place = "${host:HOME}" + logdir[1:] if logdir == "~" or logdir.startswith("~/") else logdir
    return (python, "-m", _MODULE, "--logdir", place, _HOST, _LOOPBACK, _PORT, AUTO)


def is_board(process: TaskPlan) -> bool:
    """Whether a process is TensorBoard: other sidecars have no address."""
    return process.role == SIDECAR and process.address is not None


def of(plan: Plan) -> TaskPlan | None:
    """Return the plan's TensorBoard, None when it has none."""
    return next((process for process in plan.sidecars if is_board(process)), None)


def on_every_interface(process: TaskPlan) -> TaskPlan:
    """Return TensorBoard for a container, whose loopback address nobody can reach."""
    words = list(process.argv)
    words[words.index(_HOST) + 1] = "0.0.0.0"  # noqa: S104 - a container's own
    return process._replace(argv=tuple(words))


class Reach(NamedTuple):
    """How TensorBoard is reached: ``url`` in a browser on its host ``host``, None for this machine.

    ``ssh`` is the command that brings its port here, ``container`` in which it is.
    """

    url: str
    host: str | None = None
    ssh: str | None = None
    container: str | None = None

    def lines(self) -> list[str]:
        """Return it as people read it."""
        if self.container is not None:
            where = f"inside the container {self.container}, whose loopback address cannot be reached from outside"
            return [f"TensorBoard: {self.url} {where}"]
        if self.ssh is not None:
            return [f"TensorBoard: {self.url} on {self.host}; to open it here:", f"    {self.ssh}"]
        return [f"TensorBoard: {self.url}"]


def reach(plan: Plan, port: int) -> Reach:
    """Return how the plan's TensorBoard, which listens on a port, is reached."""
    process = of(plan)
    assert process is not None
    (host,) = (host for host in plan.hosts if host.host == process.host)
    url = f"http://localhost:{port}/"
    if host.is_local:
        return Reach(url)
    if host.docker is not None:
        return Reach(url, host.host, container=host.docker)
    return Reach(url, host.host, ssh=_tunnel(host, port))


def _tunnel(host: HostPlan, port: int) -> str:
    """The command that brings a port of a host here, by the way that the spec gives for it."""
    words = ["ssh", "-N", "-L", f"{port}:localhost:{port}"]
    user, at, place = (host.ssh or host.host).rpartition("@")
    address, colon, ssh_port = place.partition(":")
    words += ["-p", ssh_port] if colon else []
    words += ["-i", host.identity_file] if host.identity_file is not None else []
    return shlex.join([*words, f"{user}{at}{address}"])
