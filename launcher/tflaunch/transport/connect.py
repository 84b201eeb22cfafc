"""Choose the connector for each host of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tflaunch.discovery import base
from tflaunch.discovery.base import NotFoundError
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.plan import preloading
from tflaunch.plan.model import HostPlan, Plan
from tflaunch.rooms import find_host_maker
from tflaunch.transport.base import AgentConnector
from tflaunch.transport.local import LocalConnector

if TYPE_CHECKING:
    from tflaunch.transport.command import CommandAccess


class Directory(Protocol):
    """The part of a run directory that connectors need."""

    run: str

    def agent_directory(self, host: str) -> Path:
        """Return the path of the agent's directory on this machine."""


def connectors_for(plan: Plan, directory: Directory) -> dict[str, AgentConnector]:
    """Return the connector for each host of a plan, without connecting.

    Raises:
        TflaunchError: a host needs a discovery engine that is not installed here.
    """
    found: dict[str, AgentConnector] = {
        host.host: LocalConnector(
            directory.agent_directory(host.host), directory.run, preloading.warm_recipe(plan, host.host)
        )
        for host in plan.hosts
        if host.is_local
    }
    maker = find_host_maker(plan)
    if maker is not None:
        return maker.connectors_for(plan, directory.run)
    commanded = [host for host in plan.hosts if host.docker is not None or host.engine is not None]
    if commanded:
        from tflaunch.transport.command import CommandConnectors

        commands = CommandConnectors(directory.run, plan.timeouts.connect)
        found.update({host.host: commands.connector_to(host, _access(host)) for host in commanded})
    if len(found) < len(plan.hosts):
        from tflaunch.transport.ssh import SshConnectors  # paramiko takes a tenth of a second to import

        ssh = SshConnectors(directory.run, plan.timeouts.connect)
        found.update(
            {
                host.host: ssh.connector_to(host, preloading.warm_recipe(plan, host.host))
                for host in plan.hosts
                if host.host not in found
            }
        )
    return found


def _access(host: HostPlan) -> CommandAccess:
    """Return how to run a command on a host that needs no SSH."""
    from tflaunch.transport.command import CommandAccess

    if host.docker is not None:
        return CommandAccess(("docker", "exec", "--interactive", host.docker))
    name, handle = base.split_source(host.engine or "")
    try:
        engine = base.find_engine(name)
        words = engine.words(host.host, handle) or ()
    except NotFoundError as error:
        raise TflaunchError(f"{host.host}: {error}; {error.hint}", EXIT_USAGE) from None
    return CommandAccess(tuple(words), engine.holds, lambda: engine.is_over(handle))
