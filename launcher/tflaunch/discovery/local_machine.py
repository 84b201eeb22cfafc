"""Collect the facts about this machine that a plan needs."""

import functools
import os
import socket
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import tflaunch_worker
from tflaunch.clusterspec.values import LOCALHOST, is_ip_address, is_loopback
from tflaunch.plan.model import Machine
from tflaunch_worker import procfs

_HOSTS_FILE = Path("/etc/hosts")


def describe_machine(hosts: Iterable[str]) -> Machine:
    """Return the facts about this machine that matter for a cluster on ``hosts``."""
    return Machine(
        cores=procfs.usable_cores(),
        local_names=frozenset(host for host in set(hosts) if is_this_machine(host)),
        environ=dict(os.environ),
        python_directory=_python_directory(),
        server_program=str(Path(tflaunch_worker.__file__).with_name("training") / "server.py"),
    )


def is_this_machine(host: str) -> bool:
    """Whether a host of a spec is this machine, by its names and addresses."""
    name, own = host.lower(), socket.gethostname().lower()
    if name in (LOCALHOST, own, own.partition(".")[0]):
        return True
    addresses = [host] if is_ip_address(host) else _addresses_in_hosts_file(name)
    return any(is_loopback(address) or address in own_addresses() for address in addresses)


def _addresses_in_hosts_file(name: str) -> list[str]:
    """Return the addresses that /etc/hosts gives a name; DNS might take seconds."""
    try:
        lines = _HOSTS_FILE.read_text("utf-8", "replace").lower().splitlines()
    except OSError:
        return []
    return [words[0] for line in lines if name in (words := line.partition("#")[0].split())[1:]]


@functools.cache
def own_addresses() -> frozenset[str]:
    """Return the addresses of this machine's interfaces.

    To try to bind an address would say less: where net.ipv4.ip_nonlocal_bind is set, all can be bound.
    """
    import psutil  # takes 8 ms, and only specs with numeric hosts need it

    return frozenset(address.address for interface in psutil.net_if_addrs().values() for address in interface)


def _python_directory() -> str | None:
    """Return the directory of `python` of an environment that is not activated.

    This applies if tflaunch was started by its path there. The user expects that environment's interpreter then, but
    PATH may have another one or none. The environment that pipx or `uv tool` makes for tflaunch alone is not meant,
    unless it has TensorFlow: tasks could not train in it.
    """
    is_environment = sys.prefix != sys.base_prefix
    is_any_active = bool(os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX"))
    is_tool = Path(sys.argv[0]).is_symlink() and find_spec("tensorflow") is None
    return str(Path(sys.executable).parent) if is_environment and not is_any_active and not is_tool else None
