"""Which way leads to which host of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tflaunch.hosts.link import Way
from tflaunch.hosts.local import LocalWay
from tflaunch.plan import Plan


class Directory(Protocol):
    """What is needed of a run directory."""

    run: str

    def agent_directory(self, host: str) -> Path:
        """Return the place of the agent's directory on this machine."""


def ways_to_hosts(plan: Plan, directory: Directory) -> dict[str, Way]:
    """Return the way to every host of a plan. Nothing is reached yet."""
    found: dict[str, Way] = {
        host.host: LocalWay(directory.agent_directory(host.host), directory.run) for host in plan.hosts if host.is_local
    }
    containers = [host for host in plan.hosts if host.docker is not None]
    if containers:
        from tflaunch.hosts.docker import DockerWays

        docker = DockerWays(directory.run, plan.timeouts.connect)
        found.update({host.host: docker.way(host) for host in containers})
    if len(found) < len(plan.hosts):
        from tflaunch.hosts.ssh import SshWays  # paramiko takes a tenth of a second to import

        ssh = SshWays(directory.run, plan.timeouts.connect)
        found.update({host.host: ssh.way(host) for host in plan.hosts if host.host not in found})
    return found
