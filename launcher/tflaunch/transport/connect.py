"""Choose the connector for each host of a plan."""

from pathlib import Path

from tflaunch.errors import EXIT_USAGE, TflaunchError, missing_feature
from tflaunch.feature import features, find_host_maker, find_task_starter, load
from tflaunch.plan.model import Plan
from tflaunch.transport.base import AgentConnector, Connectors
from tflaunch.transport.local import LocalConnector


def connectors_for(plan: Plan, run: Path) -> dict[str, AgentConnector]:
    """Return the connector of each host of a plan, unconnected, for a run's directory.

    Raises:
        TflaunchError: a host needs a feature or a discovery engine that is not installed here.
    """
    maker = find_host_maker(plan)
    if maker is not None:
        return maker.connectors_for(plan, run.name)
    starter = find_task_starter(plan)
    by_kind: dict[str, Connectors] = {}
    found: dict[str, AgentConnector] = {}
    for host in plan.hosts:
        warm = starter.recipe(plan, host.host)
        if host.is_local:
            found[host.host] = LocalConnector(run / "agents" / host.host, run.name, warm)
            continue
        if host.kind not in by_kind:
            places = (feature.connectors.get(host.kind) for feature in features().values())
            place = next(filter(None, places), None)
            if place is None:
                raise TflaunchError(missing_feature(f"host {host.host}").sentence(), EXIT_USAGE)
            by_kind[host.kind] = load(place)(run.name, plan.timeouts.connect)
        found[host.host] = by_kind[host.kind].connector_to(host, warm)
    return found
