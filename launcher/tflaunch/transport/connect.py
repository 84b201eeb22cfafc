"""Choose the connector for each host of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tflaunch.errors import EXIT_USAGE, TflaunchError, missing_feature
from tflaunch.feature import features, find_host_maker, find_task_starter, load
from tflaunch.plan.model import HostPlan, Plan
from tflaunch.transport.base import AgentConnector, Connectors
from tflaunch.transport.local import LocalConnector


class Directory(Protocol):
    """The part of a run directory that connectors need."""

    run: str

    def agent_directory(self, host: str) -> Path:
        """Return the path of the agent's directory on this machine."""


def connectors_for(plan: Plan, directory: Directory) -> dict[str, AgentConnector]:
    """Return the connector for each host of a plan, without connecting.

    Raises:
        TflaunchError: a host needs a feature or a discovery engine that is not installed here.
    """
    maker = find_host_maker(plan)
    if maker is not None:
        return maker.connectors_for(plan, directory.run)
    starter = find_task_starter(plan)
    by_kind: dict[str, Connectors] = {}
    found: dict[str, AgentConnector] = {}
    for host in plan.hosts:
        warm = starter.recipe(plan, host.host)
        if host.is_local:
            found[host.host] = LocalConnector(directory.agent_directory(host.host), directory.run, warm)
            continue
        if host.kind not in by_kind:
            by_kind[host.kind] = load(_place_of_connectors(host))(directory.run, plan.timeouts.connect)
        found[host.host] = by_kind[host.kind].connector_to(host, warm)
    return found


def _place_of_connectors(host: HostPlan) -> str:
    for feature in features().values():
        if host.kind in feature.connectors:
            return feature.connectors[host.kind]
    raise TflaunchError(missing_feature(f"host {host.host}").sentence(), EXIT_USAGE)
